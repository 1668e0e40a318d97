"""USDT: operands of every kind, several places, semaphores, names with dashes and quotes."""

import os
import re
import signal
import struct
import subprocess
import sys
import time

import pytest

from rawbpf import sources
from rawbpf.elf import stapsdt
from rawbpf.elf.image import Image
from rawbpf.sources import SourceError, Target
from tests.cc import compile_c
from tests.sources.harness import argument, tracing

pytestmark = pytest.mark.kernel
PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

SDT = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#define SDT(prov, name, sem, args, ...) __asm__ volatile( \
  "990: nop\n\t.pushsection .note.stapsdt,\"\",@note\n\t.balign 4\n\t" \
  ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n" \
  "993: .8byte 990b, 0, " sem "\n\t" \
  ".asciz \"" prov "\"\n\t.asciz \"" name "\"\n\t.asciz \"" args "\"\n" \
  "994: .balign 4\n\t.popsection" : : __VA_ARGS__)
static long tab[4] = {11, 22, 33, 44};
static struct { char c; signed char s; short h; int i; } mixed = {1, -2, -300, -70000};
int visible = 4242;
"""


def portable(source):
    """For aarch64, where one operand is in w9 or w10; all other operands are x86_64's."""
    if os.uname().machine == "aarch64":
        for register, letter in (("w9", "D"), ("w10", "S")):
            source = re.sub(r'SDT\(([^()]*, )"4@%%%%e%si", "%s"\(([^()]*)\)\)' % (letter.lower(), letter),
                            r'do { register int v __asm__("%s") = (\2); SDT(\1"4@%s", "r"(v)); } while (0)' % (register, register),
                            source)
        if "%%" in source:
            pytest.skip("operands of x86_64: test_usdt_aarch64 has the others")
    return source


def build(body, *flags, name="dp", before=""):
    return compile_c(portable(SDT + before + "int main(void) { for (int n = 0; n < 3; n++) {" + body + "} return 0; }"),
                     "-O1", *flags, name=name)


def rows(program, probe, count, *more):
    with tracing("usdt:%s:%s" % (program, probe), argument(*range(count)), count) as seen:
        subprocess.run([program, *more], check=True)
    assert len(set(seen.rows)) == 1, seen.rows
    assert seen.hits == 3
    return seen.rows[0]


def test_base_index_scale():
    program = build('SDT("demo", "sib", "0", "8@(%%rdi,%%rsi,8) 8@-8(%%rdi,%%rsi,8) 8@(%%rdi) 8@8(%%rdi)",'
                    ' "D"(tab), "S"(2L));')
    assert rows(program, "demo:sib", 4) == (33, 22, 11, 22)


def test_widths_and_signs():
    """Bytes and halves of a register, and negative constants."""
    program = build('SDT("demo", "width", "0", "-4@$-9 -1@%%dil 1@%%dil 2@%%di 4@%%edi 8@%%rdi -4@%%edi",'
                    ' "D"(0xfffffffffffffff0));')
    assert rows(program, "width", 7) == (-9, -16, 240, 65520, 0xfffffff0, -16, -16)


def test_high_byte_and_numbered_registers():
    program = build('register long r9 __asm__("r9") = 0x1122334455667788;'
                    'SDT("demo", "regs", "0", "1@%%bh -1@%%bl 1@%%r9b 2@%%r9w 4@%%r9d 8@%%r9",'
                    ' "b"(0x1290L), "r"(r9));')
    assert rows(program, "regs", 6) == (0x12, -0x70, 0x88, 0x7788, 0x55667788, 0x1122334455667788)


def test_memory_of_every_size():
    program = build('SDT("demo", "mem", "0", "1@(%%rdi) -1@1(%%rdi) -2@2(%%rdi) 2@2(%%rdi) -4@4(%%rdi)",'
                    ' "D"(&mixed));')
    assert rows(program, "mem", 5) == (1, -2, -300, 65236, -70000)


@pytest.mark.parametrize("flags", [("-pie", "-fPIE"), ("-no-pie",)])
def test_symbol_relative_to_the_instruction_pointer(flags):
    program = build('SDT("demo", "rip", "0", "4@visible(%%rip) 8@tab+16(%%rip)", "D"(tab));', *flags)
    assert rows(program, "rip", 2) == (4242, 33)


def test_floating_point_costs_one_argument():
    program = build('SDT("demo", "flt", "0", "8f@%%rax 4@%%edi", "a"(0x3ff8000000000000), "D"(7));')
    assert rows_of_second(program) == {(7,)}
    (point,) = sources.expand("usdt:%s:flt" % program)
    with pytest.raises(SourceError, match=r"arg0 of usdt probe demo:flt \(8f@%rax\)"):
        with tracing("usdt:%s:flt" % program, argument(0), 1):
            pass
    assert [e.text for e in sources.list_events("usdt:%s:*" % program)] == ["usdt:%s:demo:flt" % program]


