"""What an error says when a privilege, a limit or a kernel option is missing."""

import ctypes
import os
import pickle
import resource
import struct
import traceback

import pytest

from rawbpf.loader import KernelError, Map, PerfEvent, Program, VerifierError, ids, kernel, link, perf
from rawbpf.loader import errors, features
from rawbpf.loader.mapkinds import lpm_key
from tests.loader.code import RETURN_0, call, mov, mov_reg

CAPS = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SYS_RESOURCE": 24, "CAP_PERFMON": 38, "CAP_BPF": 39}


def keep_only(*names):
    """Leaves this process nothing but these capabilities: capset(2), version 3."""
    mask = sum(1 << CAPS[name] for name in names)
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(struct.pack(
        "=6I", mask & 0xffffffff, mask & 0xffffffff, 0, mask >> 32, mask >> 32, 0))
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def in_child(function):
    """Runs function() in a forked child; what it raises fails the test."""
    child = os.fork()
    if not child:
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def refusal(action):
    try:
        action()
    except KernelError as error:
        assert "\n" not in str(error)
        return str(error)
    raise AssertionError("nothing was refused")


@pytest.mark.kernel
def test_missing_capabilities_are_named():
    def nothing():
        keep_only()
        text = refusal(lambda: Map.create("lru_hash", 4, 4, 1))
        assert text.endswith("needs CAP_BPF (or CAP_SYS_ADMIN)"), text
        text = refusal(lambda: Program.load("kprobe", RETURN_0))
        assert text.endswith("needs CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN)"), text
        text = refusal(lambda: list(ids.walk("prog")))
        assert text.endswith("needs CAP_SYS_ADMIN"), text
        text = refusal(lambda: Program.load("xdp", mov(0, 2) + RETURN_0))
        assert "needs CAP_BPF and CAP_NET_ADMIN" in text, text
    in_child(nothing)

    def bpf_only():
        keep_only("CAP_BPF")
        Map.create("lru_hash", 4, 4, 1).close()
        text = refusal(lambda: Program.load("kprobe", RETURN_0))
        assert text.endswith("needs CAP_PERFMON (or CAP_SYS_ADMIN)"), text
        text = refusal(lambda: Program.load("sched_cls", RETURN_0))
        assert text.endswith("needs CAP_NET_ADMIN (or CAP_SYS_ADMIN)"), text
    in_child(bpf_only)

    def tracing():
        keep_only("CAP_BPF", "CAP_PERFMON")
        with Program.load("raw_tracepoint", RETURN_0) as program:
            link.attach_raw_tracepoint(program, "sys_enter").close()
    in_child(tracing)


@pytest.mark.kernel
def test_perf_events_without_perfmon():
    if kernel.sysctl("kernel.perf_event_paranoid") == "-1":
        return

    def body():
        keep_only("CAP_BPF")
        text = refusal(lambda: PerfEvent.open(perf.software("cpu_clock", freq=100), cpu=0))
        assert "needs CAP_PERFMON (or CAP_SYS_ADMIN); kernel.perf_event_paranoid is " in text, text
    in_child(body)


@pytest.mark.kernel
def test_locked_memory():
    """Before 5.11 the limit, its value and the command that raises it; later not a word."""
    def body():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        keep_only("CAP_SYS_ADMIN", "CAP_BPF", "CAP_PERFMON")
        if kernel.release() >= (5, 11):
            Map.create("array", 4, 8, 1 << 17).close()
            return
        text = refusal(lambda: Map.create("array", 4, 8, 1 << 17, name="large"))
        assert text == ("creation of array map large: Operation not permitted (EPERM): kernels before "
                        "5.11 charge it to the locked-memory limit, which is 64 KiB: raise it with "
                        "`ulimit -l unlimited` or give CAP_SYS_RESOURCE")
    in_child(body)

    def raisable():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        Map.create("array", 4, 8, 1 << 17).close()
        # raised where it matters, left alone where it does not
        assert (resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == 1 << 16) == (kernel.release() >= (5, 11))
    if kernel.has_capability("CAP_SYS_RESOURCE"):
        in_child(raisable)


