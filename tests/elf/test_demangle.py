import re
import subprocess

import pytest

from rawbpf.elf import demangle as module
from rawbpf.elf.demangle import demangle, legacy_rust, without_parameters

V0 = {      # from RFC 2603 and the test suite of Rust's own demangler
    "_RNvC6_123foo3bar": "123foo::bar",
    "_RNqCs4fqI2P2rA04_11utf8_identsu30____7hkackfecea1cbdathfdh9hlq6y": "utf8_idents::საჭმელად_გემრიელი_სადილი",
    "_RNCNCNgCs6DXkGYLi8lr_2cc5spawn00B5_": "cc::spawn::{closure#0}::{closure#0}",
    "_RNCINkXs25_NgCsbmNqQUJIY6D_4core5sliceINyB9_4IterhENuNgNoBb_4iter8iterator8Iterator9rpositionNCNgNpB9_6memchr"
    "7memrchrs_0E0Bb_": "<core::slice::Iter<u8> as core::iter::iterator::Iterator>::rposition::<core::slice::memchr::"
                        "memrchr::{closure#1}>::{closure#0}",
    "_RINbNbCskIICzLVDPPb_5alloc5alloc8box_freeDINbNiB4_5boxed5FnBoxuEp6OutputuEL_ECs1iopQbuBiw2_3std":
        "alloc::alloc::box_free::<dyn alloc::boxed::FnBox<(), Output = ()>>",
    "_RNvMC0INtC8arrayvec8ArrayVechKj7b_E3new": "<arrayvec::ArrayVec<u8, 123>>::new",
    "_RMs_Cs4fqI2P2rA04_13const_genericINtB2_6SignedKanb_E": "<const_generic::Signed<-11>>",
    "_RNvC9backtrace3foo.llvm.A5310EB9": "backtrace::foo",
}

LEGACY = {
    "_ZN3app3run17h0123456789abcdefE": "app::run",
    "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE":
        "<Test + 'static as foo::Bar<Test>>::bar",
    "_ZN4core3fmt3num3imp52_$LT$impl$u20$core..fmt..Display$u20$for$u20$u32$GT$3fmt17h0123456789abcdefE":
        "core::fmt::num::imp::<impl core::fmt::Display for u32>::fmt",
}


@pytest.mark.parametrize("name", V0)
def test_rust_v0(name):
    assert demangle(name) == V0[name]


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_rust(name):
    assert demangle(name) == LEGACY[name]


@pytest.mark.parametrize("name", ["main", "", "_R", "_Rx", "_RNvC6_123foo", "_RNvC3foo99bar", "_RB_", "_RNvB_3foo", "_ZN", "_RIC1a",
                                  "_ZN3app8$LT$impl$GT$3run17h00112233445566eeE",      # 12 characters that say they are 8
                                  "_RNvC" + "9" * 30 + "x", "_RIC1a" + "T" * 3000, "_RNvCs_3foo"])
def test_what_is_no_mangled_name_stays(name):
    assert demangle(name) == name


def test_back_references_are_bounded():
    # every generic argument is a tuple of the one before it, twice
    name, place = "_RIC1a", 4
    for _ in range(40):
        following = len(name) - 2
        name += "T" + ("y" if following == 4 else "B%s_" % base62(place) * 2) + "E"
        place = following
    assert demangle(name + "E") == name + "E"


def base62(value):
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    value, text = value - 1, ""
    while True:
        text, value = digits[value % 62] + text, value // 62
        if not value:
            return text


def test_cplusplus():
    if module._cplusplus_library() is None:
        assert demangle("_Z4worki") == "_Z4worki"
        return
    assert demangle("_Z4worki") == "work(int)" and demangle("_Z4worki", parameters=False) == "work"
    assert demangle("_ZNK5outer7derived6methodEl", parameters=False) == "outer::derived::method"
    assert demangle("_Z999999999x") == "_Z999999999x"


@pytest.mark.parametrize("text, expected", [
    ("f(int)", "f"), ("ns::f<int (*)(char)>(int (*)(long)) const", "ns::f<int (*)(char)>"),
    ("a::operator()(int)", "a::operator()"), ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
    ("vtable for x", "vtable for x"), ("a::operator<(b)", "a::operator<"),
])
def test_parameters_left_out(text, expected):
    assert without_parameters(text) == expected


@pytest.mark.peer
def test_all_names_of_the_rust_library():
    from rawbpf.elf.image import Image
    from rawbpf.elf.symbols import Symbols
    root = subprocess.run(["rustc", "--print", "target-libdir"], capture_output=True, text=True, check=True).stdout.strip()
    library = subprocess.run(["sh", "-c", "ls %s/libstd-*.so" % root], capture_output=True, text=True, check=True).stdout.split()[0]
    names = sorted({s.name for s in Symbols(Image.open(library)) if s.name.startswith("_R") or legacy_rust(s.name)})
    printed = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    # binutils shows crates' hashes and the types of constants, which people never write
    plain = [re.sub(r"\[[0-9a-f]+\]|(?<=[\w\d]): [a-z]\w+(?=[>\],])|::h[0-9a-f]{16}$", "", text) for text in printed]
    assert len(names) > 100
    assert [(n, demangle(n)) for n in names] == list(zip(names, plain))
    print("%d names" % len(names))
