"""Every inspector on a snapshot says what it said of the kernel: over objects of every kind, in JSON and in text; what would
change something refuses."""

import json
import os
import re

import pytest

from rawbpf.tools.inspect import batch, cgroup
from rawbpf.tools.inspect.command import _RECORDED
from tests.tools.inspecting import run
from tests.tools.population import populated

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


@pytest.fixture(scope="module")
def host():
    with populated() as made:
        yield made


@pytest.fixture(scope="module")
def file(host, tmp_path_factory):
    path = tmp_path_factory.mktemp("snapshot") / "host.snapshot"
    before = cgroup.mounted
    cgroup.mounted = lambda: host.cgroup
    try:
        assert run("snapshot", path, "maps", "features")[::2] == (0, "")
        yield path
    finally:
        cgroup.mounted = before


def ids(objects):
    return {item.info().id for item in objects.values()}


def own(objects, words):
    """What `show` says of the objects alone: others come and go meanwhile."""
    wanted = ids(objects)
    records = [one for one in json.loads(run(*words, "-j")[1]) if one["id"] in wanted]
    parts = re.split(r"^(?=\d+: )", run(*words)[1], flags=re.M)[1:]
    return records, [part for part in parts if int(part.split(":")[0]) in wanted]


def _linked(links):
    from rawbpf.loader.link import IoctlLink
    return {name: item for name, item in links.items() if not isinstance(item, IoctlLink)}       # before 5.15


@pytest.mark.parametrize("kind", ["prog", "map", "link"])
def test_listings(host, file, kind):
    objects = {"prog": host.programs, "map": host.maps, "link": _linked(host.links)}[kind]
    live = own(objects, [kind, "show"])
    # one text and one record for each
    assert len(live[0]) == len(live[1]) == len(ids(objects)) > 5
    assert own(objects, [kind, "show", "--snapshot", file]) == live
    for item in objects.values():
        for words in ([kind, "show", "id", item.info().id, "-j"], [kind, "show", "id", item.info().id]):
            assert run(*words, "--snapshot", file) == run(*words)


def same(file, *words):
    live, recorded = run(*words), run(*words, "--snapshot", file)
    assert live == recorded and live[0] == 0, words


def test_code(host, file):
    for name in ("two", "inlined", "described", "kprobe"):
        number = host.programs[name].info().id
        for words in (["xlated", "id", number], ["xlated", "id", number, "opcodes", "linum"], ["jited", "id", number, "opcodes"]):
            same(file, "prog", "dump", *words)
            same(file, "prog", "dump", *words, "-j")
    same(file, "prog", "dump", "xlated", "id", host.programs["two"].info().id, "visual")
    tag = host.programs["two"].info().tag
    same(file, "prog", "show", "tag", tag, "-j")
    same(file, "prog", "show", "name", "t_two", "-j")


def test_elements(host, file):
    for item in host.maps.values():
        for flags in ([], ["-j"]):
            words = ["map", "dump", "id", item.info().id, *flags]
            live = run(*words)
            recorded = run(*words, "--snapshot", file)
            if live[0] == 0:
                assert recorded == live, item.type
            else:               # the kernel does not let it be walked over: there is nothing to be recorded either
                assert recorded[0] == 255 and "has no elements of map" in recorded[1] + recorded[2], item.type
    number = host.maps["t_hash"].info().id
    same(file, "map", "lookup", "id", number, "key", 1, 0, 0, 0)
    same(file, "map", "lookup", "name", "t_hash", "key", 1, 0, 0, 0, "-j")


def test_types(host, file):
    for number in {getattr(item.info(), "btf_id", 0) for item in [*host.maps.values(), *host.programs.values()]} - {0}:
        for flags in ([], ["-j"]):
            same(file, "btf", "show", "id", number, *flags)
            same(file, "btf", "dump", "id", number, *flags)
    same(file, "btf", "dump", "map", "id", host.maps["t_hash"].info().id, "format", "c")
    same(file, "btf", "dump", "prog", "id", host.programs["two"].info().id, "format", "c")


def test_what_surrounds_them(host, file, monkeypatch):
    monkeypatch.setattr(cgroup, "mounted", lambda: host.cgroup)
    for flags in ([], ["-j"]):
        same(file, "net", *flags)
        same(file, "net", "show", "dev", "lo", *flags)
        same(file, "cgroup", "tree", host.cgroup, *flags)
        same(file, "cgroup", "tree", *flags)
        same(file, "cgroup", "show", host.cgroup, *flags)
        same(file, "struct_ops", "show", *flags)
        if "struct_ops" in host.maps:
            same(file, "struct_ops", "dump", "id", host.maps["struct_ops"].info().id, *flags)
    live, recorded = ([one for one in json.loads(run("perf", "-j", *more)[1]) if one["pid"] == os.getpid()]
                      for more in ([], ["--snapshot", file]))
    assert live == recorded != []
    names = {one["prog_id"] for one in json.loads(run("who", "*", "-j", "--snapshot", file)[1])}
    assert {one["prog_id"] for one in json.loads(run("who", "*", "-j")[1])} & ids(host.programs) == names & ids(host.programs)
    status, out, error = run("tree", "--snapshot", file, "-j")
    assert (status, error) == (0, "") and json.loads(out) is not None


def test_features(file):
    for flags in ([], ["-j"], ["macros"], ["macros", "prefix", "X_"]):
        live, recorded = run("feature", "probe", *flags), run("feature", "probe", *flags, "--snapshot", file)
        assert live == recorded and live[0] == 0
    for words in (["full"], ["unprivileged"], ["dev", "lo"]):
        assert run("feature", "probe", *words, "--snapshot", file)[2].startswith("Error: not supported: full, unprivileged and devices")


def test_batches(host, file, tmp_path):
    (tmp_path / "batch").write_text("prog show id %d\nmap dump id %d\nlink show\n" % (
        host.programs["two"].info().id, host.maps["hash"].info().id))
    recorded = json.loads(run("batch", "-j", "file", tmp_path / "batch", "--snapshot", file)[1])
    live = json.loads(run("batch", "-j", "file", tmp_path / "batch")[1])
    assert recorded[:2] == live[:2] and recorded[0]["output"]["name"] == "t_two"
    (tmp_path / "batch").write_text("map freeze id %d\n" % host.maps["hash"].info().id)
    assert run("batch", "file", tmp_path / "batch", "--snapshot", file)[2].startswith("Error: not supported: rawbpf map freeze")


def test_what_changes_something_refuses(host, file):
    """Each verb of each inspector that is not a listing, whatever follows it."""
    from importlib import import_module
    for kind in batch.OBJECTS + ("tree", "who", "top"):
        module = import_module("rawbpf.tools.inspect." + kind)
        for verb in getattr(module, "VERBS", {"pin": None} if kind == "iter" else {}):
            if verb in _RECORDED.get(kind, ()) or kind == "version":
                continue
            status, out, error = run(kind, verb, "id", "1", "--snapshot", file)
            assert (status, out) == (255, "") and re.match(
                "Error: not supported: rawbpf %s( %s)? on a snapshot, because it (would change something|asks the running kernel)\n$"
                % (kind, verb), error), (kind, verb, error)
