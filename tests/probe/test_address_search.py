"""How an agent searches for its controller: few questions, full names, its own address without a question."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from seatrial.probe import address_search, network
from seatrial.probe.address_search import AddressSearch, address_of_this_node, full_names
from seatrial.protocol.timeouts import join_timeout_s

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
RESOLV_CONF = "search team.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("trial-0.trial", "trial-0.trial.team.svc.cluster.local."),
        ("trial-master-0", "trial-master-0.team.svc.cluster.local."),
        ("trial-worker-0.trial.team.svc", "trial-worker-0.trial.team.svc.cluster.local."),
        ("trial-0.trial.team", "trial-0.trial.team.svc.cluster.local."),
        ("trial-0.trial.team.svc.cluster.local", "trial-0.trial.team.svc.cluster.local."),
        ("trial-0.trial.team.svc.cluster.local.", "trial-0.trial.team.svc.cluster.local."),
        ("10.0.0.7", "10.0.0.7"),
        ("fd00::7", "fd00::7"),
        ("localhost", "localhost"),
    ],
)
def test_the_name_of_a_pod_is_completed(host: str, expected: str) -> None:
    assert full_names(host, RESOLV_CONF) == (expected,)


_OF_SLURM = RESOLV_CONF.replace(
    "cluster.local\nname", "cluster.local example.com gpu worker-svc.team.svc.cluster.local\nname"
)
"""Slurm in pods: its nodes have names in a Service of their own, and the path of the host is in between."""


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("worker-0", ["worker-0.team.svc.cluster.local.", "worker-0.worker-svc.team.svc.cluster.local."]),
        ("worker-0.worker-svc.team", ["worker-0.worker-svc.team.svc.cluster.local."]),
        ("gpu-0.gpu", ["gpu-0.gpu.team.svc.cluster.local.", "gpu-0.gpu.worker-svc.team.svc.cluster.local."]),
        ("gpu-01.example.com", ["gpu-01.example.com."]),
        # A run may have the name of its namespace.
        (
            "team-0.team",
            [
                *("team-0.team.team.svc.cluster.local.", "team-0.team.worker-svc.team.svc.cluster.local."),
                "team-0.team.svc.cluster.local.",
            ],
        ),
    ],
)
def test_a_name_is_completed_by_namespaces_of_the_search_path_only(host: str, expected: list[str]) -> None:
    """svc.CLUSTER makes the name of a run the namespace of somebody else; a domain of the host has other owners."""
    assert full_names(host, _OF_SLURM) == (*expected,)


def test_a_name_outside_of_pods_stays() -> None:
    assert full_names("gpu-01", "search example.org\n") == ("gpu-01",)
    assert full_names("gpu-01", "") == ("gpu-01",)


def searching(
    host: str, known: Mapping[str, Sequence[str] | OSError], hosts: Path | None = None
) -> tuple[Sequence[str], list[str]]:
    """Return the addresses that a search in a pod finds, and the names that it asks for.

    ``known``: what the resolver says of names; it knows no others.
    """
    asked, clock = list[str](), Clock()

    def resolve(name: str) -> Sequence[str]:
        asked.append(name)
        answer = known.get(name, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        if isinstance(answer, OSError):
            raise answer
        return answer

    search = AddressSearch(
        *(host, 0), environ=POD, resolv_conf=_OF_SLURM, hosts_file=str(hosts), resolve=resolve, clock=clock
    )
    search.addresses()
    clock.now = 5.0
    return search.addresses(), asked


def test_each_namespace_is_asked_until_one_knows_the_name() -> None:
    own, of_slurm = "worker-0.team.svc.cluster.local.", "worker-0.worker-svc.team.svc.cluster.local."
    address = ["10.244.1.5"]
    assert searching("worker-0", {own: address}) == ((*address,), [own])
    assert searching("worker-0", {of_slurm: address}) == ((*address,), [own, of_slurm])
    assert searching("worker-0", {}) == ((), [own, of_slurm])
    # It may be there.
    unsure = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert searching("worker-0", {own: unsure, of_slurm: address}) == ((), [own])


def test_the_name_that_torchrun_gives_is_asked_for_as_it_is_at_last() -> None:
    """On the network of a host the name of a pod is that of the host, and torchrun gives that to its ranks."""
    asked = list[str]()

    def resolve(name: str) -> Sequence[str]:
        asked.append(name)
        if name != "gpu-01":
            raise OSError(socket.EAI_NONAME, "Name or service not known")
        return ["192.0.2.7"]

    for more, addresses in (({"TORCHELASTIC_RUN_ID": "1"}, ("192.0.2.7",)), ({}, ())):
        clock = Clock()
        search = AddressSearch(
            "gpu-01", 1, environ={**POD, **more}, resolv_conf=RESOLV_CONF, resolve=resolve, clock=clock
        )
        clock.now = 5.0
        assert search.addresses() == addresses
    assert asked == ["gpu-01.team.svc.cluster.local.", "gpu-01", "gpu-01.team.svc.cluster.local."]


def test_the_file_of_hosts_has_priority_and_takes_no_time(tmp_path: Path) -> None:
    """As for the resolver of the system: hostAliases of a pod, the own name of a pod, and that of its host."""
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "127.0.0.1 localhost\n10.7.7.7 other Worker-0 # 10.8.8.8 worker-0\nfd00::7 worker-0\nno worker-0\n"
    )
    assert searching("worker-0", {}, hosts) == (("10.7.7.7", "fd00::7"), [])
    assert searching("localhost", {}, hosts) == (("127.0.0.1",), [])
    assert searching("worker-1", {}, hosts)[1]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def asked(
    node_rank: int, environ: Mapping[str, str], *, known_at_s: float, until_s: float = 900.0
) -> tuple[list[float], set[str]]:
    """Return when a search that tries five times a second asks, and for which names."""
    clock, times, names = Clock(), [], set()

    def resolve(name: str) -> Sequence[str]:
        times.append(clock.now)
        names.add(name)
        if clock.now < known_at_s:
            raise OSError(-2, "Name or service not known")
        return ["10.244.1.5"]

    search = AddressSearch(
        "trial-0.trial", node_rank, environ=environ, resolv_conf=RESOLV_CONF, resolve=resolve, clock=clock
    )
    while clock.now < until_s and not (clock.now > known_at_s and search.addresses()):
        search.addresses()
        clock.now += 0.2
    assert search.addresses() == ("10.244.1.5",) or until_s < known_at_s
    return times, names


def test_questions_come_late_and_ever_more_rarely() -> None:
    times, names = asked(3, POD, known_at_s=1_000.0)
    assert names == {"trial-0.trial.team.svc.cluster.local."}
    assert 1.0 <= times[0] <= 2.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 2.0
    assert gaps[-1] > 2 * gaps[0]
    assert len(times) <= 70


def test_a_name_that_becomes_known_is_found() -> None:
    times, _ = asked(1, POD, known_at_s=33.0)
    assert times[-1] < 33.0 + 16.0


def test_ranks_outside_of_pods_ask_at_once() -> None:
    times, names = asked(1, {}, known_at_s=0.0)
    assert (times[0], names) == (0.0, {"trial-0.trial"})


_BOTH = ("10.244.1.5", "10.244.2.6")


def search_that_finds(answers: list[Sequence[str]], clock: Clock, host: str = "trial-0.trial") -> AddressSearch:
    """``answers``: one for each question; the last one stays."""

    def resolve(name: str) -> Sequence[str]:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return AddressSearch(host, 1, environ=POD, resolv_conf=RESOLV_CONF, resolve=resolve, clock=clock)


@pytest.mark.parametrize("others", [_BOTH, (*_BOTH, "fd00::5"), ("10.244.1.5", "fd00::5", "fd00::6"), (*_BOTH,) * 2])
def test_a_name_of_several_pods_is_refused(others: Sequence[str]) -> None:
    """A second pod that answers to the name of the first one could be taken for it."""
    clock = Clock()
    search = search_that_finds([others], clock)
    clock.now = 5.0
    assert search.addresses() == ()
    first, second, family = ("fd00::5", "fd00::6", "IPv6") if "fd00::6" in others else (*_BOTH, "IPv4")
    assert str(search.error) == (
        f"trial-0.trial.team.svc.cluster.local. has 2 {family} addresses, {first} and {second}, and a pod has one;"
        " delete the pod that should not have that name, or set MASTER_ADDR to a name that only the first pod has"
    )


def test_of_many_addresses_two_are_named() -> None:
    clock = Clock()
    search = search_that_finds([[f"10.244.0.{number}" for number in range(1_000)]], clock)
    clock.now = 5.0
    assert search.addresses() == ()
    assert "has 1000 IPv4 addresses, 10.244.0.0 and 10.244.0.1 among them, and a pod has one" in str(search.error)


def test_a_pod_of_both_families_has_two_addresses() -> None:
    clock = Clock()
    search = search_that_finds([["10.244.1.5", "fd00::5", "10.244.1.5"]], clock)
    clock.now = 5.0
    assert (search.addresses(), search.error) == (("10.244.1.5", "fd00::5"), None)


def test_a_pod_that_was_made_again_is_found_when_the_old_one_is_gone() -> None:
    clock = Clock()
    search = search_that_finds([_BOTH, _BOTH, ["10.244.2.6"]], clock)
    clock.now = 5.0
    assert search.addresses() == ()
    while clock.now < 60.0 and not search.addresses():
        clock.now += 0.2
    assert (search.addresses(), search.error) == (("10.244.2.6",), None)


def test_a_name_outside_of_the_cluster_may_have_several_addresses() -> None:
    """Hosts have several interfaces."""
    clock = Clock()
    search = search_that_finds([_BOTH], clock, "gpu-01.example.org.")
    clock.now = 5.0
    assert search.addresses() == _BOTH


def test_of_thousands_of_addresses_the_first_of_each_family_are_tried() -> None:
    """Who answers for the DNS server may send as many, and each one that is silent takes time."""
    numbers = range(4_000)
    answer = [address for number in numbers for address in (f"10.9.{number >> 8}.{number & 255}", f"fd00::{number:x}")]
    clock = Clock()
    search = search_that_finds([answer], clock, "gpu-01.example.org.")
    clock.now = 5.0
    assert search.addresses() == tuple(answer[:16])


def test_an_address_needs_no_question() -> None:
    def refuse(name: str) -> Sequence[str]:
        raise AssertionError(name)

    for address in ("10.0.0.7", "fe80::7%eth0"):
        assert AddressSearch(address, 1, environ=POD, resolv_conf="", resolve=refuse).addresses() == (address,)


def test_the_own_address_of_a_pod_comes_from_its_hosts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **more: object) -> None:
        raise AssertionError("a question to DNS")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    # As kubelet writes it (pkg/kubelet/kubelet_pods.go, managedHostsFileContent).
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"
        "10.244.1.5\ttrial-0.trial.team.svc.cluster.local\ttrial-0\n"
    )
    for name in ("trial-0.trial.team.svc.cluster.local.", "trial-0.trial", "trial-0"):
        assert address_of_this_node(name, POD, hosts_file=str(hosts)) == "10.244.1.5"
    assert address_of_this_node("other.trial", POD, hosts_file=str(hosts))
    assert address_of_this_node("127.0.0.1", {}) == "127.0.0.1"


def test_without_a_default_route_an_interface_gives_the_own_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod in the network of its host has that host's file, which does not hold the pod's name."""
    hosts = tmp_path / "hosts"
    monkeypatch.setattr(socket, "gethostname", lambda: "node-7.example.com")
    monkeypatch.setattr(address_search, "_source_address", lambda address: "")
    monkeypatch.setattr(network, "interfaces", lambda: (interface("down0", state="down"), interface("eth0")))
    monkeypatch.setattr(network, "address_of", {"down0": "10.1.0.1", "eth0": "10.2.0.1"}.get)
    hosts.write_text("127.0.0.1 localhost\n10.55.0.7 node-7\n10.55.0.8 node-8\n")
    assert address_of_this_node("trial-master-0", POD, hosts_file=str(hosts)) == "10.55.0.7"
    for text in ("", "127.0.1.1 node-7\n"):
        hosts.write_text(text)
        assert address_of_this_node("trial-master-0", POD, hosts_file=str(hosts)) == "10.2.0.1"


