import os
import re
import struct

from rawbpf.elf.ldcache import find_library, read_cache
from tests.elf.files import run

LDCONFIG = "/sbin/ldconfig"


def test_cache_is_what_ldconfig_prints():
    printed = re.findall(r"^\t(\S+) \(.*\) => (\S+)$", run(LDCONFIG, "-p"), re.M)
    assert len(printed) > 5
    with open("/etc/ld.so.cache", "rb") as file:
        assert [(e.soname, e.path) for e in read_cache(file.read())] == printed


def test_names_of_libc():
    paths = {find_library(name) for name in ("c", "libc", "libc.so.6")}
    assert len(paths) == 1
    path = paths.pop()
    assert path.endswith("/libc.so.6") and os.path.exists(path)
    assert find_library("no-such-library") is None


def test_a_cache_that_is_no_file(tmp_path):
    """In another root folder anything may be called so; nothing is waited for."""
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/ld.so.cache")
    assert find_library("libc", str(tmp_path)) is None


def cache(entries):
    """A cache file in the new format."""
    strings, rows = b"", b""
    base = 48 + 24 * len(entries)
    for soname, path, flags in entries:
        rows += struct.pack("=iIIIQ", flags, base + len(strings), base + len(strings) + len(soname) + 1, 0, 0)
        strings += soname.encode() + b"\0" + path.encode() + b"\0"
    return b"glibc-ld.so.cache1.1" + struct.pack("=II20s", len(entries), len(strings), b"") + rows + strings


def test_the_machine_decides_between_equal_names(tmp_path):
    for folder in ("etc", "arm", "amd"):
        (tmp_path / folder).mkdir()
    (tmp_path / "arm/libx.so.1").touch()
    (tmp_path / "amd/libx.so.1").touch()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        cache([("libx.so.1", "/arm/libx.so.1", 0xa03), ("libx.so.1", "/amd/libx.so.1", 0x303), ("libgone.so.1", "/amd/gone", 0x303)]))
    assert find_library("x", root=str(tmp_path), machine="x86_64") == "/amd/libx.so.1"
    assert find_library("libx.so.1", root=str(tmp_path), machine="aarch64") == "/arm/libx.so.1"
    assert find_library("gone", root=str(tmp_path), machine="x86_64") is None


def test_default_folders_without_a_cache(tmp_path):
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tmp_path / "usr/lib/x86_64-linux-gnu/libz+.so.1.2").touch()
    assert find_library("libz+", root=str(tmp_path), machine="x86_64") == "/usr/lib/x86_64-linux-gnu/libz+.so.1.2"
    assert find_library("libz", root=str(tmp_path), machine="x86_64") is None


def test_broken_caches_have_fewer_entries():
    whole = cache([("liba.so", "/liba.so", 0x303), ("libb.so", "/libb.so", 0x303)])
    assert len(read_cache(whole)) == 2
    for size in range(len(whole)):
        assert len(read_cache(whole[:size])) <= 2
    assert read_cache(b"") == read_cache(b"junk") == []
    assert read_cache(b"ld.so-1.7.0\0" + struct.pack("=I", 0xffffffff)) == []


def test_old_format_before_the_new():
    entries = cache([("liba.so", "/liba.so", 0x303)])
    old = b"ld.so-1.7.0\0" + struct.pack("=I", 1) + struct.pack("=iII", 0x303, 0, 0)
    old += bytes(-len(old) % 8)
    assert [e.path for e in read_cache(old + entries)] == ["/liba.so"]
