"""NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, as the libraries read them."""

from __future__ import annotations

import pytest

from seatrial.probe.ifname import gloo_interfaces, is_set, nccl_interfaces
from seatrial.probe.network import Interface


def _interface(name: str, state: str = "up") -> Interface:
    return Interface(name=name, mtu=1500, state=state, loopback=name == "lo")


ALL = (*map(_interface, ("docker0", "eth0", "eth01", "ib0", "lo")), _interface("eth1", "down"))


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("eth0", ("eth0", "eth01")),
        ("eth", ("eth0", "eth01")),
        ("=eth0", ("eth0",)),
        ("=eth", ()),
        ("^eth", ("docker0", "ib0", "lo")),
        ("^lo,docker", ("eth0", "eth01", "ib0")),
        ("^=eth0", ("docker0", "eth01", "ib0", "lo")),
        ("=^eth0", ()),
        ("ib,eth01", ("eth01", "ib0")),
        ("=ib0,eth0", ("eth0", "ib0")),
        ("ib0:1", ("ib0",)),
        (",ib0,", ("ib0",)),
        ("^", ()),
        ("=", ("docker0", "eth0", "eth01", "ib0", "lo")),
        ("eth1", ()),
        ("bond", ()),
        (" eth0", ()),
    ],
)
def test_nccl_takes_prefixes_whole_names_and_all_but_some(value: str, taken: tuple[str, ...]) -> None:
    assert nccl_interfaces(value, ALL) == taken


@pytest.mark.parametrize(
    ("value", "taken", "unknown"),
    [
        ("eth0", ("eth0",), ()),
        ("eth0,ib0", ("eth0", "ib0"), ()),
        ("eth", (), ("eth",)),
        ("^lo", (), ("^lo",)),
        ("eth0,bond0", ("eth0",), ("bond0",)),
        ("eth1", (), ("eth1",)),
        ("eth0,", ("eth0",), ()),
        (",eth0", ("eth0",), ("",)),
    ],
)
def test_gloo_takes_whole_names_only(value: str, taken: tuple[str, ...], unknown: tuple[str, ...]) -> None:
    assert gloo_interfaces(value, ALL) == (taken, unknown)


@pytest.mark.parametrize(("value", "counts"), [(None, False), ("", False), ("e", False), ("lo", True)])
def test_a_value_of_one_character_is_passed_over(value: str | None, counts: bool) -> None:
    assert is_set(value) == counts