@pytest.mark.parametrize("route", ["10.2.0.1", ""])
def test_no_other_host_is_offered_a_loopback_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """The installers of Debian and Ubuntu map the name of a host to 127.0.1.1."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node-7.example.com node-7\n")
    sources = {"127.0.1.1": "127.0.0.1", "192.0.2.1": route}
    monkeypatch.setattr(address_search, "resolve_in_thread", lambda name: ["127.0.1.1"])
    monkeypatch.setattr(address_search, "_source_address", lambda address: sources.get(address, ""))
    monkeypatch.setattr(network, "interfaces", lambda: (interface("eth0"),))
    monkeypatch.setattr(network, "address_of", {"eth0": "10.2.0.1"}.get)
    assert address_of_this_node("node-7", {}, hosts_file=str(hosts)) == "10.2.0.1"
    assert address_of_this_node("localhost", {}, hosts_file=str(hosts)) == "127.0.0.1"
    with hosts.open("a") as file:
        file.write("10.55.0.7 node-7\n")
    assert address_of_this_node("node-7", {}, hosts_file=str(hosts)) == "10.55.0.7"


def test_a_host_without_a_network_still_reaches_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node-7\n")
    monkeypatch.setattr(address_search, "resolve_in_thread", lambda name: ["127.0.1.1"])
    reached = {"127.0.1.1": "127.0.0.1"}
    monkeypatch.setattr(address_search, "_source_address", lambda address: reached.get(address, ""))
    monkeypatch.setattr(network, "interfaces", lambda: ())
    assert address_of_this_node("node-7", {}, hosts_file=str(hosts)) == "127.0.0.1"


def interface(name: str, state: str = "up") -> network.Interface:
    return network.Interface(name=name, mtu=1500, state=state, loopback=False)


@pytest.mark.parametrize("control", ["none.invalid:20001,20002", "127.0.0.1:1,2"])
def test_an_agent_that_searches_ends_at_sigterm(control: str) -> None:
    environ = {**os.environ, "SEATRIAL_CONTROL": control, "SEATRIAL_TOKEN": "x" * 20, "SEATRIAL_NODE_RANK": "1"} | {
        "SEATRIAL_JOB": "x"
    }
    # The signal waits in the new process, as where `seatrial run` becomes the agent in a pod.
    agent = [sys.executable, "-m", "seatrial.agent.agent_main"]
    blocked = (
        "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); print('held back', flush=True);"
        f" os.execv({agent[0]!r}, {agent})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", blocked],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held back\n"
    time.sleep(0.0 if "invalid" in control else 2.0)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert join_timeout_s() > 20
    assert process.returncode == 3
    assert errors == "seatrial agent: signal 15 ended this agent before it had joined a run.\n"
