"""Programs of other compilers and languages: g++, clang, Go, Rust. What a probe reads is what the program prints."""

import os
import re
import subprocess

import pytest

from tests.elf.files import run

pytestmark = [pytest.mark.root, pytest.mark.slow]

CPLUSPLUS = r"""
extern "C" int printf(const char *, ...);
namespace shop {
enum class Size : short { small = -1, large = 300 };
struct Item { int price; const char *name; unsigned flags : 5; };
class Cart {
    int count = 0;
public:
    long total = 0;
    __attribute__((noinline)) long add(const Item &item, unsigned char times, Size size, bool gift);
    template <class T> __attribute__((noinline)) T twice(T value) { __asm__ volatile("" : : "r"(this), "r"(&value) : "memory"); return value + value; }
};
long Cart::add(const Item &item, unsigned char times, Size size, bool gift)
{
    count += times;
    total += item.price * times + (int)size + gift;
    printf("%d %s %u %d %d %d %ld\n", item.price, item.name, item.flags, times, (int)size, gift, total);
    return total;
}
}
int main()
{
    shop::Cart cart;
    shop::Item tea = {-7, "tea", 19}, pot = {1200, "pot", 3};
    printf("%s %s\n", tea.name, pot.name);      // a probe reads no page that is not there yet
    long a = cart.add(tea, 200, shop::Size::small, true), b = cart.add(pot, 1, shop::Size::large, false);
    printf("%d\n", cart.twice(21));
    printf("%ld %ld\n", a, b);
}
"""
SCRIPT = (r'uprobe:./shop:cpp:"shop::Cart::add" { printf("%d %s %u %d %d %d\n", args.item->price, str(args.item->name), '
          r'args.item->flags, args.times, args.size, args.gift); @this[args.this != 0] = count(); } '
          r'uretprobe:./shop:cpp:"shop::Cart::add" { printf("%d\n", retval); } '
          r'uprobe:./shop:cpp:"shop::Cart::twice<int>" { printf("%s %d\n", func, args.value); }')


