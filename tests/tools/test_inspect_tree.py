"""rawbpf tree: what a process holds, and what would go with it."""

import json
import os

import pytest

from rawbpf.loader import Map, Program
from rawbpf.loader.link import attach_raw_tracepoint
from tests.loader import code

pytestmark = pytest.mark.root


def test_tree(rawbpf):
    with Map.create("hash", 4, 8, 2, name="t_tree") as item:
        number = item.info().id
        with Program.load("raw_tracepoint", code.map_fd(1, item) + code.RETURN_0, name="t_tree") as program:
            used = program.info().id
            with attach_raw_tracepoint(program, "sched_switch") as link:
                own = link.info().id
                done = rawbpf("tree", "-j")
                text = rawbpf("tree").stdout
    found = next(fields for fields in json.loads(done.stdout) if fields["holder"].endswith("(%d)" % os.getpid()))
    top = next(node for node in found["objects"] if (node["kind"], node["id"]) == ("link", own))
    assert (top["type"], top["name"], top["only"]) == ("raw_tracepoint", "sched_switch", True)
    below = top["uses"][0]
    assert (below["kind"], below["id"], below["uses"][0]["kind"], below["uses"][0]["id"]) == ("prog", used, "map", number)
    assert ("  link %d raw_tracepoint sched_switch *\n    prog %d raw_tracepoint t_tree *\n"
            "      map %d hash t_tree *\n" % (own, used, number)) in text
