"""Objects that other people wrote and compiled, inside Debian's libbpf-tools and beside its xdp-tools: where
libbpf (in bpftool) loads one as it is, so do we; where it refuses, we do."""

import pytest

from rawbpf.loader import KernelError, Object, ObjectError
from tests import peers
from tests.loader import tool_objects

pytestmark = [pytest.mark.peer, pytest.mark.root]


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    return tool_objects.libbpf_tools(tmp_path_factory.mktemp("objects"))


def test_whole_objects_beside_libbpf(objects, record_property):
    paths, command = objects + tool_objects.xdp_tools(), peers.command("bpftool")
    assert len(objects) > 60 and len(paths) - len(objects) > 10
    counts = {"both load": 0, "both refuse": 0}
    for path, why in zip(paths, tool_objects.ours(paths)):
        (they, said), we = tool_objects.theirs(command, path), not why
        assert they == we, "%s: %s\n%s" % (path.name, why, said)
        counts["both load" if they else "both refuse"] += 1
    record_property("counts", counts)
    assert counts["both load"] > 40 and sum(counts.values()) == len(paths)


def resize(obj):
    """What the tools' own user space does: it sets the sizes that the objects leave open."""
    for each in obj.maps.values():
        if not each.max_entries and each.type in ("hash", "stack_trace", "array"):
            each.max_entries = 64
        if each.type == "stack_trace" and not each.value_size:
            each.value_size = 127 * 8


def test_each_program_by_itself(objects):
    loaded, refused = 0, []
    for path in objects:
        with Object.open(str(path)) as obj:
            resize(obj)
            obj.prepare()
            assert obj.btf is not None or obj.file.btf is None, "%s: %s" % (path.name, obj.btf_error)
            for name in obj.select():
                try:
                    obj.programs[name].load()
                    loaded += 1
                except (KernelError, ObjectError) as error:
                    refused.append((obj.programs[name], str(error)))
    # those whose target the tool's user space picks, or that this kernel forbids
    for program, reason in refused:
        assert "has no function" in reason or "Operation not permitted" in reason or "cannot use helper" in reason, \
            "%s: %s" % (program.name, reason)
    assert loaded > 400
