"""rawbpf net beside bpftool, in a network namespace of the test's own: the same text, the same JSON."""

import contextlib
import subprocess

import pytest

from rawbpf.loader import Program, link_net
from rawbpf.loader.netlink import Socket
from tests.loader.code import EXIT, RETURN_0, mov
from tests.loader.test_links import in_netns
from tests.peers import command
from tests.tools.inspecting import run
from tests.tools.test_inspect_net import LO, PASS, clsact, tc_filter

pytestmark = [pytest.mark.root, pytest.mark.peer]


def test_as_bpftool_has_it():
    def bpftool(*words):
        return subprocess.run(command("bpftool", *words), stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout

    def body():
        with contextlib.ExitStack() as stack:
            xdp = stack.enter_context(Program.load("xdp", PASS, name="t_pass"))
            cls = stack.enter_context(Program.load("sched_cls", RETURN_0, name="t_cls"))
            run("net", "attach", "xdpgeneric", "id", xdp.info().id, "dev", "lo")
            netlink = stack.enter_context(Socket())
            clsact(netlink)
            tc_filter(netlink, cls, b"my.o:[main]")
            stack.enter_context(link_net.attach_tcx(cls, LO, "tcx_ingress"))
            hook = stack.enter_context(Program.load("netfilter", mov(0, 1) + EXIT, expected_attach_type="netfilter"))
            stack.enter_context(link_net.attach_netfilter(hook, "ipv6", "pre_routing", 5))
            for options in (("-j",), ()):
                assert run("net", *options)[1] == bpftool(*options, "net")
    in_netns(body)