@pytest.mark.kernel
def test_out_of_descriptors():
    def body():
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        kept = []
        text = refusal(lambda: [kept.append(Map.create("array", 4, 4, 1)) for _ in range(30)])
        assert "EMFILE" in text and "ulimit -n" in text, text
    in_child(body)


@pytest.mark.kernel
def test_sizes_that_cannot_be():
    assert "power of two" in refusal(lambda: Map.create("ringbuf", 0, 0, 4097))
    assert "key size 0" in refusal(lambda: Map.create("hash", 0, 4, 1))
    assert "max_entries 0" in refusal(lambda: Map.create("hash", 4, 4, 0))
    text = refusal(lambda: Map.create("hash", 4, 1 << 30, 1 << 30))
    assert "E2BIG" in text or "ENOMEM" in text
    text = refusal(lambda: Program.load("socket_filter", mov(0, 0) * 1100000 + RETURN_0))
    assert "1100002 instructions" in text, text


def test_lockdown_and_namespaces_are_named(monkeypatch):
    monkeypatch.setattr(errors, "missing_capabilities", lambda kind: [])
    monkeypatch.setattr(kernel, "in_user_namespace", lambda: False)
    monkeypatch.setattr(kernel, "charges_memlock", lambda: False)
    monkeypatch.setattr(kernel, "lockdown", lambda: "confidentiality")
    assert errors.explain(1, "trace") == "the kernel is locked down (confidentiality)"
    monkeypatch.setattr(kernel, "lockdown", lambda: None)
    monkeypatch.setattr(kernel, "seccomp", lambda: True)
    assert "seccomp" in errors.explain(1, "trace")
    monkeypatch.setattr(kernel, "in_user_namespace", lambda: True)
    assert "user namespace" in errors.explain(1, "trace")
    assert "CONFIG_BPF_SYSCALL" in errors.explain(38)
    assert "CONFIG_PERF_EVENTS" in errors.explain(38, "perf")


def test_errors_are_os_errors_and_pickle():
    error = KernelError("load of x", 22, "needs Linux 9.9")
    assert isinstance(error, OSError) and error.errno == 22
    assert str(error) == "load of x: Invalid argument (EINVAL): needs Linux 9.9"
    assert str(KernelError("x", 524)) == "x: not supported (ENOTSUPP)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    refused = VerifierError("load of x", 13, "2: (95) exit\nR0 !read_ok\n", "R0 !read_ok", 2, 1)
    again = pickle.loads(pickle.dumps(refused))
    assert (again.log, again.slot, again.instruction, str(again)) == (
        refused.log, 2, 1, "load of x: refused by the verifier at 2: R0 !read_ok")     # the kernel's numbering


@pytest.mark.kernel
def test_signals_do_not_disturb():
    """A timer that fires several times during each load: loads, test runs and map operations still
    work (the verifier gives up with EAGAIN when a signal is pending)."""
    import signal
    import time
    code = mov(0, 0) + b"".join(mov(1, number) for number in range(3000)) + RETURN_0
    start = time.monotonic()
    Program.load("socket_filter", code).close()
    # not more often than an emulated machine can run handlers
    interval = max(0.0005, (time.monotonic() - start) / 5)
    fired = []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    signal.setitimer(signal.ITIMER_REAL, interval, interval)
    try:
        for _ in range(20):
            with Program.load("socket_filter", code) as program, Map.create("hash", 4, 4, 10) as map:
                assert program.test_run(bytes(14), repeat=10).retval == 0
                map.update(b"key1", b"val1")
                assert map.lookup(b"key1") == b"val1"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert fired


@pytest.mark.kernel
def test_interrupt_ends_a_load():
    """KeyboardInterrupt is not swallowed by the repetition."""
    import signal

    def body():
        def raise_now(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, raise_now)
        code = mov(0, 0) + mov_reg(6, 1) + (call(5) * 2000) + RETURN_0
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            while True:
                Program.load("socket_filter", code).close()
        except KeyboardInterrupt:
            return
    # In a child: what the kernel returned at the moment of the signal has no owner yet.
    in_child(body)


