"""rawbpf net beside bpftool, in a network namespace of the test's own: the same text, the same JSON."""

import contextlib
import os
import struct
import subprocess

import pytest

from rawbpf.loader import Program, features, kernel, link_net
from rawbpf.loader.netlink import EGRESS, Socket, attribute
from tests.loader.code import EXIT, RETURN_0, mov
from tests.loader.interfaces import NESTED, insert, pair
from tests.loader.test_links import in_netns
from tests.peers import command
from tests.tools.inspecting import run
from tests.tools.test_inspect_net import LO, PASS, clsact, tc_filter

pytestmark = [pytest.mark.root, pytest.mark.peer]


def acting(netlink, program):
    """`tc filter add dev lo egress bpf ... action bpf ...`: a filter whose program is an action."""
    options = attribute(2, struct.pack("=IIiii", 0, 0, 0, 0, 0)) + attribute(5, struct.pack("=I", program.fileno())) + \
        attribute(6, b"acting\0")          # TCA_ACT_BPF_PARMS, _FD, _NAME
    action = attribute(1, b"bpf\0") + attribute(2 | NESTED, options)       # TCA_ACT_KIND, _OPTIONS
    with Program.load("sched_cls", RETURN_0, name="t_before") as before:
        body = attribute(1 | NESTED, attribute(1 | NESTED, action)) + attribute(6, struct.pack("=I", before.fileno())) + \
            attribute(7, b"with action\0")       # TCA_BPF_ACT, _FD, _NAME
        list(netlink.ask("filter", 44, 0x604, struct.pack("=BxxxiIII", 0, LO, 0, EGRESS, 2 << 16 | 0x300) + attribute(
            1, b"bpf\0") + attribute(2 | NESTED, body)))


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
                insert("sch_ingress", "cls_bpf", "act_bpf")
                clsact(netlink)
                tc_filter(netlink, cls, b"my.o:[main]")
                if "RAWBPF_CC" in os.environ:       # in the guests: other kernels may have no act_bpf
                    acting(netlink, stack.enter_context(Program.load("sched_act", RETURN_0, name="t_act")))

            def hook():
                loaded = stack.enter_context(Program.load("netfilter", mov(0, 1) + EXIT, expected_attach_type="netfilter"))
                stack.enter_context(link_net.attach_netfilter(loaded, "ipv6", "pre_routing", 5))
            # tcx is of 6.6, netfilter of 6.4
            for since, make in (((0, 0), tc), ((6, 4), hook), ((6, 6), lambda: (
                    stack.enter_context(link_net.attach_tcx(cls, LO, "tcx_ingress"))))):
                if kernel.release() >= since:
                    make()
            if features.has_link("netkit"):     # 6.7; the other of the pair may not be asked what is on it
                program = stack.enter_context(Program.load("sched_cls", RETURN_0, name="t_kit", expected_attach_type="netkit_primary"))
                stack.enter_context(link_net.attach_netkit(program, pair("netkit", "pk0", "pk1")[0], "netkit_primary"))
            for options in (("-j",), ()):
                assert run("net", *options)[1] == bpftool(*options, "net")
    in_netns(body)