def rows_of_second(program):
    with tracing("usdt:%s:flt" % program, argument(1), 1) as seen:
        subprocess.run([program], check=True)
    return set(seen.rows)


def test_unknown_operand_costs_one_argument():
    program = build('SDT("demo", "odd", "0", "4@%%edi 4@%%fs:0x10 4@%%esi", "D"(7), "S"(8));')
    with tracing("usdt:%s:odd" % program, argument(0, 2), 2) as seen:
        subprocess.run([program], check=True)
    assert set(seen.rows) == {(7, 8)}
    with pytest.raises(SourceError, match="arg1 of usdt probe demo:odd"):
        with tracing("usdt:%s:odd" % program, argument(1), 1):
            pass
    with pytest.raises(SourceError, match="has 3 arguments: there is no arg3"):
        with tracing("usdt:%s:odd" % program, argument(3), 1):
            pass


def test_several_places_with_different_operands():
    """One probe in three places; those with equal operands share a program."""
    program = build('SDT("demo", "multi", "0", "4@%%edi", "D"(1)); SDT("demo", "multi", "0", "4@%%esi", "S"(2));'
                    'SDT("demo", "multi", "0", "4@%%edi", "D"(3));')
    points = sources.expand("usdt:%s:demo:multi" % program)
    assert len(points) == 3 and len({point.name for point in points}) == 1
    groups = {}
    for point in points:
        groups.setdefault(point.group_key(), []).append(point)
    assert sorted(map(len, groups.values())) == [1, 2]
    from tests.sources.harness import program_for

    values = []
    attached = []
    for group in groups.values():
        loaded, counters = program_for(group[0], argument(0), 1)
        attached.append((loaded, counters, group[0].attach(loaded, group)))
    subprocess.run([program], check=True)
    for loaded, counters, attachment in attached:
        attachment.close()
        data = counters.lookup(b"\0" * 4)
        count, = struct.unpack_from("<q", data)
        values += struct.unpack_from("<%dq" % count, data, 8)
        loaded.close()
    assert sorted(values) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_dash_and_quotes():
    program = build('SDT("web-shop", "cart__add", "0", "4@%%edi", "D"(5));')
    folder, base = os.path.split(program)
    before = os.getcwd()
    os.chdir(folder)
    try:
        for text in ("usdt:./dp:web-shop:cart__add", 'usdt:./dp:"web-shop":cart__add', "usdt:./dp:cart__add"):
            with tracing(text, argument(0), 1) as seen:
                subprocess.run([program], check=True)
            assert seen.rows == [(5,)] * 3
            assert seen.points[0].name == "usdt:./dp:web-shop:cart__add"
            assert [e.text for e in sources.list_events(text)] == ["usdt:./dp:web-shop:cart__add"]
    finally:
        os.chdir(before)


def test_plus_signs_in_a_quoted_path():
    program = build('SDT("web-shop", "cart__add", "0", "4@%%edi", "D"(5));', name="lib++x")
    text = 'usdt:"%s":web-shop:cart__add' % program
    assert [e.text for e in sources.list_events(text)] == ["usdt:%s:web-shop:cart__add" % program]
    with tracing(text) as seen:
        subprocess.run([program], check=True)
    assert seen.hits == 3


def test_prelinked(tmp_path):
    """A file whose sections were moved after its notes were written: prelink leaves those as they were, and .stapsdt.base
    tells by how much."""
    program = tmp_path / "prelinked"
    data = bytearray(open(build('SDT("demo", "pre", "0", "4@%%edi", "D"(12));', before=(
        '__asm__(".pushsection .stapsdt.base,\\"aG\\",@progbits,.stapsdt.base,comdat\\n'
        '.weak _.stapsdt.base\\n_.stapsdt.base: .space 1\\n.popsection");')), "rb").read())
    (note,) = stapsdt.notes(Image(bytes(data)))
    image = Image(bytes(data))
    base = image.section(".stapsdt.base").addr
    (place,) = [n.offset for n in image.notes(".note.stapsdt")]
    struct.pack_into("<2Q", data, place, note.location + 0x7000, base + 0x7000)
    program.write_bytes(data)
    program.chmod(0o755)
    assert stapsdt.notes(Image.open(str(program)))[0].location == note.location
    assert rows(str(program), "demo:pre", 1) == (12,)


