"""Errors of the kernel's calls that say what to do about them.

A KernelError is an OSError with `call` (what was tried), `errno`, `needs` (what is missing:
a capability, an option, a version, a limit) and, where the kernel wrote one, its `log`. `explain` works `needs` out from the errno and from
what this process and kernel are.
"""

import errno as _errno
import os

from . import kernel


class KernelError(OSError):
    """A call that the kernel refused. str() is one line: the call, the reason, what is missing."""

    def __init__(self, call, errno, needs="", log=None):
        super().__init__(errno, os.strerror(errno))
        self.call = call
        self.needs = needs
        self.log = log

    def __str__(self):
        # 524 is the kernel's own ENOTSUPP, which has no text in libc.
        reason = "not supported" if self.errno == 524 else os.strerror(self.errno)
        name = _errno.errorcode.get(self.errno, "ENOTSUPP" if self.errno == 524 else self.errno)
        text = "%s: %s (%s)" % (self.call, reason, name)
        from rawbpf.elf.image import printable      # a name or a path may hold anything
        return printable("%s: %s" % (text, self.needs) if self.needs else text)

    def __reduce__(self):
        return type(self), (self.call, self.errno, self.needs, self.log)


class ObjectError(Exception):
    """A BPF object that cannot be loaded as it is: what in it, and why. str() is one line."""

    def __str__(self):
        from rawbpf.elf.image import printable
        return printable(super().__str__())


class VerifierError(KernelError):
    """A program that the verifier refused.

    `log` is its whole log, `message` the line that states the reason, `slot` the number the log
    gives the failing instruction (8-byte slots) and `instruction` that instruction's index in the
    list that was loaded; both None when the log names none.
    """

    def __init__(self, call, errno, log, message, slot=None, instruction=None):
        super().__init__(call, errno, message)
        self.log, self.message, self.slot, self.instruction = log, message, slot, instruction

    def __str__(self):
        where = "" if self.slot is None else " at %d" % self.slot       # as the log and `rawbpf verify` count
        return "%s: refused by the verifier%s: %s" % (self.call, where, self.message or
                                                      os.strerror(self.errno))

    def __reduce__(self):
        return type(self), (self.call, self.errno, self.log, self.message, self.slot,
                            self.instruction)


# What a call needs, as (5.8 and later, before). CAP_SYS_ADMIN stands for any of them.
_NEEDS = {
    "bpf": (("CAP_BPF",), ("CAP_SYS_ADMIN",)),
    "trace": (("CAP_BPF", "CAP_PERFMON"), ("CAP_SYS_ADMIN",)),
    "net": (("CAP_BPF", "CAP_NET_ADMIN"), ("CAP_SYS_ADMIN",)),
    "perf": (("CAP_PERFMON",), ("CAP_SYS_ADMIN",)),
    "admin": (("CAP_SYS_ADMIN",), ("CAP_SYS_ADMIN",)),
    "net_admin": (("CAP_NET_ADMIN",), ("CAP_NET_ADMIN",)),
}


def missing_capabilities(kind):
    """Names of the capabilities this process lacks for a kind of call (a key of _NEEDS)."""
    wanted = _NEEDS[kind][kernel.release() < (5, 8)]
    if kind != "net_admin" and kernel.has_capability("CAP_SYS_ADMIN"):
        return []
    return [name for name in wanted if not kernel.has_capability(name)]


def memlock_text():
    limit = kernel.memlock_limit()
    return ("kernels before 5.11 charge it to the locked-memory limit, which is %s: raise it with "
            "`ulimit -l unlimited` or give CAP_SYS_RESOURCE" % (
                "unlimited" if limit is None else "%d KiB" % (limit >> 10)))


def _explain_permission(kind, charged, permitted):
    missing = missing_capabilities(kind)
    if missing:
        text = "needs " + " and ".join(missing)
        if kind != "net_admin" and "CAP_SYS_ADMIN" not in missing:
            text += " (or CAP_SYS_ADMIN)"
        if kind == "perf" and kernel.sysctl("kernel.perf_event_paranoid"):
            text += "; kernel.perf_event_paranoid is " + kernel.sysctl("kernel.perf_event_paranoid")
        return text
    if kernel.in_user_namespace():
        return ("this process is in a user namespace, whose capabilities do not count for BPF: run "
                "it in the initial one")
    if charged and kernel.charges_memlock() and kernel.memlock_limit() is not None:
        return memlock_text()
    if permitted:
        return permitted
    mode = kernel.lockdown()
    if mode not in (None, "none"):
        return "the kernel is locked down (%s)" % mode
    if kernel.seccomp():
        return "a seccomp filter (a container's default profile?) forbids the call"
    modules = _security_modules()
    return ("all capabilities are there, so %s forbids it: see the kernel's log" % (
        "a security module (lockdown, SELinux, AppArmor)" if modules is None else
        "one of the security modules (%s)" % modules if modules else "a rule of this kernel's own"))


def _security_modules():
    """Names of the active security modules that may refuse BPF where capabilities allow it, or None where that cannot be
    told. What the kernel is locked down to has been looked at."""
    from .tracefs import securityfs
    try:
        names = securityfs("lsm").decode("ascii", "replace").strip().split(",")
    except OSError:
        return None
    return ", ".join(name for name in names if name not in (
        "capability", "lockdown", "landlock", "yama", "loadpin", "safesetid", "integrity", "ima", "evm"))


def explain(errno, kind="bpf", charged=False, invalid="", permitted=""):
    """What a failed call needs, or "".

    kind: whose permissions it takes, a key of _NEEDS; charged: does it make a map or a program,
    which before 5.11 count as locked memory; invalid: what EINVAL and its like mean for this call
    (e.g. the version that has the feature), said when nothing more certain is known; permitted: what
    EPERM means for a process that has the capabilities.
    """
    if errno in (_errno.EPERM, _errno.EACCES):
        return _explain_permission(kind, charged, permitted)
    if errno == _errno.ENOSYS:
        option = "CONFIG_PERF_EVENTS" if kind == "perf" else "CONFIG_BPF_SYSCALL"
        return "the kernel is built without %s" % option
    if errno == _errno.EMFILE:
        return "too many open files: raise the limit with `ulimit -n`"
    if errno == _errno.ENFILE:
        return "the system's file table is full (fs.file-max)"
    if errno == _errno.ENOMEM and not invalid:
        return "not enough memory"
    return invalid


def refused(call, error, kind="bpf", charged=False, invalid="", permitted=""):
    """The KernelError for an OSError; the other parameters are those of `explain`."""
    return KernelError(call, error.errno, explain(error.errno, kind, charged, invalid, permitted))
