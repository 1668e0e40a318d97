"""What the tests in the virtual machines count on."""

import os
import subprocess

import pytest

pytestmark = pytest.mark.vm


def test_the_kernel_has_what_hosts_may_lack():
    with open("/sys/kernel/tracing/available_filter_functions") as file:
        assert any(line.split()[0] == "do_nanosleep" for line in file)
    with open("/proc/kallsyms") as file:
        assert any(int(line.split()[0], 16) for line in file)
    assert os.path.getsize("/sys/kernel/btf/vmlinux") > 1 << 20


def test_the_host_compiles(compile_c):
    program = compile_c("int main(void) { return 40 + ADD; }", "-DADD=2", name="forty-two")
    assert os.path.basename(program) == "forty-two"
    assert subprocess.run([program]).returncode == 42


def test_what_the_compiler_says_arrives(compile_c):
    with pytest.raises(Exception, match="no_such_function"):
        compile_c("int main(void) { return no_such_function(); }", "-Werror")


def test_the_command_runs(rawbpf):
    assert rawbpf("--version").stdout.startswith("rawbpf ")
