"""The inspectors beside bpftool, on objects that the tests load: the same fields in the same order, the same text.

Also in the guests: `python -m tests.vm --kernel 6.12 --peer bpftool tests/tools/test_inspect_peer.py`.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from rawbpf.asm import assemble
from rawbpf.loader import Program, features, kernel
from rawbpf.loader.link import IoctlLink
from rawbpf.loader.uapi import LINK_TYPES
from tests.peers import command
from tests.tools.inspecting import bpftool, run, without_pids
from tests.tools.population import PROGRAMS, populated

pytestmark = [pytest.mark.root, pytest.mark.peer]


@pytest.fixture(scope="module")
def host():
    with populated() as made:
        yield made


class Compared:
    """What differs of command lines that both are asked."""

    def __init__(self):
        self.differences = []

    def __call__(self, *words):
        theirs = bpftool(*words)
        status, mine, error = run(*words)
        # where the kernel knows fewer fields than it (before 5.11), it says so, and goes on with another document
        other = re.sub(r'^\{"error":"can\'t get BTF \(ID \d+\) object info: [^"]*"\},', "", theirs.stdout)
        if "-j" in words:
            mine, other = (json.dumps(_comparable(json.loads(text))) for text in (mine, _struct_ops(other)))
        else:
            mine = "\n".join(line for line in mine.split("\n") if not line.startswith("\tpids "))
            other = _struct_ops(other)
        # bpftool says of a single link that it failed, whatever it showed
        if mine != other or words[0] != "link" and status != theirs.returncode:
            at = next((n for n, (one, two) in enumerate(zip(mine, other)) if one != two), min(map(len, (mine, other))))
            self.differences.append("%s: %d %d %s\n  ours:   %r\n  theirs: %r" % (
                " ".join(map(str, words)), status, theirs.returncode, error, mine[max(0, at - 60):at + 140],
                other[max(0, at - 60):at + 140]))


def _struct_ops(text):
    """bpftool asks for maps of struct_ops with a field that kernels before 6.9 have not, and takes their refusal of it
    for an answer (libbpf 1.8, probe_map_create: value_type_btf_obj_fd)."""
    if kernel.release() >= (6, 9):
        return text
    return text.replace("map_type struct_ops is NOT", "map_type struct_ops is").replace(
        "NO_HAVE_STRUCT_OPS_MAP", "HAVE_STRUCT_OPS_MAP").replace('"have_struct_ops_map_type":false', '"have_struct_ops_map_type":true')


def _comparable(value):
    """Debian's bpftool tells no processes; its lists of who uses a BTF are in the order of a hash table."""
    value = without_pids(value)
    for fields in value if isinstance(value, list) else [value]:
        for name in ("map_ids", "prog_ids"):
            if isinstance(fields, dict) and "size" in fields and name in fields:
                fields[name].sort()
    return value


@pytest.fixture
def same():
    compared = Compared()
    yield compared
    assert not compared.differences, "\n".join(compared.differences)


def listed(kind, form, objects):
    """{id: what both say of it} of `KIND show`, of the objects alone."""
    wanted = {item.info().id for item in objects.values()}
    for text in (run(kind, "show", *form)[1], bpftool(kind, "show", *form).stdout):
        if form:
            yield {item["id"]: _comparable(item) for item in json.loads(text) if item["id"] in wanted}
        else:
            parts = re.split(r"^(?=\d+: )", re.sub(r"^\tpids .*\n", "", text, flags=re.M), flags=re.M)[1:]
            yield {int(part.split(":")[0]): part for part in parts if int(part.split(":")[0]) in wanted}


def _without_btf(shown):
    if isinstance(shown, str):
        return re.sub(r"\n\tbtf_id \d+(?=\n)|btf_id \d+  (?=frozen)", "", shown)
    return {name: value for name, value in shown.items() if name != "btf_id"}


@pytest.mark.parametrize("form", [["-j"], []])
@pytest.mark.parametrize("kind", ["prog", "map", "link"])
def test_lists(host, kind, form):
    objects = {"prog": host.programs, "map": host.maps, "link": host.links}[kind]
    objects = {name: item for name, item in objects.items() if not isinstance(item, IoctlLink)}    # before 5.15
    for _ in range(4):      # between the two, what is attached may have been passed over (recursion_misses): once more then
        mine, theirs = listed(kind, form, objects)
        if kind == "map":
            # newer kernels leave alone what they do not set, and bpftool hands them what it got of the map before
            for number in [number for number in theirs if "btf_id" not in mine[number]]:
                theirs[number] = _without_btf(theirs[number])
        assert len(theirs) >= len({item.info().id for item in objects.values()}) > 5
        different = {number: (mine.get(number), theirs[number]) for number in theirs
                     if json.dumps(mine.get(number)) != json.dumps(theirs[number])}     # the order of fields too
        if not different:
            return
    assert not different


def test_one(host, same):
    for kind, item in (("prog", host.programs["two"]), ("map", host.maps["t_hash"]), ("link", host.links["raw_tracepoint"])):
        same(kind, "show", "id", item.info().id)
        same(kind, "show", "id", item.info().id, "-j")


