import ctypes
import os
import re
import subprocess
import sys
import time
import timeit

import pytest

from rawbpf.elf.image import Image
from rawbpf.elf.stapsdt import notes
from rawbpf.elf.usdt_provider import Provider, ProviderError
from tests.elf.files import run
from tests.elf.test_stapsdt import readelf_probes


def shop(**options):
    provider = Provider("shop", **options)
    provider.probe("sold", "uint64", "string", "int8")
    provider.probe("closed")
    return provider


def test_the_image_is_what_readelf_reads(tmp_path):
    path = tmp_path / "shop.so"
    path.write_bytes(shop().image())
    expected = "8@%rdi 8@%rsi -1@%dl" if os.uname().machine == "x86_64" else "8@x0 8@x1 -1@w2"
    printed = readelf_probes(path)
    assert [(p, n, t) for p, n, _, _, _, t in printed] == [("shop", "sold", expected), ("shop", "closed", "")]
    image = Image.open(path)
    assert [(n.location, n.semaphore) for n in notes(image)] == [(p[2], p[4]) for p in printed]
    assert all(n.semaphore_offset and n.location_offset for n in notes(image))
    assert "Warning" not in subprocess.run(["readelf", "-aW", path], capture_output=True, text=True).stderr
    assert {"probe_0", "probe_1"} == set(re.findall(r"FUNC +GLOBAL DEFAULT +6 (\w+)", run("readelf", "-sW", path)))


def semaphore(provider, number):
    """The counter of a probe, found by what its note says and where the file is mapped."""
    note = notes(Image(provider.image()))[number]
    base = ctypes.cast(provider._mapped.library["probe_0"], ctypes.c_void_p).value - notes(Image(provider.image()))[0].location
    return ctypes.c_uint16.from_address(base + note.semaphore)


def test_fire():
    with shop() as provider:
        sold, closed = provider.probes["sold"], provider.probes["closed"]
        assert not sold.enabled and not closed.enabled
        sold.fire("anything", "while", "nobody", "listens")
        semaphore(provider, 0).value = 1
        assert sold.enabled and not closed.enabled
        sold.fire(42, "tea \u2615", -3)
        sold.fire(1 << 64, b"bytes", 5)
        for wrong, says in (((1,), "takes 3 arguments"), ((1, 2, 3), "argument 2"), ((1.5, "a", 3), "argument 1"),
                            ((1, "\ud800", 3), "surrogates")):
            with pytest.warns(RuntimeWarning, match=says):
                sold.fire(*wrong)       # that somebody listens must not break a program
        semaphore(provider, 0).value = 0
    assert not sold.enabled
    sold.fire(1, "x", 2)
    with open("/proc/self/maps") as file:
        assert "usdt-shop" not in file.read()


UNLOADING = r"""
import sys, threading
from rawbpf.elf.usdt_provider import Provider
provider = Provider("p")
probe = provider.probe("x", "int32", "string")
stop = []
def work():
    kept = probe.fire
    while not stop:
        kept(1, "a")
        probe.fire(1, "a")
        probe.enabled
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for number in range(300):
    provider.load()
    probe._semaphore[0] = 1         # as if a tracer listened
    provider.unload()
stop.append(1)
for thread in threads:
    thread.join()
kept = probe.fire
kept(1, "a")
with open("/proc/self/maps") as file:
    assert "usdt-p" not in file.read()
print("lived")
"""


def test_unloading_while_threads_fire():
    done = subprocess.run([sys.executable, "-c", UNLOADING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "lived\n"), done


def test_before_loading_nothing_happens():
    probe = Provider("p").probe("x", "int32")
    probe.fire(1)
    assert not probe.enabled


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "shop.so"
    with shop(file=str(path)):
        assert len(readelf_probes(path)) == 2
        with open("/proc/self/maps") as file:
            assert str(path) in file.read()
        with pytest.raises(ProviderError, match="File exists"):
            shop(file=str(path)).load()
    assert not path.exists()
    with pytest.raises(ProviderError, match="No such file"):
        shop(file=str(tmp_path / "none/shop.so")).load()


def test_wrong_declarations():
    provider = Provider("p")
    provider.probe("x")
    for arguments, reason in ((("x",), "already"), (("y", "float"), "no type 'float'"), (("a b",), "cannot be the name"),
                              (("",), "cannot be the name"), (("z",) + ("int8",) * 9, "9 arguments"),
                              (("l", ["int8"]), "no type"), ((7,), "cannot be the name")):
        with pytest.raises(ProviderError, match=reason):
            provider.probe(*arguments)
    for name in ("a:b", 5, b"abc", None, "a\udcff"):
        with pytest.raises(ProviderError, match="cannot be the name"):
            Provider(name)
    with provider, pytest.raises(ProviderError, match="loaded already"):
        provider.probe("late")


def test_many_probes():
    provider = Provider("many")
    for number in range(2000):
        provider.probe("probe%d" % number, *["uint32"] * (number % 7))
    found = notes(Image(provider.image()))
    assert [len(n.arguments) for n in found] == [n % 7 for n in range(2000)]
    assert len({n.semaphore for n in found}) == len({n.location for n in found}) == 2000
    with provider:
        counter = semaphore(provider, 1999)
        counter.value = 1
        assert [p.name for p in provider.probes.values() if p.enabled] == ["probe1999"]
        counter.value = 0


def test_nobody_listens_cheaply():
    # measured: 60 to 90 ns; a call of an empty Python function is about 40
    with shop() as provider:
        fire = provider.probes["sold"].fire
        best = min(timeit.repeat(lambda: fire(1, "x", 2), number=1000, repeat=200)) / 1000
    assert best < 1e-6


CHILD = r"""
import sys, time
from rawbpf.elf.usdt_provider import Provider
provider = Provider("shop")
sold = provider.probe("sold", "uint64", "string", "int8")
provider.load()
print("/proc/%d/fd/%d" % (__import__("os").getpid(), provider._mapped.fd), flush=True)
number = 0
while not sys.stdin.closed and number < 3000:
    number += 1
    sold.fire(number, "tea", -3)
    time.sleep(0.01)
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("place", ("the file", "any file of the process"))
def test_rawbpf_sees_and_traces_it(rawbpf, place):
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        path = child.stdout.readline().strip() if place == "the file" else "*"
        listed = rawbpf("list", "-p", child.pid, "usdt:%s:shop:*" % path).stdout.splitlines()
        assert [line.rsplit(":", 2)[1:] for line in listed] == [["shop", "closed"], ["shop", "sold"]][1:]
        done = rawbpf("trace", "-q", "-p", child.pid, "-e", 'usdt:%s:shop:sold { @[str(arg1), (int8)arg2] = count(); '
                      'if (++@n == 3) { print(arg0); exit(); } }' % path)
        assert re.match(r"\d+\n", done.stdout) and re.search(r"@\[tea, -3\]: [3-9]\n", done.stdout), done
    finally:
        child.kill()
        child.communicate()


@pytest.mark.peer
def test_bpftrace_sees_and_traces_it():
    from tests.peers import bpftrace
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        path = child.stdout.readline().strip()
        assert "usdt:%s:shop:sold" % path in bpftrace("-l", "usdt:%s:*" % path).stdout
        traced = bpftrace("-p", str(child.pid), "-e", 'usdt:%s:shop:sold { printf("%%d %%s %%d\\n", arg0, str(arg1), arg2); exit() }' % path)
        assert re.search(r"^\d+ tea -3$", traced.stdout, re.M)
    finally:
        child.kill()
        child.communicate()
