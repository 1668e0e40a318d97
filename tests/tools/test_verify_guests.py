"""`rawbpf verify --kernel` with a QEMU that hangs: it ends in time, and leaves neither processes nor files."""

import fcntl
import json
import os
import select
import signal
import time

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def hung(tmp_path, monkeypatch):
    """A folder with a program, an image, and a QEMU that says its process id and then nothing."""
    (tmp_path / "bin").mkdir()
    for name, text in (("qemu-system-x86_64", "echo $$ >> %s/pids\nexec sleep 1000" % tmp_path), ("busybox", "")):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n" + text + "\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "a.s").write_text(".section xdp\nr0 = 2\nexit\n")
    (tmp_path / "vmlinuz").write_bytes(bytes(0x202) + b"HdrS no kernel")
    (tmp_path / "tmp").mkdir()
    for name, value in (("PATH", "%s/bin:%s" % (tmp_path, os.environ["PATH"])), ("TMPDIR", "%s/tmp" % tmp_path),
                        ("RAWBPF_CACHE", "%s/cache" % tmp_path)):
        monkeypatch.setenv(name, value)
    return tmp_path


def alive(pids):
    return [pid for pid in pids if os.path.exists("/proc/%d" % pid)]


def pids(folder):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (folder / "pids").exists() and (folder / "pids").read_text().endswith("\n"):
            return list(map(int, (folder / "pids").read_text().split()))
        time.sleep(0.05)
    raise AssertionError("no machine was started")


def test_a_kernel_that_hangs(rawbpf, hung):
    done = rawbpf("verify", "--json", "--kernel", "vmlinuz", "--timeout", "1", "a.s", cwd=hung)
    record, = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1 and not record["accepted"] and record["error"].startswith("no end within 1 s")
    assert (record["kernel"], record["file"]) == ("vmlinuz", "a.s")
    assert not alive(pids(hung)) and os.listdir(hung / "tmp") == []


def test_another_machine_is_waited_for_aloud(rawbpf, hung):
    """All places are taken: that is said, and not counted as time of the kernel."""
    (hung / "cache" / "vm").mkdir(parents=True)
    places = [open(hung / "cache" / "vm" / ("slot%d.lock" % number), "w") for number in range(os.cpu_count())]
    for place in places:
        fcntl.flock(place, fcntl.LOCK_EX)
    running = rawbpf.start("verify", "--kernel", "vmlinuz", "--timeout", "1", "a.s", cwd=hung)
    assert running.stderr.readline() == "kernel vmlinuz: waiting for another virtual machine on this host to end\n"
    assert select.select([running.stderr], [], [], 1.5)[0] == [] and not (hung / "pids").exists()
    for place in places:
        place.close()
    out, error = running.communicate(timeout=30)
    assert "no end within 1 s" in out and error == ""


@pytest.mark.parametrize("content, wrong", [
    (b".section xdp\nr0 = 0\nexit\n", "no kernel's image (bzImage or vmlinux)"), (b"", "no kernel's image (bzImage or vmlinux)"),
    (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x01\x00\xf7\x00" + bytes(600), "no kernel's image (bzImage or vmlinux)"),
    (bytes(0x38) + b"ARM\x64" + bytes(600), "a kernel of another architecture: it must be x86_64's, as this machine's Python")])
def test_a_file_that_is_no_kernel_is_refused_at_once(rawbpf, hung, content, wrong):
    (hung / "image").write_bytes(content)
    done = rawbpf("verify", "--kernel", "./image", "a.s", cwd=hung)
    assert done.returncode == 1 and done.stderr.startswith("ERROR: --kernel ./image: %s\n" % wrong)
    assert not (hung / "pids").exists()


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_interrupted(rawbpf, hung, number, status):
    running = rawbpf.start("verify", "--kernel", "vmlinuz", "a.s", cwd=hung)
    started = pids(hung)
    assert alive(started)
    running.send_signal(number)
    out, error = running.communicate(timeout=30)
    assert (running.returncode, out, error) == (status, "", "")
    assert not alive(started) and os.listdir(hung / "tmp") == []