@pytest.mark.root
@pytest.mark.parametrize("reason, use", [
    (r"max_entries: -1 does not fit into 32 bits", lambda m, p: Map.create("array", 4, 8, -1)),
    (r"key_size: 4294967296 does not fit into 32 bits", lambda m, p: Map.create("array", 1 << 32, 8, 1)),
    (r"prog_id: 4294967296 does not", lambda m, p: Map.from_id(1 << 32)),
    (r"flags: -1 does not fit into 64 bits", lambda m, p: m.lookup(1, -1)),
    (r"repeat: -1 does not", lambda m, p: p.test_run(bytes(64), repeat=-1)),
    (r"cookie: 18446744073709551616 does not", lambda m, p: link.attach_raw_tracepoint(p, "sys_enter", 1 << 64)),
    (r"cookie: 'x' is no number", lambda m, p: link.attach_raw_tracepoint(p, "sys_enter", "x")),
    (r"no BPF program type is called 'nope'", lambda m, p: features.has_kfunc("bpf_obj_new_impl", "nope")),
    (r"prefix: -1 does not fit into 32 bits", lambda m, p: lpm_key(-1, bytes(4))),
    (r"pid: -1 does not fit into 32 bits", lambda m, p: link.iter_info(pid=-1)),
    (r"a path cannot have a NUL in it", lambda m, p: p.pin("/sys/fs/bpf/a\0b")),
    (r"the name of a tracepoint cannot have a NUL", lambda m, p: link.attach_raw_tracepoint(p, "sys\0enter")),
    (r"no BPF program type is called 'nope'", lambda m, p: features.has_helper("bpf_map_lookup_elem", "nope")),
    (r"no BPF program type is called None", lambda m, p: features.feature("helper", "bpf_map_lookup_elem")),
    (r"no BPF program type is called 'nope'", lambda m, p: features.kfuncs("nope")),
    (r"no family of instructions is called 'nope': they are jmp_lt", lambda m, p: features.has_instruction("nope")),
    (r"no software event is called 'nope': they are cpu_clock", lambda m, p: perf.software("nope")),
])
def test_arguments_that_are_none(reason, use):
    """Numbers that no field takes, texts with a NUL, names that are none: a ValueError that says which."""
    with Map.create("hash", 4, 8, 4) as map, Program.load("socket_filter", RETURN_0) as program:
        with pytest.raises(ValueError, match=reason):
            use(map, program)


REFUSED = [      # what Map.create takes, what the kernel writes of it (map_create() in kernel/bpf/syscall.c)
    (("array", 4, 8, 1), {"map_extra": 1}, "map_extra"), (("hash", 4, 8, 1), {"numa_node": 1 << 20}, "numa_node"),
    (("array", 4, 8, 1), {"btf_vmlinux_value_type_id": 1}, "btf_vmlinux_value_type_id"), ((99, 4, 8, 1), {}, "map_type"),
    (("array", 4, 8, 1), {"btf_key_type_id": 1, "btf_value_type_id": 1, "btf": True}, "btf_fd")]


@pytest.mark.kernel
@pytest.mark.parametrize("shape, options, word", REFUSED, ids=[word for _, _, word in REFUSED])
def test_what_the_kernel_writes_of_a_refused_map(shape, options, word, monkeypatch):
    """From 7.2 on it is in the error; before, the call is made once, as it always was."""
    from rawbpf.loader import syscalls
    calls, plain = [], syscalls.bpf_raw
    monkeypatch.setattr(syscalls, "bpf_raw", lambda *arguments: calls.append(arguments[0]) or plain(*arguments))
    before = len(os.listdir("/proc/self/fd"))
    with open("/dev/null") as file, pytest.raises(KernelError) as caught:
        Map.create(*shape, **dict(options, btf=file.fileno()) if options.get("btf") else options)
    assert caught.value.errno in (22, 9)
    if kernel.release() < (7, 2):
        assert calls == ["map_create"] and caught.value.log is None
        assert "the kernel says" not in str(caught.value)
    else:
        assert calls == ["map_create"] * 2
        assert word in caught.value.log and str(caught.value).endswith("the kernel says: " + caught.value.log)
        assert pickle.loads(pickle.dumps(caught.value)).log == caught.value.log
    assert len(os.listdir("/proc/self/fd")) == before
    with Map.create("array", 4, 8, 1):
        pass
