"""`rawbpf cgroup`: the programs attached to control groups (v2)."""

import os
import re

from rawbpf.loader.errors import KernelError
from rawbpf.loader.uapi import ATTACH_TYPES, F_ALLOW_MULTI, F_ALLOW_OVERRIDE

from .command import run_object
from .objects import Gone, by_id, full_name, one, recorded, unescaped, vmlinux
from .words import fail, is_prefix

USAGE = """usage: rawbpf cgroup { show | list } CGROUP [effective]
       rawbpf cgroup tree [CGROUP_ROOT] [effective]
       rawbpf cgroup attach CGROUP ATTACH_TYPE PROG [{ multi | override }]
       rawbpf cgroup detach CGROUP ATTACH_TYPE PROG

CGROUP: a directory of a cgroup2 file system. PROG := { id ID | tag TAG | name NAME | pinned FILE }
"""
# in bpftool's order
TYPES = tuple("cgroup_" + name for name in """inet_ingress inet_egress inet_sock_create inet_sock_release inet4_bind inet6_bind
    inet4_post_bind inet6_post_bind inet4_connect inet6_connect unix_connect inet4_getpeername inet6_getpeername unix_getpeername
    inet4_getsockname inet6_getsockname unix_getsockname udp4_sendmsg udp6_sendmsg unix_sendmsg udp4_recvmsg udp6_recvmsg
    unix_recvmsg sock_ops device sysctl getsockopt setsockopt""".split()) + ("lsm_cgroup",)
_FLAGS = {0: "", F_ALLOW_OVERRIDE: "override", F_ALLOW_MULTI: "multi"}
_EFFECTIVE_FORMAT, _FORMAT = "%-8s %-15s %-15s\n", "%-8s %-15s %-15s %-15s\n"


