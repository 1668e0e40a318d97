"""Programs: what they return, what the verifier says, what is left when they are gone."""

import gc
import os
import signal
import struct
import subprocess
import sys
import time

import pytest

from rawbpf.loader import (KernelError, Map, PerfBuffer, PerfEvent, Program, RingBuffer, VerifierError,
                           link, perf, run_statistics)
from rawbpf.loader import kernel, ksyms, verifier
from rawbpf.loader.btf import BtfObject, storage_types
from rawbpf.loader.process_events import ProcessEvents
from rawbpf.loader.uapi import F_MMAPABLE
from rawbpf.loader.userring import UserRingBuffer
from tests.bpf import program_ids
from tests.loader.code import (EXIT, RETURN_0, alu, call, insn, load, lookup, map_fd, mov, mov_reg,
                               atomic_add)


def fds():
    return {name: os.readlink("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd")
            if os.path.islink("/proc/self/fd/" + name)}


# -- logs, as kernels wrote them: no kernel needed --

LOGS = [
    # 6.x
    ("0: R1=ctx() R10=fp0\n0: (b7) r0 = 0                        ; R0=0\n1: (bf) r0 = r3\nR3 !read_ok\n"
     "processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n",
     1, "R3 !read_ok"),
    # 5.10
    ("0: (18) r1 = 0xffff888182932400\n2: (61) r2 = *(u32 *)(r1 +8)\nR1 invalid mem access 'inv'\n"
     "processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n",
     2, "R1 invalid mem access 'inv'"),
    ("unreachable insn 4\nprocessed 0 insns (limit 1000000) max_states_per_insn 0 total_states 0 "
     "peak_states 0 mark_read 0\n", 4, "unreachable insn 4"),
    ("jump out of range from insn 3 to 10\n", 3, "jump out of range from insn 3 to 10"),
    ("func#0 @0\n0: R1=ctx(off=0,imm=0) R10=fp0\n0: (85) call bpf_override_return#58\n"
     "program of this type cannot use helper bpf_override_return#58\n"
     "processed 1 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n",
     0, "program of this type cannot use helper bpf_override_return#58"),
    ("", None, ""),
]


@pytest.mark.parametrize("log, slot, message", LOGS)
def test_log_is_read(log, slot, message):
    assert verifier.reason(log) == message
    assert verifier.failing_slot(log) == slot


def test_slots_count_wide_instructions_twice():
    from rawbpf.asm import Instruction
    code = [Instruction(0xb7), Instruction(0x18, 1, 0, 0, 5), Instruction(0xb7), Instruction(0x95)]
    assert [verifier.slot_to_index(code, slot) for slot in range(5)] == [0, 1, None, 2, 3]


# -- with the kernel --

@pytest.mark.kernel
def test_return_values():
    for value in (0, 1, 0x7fffffff, -1):
        with Program.load("socket_filter", mov(0, value) + EXIT) as program:
            assert program.test_run(bytes(14)).retval == value & 0xffffffff
    # 14 bytes of Ethernet header are not in a socket filter's len: 100 - 14
    with Program.load("sched_cls", load(0, 1, 0, 4) + EXIT) as program:
        assert program.test_run(bytes(100)).retval == 100


@pytest.mark.kernel
def test_packet_comes_back():
    # xdp: write 0x5a at data[20] after checking the end
    code = (load(2, 1, 0, 4) + load(3, 1, 4, 4) + mov_reg(4, 2) + alu(0, 4, 21) +
            insn(0x2d, 4, 3, 1) + insn(0x72, 2, 0, 20, 0x5a) + mov(0, 2) + EXIT)
    with Program.load("xdp", code) as program:
        packet = bytes(range(60))
        run = program.test_run(packet)
        assert (run.retval, run.data) == (2, packet[:20] + b"\x5a" + packet[21:])


@pytest.mark.kernel
def test_raw_tracepoint_run_with_arguments():
    """The program adds up its two u64 arguments into a map, on the CPU asked for."""
    from rawbpf.loader.uapi import F_TEST_RUN_ON_CPU
    result = Map.create("array", 4, 8, 2)
    code = (mov_reg(9, 1) + load(7, 9, 0) + load(8, 9, 8) + insn(0x0f, 7, 8) + lookup(result, 6) +
            insn(0x7b, 6, 7, 0) + lookup(result, 6, 1) + call(8) + insn(0x7b, 6, 0, 0) + mov(0, 7) + EXIT)
    with Program.load("raw_tracepoint", code) as program:
        run = program.test_run(ctx=struct.pack("=QQ", 1 << 40, 42), flags=F_TEST_RUN_ON_CPU, cpu=0)
        assert run.retval == 7
    assert struct.unpack("=Q", result.lookup(struct.pack("=I", 0))) == ((1 << 40) + 42,)
    assert struct.unpack("=Q", result.lookup(struct.pack("=I", 1))) == (0,)


