"""`rawbpf feature`: what this kernel can do, found out by trying."""

import sys

from .command import run_object
from .objects import recorded
from .words import fail

USAGE = """usage: rawbpf feature probe [{ kernel | dev NAME }] [full] [unprivileged] [macros [prefix PREFIX]]
       rawbpf feature list_builtins { prog_types | map_types | attach_types | link_types | helpers }

full: also the helpers whose probes leave warnings in the kernel's log.
"""

_CONFIG = """BPF BPF_SYSCALL HAVE_EBPF_JIT BPF_JIT BPF_JIT_ALWAYS_ON DEBUG_INFO_BTF DEBUG_INFO_BTF_MODULES CGROUPS
CGROUP_BPF CGROUP_NET_CLASSID SOCK_CGROUP_DATA BPF_EVENTS KPROBE_EVENTS UPROBE_EVENTS TRACING FTRACE_SYSCALLS
FUNCTION_ERROR_INJECTION BPF_KPROBE_OVERRIDE NET XDP_SOCKETS LWTUNNEL_BPF NET_ACT_BPF NET_CLS_BPF NET_CLS_ACT
NET_SCH_INGRESS XFRM IP_ROUTE_CLASSID IPV6_SEG6_BPF BPF_LIRC_MODE2 BPF_STREAM_PARSER NETFILTER_XT_MATCH_BPF
TEST_BPF HZ""".split()
_MACRO_CONFIG = ("HZ",)
_WARNING = ("bpf_trace_printk", "bpf_trace_vprintk", "bpf_probe_write_user")
_BY_TARGET = ("tracing", "ext", "lsm", "struct_ops")       # whose helpers depend on what they attach to

_SYSCTLS = (   # JSON name, /proc/sys name, subject, what there is to know of it, {value: text}
    ("unprivileged_bpf_disabled", "kernel.unprivileged_bpf_disabled", "bpf() syscall",
     "required privileges for bpf() syscall",
     {0: " for unprivileged users is enabled", 1: " restricted to privileged users (without recovery)",
      2: " restricted to privileged users (admin can change)"}),
    ("bpf_jit_enable", "net.core.bpf_jit_enable", "JIT compiler", "JIT-compiler status",
     {0: " is disabled", 1: " is enabled", 2: " is enabled with debugging traces in kernel logs"}),
    ("bpf_jit_harden", "net.core.bpf_jit_harden", "JIT compiler hardening", "JIT hardening status",
     {0: " is disabled", 1: " is enabled for unprivileged users", 2: " is enabled for all users"}),
    ("bpf_jit_kallsyms", "net.core.bpf_jit_kallsyms", "JIT compiler kallsyms exports", "JIT kallsyms export status",
     {0: " are disabled", 1: " are enabled for root"}),
    ("bpf_jit_limit", "net.core.bpf_jit_limit", "Global memory limit for JIT compiler for unprivileged users",
     "global memory limit for JIT compiler for unprivileged users", {}),
)
_MISC = (("large_insn_limit", "Large program size limit", lambda f: f.has_large_programs()),
         ("bounded_loops", "Bounded loop support", lambda f: f.has_loops()),
         ("v2_isa_extension", "ISA extension v2", lambda f: f.has_instruction("jmp_lt")),
         ("v3_isa_extension", "ISA extension v3", lambda f: f.has_instruction("jmp32")),
         ("v4_isa_extension", "ISA extension v4", lambda f: f.has_instruction("gotol")))


class _Output:
    """One of the three forms: sections that hold answers."""

    def __init__(self, session, macros, prefix):
        self.session, self.macros, self.prefix = session, macros, prefix
        self.json = session.json
        self._first = True
        if self.json is not None:
            self.json.open("{")

    def section(self, name, plain, comment):
        if self.json is not None:
            self.json.name(name)
            self.json.open("{")
            return
        if self.macros and not comment:
            return
        self.session.write(("" if self._first else "\n") + ("/*** %s ***/\n" % comment if self.macros
                                                            else "Scanning %s...\n" % plain))
        self._first = False

    def end_section(self):
        if self.json is not None:
            self.json.close("}")

    def answer(self, name, plain, yes):
        """name: as in have_NAME."""
        if self.json is not None:
            self.field("have_" + name, yes)
        elif self.macros:
            self.session.write("#define %s%sHAVE_%s\n" % (self.prefix, "" if yes else "NO_", name.upper()))
        else:
            self.session.write("%s is %savailable\n" % (plain, "" if yes else "NOT "))

    def field(self, name, value):
        self.json.name(name)
        self.json.value(value)

    def close(self):
        if self.json is not None:
            self.json.close("}")
        else:
            self.session.write("\n")