class _Folder:
    """A cgroup directory, open while it is asked."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self.fd

    def __exit__(self, *_):
        os.close(self.fd)


def records(path, effective):
    """What is attached to one cgroup, in the order of the attach types."""
    from rawbpf.loader.link_net import prog_query
    refused, answered = None, False
    with _Folder(path) as folder:
        for kind in TYPES:
            try:
                found = prog_query(folder, kind, effective)
            except KernelError as error:
                if error.errno in (1, 9, 13):       # EPERM, EBADF, EACCES
                    raise
                refused = error
                continue
            answered = True
            for at, number in enumerate(found.prog_ids):
                value = found.prog_flags[at] or found.attach_flags
                flags = {} if effective else {"attach_flags": _FLAGS.get(value, "unknown(%x)" % value)}
                try:
                    with by_id("prog", number) as program:
                        info = program.info()
                except Gone:
                    continue
                yield {"id": number, "attach_type": kind, **flags, "name": full_name(info), **_attach_btf(info)}
    if refused is not None and not answered:
        raise refused


def _attach_btf(info):
    """The function of the kernel that an lsm_cgroup program stands for; empty for others."""
    number, of = getattr(info, "attach_btf_id", 0), getattr(info, "attach_btf_obj_id", 0)
    name = ""
    if number:
        name = vmlinux().name(number)
    return {"attach_btf_name": name, "attach_btf_obj_id": of, "attach_btf_id": number}


def _row(fields):
    form = _FORMAT if "attach_flags" in fields else _EFFECTIVE_FORMAT
    shown = [fields[name] for name in ("id", "attach_type", "attach_flags", "name", "attach_btf_name") if name in fields]
    return form.replace("\n", " %-15s\n") % tuple(shown)      # bpftool's last column has no head


def _head(effective):
    return _EFFECTIVE_FORMAT % ("ID", "AttachType", "Name") if effective else _FORMAT % (
        "ID", "AttachType", "AttachFlags", "Name")


def show(session, words):
    path = words.next("cgroup")
    effective = bool(words.take("effective"))
    words.end()
    found = _recorded(path, effective) if recorded("cgroup") is not None else list(records(path, effective))
    if session.json is None and found:
        session.write(_head(effective))
    session.show(found, _row)


def _recorded(path, effective):
    if effective:
        fail("not supported: effective programs of a snapshot, because it has those that are attached")
    path = _known(path)
    return next((branch["programs"] for branch in recorded("cgroup") if branch["cgroup"] == path), [])


def _known(path):
    """The path of a cgroup that there was when the snapshot was taken, as the snapshot has it."""
    path = os.path.normpath(path)
    known = recorded("cgroup_folders")
    if known != () and path not in known:       # (): an older snapshot, which does not tell
        fail("%s: the snapshot has no such cgroup" % path)
    return path


def mounted(path="/proc/self/mounts"):
    """Where cgroup v2 is mounted, or ""."""
    with open(path, errors="surrogateescape", newline="\n") as mounts:
        for line in mounts:
            words = line.split(" ")
            if words[2] == "cgroup2":
                return unescaped(words[1])
    return ""


def tree(session, words):
    root = None
    if words and not is_prefix(words.peek(), "effective"):
        root = words.next("cgroup")
    effective = bool(words.take("effective"))
    words.end()
    if recorded("cgroup") is None:
        root = root or mounted() or fail("cgroup v2 isn't mounted")
        found = branches(root, effective)
    elif effective:
        return _recorded("", True)
    else:
        root = _known(root or recorded("cgroup_root") or fail("cgroup v2 wasn't mounted"))
        found = [one_ for one_ in recorded("cgroup") if (one_["cgroup"] + "/").startswith(root.rstrip("/") + "/")]
    if session.json is None:
        session.write("CgroupPath\n" + _head(effective))

    def text(fields):
        indent = "" if os.path.normpath(fields["cgroup"]) == os.path.normpath(root) else "    "
        return fields["cgroup"] + "\n" + "".join(indent + _row(one_) for one_ in fields["programs"])
    session.show(found, text)
    return None


def folders(root):
    """The cgroup and all below it."""
    root = root.rstrip("/") or "/"
    os.close(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))       # os.walk() would say nothing
    return (folder for folder, _, _ in os.walk(root))


def branches(root, effective):
    for folder in folders(root):
        try:
            found = list(records(folder, effective))
        except FileNotFoundError:
            continue        # it went meanwhile
        if found:
            yield {"cgroup": folder, "programs": found}


def _short(name):
    """What bpftool called an attach type before, which may be cut short: bind4, ingress, sysctl."""
    found = re.match(r"cgroup_(?:inet|udp)([46])_(\w+)$", name)
    if found:
        return found.group(2) + found.group(1)
    return re.sub(r"^cgroup_(?:inet_)?(?!unix_)", "", name)


def _attach_type(words):
    word = words.next("attach type")
    found = [name for name in TYPES if name == word] or [
        name for name in ATTACH_TYPES if _short(name).startswith(word)][:1]
    if not found or found[0] not in TYPES:
        from difflib import get_close_matches
        near = get_close_matches(word, TYPES, 1)
        fail("invalid attach type '%s'%s" % (word, ": did you mean '%s'?" % near[0] if near else ""))
    return found[0]


def attach(session, words):
    from rawbpf.loader.link_net import prog_attach
    path, kind = words.next("cgroup"), _attach_type(words)
    with one("prog", words) as program, _Folder(path) as folder:
        flags = 0
        while words:
            flags |= F_ALLOW_MULTI if words.need("multi", "override") == "multi" else F_ALLOW_OVERRIDE
        prog_attach(program, folder, kind, flags)
    session.done()


def detach(session, words):
    from rawbpf.loader.link_net import prog_detach
    path, kind = words.next("cgroup"), _attach_type(words)
    with one("prog", words) as program, _Folder(path) as folder:
        words.end()
        prog_detach(program, folder, kind)
    session.done()


VERBS = {"show": show, "list": show, "tree": tree, "attach": attach, "detach": detach}


def run(argv):
    return run_object("cgroup", VERBS, USAGE, argv)
