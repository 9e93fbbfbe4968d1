"""The checks that look at hosts, on two that are network namespaces of this machine: what really breaks is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hosts

_ADDRESSES = ("10.77.0.1", "10.77.0.2")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two named network namespaces with one cable between them."""
    names = [f"st{os.getpid()}{letter}" for letter in "ab"]
    cable = [f"c{os.getpid() % 10**6}{letter}" for letter in "ab"]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", "name", cable[1], "netns", names[1])
        for name, end, address in zip(names, cable, _ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", end, "up", "mtu", "1500" if end == cable[0] else "1400")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _trial(hosts: list[str], folder: Path, second: str, environ: dict[str, str]) -> dict[str, Any]:
    """Inventory and host on both; ``second``: the address that the second one's own name stands for, on itself."""
    running = []
    for number, name in enumerate(hosts):
        known = [
            "127.0.0.1 localhost",
            f"{_ADDRESSES[0]} {hosts[0]}",
            f"{second if number else _ADDRESSES[1]} {hosts[1]}",
        ]
        (folder / f"hosts{number}").write_text("\n".join(known) + "\n")
        place = f'hostname {name}; mount --bind {folder}/hosts{number} /etc/hosts; exec "$@"'
        command = ["nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "--mount", "sh", "-c", place, "sh"]
        command += [sys.executable, "-m", "seatrial", "run", "smoke", "--only", "inventory,host", "--json"]
        identity = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        identity |= {"MASTER_ADDR": _ADDRESSES[0], "MASTER_PORT": "29512", "SEATRIAL_TOKEN": "of these two"}
        running.append(
            subprocess.Popen(
                [*command, "--out", str(folder / "out")],
                env={**os.environ, **identity, **(environ if number else {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [process.communicate(timeout=55) for process in running]
    report: dict[str, Any] = json.loads(told[0][0])
    return report


def _findings(report: dict[str, Any]) -> dict[str, str]:
    return {finding["what"]: finding["severity"] for finding in report["findings"]}


def test_two_hosts_with_different_mtus_are_otherwise_fine(hosts: list[str], tmp_path: Path) -> None:
    report = _trial(hosts, tmp_path, _ADDRESSES[1], {"GLOO_SOCKET_IFNAME": f"c{os.getpid() % 10**6}b"})
    assert report["acceptance"]["status"] == "PASS", report["findings"]
    (what,) = _findings(report)
    assert "different MTUs" in what
    told = [fact["value"] for fact in report["facts"] if fact["name"] == "host"]
    assert [(each["mtu"], each["name"]["own"]) for each in told] == [(1500, _ADDRESSES[0]), (1400, _ADDRESSES[1])]
    assert all(abs(each["clock"][0]) <= each["clock"][1] + 1.0 for each in told), "one machine has one clock"


def test_a_name_on_the_loopback_and_a_variable_without_a_way_out_are_named(hosts: list[str], tmp_path: Path) -> None:
    report = _trial(hosts, tmp_path, "127.0.1.1", {"NCCL_SOCKET_IFNAME": "lo"})
    assert report["exit_code"] == 1
    found = _findings(report)
    assert sorted(found.values()) == ["fail", "warn", "warn"]
    (what,) = (what for what, severity in found.items() if severity == "fail")
    assert f"the name of node {hosts[1]} resolves to 127.0.1.1" in what
    assert any(what.startswith(f"NCCL_SOCKET_IFNAME=lo on node {hosts[1]} leaves no interface") for what in found)