def probe(session, words):
    full = macros = unprivileged = False
    prefix = component = device = None
    while words:
        option = words.need("kernel", "dev", "full", "macros", "prefix", "unprivileged")
        if option in ("kernel", "dev"):
            if component:
                fail("component to probe already specified")
            component = option
            device = _device(words) if option == "dev" else None
            continue
        unprivileged = unprivileged or option == "unprivileged"
        full, macros = full or option == "full", macros or option == "macros"
        if option == "prefix":
            prefix = words.next("prefix")
            if not macros:
                fail("'prefix' argument can only be used after 'macros'")
    if macros and session.json is not None:
        macros = False
    out = _Output(session, macros, prefix or "")
    said = recorded("features")
    if said is not None:
        if full or unprivileged or device is not None:
            fail("not supported: full, unprivileged and devices on a snapshot, because it has the answers of plain probes")
        _probe(out, _Recorded(said), False)
        return 0
    if unprivileged:
        if device is not None:
            fail("not supported: probes of a device by a user without capabilities, because that takes CAP_NET_ADMIN")
        return _in_child(out, full)
    from rawbpf.loader import features
    _probe(out, features if device is None else features.Device(device), full)
    return 0


def _device(words):
    import socket
    name = words.next("name of an interface")
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return fail("unrecognized netdevice '%s': No such device" % name)


def _in_child(out, full):
    """The probes in a process that has given up its capabilities."""
    import os
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            from rawbpf.loader import kernel
            kernel.drop_capabilities()
            _probe(out, _Unprivileged(), full)
            if out.json is not None:
                out.json.end()
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out.session.json = None         # the child has written it
    return status


class _Unprivileged:
    """loader.features, for which what this process may not do is not there."""

    def __getattr__(self, name):
        from rawbpf.loader import features
        from rawbpf.loader.errors import KernelError
        ask = getattr(features, name)

        def answer(*arguments):
            try:
                return ask(*arguments)
            except KernelError as error:
                if error.errno not in (1, 13):
                    raise
                return False
        return answer


class _Recorded:
    """loader.features and what else is asked, as answers() heard it."""

    def __init__(self, said):
        self._said = said

    def sysctl(self, path):
        return self._said["sysctls"].get(path)

    def config(self):
        return self._said["config"]

    def has_syscall(self):
        return self._said["syscall"]

    def __getattr__(self, name):
        if not name.startswith("has_"):
            raise AttributeError(name)
        return lambda *arguments: self._said["answers"].get(" ".join((name, *arguments)), False)


def answers():
    """All that a plain probe asks this kernel, for a snapshot."""
    from rawbpf.loader import features, kernel
    from .command import Session
    heard = {}

    class Listener:
        def __getattr__(self, name):
            ask = getattr(features, name)

            def answer(*arguments):
                found = heard[" ".join((name, *arguments))] = ask(*arguments)
                return found
            return answer if name.startswith("has_") else ask
    config = kernel.config() or {}
    _probe(_Output(Session({"json": True}, lambda text: None), False, ""), Listener(), False)
    return {"sysctls": {path: kernel.sysctl(path) for _, path, *_ in _SYSCTLS}, "syscall": features.has_syscall(),
            "config": {"CONFIG_" + name: config.get("CONFIG_" + name) for name in _CONFIG} if config else {},
            "answers": {name: True for name, yes in heard.items() if yes}}


def _probe(out, features, full):
    """features: loader.features, or what answers the same questions."""
    from rawbpf.loader import kernel
    from rawbpf.loader.features import has_syscall
    from rawbpf.loader.uapi import MAP_TYPES, PROG_TYPES
    if isinstance(features, _Recorded):
        kernel, has_syscall = features, features.has_syscall
    if not hasattr(features, "ifindex"):
        _system(out, kernel)
    out.section("syscall_config", "system call availability", "System call availability")
    out.answer("bpf_syscall", "bpf() syscall", has_syscall())
    out.end_section()
    programs = _types(out, features, getattr(features, "PROGRAMS", list(PROG_TYPES)[1:]),
                      getattr(features, "MAPS", list(MAP_TYPES)[1:]))
    _helpers(out, features, programs, full)
    out.section("misc", "miscellaneous eBPF features", "eBPF misc features")
    for name, plain, ask in _MISC:
        out.answer(name, plain, ask(features))
    out.end_section()
    out.close()