GATES = r"""
volatile unsigned short sem_a __attribute__((section(".probes"), used, visibility("hidden")));
volatile unsigned short sem_b __attribute__((section(".probes"), used, visibility("hidden")));
"""


def gated():
    """Two places guarded by two counters, until standard input ends; position independent."""
    return compile_c(portable(SDT + GATES + r"""
int main(void) {
    char c;
    while (read(0, &c, 1) == 1) {
        if (sem_a) SDT("demo", "gate", "sem_a", "4@%%edi", "D"(1));
        if (sem_b) SDT("demo", "gate", "sem_b", "4@%%edi", "D"(2));
        if (write(1, &c, 1) != 1) return 1;
    }
    return 0;
}"""), "-O1", "-pie", "-fPIE", name="gated")


class Gated:
    def __init__(self):
        self.path = gated()
        self.process = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def step(self):
        self.process.stdin.write(b"x")
        assert self.process.stdout.read(1) == b"x"

    def counters(self):
        """Both semaphores, from the process's memory."""
        notes = stapsdt.notes(Image.open(self.path))
        with open("/proc/%d/maps" % self.process.pid) as maps:
            base = min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(self.path))
        values = []
        with open("/proc/%d/mem" % self.process.pid, "rb") as memory:
            for note in notes:
                memory.seek(base + note.semaphore)
                values.append(int.from_bytes(memory.read(2), "little"))
        return values

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def test_semaphore_of_a_running_process():
    with Gated() as target:
        target.step()
        assert target.counters() == [0, 0]
        with tracing("usdt:%s:demo:gate" % target.path, argument(0), 1,
                     target=Target(pid=target.process.pid)) as seen:
            assert target.counters() == [1, 1]
            target.step()
        assert sorted(seen.rows) == [(1,), (2,)]
        assert target.counters() == [0, 0]


def test_semaphore_of_a_process_that_starts_later():
    with tracing("usdt:%s:demo:gate" % gated(), argument(0), 1) as seen:
        with Gated() as target:
            target.step()
            assert target.counters() == [1, 1]
            assert sorted(seen.rows) == [(1,), (2,)]


def test_semaphore_after_the_tracer_was_killed():
    script = ("import sys, time\nsys.path.insert(0, %r)\nfrom tests.sources.harness import *\n"
              "with tracing('usdt:%s:demo:gate') as seen:\n    print('on', flush=True)\n    time.sleep(60)\n"
              % (PROJECT, gated()))
    with Gated() as target:
        target.step()
        tracer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        try:
            assert tracer.stdout.readline() == b"on\n"
            assert target.counters() == [1, 1]
        finally:
            tracer.send_signal(signal.SIGKILL)
            tracer.wait()
            tracer.stdout.close()
        deadline = time.monotonic() + 10
        while target.counters() != [0, 0] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert target.counters() == [0, 0]


def test_wildcards_and_process_files():
    with Gated() as target:
        target.step()
        found = sources.expand("usdt:*:gate", Target(pid=target.process.pid))
        assert [point.name for point in found] == ["usdt:%s:demo:gate" % target.path] * 2
        found = sources.expand("usdt:%s:d*:g?te" % target.path)
        assert len(found) == 2


def test_missing_probe_suggests():
    with pytest.raises(SourceError) as caught:
        sources.expand("usdt:%s:demo:gat" % gated())
    assert caught.value.missing and "usdt:%s:demo:gate" % gated() in caught.value.hints
    plain = compile_c("int main(void) { return 0; }", name="plain")
    with pytest.raises(SourceError, match="No file in question has USDT probes"):
        sources.expand("usdt:%s:x" % plain)


def test_listed_arguments():
    """Size, sign and operand of each, from all places of a probe; a text of control characters is harmless."""
    program = build('SDT("demo", "all", "0", "8@%%rdi -4@$-9 8f@%%xmm0"); SDT("demo", "all", "0", "8@%%rsi -2@%%ax 8f@%%xmm0");'
                    ' SDT("demo", "none", "0", ""); SDT("demo", "odd", "0", "1@\033[2Jx");')
    found = {listed.text: listed.verbose()[1:] for listed in sources.list_events("usdt:%s:*" % program)}
    assert found == {
        "usdt:%s:demo:all" % program: ["    uint64_t arg0 /* 8@%rdi, 8@%rsi */", "    int16_t arg1 /* -2@%ax */",
                                       "    int32_t arg1 /* -4@$-9 */", "    double arg2 /* 8f@%xmm0 */"],
        "usdt:%s:demo:none" % program: [], "usdt:%s:demo:odd" % program: ["    uint8_t arg0 /* 1@?[2Jx */"]}
