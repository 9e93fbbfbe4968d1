"""Where nodes are that connect by themselves: the names of pods, and the thread that asks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from seatrial.errors import SeatrialError
from seatrial.run import node_hosts
from seatrial.run.external_launcher import Rendezvous
from seatrial.run.node_hosts import FoundHosts, HostSearch, hosts_of_others, names_of_pods
from seatrial.targets.host_of_node import HostOfNode, HostsMissingError

_RENDEZVOUS = Rendezvous(
    host="trial-0.trial", ports=(1,), token="x", protected=True, launcher="seatrial", number=0, agents=3,
    is_of_nodes=True,
)  # fmt: skip
_IN_POD = {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}


@pytest.mark.parametrize(
    ("first", "others"),
    [
        ("trial-0.trial", ["trial-1.trial", "trial-2.trial"]),  # Job
        ("trial-node-0-0.trial", ["trial-node-0-1.trial", "trial-node-0-2.trial"]),  # JobSet, TrainJob
        ("trial-master-0", ["trial-worker-0", "trial-worker-1"]),  # PyTorchJob
        ("a-0-master-0", ["a-0-worker-0", "a-0-worker-1"]),
        ("x-master-0.x-master", ["x-master-1.x-master", "x-master-2.x-master"]),  # a Job with --name x-master
    ],
)
def test_the_names_of_pods_follow_from_the_first_one(first: str, others: list[str]) -> None:
    assert names_of_pods(first, 3) == [first, *others]
    assert names_of_pods(first, 1) == [first]


@pytest.mark.parametrize("first", ["gpu7", "192.0.2.7", "trial-1.trial", "trial-00", "", "-0\n"])
def test_a_name_without_a_number_tells_nothing(first: str) -> None:
    assert names_of_pods(first, 3) == []


def test_names_are_looked_up_in_full(tmp_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver tries each domain of its search path for a name without a final dot."""
    with open(f"{tmp_path}/resolv.conf", "w", encoding="ascii") as file:
        file.write("search lab.svc.cluster.local svc.cluster.local\n")
    monkeypatch.setattr(node_hosts, "_RESOLV_CONF", f"{tmp_path}/resolv.conf")
    domain = "trial.lab.svc.cluster.local."
    assert hosts_of_others(_RENDEZVOUS, _IN_POD) == [(f"trial-{node}.{domain}", "") for node in range(3)]


def test_without_slurm_or_pods_nobody_is_asked() -> None:
    assert hosts_of_others(_RENDEZVOUS, {}) is None
    assert hosts_of_others(replace(_RENDEZVOUS, is_of_nodes=False), _IN_POD) is None
    assert hosts_of_others(replace(_RENDEZVOUS, launcher="torchrun", is_of_nodes=False), {}) is None


def test_hosts_are_asked_for_once_all_nodes_have_joined() -> None:
    asked = []
    answer = threading.Event()

    def hosts() -> Sequence[HostOfNode]:
        asked.append(answer.wait(20.0))
        return [HostOfNode("192.0.2.7", "n7"), HostOfNode("192.0.2.8")]

    search = HostSearch(hosts, 2)
    search.begin({0}, {0})
    assert search.end(waits=True) is None
    search.begin({0, 1}, {0, 1})  # does not wait
    search.begin({0, 1}, {0, 1})
    assert search.end(waits=False) is None
    answer.set()
    found = search.end(waits=True)
    assert found == search.end(waits=False) == FoundHosts({0: {"192.0.2.7"}, 1: {"192.0.2.8"}}, {0: "n7"})
    assert asked == [True]


def test_names_do_not_wait_for_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hangs(hosts: Sequence[str], **limits: float) -> dict[int, set[str]]:
        asked.set()
        assert answer.wait(20.0)
        return {0: {"192.0.2.7"}}

    monkeypatch.setattr(node_hosts, "addresses_of", hangs)
    monkeypatch.setattr(node_hosts, "_LAST_WAIT_S", 0.01)
    search = HostSearch(lambda: [HostOfNode("gpu7.example", "n7")], 1)
    search.begin({0}, {0})
    assert asked.wait(20.0)
    assert search.end(waits=True) == search.end(waits=False) == FoundHosts({}, {0: "n7"})
    answer.set()
    monkeypatch.setattr(node_hosts, "_LAST_WAIT_S", 20.0)
    assert search.end(waits=True) == FoundHosts({0: {"192.0.2.7"}}, {0: "n7"})


def test_hosts_are_asked_for_once_a_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of processes of this user ends no run."""
    has_process, start = False, threading.Thread.start

    def start_if_one_is_left(thread: threading.Thread) -> None:
        if not has_process:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_one_is_left)
    search = HostSearch(lambda: [HostOfNode("192.0.2.7", "n7")], 1)
    search.begin({0}, {0})
    assert search.end(waits=True) is None
    has_process = True
    search.begin({0}, {0})
    assert search.end(waits=True) == FoundHosts({0: {"192.0.2.7"}}, {0: "n7"})


def test_hosts_that_nobody_could_ask_for_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is not as where there is nobody to ask: the report says so, and munge may know more."""

    def has_no_process(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", has_no_process)
    search = HostSearch(list, 2)
    search.begin({0}, {0})
    assert (search.end(waits=True), search.is_pending) == (None, False)
    search.begin({0, 1}, {0, 1})
    assert (search.end(waits=False), search.is_pending) == (None, True)
    assert search.end(waits=True) == FoundHosts()


def test_names_need_no_process_for_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_the_search_alone(thread: threading.Thread) -> None:
        if thread.name != "hosts":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_the_search_alone)
    search = HostSearch(lambda: [HostOfNode("gpu7.example", "n7")], 1)
    search.begin({0}, {0})
    assert search.end(waits=True) == FoundHosts({}, {0: "n7"})
    assert not search.is_pending


def test_why_hosts_are_not_known_is_an_answer() -> None:
    def hosts() -> Sequence[HostOfNode]:
        raise SeatrialError("two steps have this name")

    search = HostSearch(hosts, 1)
    search.begin({0}, {0})
    assert search.end(waits=True) == FoundHosts(problem="two steps have this name")


@pytest.mark.parametrize(("later", "problem"), [([{0, 1}], "no such step"), ([{0}], ""), ([], ""), ([{0}, {0, 1}], "")])
def test_what_the_launcher_does_not_know_is_a_problem_while_it_runs(later: list[set[int]], problem: str) -> None:
    """A step that has ended by then is unknown on each healthy cluster, too."""

    def hosts() -> Sequence[HostOfNode]:
        raise HostsMissingError("no such step")

    search = HostSearch(hosts, 2)
    search.begin({0, 1}, {0, 1})
    assert search._thread is not None
    search._thread.join(20.0)
    for connected in later:
        search.begin({0, 1}, connected)
    found = search.end(waits=True)
    assert found is not None
    assert found.problem == problem


@pytest.mark.parametrize(
    ("hosts", "expected"), [(None, None), ((), FoundHosts()), ((HostOfNode("192.0.2.7", "n7"),), FoundHosts())]
)
def test_an_answer_for_other_nodes_is_none(hosts: Sequence[HostOfNode] | None, expected: object) -> None:
    search = HostSearch(lambda: hosts, 2)
    search.begin({0, 1}, {0, 1})
    assert search.end(waits=True) == expected