def _system(out, kernel):
    out.section("system_config", "system configuration", "Misc kernel config items")
    if not out.macros:
        for name, path, subject, what, texts in _SYSCTLS:
            value = kernel.sysctl(path)
            value = int(value) if value is not None and value.lstrip("-").isdigit() else None
            if out.json is not None:
                out.field(name, -1 if value is None else value)
            else:
                out.session.write(_sysctl_text(subject, what, texts, value))
    config = kernel.config()
    if not config and out.json is None:
        sys.stderr.write("skipping kernel config: there is neither /proc/config.gz nor a file of it\n")
    for name in _CONFIG if config else ():
        value = config.get("CONFIG_" + name)
        if out.json is not None:
            out.field("CONFIG_" + name, value)
        elif out.macros:
            if name in _MACRO_CONFIG:
                out.session.write("#define %sCONFIG_%s %s\n" % (out.prefix, name, value) if value is not None
                                  else "/* CONFIG_%s is not set */\n" % name)
        else:
            out.session.write("CONFIG_%s is %s\n" % (name, "not set" if value is None else "set to " + value))
    out.end_section()


def _sysctl_text(subject, what, texts, value):
    if value is None:
        return "Unable to retrieve %s\n" % what       # of net.core only the first network namespace has them
    if texts:
        return subject + texts.get(value, " has unknown value %d" % value) + "\n"
    return "%s is %d bytes\n" % (subject, value)


def _types(out, features, programs, maps):
    """Program and map types; -> {program type: is it there}."""
    found = {}
    out.section("program_types", "eBPF program types", "eBPF program types")
    for name in programs:
        # tracing programs are first of all fentry, which a kernel may be locked down against
        found[name] = features.has_program(name, *(("trace_fentry",) if name == "tracing" else ()))
        out.answer(name + "_prog_type", "eBPF program_type " + name, found[name])
    out.end_section()
    out.section("map_types", "eBPF map types", "eBPF map types")
    for name in maps:
        out.answer(name + "_map_type", "eBPF map_type " + name, features.has_map(name))
    out.end_section()
    return found


_MACRO_HEAD = """/*
 * Use %sHAVE_PROG_TYPE_HELPER(prog_type_name, helper_name)
 * to determine if <helper_name> is available for <prog_type_name>,
 * e.g.
 *	#if %sHAVE_PROG_TYPE_HELPER(xdp, bpf_redirect)
 *		// do stuff with this helper
 *	#elif
 *		// use a workaround
 *	#endif
 */
#define %sHAVE_PROG_TYPE_HELPER(prog_type, helper)	\\
	%sBPF__PROG_TYPE_ ## prog_type ## __HELPER_ ## helper
"""


def _helpers(out, features, programs, full):
    out.section("helpers", "eBPF helper functions", "eBPF helper functions")
    if out.macros:
        out.session.write(_MACRO_HEAD % ((out.prefix,) * 4))
    names = [name for name in helper_names() if full or name not in _WARNING]
    for kind, there in programs.items():
        known = there and kind not in _BY_TARGET
        can = [name for name in names if features.has_helper(name, kind)] if known else []
        if out.json is not None:
            out.field(kind + "_available_helpers", can)
        elif out.macros:
            able = set(can)
            out.session.write("".join("#define %sBPF__PROG_TYPE_%s__HELPER_%s %d\n" % (
                out.prefix, kind, name, name in able) for name in names))
        else:
            out.session.write("eBPF helpers supported for program type %s:\n" % kind)
            out.session.write("".join("\t- %s\n" % name for name in can) if known else
                              "\tCould not determine which helpers are available\n" if there else
                              "\tProgram type not supported\n")
    out.end_section()


def helper_names():
    from rawbpf.asm.helpers import NAME
    return [name for name in NAME if name and not name.endswith("unspec")]


def list_builtins(session, words):
    from rawbpf.loader import uapi
    group = words.need("prog_types", "map_types", "attach_types", "link_types", "helpers")
    words.end()
    names = ["bpf_unspec"] + helper_names() if group == "helpers" else list(getattr(uapi, group.upper()))
    if session.json is not None:
        session.json.value(names)
    else:
        session.write("".join(name + "\n" for name in names))


VERBS = {"probe": probe, "list_builtins": list_builtins}


def run(argv):
    return run_object("feature", VERBS, USAGE, argv)
