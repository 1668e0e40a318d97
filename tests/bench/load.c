/* load MODE COUNT RATE: makes COUNT events once a line arrives on stdin, RATE a second (0: as fast as
 * it can), says "done NANOSECONDS", and ends when stdin does. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

__attribute__((noinline)) long traced_function(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

__attribute__((noinline)) static void event(const char *mode, long n)
{
    if (mode[0] == 'p')        /* syscalls that hardly any other process makes */
        syscall(SYS_getppid);
    else if (mode[0] == 'r')
        rmdir("/nonexistent/folder/of/some/length");
    else
        traced_function(n);
}

__attribute__((noinline)) static void run(const char *mode, long count, long rate)
{
    long begun = now();
    for (long n = 0; n < count; n++) {
        if (rate && n % 64 == 0) {
            long due = begun + (long)(n * 1e9 / rate), left = due - now();
            struct timespec t = {left / 1000000000L, left % 1000000000L};
            if (left > 0)
                nanosleep(&t, NULL);
        }
        event(mode, n);
    }
}

int main(int argc, char **argv)
{
    char line[16];
    if (argc != 4)
        return 2;
    cpu_set_t last;  /* the tool stays on the other CPUs */
    CPU_ZERO(&last);
    CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
    sched_setaffinity(0, sizeof last, &last);
    while (fgets(line, sizeof line, stdin)) {
        long begun = now();
        run(argv[1], atol(argv[2]), atol(argv[3]));
        printf("done %ld\n", now() - begun);
        fflush(stdout);
    }
    return 0;
}
