"""rawbpf net, in a network namespace of the test's own: what the test attached must be what is shown."""

import re
import socket
import struct

import pytest

from rawbpf.loader import Program, features, link_net
from rawbpf.loader.errors import KernelError
from rawbpf.loader.netlink import INGRESS, Socket, attribute
from tests.loader.code import EXIT, RETURN_0, mov
from tests.loader.interfaces import insert
from tests.loader.test_links import in_netns
from tests.tools.inspecting import run, run_json

pytestmark = pytest.mark.kernel
PASS = mov(0, 2) + EXIT
LO = 1          # of every network namespace
_NEWQDISC, _NEWFILTER, _CREATE, _EXCL, _ACK = 36, 44, 0x400, 0x200, 4


def show():
    (shown,) = run_json("net", "show")
    return shown


def clsact(netlink):
    body = struct.pack("=BxxxiIII", 0, LO, 0xffff0000, 0xfffffff1, 0) + attribute(1, b"clsact\0")
    list(netlink.ask("qdisc", _NEWQDISC, _CREATE | _EXCL | _ACK, body))


def tc_filter(netlink, program, name):
    """`tc filter add dev lo ingress bpf direct-action object-fd ...`"""
    options = attribute(6, struct.pack("=I", program.fileno())) + attribute(7, name + b"\0") + attribute(8, struct.pack("=I", 1))
    info = 1 << 16 | socket.htons(3)        # priority 1, ETH_P_ALL
    body = struct.pack("=BxxxiIII", 0, LO, 0, INGRESS, info) + attribute(1, b"bpf\0") + attribute(2, options)
    list(netlink.ask("filter", _NEWFILTER, _CREATE | _EXCL | _ACK, body))


def test_nothing():
    def body():
        assert show() == {"xdp": [], "tc": [], "flow_dissector": [], "netfilter": []}
        assert run("net")[1] == "xdp:\n\ntc:\n\nflow_dissector:\n\nnetfilter:\n\n"
    in_netns(body)


def test_xdp():
    def body():
        with Program.load("xdp", PASS, name="t_pass") as program:
            number = program.info().id
            assert run("net", "attach", "xdpgeneric", "id", number, "dev", "lo") == (0, "", "")
            assert show()["xdp"] == [{"devname": "lo", "ifindex": 1, "mode": "generic", "id": number}]
            assert "xdp:\nlo(1) generic id %d\n\n" % number in run("net", "show", "dev", "lo")[1]
            # only "overwrite" replaces it
            status, out, error = run("net", "attach", "xdpgeneric", "id", number, "dev", "lo")
            assert (status, out) == (255, "") and "EBUSY" in error or "busy" in error
            assert run("net", "attach", "xdpgeneric", "id", number, "dev", "lo", "overwrite")[0] == 0
            assert run("net", "detach", "xdpgeneric", "dev", "lo") == (0, "", "")
            assert show()["xdp"] == []
    in_netns(body)


def test_tc():
    def body():
        with Program.load("sched_cls", RETURN_0, name="t_cls") as program, Socket() as netlink:
            insert("sch_ingress", "cls_bpf")
            clsact(netlink)
            tc_filter(netlink, program, b"my.o:[main]")
            number = program.info().id
            assert show()["tc"] == [{"devname": "lo", "ifindex": 1, "kind": "clsact/ingress", "name": "my.o:[main]",
                                     "id": number}]
            assert "tc:\nlo(1) clsact/ingress my.o:[main] id %d\n\n" % number in run("net")[1]
    in_netns(body)


def test_tcx():
    def body():
        with Program.load("sched_cls", RETURN_0, name="t_tcx") as first, \
                Program.load("sched_cls", RETURN_0, name="t_two") as second:
            try:
                link = link_net.attach_tcx(first, LO, "tcx_egress")
            except KernelError as error:
                assert "needs Linux 6.6" in str(error)
                return
            with link:
                assert run("net", "attach", "tcx_egress", "id", second.info().id, "dev", "lo", "prepend") == (0, "", "")
                common = {"devname": "lo", "ifindex": 1, "kind": "tcx/egress"}
                assert show()["tc"] == [
                    {**common, "name": "t_two", "prog_id": second.info().id, "prog_flags": [], "link_id": 0, "link_flags": []},
                    {**common, "name": "t_tcx", "prog_id": first.info().id, "prog_flags": [], "link_id": link.info().id,
                     "link_flags": []}]
                assert "lo(1) tcx/egress t_tcx prog_id %d link_id %d \n" % (first.info().id, link.info().id) in run("net")[1]
    in_netns(body)


def test_flow_dissector():
    def body():
        with Program.load("flow_dissector", RETURN_0) as program, link_net.open_path("/proc/self/ns/net") as namespace, \
                link_net.attach_netns(program, namespace, "flow_dissector"):
            assert show()["flow_dissector"] == [program.info().id]
            assert "flow_dissector:\nid %d\n" % program.info().id in run("net")[1]
    in_netns(body)


def test_netfilter():
    def body():
        if not features.has_program("netfilter"):      # before 6.4
            return
        with Program.load("netfilter", mov(0, 1) + EXIT, expected_attach_type="netfilter") as program, \
                link_net.attach_netfilter(program, "ipv4", "local_out", -7):
            assert {"pf": 2, "hook": 3, "prio": -7, "flags": 0, "id": program.info().id} in show()["netfilter"]
            assert "\n\tip output prio -7 prog_id %d" % program.info().id in run("net")[1]
    in_netns(body)


@pytest.mark.parametrize("words, said", [
    (("show", "dev", "none0"), "invalid devname none0"),
    (("show", "lo"), "expected 'dev', got: 'lo'"),
    (("attach", "tc", "id", "1", "dev", "lo"), "invalid net attach/detach type: tc$|get by id"),
    (("detach", "frob", "dev", "lo"), "invalid net attach/detach type: frob"),
    (("attach",), "attach type is missing"),
])
def test_errors(words, said):
    status, out, error = run("net", *words)
    assert (status, out) == (255, "") and re.search(said, error) and error.count("\n") == 1