def check_cplusplus(rawbpf, folder):
    done = rawbpf("trace", "-q", "-c", "./shop", "-o", "out", "-e", SCRIPT, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout.splitlines()[1:]      # by the program
    first, second = (line.rsplit(" ", 1) for line in printed[:2])
    totals = printed[3].split()
    assert (folder / "out").read_text().split("\n\n")[0].splitlines() == [
        first[0], totals[0], second[0], totals[1], "int shop::Cart::twice<int>(int) 21"]
    assert "@this[true]: 2\n" in (folder / "out").read_text()
    listed = rawbpf("list", "-v", 'uprobe:./shop:cpp:"shop::Cart::add*"', cwd=folder).stdout
    assert re.search(r"const struct Item ?\* item\n", listed) or "Item" in listed


@pytest.mark.parametrize("flags", [("-O2",), ("-O2", "-gdwarf-4", "-no-pie"), ("-O1", "-gsplit-dwarf"), ("-Os", "-gz", "-static")],
                         ids=" ".join)
def test_gplusplus(rawbpf, tmp_path, flags):
    (tmp_path / "shop.cc").write_text(CPLUSPLUS)
    run("g++", "-g", *flags, "-o", "shop", "shop.cc", cwd=tmp_path)
    check_cplusplus(rawbpf, tmp_path)


@pytest.mark.peer
@pytest.mark.parametrize("flags", [("-O2",), ("-O1", "-gdwarf-4"), ("-O2", "-gsplit-dwarf")], ids=" ".join)
def test_clang(rawbpf, tmp_path, flags):
    from tests.bpfcc import clang
    (tmp_path / "shop.cc").write_text(CPLUSPLUS)
    run(*clang(), "-x", "c++", "-g", *flags, "-c", "-o", "shop.o", "shop.cc", cwd=tmp_path)
    run("g++", "-o", "shop", "shop.o", cwd=tmp_path)
    check_cplusplus(rawbpf, tmp_path)


GO = """package main
import "fmt"
%s
//go:noinline
func work(x int) int { return x*3 + 1 }
func main() { s := 0; for i := 0; i < 5; i++ { s += work(i) }; fmt.Println(s%s) }
"""


@pytest.mark.demand
@pytest.mark.parametrize("release", [("bookworm", "1.19"), ("sid", "1.26"), ("sid", "1.27")], ids=lambda r: r[1])
@pytest.mark.parametrize("flags", [("-ldflags", "-s -w"), (), ("-buildmode=pie", "-ldflags", "-s -w")], ids=str)
@pytest.mark.parametrize("cgo", (False, True), ids=("", "cgo"))
def test_go(rawbpf, tmp_path, release, flags, cgo, monkeypatch):
    """Row 21 of the reports: stripped or not, the probe is on the function, or it is refused."""
    from tests.elf import test_golang
    monkeypatch.setattr(test_golang, "PROGRAM", GO)
    test_golang.build(release, tmp_path, *flags, cgo=cgo)
    done = rawbpf("trace", "-q", "-c", "./p", "-e", 'uprobe:./p:main.work { @[func, reg("ax")] = count(); }', cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.split()[0] == "35"
    assert re.findall(r"^@\[main\.work, (\d)\]: 1$", done.stdout, re.M) == ["0", "1", "2", "3", "4"]
    refused = rawbpf("trace", "-e", "uretprobe:./p:main.work { }", cwd=tmp_path)
    assert refused.returncode != 0 and "is a Go program" in refused.stderr and "--unsafe" in refused.stderr
    assert rawbpf("trace", "--dry-run", "--unsafe", "-e", "uretprobe:./p:main.work { }", cwd=tmp_path).returncode == 0


RUST = r"""
mod app { pub struct Cart { pub total: i64 }
impl Cart { #[inline(never)] pub fn add(&mut self, price: i32, times: u8) -> i64 {
    self.total += price as i64 * times as i64; println!("{} {} {}", price, times, self.total); self.total } } }
fn main() { let mut cart = app::Cart { total: 0 }; cart.add(-7, 200); cart.add(12, 3); }
"""


@pytest.mark.demand
@pytest.mark.parametrize("mangling", ("legacy", "v0"))
def test_rust(rawbpf, tmp_path, mangling):
    from tests.debian import Suite
    root = Suite("bookworm").root("rustc", ["rustc", "libstd-rust-dev"])
    (tmp_path / "cart.rs").write_text(RUST)
    libraries = ":".join(str(root / path) for path in ("usr/lib/x86_64-linux-gnu", "usr/lib", "lib/x86_64-linux-gnu"))
    subprocess.run([root / "usr/bin/rustc", "--sysroot", root / "usr", "-g", "-O", "-C", "symbol-mangling-version=" + mangling,
                    "-Z", "unstable-options", "cart.rs"],
                   cwd=tmp_path, check=True, env=dict(os.environ, LD_LIBRARY_PATH=libraries, RUSTC_BOOTSTRAP="1"))
    done = rawbpf("trace", "-q", "-c", "./cart", "-o", "out", "-e", 'uprobe:./cart:cpp:"*Cart*::add" '
                  r'{ printf("%d %d %s|%s\n", args.price, args.times, func, ustack(1)); }', cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    printed = [line.split()[:2] for line in done.stdout.splitlines()]
    found = re.findall(r"^(-?\d+) (\d+) (\S+)\|\n +(\S+)\+0@\S+cart\.rs:\d+$", (tmp_path / "out").read_text(), re.M)
    assert [[price, times] for price, times, _, _ in found] == printed == [["-7", "200"], ["12", "3"]]
    assert {name for _, _, *names in found for name in names} == {"cart::app::Cart::add"} or all(
        name.endswith("::Cart>::add") for _, _, *names in found for name in names)
