"""Interfaces and routes, from recorded tables and from this machine."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from probe.cgroup_trees import plant

from seatrial.probe.network import Interface, interface_by_table, interface_to, interfaces

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the recorded tables are of a little-endian machine")

# Two networks: eth0 with the default route, ib0 with 10.1.0.0/16 and a metric, and a way that is closed.
_ROUTE = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	100	00000000	0	0	0
wlan0	00000000	010200C0	0003	0	0	600	00000000	0	0	0
eth0	000200C0	00000000	0001	0	0	100	00FFFFFF	0	0	0
ib0	0000010A	00000000	0001	0	0	0	0000FFFF	0	0	0
*	0000020A	00000000	0201	0	0	0	0000FFFF	0	0	0
ib1	0000030A	00000000	0000	0	0	0	0000FFFF	0	0	0
broken line
"""
_ROUTE_6 = """fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
fd000000000000000000000000000002 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000003 00000000 80200001       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000002 00000000 00000003      ib0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
"""  # noqa: E501


_DEV = """Inter-|   Receive
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:   11672     110    0    0    0     0          0         0    11672     110    0    0
  eth0:12345678    4321    0    0    0     0          0         0   654321    1234    0    0
   ib0:       0       0    0    0    0     0          0         0        0       0    0    0
"""


def _interface(name: str, mtu: str = "1500", state: str = "up", flags: str = "0x1003") -> dict[str, str]:
    folder = f"sys/class/net/{name}"
    return {f"{folder}/mtu": f"{mtu}\n", f"{folder}/operstate": f"{state}\n", f"{folder}/flags": f"{flags}\n"}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    tree = {"proc/net/route": _ROUTE, "proc/net/ipv6_route": _ROUTE_6, "proc/net/dev": _DEV}
    tree |= {
        **_interface("lo", "65536", "unknown", "0x9"),
        **_interface("eth0", "9000"),
        **_interface("ib0", state="down"),
    }
    return plant(tmp_path, tree)


def test_interfaces_with_mtu_and_state(recorded: Path) -> None:
    assert interfaces(recorded) == (
        Interface(name="eth0", mtu=9000, state="up", loopback=False),
        Interface(name="ib0", mtu=1500, state="down", loopback=False),
        Interface(name="lo", mtu=65536, state="unknown", loopback=True),
    )
    assert [each.usable for each in interfaces(recorded) or ()] == [True, False, True]


def test_missing_interface_values_are_unknown(tmp_path: Path) -> None:
    assert interfaces(tmp_path) is None
    plant(tmp_path, {"proc/net/dev": "a\nb\n  tun0: 1 2\n"})
    assert interfaces(tmp_path) == (Interface(name="tun0", mtu=None, state="unknown", loopback=False),)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.9", "eth0"),
        ("8.8.8.8", "eth0"),
        ("10.1.255.255", "ib0"),
        ("10.2.0.1", "eth0"),
        ("10.3.0.1", "eth0"),
        ("::ffff:10.1.0.1", "ib0"),
        ("127.0.0.1", "lo"),
        ("127.9.9.9", "lo"),
        ("::1", "lo"),
        ("fd00::7", "eth0"),
        ("fd00::2", "eth0"),
        ("2001:db8::1", "ib0"),
        ("n0", None),
        ("", None),
    ],
)
def test_the_longest_prefix_leads(recorded: Path, address: str, name: str | None) -> None:
    assert interface_by_table(address, recorded) == name


def test_without_tables_no_way_is_known(tmp_path: Path) -> None:
    for address in ("10.0.0.1", "fd00::1", "127.0.0.1"):
        assert interface_by_table(address, tmp_path) is None


def test_the_interfaces_of_this_machine_are_those_that_the_system_names() -> None:
    found = interfaces()
    assert found is not None
    assert [each.name for each in found] == sorted(name for _, name in socket.if_nameindex())
    (loopback,) = (each for each in found if each.loopback)
    assert loopback.usable
    assert (loopback.mtu or 0) >= 1280
    for each in found:
        shown = Path(f"/sys/class/net/{each.name}/mtu")
        assert not shown.exists() or int(shown.read_text()) == each.mtu


def test_the_loopback_of_this_machine() -> None:
    names = {name for _, name in socket.if_nameindex()}
    assert interface_to("127.0.0.1") in names & {"lo", "lo0"}
    assert interface_to("127.1.2.3") == interface_to("127.0.0.1")


def test_an_address_with_its_interface_needs_no_table() -> None:
    assert interface_to("fe80::1%eth7") == "eth7"


@pytest.mark.parametrize("address", ["n0", "", "300.1.1.1"])
def test_what_is_no_address_leads_nowhere(address: str) -> None:
    assert interface_to(address) is None


def test_our_own_addresses_are_on_their_interface() -> None:
    """By the way to a documentation address: where there is one, its source is ours, and on the same interface."""
    away = interface_to("192.0.2.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            assert away is None
            return
        assert interface_to(probe.getsockname()[0]) == away
