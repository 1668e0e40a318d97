"""rawbpf net beside bpftool, in a network namespace of the test's own: the same text, the same JSON."""

import contextlib
import os
import subprocess

import pytest

from rawbpf.loader import Program, kernel, link_net
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
            assert run("net", "attach", "xdpgeneric", "id", xdp.info().id, "dev", "lo")[0] == 0
            netlink = stack.enter_context(Socket())

            def tc():
                clsact(netlink)
                tc_filter(netlink, cls, b"my.o:[main]")

            def hook():
                loaded = stack.enter_context(Program.load("netfilter", mov(0, 1) + EXIT, expected_attach_type="netfilter"))
                stack.enter_context(link_net.attach_netfilter(loaded, "ipv6", "pre_routing", 5))
            # the guests have no module sch_ingress; tcx is of 6.6, netfilter of 6.4
            for since, make in (((0, 0) if "RAWBPF_CC" not in os.environ else (99, 0), tc), ((6, 4), hook), ((6, 6), lambda: (
                    stack.enter_context(link_net.attach_tcx(cls, LO, "tcx_ingress"))))):
                if kernel.release() >= since:
                    make()
            for options in (("-j",), ()):
                assert run("net", *options)[1] == bpftool(*options, "net")
    in_netns(body)
