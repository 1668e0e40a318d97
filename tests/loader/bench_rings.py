"""Ring buffers, measured: `python -m tests.loader.bench_rings [records]`, as root.

1. CPU time a record of a C consumer (the loop of libbpf's ring_buffer__consume) and of ours, on the
   same content: records of one length (a run) and of mixed lengths.
2. `records` (10 million) of mixed lengths from every CPU at once: each arrives whole and in its
   producer's order, or is counted as failed by the program.
"""

import itertools
import os
import struct
import subprocess
import sys
import time

from rawbpf.loader import Map, Program, RingBuffer
from rawbpf.loader.kernel import online_cpus
from tests.cc import compile_c
from tests.loader.code import emitter, size_of

CONSUMER = r"""
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    unsigned long size = strtoul(argv[1], 0, 0), page = sysconf(_SC_PAGESIZE), n = 0, sum = 0;
    unsigned long *consumer = mmap(0, page, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 0);
    unsigned long *producer = mmap(0, page + 2 * size, PROT_READ, MAP_SHARED, 0, page);
    char *data = (char *)producer + page;
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    unsigned long at = __atomic_load_n(consumer, __ATOMIC_ACQUIRE);
    unsigned long end = __atomic_load_n(producer, __ATOMIC_ACQUIRE);
    while (at < end) {
        uint32_t *header = (uint32_t *)(data + (at & (size - 1)));
        uint32_t length = __atomic_load_n(header, __ATOMIC_ACQUIRE);
        if (length >> 31)
            break;
        if (!(length & (1u << 30))) {
            sum += *(unsigned long *)(header + 2);
            n++;
        }
        at += ((length & 0x3fffffff) + 15) & ~7ul;
        __atomic_store_n(consumer, at, __ATOMIC_RELEASE);
    }
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


def consumers():
    path = compile_c(CONSUMER, "-O2", name="consumer")
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
        with RingBuffer(ring) as reader:
            for _ in range(3):
                program.test_run(bytes(64), repeat=count)
                theirs = subprocess.run([path, str(SIZE)], stdin=ring.fd, stdout=subprocess.PIPE,
                                        check=True).stdout.split()
                assert int(theirs[0]) == count
                program.test_run(bytes(64), repeat=count)
                start = time.process_time()
                got = reader.consume(add)
                ours = (time.process_time() - start) / got * 1e9
                program.test_run(bytes(64), repeat=count)
                start = time.process_time()
                reader.consume(lambda memory, runs: None)
                walk = (time.process_time() - start) / count * 1e9
                print("%-6s C %6.1f ns   ours, adding up %6.1f ns   ours, no handler %6.1f ns" % (
                    "mixed" if mixed else "equal", float(theirs[2]), ours, walk))


PRODUCER = """
import os, sys
from rawbpf.loader import Program
cpu, program, rounds = int(sys.argv[1]), Program.from_fd(os.dup(0)), int(sys.argv[2])
os.sched_setaffinity(0, {cpu})
for _ in range(rounds):
    program.test_run(bytes(64), repeat=1000)
"""


def everywhere(records):
    cpus = online_cpus()
    rounds = records // 1000 // len(cpus)
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
        producers = [subprocess.Popen([sys.executable, "-c", PRODUCER, str(cpu), str(rounds)],
                                      stdin=program.fd) for cpu, (_, _, program) in parts.items()]
        while any(producer.poll() is None for producer in producers):
            reader.poll(take, 0.05)
        reader.consume(take)
    seconds = time.monotonic() - start
    counted = [struct.unpack_from("=QQQ", state.lookup(bytes(4))) for state, _, _ in parts.values()]
    attempts, failures, written = map(sum, zip(*counted))
    print("%d attempts on %d CPUs in %.1f s: %d arrived (%d of them short), %d counted as failed, "
          "%d missing, %d out of order or broken" % (attempts, len(cpus), seconds, arrived, short,
                                                     failures, attempts - failures - arrived, wrong))
    return attempts - failures == written == arrived and not wrong


if __name__ == "__main__":
    consumers()
    sys.exit(not everywhere(int(sys.argv[1]) if len(sys.argv) > 1 else 10000000))
