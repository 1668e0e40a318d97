"""The traced process of `-c COMMAND` and of `-p PID`.

`Child` forks at once and holds the new process before its execve(2) on a pipe, so that its pid is
known to the compiler and every probe is attached before its first instruction. The kernel sends it
SIGTERM if the tracer dies (prctl(2), PR_SET_PDEATHSIG), however the tracer dies; one that has not
been released yet reads the end of the pipe and leaves.
"""

import errno
import os
import signal
import time

PR_SET_PDEATHSIG = 1


class ChildError(Exception):
    """The command or process cannot be traced; the text says why."""


def find_command(word):
    """Path of the executable that the shell would run for `word`; raises ChildError."""
    if "/" in word:
        candidates = [word]
    else:
        candidates = [os.path.join(folder or ".", word) for folder in os.get_exec_path()]
    refused = None
    for path in candidates:
        if os.path.isdir(path):
            refused = refused or (path, "is a directory")
        elif os.access(path, os.X_OK):
            return path
        elif os.path.exists(path):
            refused = refused or (path, "is not executable")
    if refused:
        raise ChildError("cannot run '%s': %s %s" % ((word,) + refused) if refused[0] != word
                         else "cannot run '%s': it %s" % (word, refused[1]))
    raise ChildError("cannot run '%s': no such file" % word if "/" in word
                     else "cannot run '%s': not found in PATH" % word)


def split_command(command):
    """The words of a command line; raises ChildError. bpftrace splits at spaces and knows no quotes: they stay as they are
    in a word without spaces. Where they hold spaces together, the word is read by the shell's rules."""
    import re
    import shlex
    words = []
    for word in re.findall(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|\S)+""", command, re.S):
        words += shlex.split(word) if re.search(r"\s", word) else [word]
    if not words:
        raise ChildError("the command is empty")
    return words


def open_pidfd(pid):
    """A descriptor that becomes readable when `pid` ends; -1 before Linux 5.3, which has none."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return -1
        raise


class Process:
    """A running process (`-p`): `.pid`, and `.pidfd` (see `open_pidfd`)."""

    held = False

    def __init__(self, pid):
        self.pid = pid
        try:
            self.pidfd = open_pidfd(pid)
        except ProcessLookupError:
            raise ChildError("there is no process %d" % pid)
        except OSError as error:
            # pidfd_open takes only thread group leaders and says so with EINVAL or ENOENT
            if error.errno in (errno.EINVAL, errno.ENOENT) and os.path.exists("/proc/%d" % pid):
                raise ChildError("%d is a thread, not a process" % pid)
            raise ChildError("cannot watch process %d: %s" % (pid, error.strerror))

    def release(self):
        """Nothing is held."""

    def alive(self):
        """Does it still run? Asked when its pidfd is readable, or now and then without one."""
        return os.path.exists("/proc/%d/stat" % self.pid) and not _is_zombie(self.pid)

    def close(self):
        """Let go of the process; it runs on."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Child:
    """A command (`-c`), forked and held before its execve until `release()`."""

    def __init__(self, command):
        words = split_command(command)
        path = find_command(words[0])
        self.command, self.path = command, path
        self.status = None  # as os.waitpid gives it, once the child has ended
        go_read, self._go = os.pipe()
        self._result, result_write = os.pipe()
        tracer = os.getpid()
        prctl = _prctl()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go)
                _become(prctl, tracer, go_read, result_write, path, words)
            finally:
                os._exit(127)
        os.close(go_read)
        os.close(result_write)
        _programs()[self.pid] = os.path.realpath(path)
        self.pidfd = open_pidfd(self.pid)

    @property
    def held(self):
        """It has not become the command yet."""
        return self._go >= 0

    def release(self):
        """Let the command run; raises ChildError when the kernel does not execute it."""
        _programs().pop(self.pid, None)
        try:
            os.write(self._go, b"g")
        except BrokenPipeError:
            pass     # it was killed while it was held: its pidfd says so
        os.close(self._go)
        self._go = -1
        answer = os.read(self._result, 16)
        os.close(self._result)
        self._result = -1
        if answer:
            code = int(answer)
            raise ChildError("cannot run '%s': %s" % (self.command, os.strerror(code) if code != errno.ENOEXEC
                                                      else "neither a program nor a script with a #! line"))

    def alive(self):
        """Does it still run? Reaps it when it does not."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is None

    def terminate(self, force=False):
        """Send SIGTERM (or SIGKILL) unless it has ended."""
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGKILL if force else signal.SIGTERM)
            except ProcessLookupError:
                self.status = 0  # someone else reaped it

    def close(self):
        """End a child that still runs (SIGTERM, and SIGKILL a second later), and reap it."""
        if self._go >= 0:
            _programs().pop(self.pid, None)
            os.close(self._go)  # never released: it reads the end of the pipe and leaves
            os.close(self._result)
            self._go = -1
        elif self.status is None:
            self.terminate()
        deadline = time.monotonic() + 1
        while self.alive():
            if time.monotonic() > deadline:
                self.terminate(force=True)
            time.sleep(0.001)
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _programs():
    """Of processes that are held, the programs that probes on them mean."""
    from rawbpf.sources import paths
    return paths.held


def _is_zombie(pid):
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"Z"
    except OSError:
        return False


def _prctl():
    """libc's prctl, looked up before the fork: the child should do as little as it can."""
    import ctypes
    return ctypes.CDLL(None).prctl


def _become(prctl, tracer, go, result, path, words):
    """In the child: wait for the word, then become the command. Returns only to exit."""
    prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != tracer:
        return  # the tracer died before the prctl
    signal.set_wakeup_fd(-1)
    # Ctrl-C goes to the whole foreground group: a child that is held must not die before it began
    # with Python's traceback
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if os.read(go, 1) != b"g":
        return
    try:
        os.execv(path, words)
    except OSError as error:
        os.write(result, b"%d" % error.errno)
