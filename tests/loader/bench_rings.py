"""Ring buffers, measured: `python -m tests.loader.bench_rings [records]`, as root.

1. CPU time a record of a C consumer (libbpf's ring_buffer__consume, Debian's libbpf-dev) and of ours, on the same
   content: records of one length (a run) and of mixed lengths; the medians of nine turns, and their ratio.
2. `records` (10 million) of mixed lengths from every CPU at once, as fast as they go and so that none is lost: each
   arrives whole and in its producer's order, or is counted as failed by the program.
"""

import itertools
import os
import statistics
import struct
import subprocess
import sys
import time

from rawbpf.loader import Map, Program, RingBuffer
from rawbpf.loader.kernel import online_cpus
from tests.cc import compile_c
from tests.debian import Suite
from tests.loader.code import emitter, size_of

CONSUMER = r"""
#include <stdio.h>
#include <time.h>
#include <bpf/libbpf.h>
static unsigned long n, sum;
static int add(void *context, void *data, size_t size)
{
    n++;
    sum += *(unsigned long *)data;
    return 0;
}
int main(void)
{
    struct timespec a, b;
    struct ring_buffer *ring = ring_buffer__new(0, add, 0, 0);
    if (!ring)
        return 1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    ring_buffer__consume(ring);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    printf("%lu %lu %f\n", n, sum, ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n);
    return 0;
}
"""
SIZE = 1 << 23


def make(mixed, length=40, cpu=0, ring=None):
    state = Map.create("array", 4, 2048, 1)
    value = bytearray(2048)
    struct.pack_into("=Q", value, 72, cpu)      # the second word of each record
    state.update(bytes(4), bytes(value))
    ring = ring or Map.create("ringbuf", 0, 0, SIZE)
    return state, ring, Program.load("socket_filter", emitter(state, ring, False, mixed, length))


def libbpf_consumer():
    root = Suite("bookworm").root("libbpf-dev", ["libbpf-dev"])
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return compile_c(CONSUMER, "-O2", "-I%s" % (root / "usr/include"),
                     *[str(libraries / ("lib%s.a" % name)) for name in ("bpf", "elf", "z")], name="consumer")


def consumers():
    path = libbpf_consumer()
    first_word = struct.Struct("=Q40x")
    for mixed, count in ((False, 150000), (True, 14000)):
        _, ring, program = make(mixed)
        total = 0

        def add(memory, runs):
            nonlocal total
            for offset, many, stride, _ in runs:
                if many > 1:
                    part = memory[offset:offset + many * stride]
                    total += sum(itertools.chain.from_iterable(first_word.iter_unpack(part)))
                else:
                    total += int.from_bytes(memory[offset:offset + 8], "little")

        def ours(reader, handler):
            program.test_run(bytes(64), repeat=count)
            start = time.process_time()
            got = reader.consume(handler)
            assert got == count
            return (time.process_time() - start) / count * 1e9
        figures = []
        with RingBuffer(ring) as reader:
            for _ in range(9):
                program.test_run(bytes(64), repeat=count)
                theirs = subprocess.run([path], stdin=ring.fd, stdout=subprocess.PIPE, check=True).stdout.split()
                assert int(theirs[0]) == count
                figures.append((float(theirs[2]), ours(reader, add), ours(reader, lambda memory, runs: None)))
        c, adding, walking = map(statistics.median, zip(*figures))
        print("%-6s libbpf %6.1f ns   ours, adding up %6.1f ns (x %.1f)   ours, walking %6.1f ns (x %.1f)" % (
            "mixed" if mixed else "equal", c, adding, adding / c, walking, walking / c), flush=True)


PRODUCER = """
import os, struct, sys, time
from rawbpf.loader import Map, Program
cpu, wanted, patient, state = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Map.from_fd(int(sys.argv[4]))
program = Program.from_fd(os.dup(0))
os.sched_setaffinity(0, {cpu})
failed = written = rounds = 0
while rounds * 1000 < wanted if not patient else written < wanted:
    program.test_run(bytes(64), repeat=min(1000, wanted - written))
    rounds += 1
    _, failures, written = struct.unpack_from("=QQQ", state.lookup(bytes(4)))
    if patient and failures > failed:
        time.sleep(0.002)           # the ring was full
    failed = failures
"""


def everywhere(records, patient):
    """records: how many are tried or, patiently, written."""
    cpus = online_cpus()
    _, ring, _ = make(True)
    parts = {cpu: make(True, cpu=cpu, ring=ring) for cpu in cpus}
    following = dict.fromkeys(cpus, 0)
    wrong = arrived = short = 0

    def take(memory, runs):
        nonlocal wrong, arrived, short
        for offset, count, stride, length in runs:
            for at in range(offset, offset + count * stride, stride):
                arrived += 1
                if length < 16:
                    short += 1              # no room for the CPU: checked by the total
                    continue
                number, cpu = struct.unpack_from("=QQ", memory, at)
                expected = following[cpu]
                while expected < number and size_of(expected) < 16:
                    expected += 1
                wrong += number != expected or length != size_of(number)
                following[cpu] = number + 1
    start = time.monotonic()
    with RingBuffer(ring) as reader:
        producers = []
        for cpu, (state, _, program) in parts.items():
            os.set_inheritable(state.fd, True)
            producers.append(subprocess.Popen(
                [sys.executable, "-c", PRODUCER, str(cpu), str(records // len(cpus)), str(int(patient)), str(state.fd)],
                stdin=program.fd, pass_fds=[state.fd]))
        while any(producer.poll() is None for producer in producers):
            reader.poll(take, 0.05)
        reader.consume(take)
    seconds = time.monotonic() - start
    counted = [struct.unpack_from("=QQQ", state.lookup(bytes(4))) for state, _, _ in parts.values()]
    attempts, failures, written = map(sum, zip(*counted))
    print("%d attempts on %d CPUs in %.1f s: %d arrived (%d of them short), %d counted as failed, "
          "%d missing, %d out of order or broken" % (attempts, len(cpus), seconds, arrived, short,
                                                     failures, attempts - failures - arrived, wrong), flush=True)
    return attempts - failures == written == arrived and not wrong


if __name__ == "__main__":
    consumers()
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10000000
    sys.exit(not (everywhere(wanted, False) and everywhere(wanted, True)))
