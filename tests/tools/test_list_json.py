"""rawbpf list --json: an object a line, with the same events as the plain listing."""

import json

import pytest

pytestmark = pytest.mark.root


def records(done):
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_events_and_types(rawbpf):
    assert records(rawbpf("list", "--json", "software:cpu*")) == [
        {"probe": "software:cpu-clock:"}, {"probe": "software:cpu-migrations:"}, {"probe": "software:cpu:"}]
    (seen,) = records(rawbpf("list", "-v", "--json", "tracepoint:syscalls:sys_enter_read"))
    assert seen["probe"] == "tracepoint:syscalls:sys_enter_read"
    assert [text.split()[-1] for text in seen["arguments"]] == ["__syscall_nr", "fd", "buf", "count"]
    (seen,) = records(rawbpf("trace", "-lv", "-f", "json", "struct iovec"))
    assert seen == {"type": "struct iovec", "module": "vmlinux",
                    "definition": "struct iovec {\n\tvoid *iov_base;\n\t__kernel_size_t iov_len;\n}"}
    assert records(rawbpf("list", "--json", "-e", "tracepoint:syscalls:sys_enter_read { @ = 1; }")) == [
        {"probe": "tracepoint:syscalls:sys_enter_read"}]