@pytest.mark.kernel
def test_kprobe_programs_cannot_be_run():
    with Program.load("kprobe", RETURN_0) as program:
        with pytest.raises(KernelError, match="cannot test-run kprobe programs"):
            program.test_run()


@pytest.mark.kernel
@pytest.mark.parametrize("code, slot, message", [
    (mov(0, 0) + mov_reg(0, 3) + EXIT, 1, "R3 !read_ok"),
    (mov(0, 0), 0, "last insn is not an exit or jmp"),
    (mov(0, 0) + insn(0x05, off=10) + EXIT, 1, "jump out of range"),
    (mov(0, 0) + insn(0x8d) + EXIT, 1, "unknown opcode 8d"),
    (mov(1, 5) + load(0, 1, 0) + EXIT, 1, "R1 invalid mem access"),
])
def test_refusal_names_the_instruction(code, slot, message):
    with pytest.raises(VerifierError) as caught:
        Program.load("socket_filter", code, name="bad")
    assert message in caught.value.message
    assert message in caught.value.log and message in str(caught.value)
    if message not in ("unknown opcode 8d", "last insn is not an exit or jmp"):  # these name none
        assert caught.value.instruction == slot


@pytest.mark.kernel
def test_instruction_is_the_index_in_the_list():
    from rawbpf.asm import Instruction, MapRef
    with Map.create("array", 4, 8, 1) as array:
        code = [Instruction(0x18, 1, 0, 0, 0, MapRef("m")), Instruction(0xbf, 0, 5), Instruction(0x95)]
        with pytest.raises(VerifierError) as caught:
            Program.load("socket_filter", code, maps={"m": array})
        assert (caught.value.slot, caught.value.instruction) == (2, 1)
        with pytest.raises(ValueError, match="refers to the map 'm'"):
            Program.load("socket_filter", code)


@pytest.mark.kernel
def test_map_value_reference():
    """MapRef with an offset is the address inside the first value (array maps, 5.2+)."""
    from rawbpf.asm import Instruction, MapRef
    with Map.create("array", 4, 16, 1) as array:
        array.update(bytes(4), struct.pack("=QQ", 5, 77))
        code = [Instruction(0x18, 1, 0, 0, 0, MapRef("m", 8)), Instruction(0x79, 0, 1, 0, 0),
                Instruction(0x95)]
        with Program.load("socket_filter", code, maps={"m": array}) as program:
            assert program.test_run(bytes(14)).retval == 77


@pytest.mark.kernel
def test_long_log_is_whole():
    """A log that outgrows the buffer many times over still begins at instruction 0."""
    code = mov(1, 0) + alu(0, 1, 1) * 4000 + mov_reg(0, 7) + EXIT
    with pytest.raises(VerifierError) as caught:
        Program.load("socket_filter", code, log_level=2, log_size=1024)
    assert "\n0: (b7) r1 = 0" in "\n" + caught.value.log
    assert caught.value.instruction == 4001
    with Program.load("socket_filter", RETURN_0, log_level=1) as program:
        assert "processed 2 insns" in program.log


@pytest.mark.kernel
def test_info_statistics_and_dump():
    counter = Map.create("array", 4, 8, 1)
    code = lookup(counter, 6) + mov(1, 1) + atomic_add(6, 0, 1) + RETURN_0
    with Program.load("socket_filter", code, name="a probe:name-too-long") as program:
        with run_statistics():
            program.test_run(bytes(14), repeat=100)
        info = program.info()
        assert info.name == "a_probe_name_to" and info.type == "socket_filter"
        assert info.map_ids == [counter.info().id]
        assert info.xlated_prog_len == len(program.xlated()) > 0
        assert program.xlated()[-16:] == RETURN_0
        assert len(program.jited()) == info.jited_prog_len
    assert struct.unpack("=Q", counter.lookup(bytes(4))) == (100,)


@pytest.mark.kernel
def test_run_statistics_count():
    """Test runs are not counted by the kernel; a program on an event is."""
    target = bytearray(8)
    attr = perf.software("page_faults", period=1)
    with run_statistics(), Program.load("perf_event", RETURN_0) as program:
        with link.attach_perf_event(program, PerfEvent.open(attr, pid=os.getpid())):
            for page in range(50):
                import mmap
                area = mmap.mmap(-1, 4096)
                area[0] = 1
                area.close()
        info = program.info()
        assert info.run_cnt >= 50 and info.run_time_ns > 0
    assert target == bytes(8)


@pytest.mark.kernel
def test_names_are_checked():
    with pytest.raises(ValueError, match="did you mean kprobe"):
        Program.load("kprob", RETURN_0)
    with pytest.raises(ValueError, match="attach type"):
        Program.load("kprobe", RETURN_0, expected_attach_type="trace_kprobe_mult")
    with pytest.raises(ValueError, match="8-byte"):
        Program.load("kprobe", b"1234")