def test_instructions(host, same):
    for name in {"two", "inlined", "kprobe", *host.programs} - set(PROGRAMS) | {"kprobe"}:
        for flags in ([], ["opcodes"], ["linum"], ["opcodes", "linum"]) if name == "two" else (["opcodes", "linum"],):
            same("prog", "dump", "xlated", "id", host.programs[name].info().id, *flags, "-j")
            same("prog", "dump", "xlated", "id", host.programs[name].info().id, *flags)


EVERY = """
main: r6 = r1
call bpf_get_prandom_u32
if r0 > 3 goto more
*(u64 *)(r10 - 8) = 1
lock *(u64 *)(r10 - 8) &= r0
lock *(u64 *)(r10 - 8) |= r0
more: r0 <<= 2
if r0 & 4 goto out
if r0 s< 7 goto out
r1 = r0
call inner
out: r0 = 0
exit
inner: r0 = r1
r0 *= 3
exit
"""


def test_graph(host, same):
    """Without an exit before the end, which bpftool draws to the next block."""
    text = EVERY if kernel.release() >= (5, 12) else re.sub("lock .*\n", "", EVERY)
    with Program.load("socket_filter", assemble(text).instructions(), name="t_graph") as program:
        for flags in ([], ["opcodes"], ["linum"], ["opcodes", "linum"]):
            same("prog", "dump", "xlated", "id", program.info().id, "visual", *flags)
    for flags in ([], ["linum"]):
        same("prog", "dump", "xlated", "id", host.programs["inlined"].info().id, *flags)
    same("prog", "dump", "xlated", "id", host.programs["two"].info().id, "visual", "-j")


def test_elements(host, same):
    for item in host.maps.values():
        number = item.info().id
        same("map", "dump", "id", number)
        same("map", "dump", "id", number, "-j")


def test_btf(host, same):
    for number in {getattr(item.info(), "btf_id", 0) for item in [*host.maps.values(), *host.programs.values()]} - {0}:
        if kernel.release() >= (5, 11):     # older kernels know fewer fields than bpftool, which then shows nothing
            same("btf", "show", "id", number, "-j")
        same("btf", "dump", "id", number, "-j")
        same("btf", "dump", "id", number)
    for name in ("t_hash", "rodata", "t_array"):
        number = host.maps[name].info().id
        for words in ([], ["key"], ["value"], ["kv"], ["all"]):
            same("btf", "dump", "map", "id", number, *words)
            same("btf", "dump", "map", "id", number, *words, "-j")
    same("btf", "dump", "prog", "id", host.programs["two"].info().id)


def test_cgroup(host, same):
    """Links of each kind, lsm_cgroup among them, whose flags are its own; before 6.0 bpftool asks for what is not there."""
    for words in (["show", host.cgroup], ["tree", host.cgroup], ["show", host.cgroup, "effective"]):
        if kernel.release() >= (6, 0) or "effective" in words:
            same("cgroup", *words)
            same("cgroup", *words, "-j")


def test_perf(host):
    mine = json.loads(run("perf", "show", "-j")[1])
    theirs = json.loads(bpftool("perf", "show", "-j").stdout)
    own = [fields for fields in theirs if fields["pid"] == os.getpid()]
    assert own and [fields for fields in mine if fields["pid"] == os.getpid()] == own


@pytest.mark.parametrize("words", [["-j"], [], ["macros"], ["macros", "prefix", "X_"], ["dev", "lo"], ["dev", "lo", "-j"],
                                   ["dev", "lo", "macros"], ["dev", "none", "-j"], ["kernel", "dev", "lo", "-j"]])
def test_features(words, same):
    same("feature", "probe", *words)


@pytest.mark.parametrize("group", ["prog_types", "map_types", "attach_types", "link_types", "helpers"])
def test_builtins(group, same):
    same("feature", "list_builtins", group)
    same("feature", "list_builtins", group, "-j")


def test_features_of_an_unprivileged_user():
    """In JSON: what bpftool finds that a user without capabilities can do here."""
    done = subprocess.run(command("bpftool", "feature", "probe", "unprivileged", "-j"), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, universal_newlines=True)
    ours = subprocess.run([sys.executable, "-m", "rawbpf.tools", "feature", "probe", "unprivileged", "-j"],
                          stdout=subprocess.PIPE, universal_newlines=True)
    assert ours.returncode == 0 and json.loads(ours.stdout) == json.loads(done.stdout)


def _there(section):
    """Types of a section of bpftool's feature probe that are there."""
    found = json.loads(bpftool("feature", "probe", "-j").stdout)
    end = {"program_types": "_prog_type", "map_types": "_map_type"}[section]
    return {name[len("have_"):-len(end)] for name, there in found[section].items() if there}


def test_of_every_type_there_is_one(host):
    """What is compared here is all that the kernel takes."""
    refused = {name: str(error) for name, error in host.refused.items()}
    print(refused)
    assert _there("map_types") - {item.type for item in host.maps.values()} == set(), refused
    assert _there("program_types") - {program.type for program in host.programs.values()} == set(), refused
    links = {name for name in list(LINK_TYPES)[1:] if features.has_link(name)}
    if "locked down" in refused.get("fentry", ""):
        links.remove("tracing")
    assert links - {item.info().type for item in host.links.values() if not isinstance(item, IoctlLink)} == set(), refused