@pytest.mark.kernel
def test_raw_tracepoint_link_counts_until_closed():
    gc.collect()
    counter = Map.create("percpu_array", 4, 8, 1)
    me = os.getpid()
    # only this process: the upper half of bpf_get_current_pid_tgid() is the tgid
    code = (call(14) + insn(0x77, 0, 0, 0, 32) + insn(0x15, 0, 0, 2, me) + RETURN_0 +
            lookup(counter, 6) + mov(1, 1) + atomic_add(6, 0, 1) + RETURN_0)

    def total():
        return sum(struct.unpack("=Q", item)[0] for item in counter.lookup(bytes(4)))
    with Program.load("raw_tracepoint", code) as program:
        before = fds()
        attached = link.attach_raw_tracepoint(program, "sys_enter")
        for _ in range(1000):
            os.getppid()
        attached.close()
        inside = total()
        assert inside >= 1000
        for _ in range(1000):
            os.getppid()
        assert total() == inside
        assert fds() == before
        with pytest.raises(KernelError, match="no tracepoint of that name"):
            link.attach_raw_tracepoint(program, "no_such_point")


def _one_of_each():
    """Loads and attaches something of every kind, and drops it all."""
    ring = Map.create("ringbuf", 0, 0, 1 << 12)
    array = Map.create("perf_event_array", 4, 4, 0)
    reader, perf_reader = RingBuffer(ring), PerfBuffer(array, 1)
    program = Program.load("perf_event", RETURN_0)
    raw = Program.load("raw_tracepoint", RETURN_0)
    event = link.attach_perf_event(program, PerfEvent.open(perf.software("dummy", period=1)))
    point = link.attach_raw_tracepoint(raw, "sys_enter")
    with pytest.raises(VerifierError):
        Program.load("kprobe", EXIT)
    with pytest.raises(KernelError):
        Map.create("hash", 0, 0, 0)
    blob = BtfObject.load(storage_types(8))
    each_map = Program.load("tracing", RETURN_0, expected_attach_type="trace_iter",
                            attach_btf_id=ksyms.find("bpf_iter_bpf_map", "func")[0])
    iterator = link.attach_iter(each_map)
    iterator.read()
    found = [event, point, reader, perf_reader, raw, program, ring, array, blob, iterator, each_map]
    if kernel.release() >= (6, 1):
        requests = Map.create("user_ringbuf", 0, 0, 1 << 12)
        found += [UserRingBuffer(requests), requests]
    found.append(ProcessEvents())
    with pytest.raises(KernelError):
        BtfObject.load(b"no BTF" + bytes(50))
    yield from found


@pytest.mark.kernel
@pytest.mark.slow
def test_no_descriptor_leaks():
    gc.collect()
    before = fds()
    for _ in range(5):
        for item in _one_of_each():
            item.close()
        assert fds() == before
    for _ in range(3):        # dropped without close()
        list(_one_of_each())
        gc.collect()          # pytest.raises() makes reference cycles
        assert fds() == before


@pytest.mark.kernel
def test_descriptors_are_not_inherited():
    """Neither by what is exec'd nor by a forked child."""
    kept = list(_one_of_each())
    shared = Map.create("array", 4, 8, 16, flags=F_MMAPABLE)
    areas = [shared.mmap(), shared.memory()]            # they hold the map's descriptor, too
    kept.append(shared)
    numbers = [item.fileno() for item in kept]
    listing = subprocess.run([sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"],
                             close_fds=False, stdout=subprocess.PIPE, check=True).stdout
    assert not any("'%d'" % number in listing.decode() for number in numbers)
    before = {number: os.readlink("/proc/self/fd/%d" % number) for number in numbers}
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        here = fds()
        left = [number for number in numbers if here.get(str(number)) == before[number]]
        left += [target for target in here.values() if "bpf" in target or "perf_event" in target]
        with open("/proc/self/maps") as file:
            left += [line for line in file if "anon_inode:" in line]
        os.write(writing, repr(left).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 4096) == b"[]"
    os.close(reading)
    assert [item.fileno() for item in kept] == numbers      # the parent's are untouched
    for area in areas:
        area[0] = 7
        area.close()
    assert shared[0] == struct.pack("=Q", 7)
    for item in kept:
        item.close()


_HOLDER = """
import sys
from rawbpf.loader import Program, PerfEvent, perf, link
from tests.loader.code import RETURN_0
program = Program.load("perf_event", RETURN_0, name="killed")
links = [link.attach_perf_event(program, PerfEvent.open(perf.software("dummy", period=1)))]
raw = Program.load("raw_tracepoint", RETURN_0, name="killed")
links.append(link.attach_raw_tracepoint(raw, "sys_enter"))
print(program.info().id, raw.info().id, flush=True)
sys.stdin.read()
"""


@pytest.mark.kernel
def test_kill_leaves_nothing():
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE,
                              cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    ids = set(map(int, holder.stdout.readline().split()))
    assert len(ids) == 2 and ids <= program_ids()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    for _ in range(100):        # the kernel frees programs after a grace period
        if not ids & program_ids():
            return
        time.sleep(0.05)
    raise AssertionError("programs %s survive" % (ids & program_ids()))
