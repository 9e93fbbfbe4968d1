"""Nodes that fall silent: a node is named only where the conductor's own network is known to work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from event_streams import Stream

from seatrial.evidence.findings import NOBODY, Culprit, Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.protocol.line_tags import CHANGED


def silent(
    nodes: int,
    *lost_nodes: int,
    how: str = "silent",
    conductor: str = "gpu-0",
    hostnames: Sequence[str] = (),
    lost: str = "",
    places: Sequence[str] = (),
    detail: str = "",
    **job: Any,
) -> tuple[Finding, ...]:
    """Return the findings for nodes ``gpu-0`` and so on, some of which fall silent in the collectives.

    ``lost``: the first event of this kind is missing.
    """
    waited_s, in_container = job.pop("waited_s", 15.2), job.pop("in_container", False)
    stream = Stream(nodes, nodes=nodes, conductor=conductor, hostnames=hostnames, **job).until("collectives")
    if in_container:
        stream.events[0]["in_container"] = True
    for event in stream.events:
        if event["kind"] == "generation":
            event["places_of_nodes"] = {str(node): place for node, place in enumerate(places)}
        if event["kind"] == "node" and places:
            event["address"] = places[event["node"]]
    if job.get("target") == "slurm":
        stream.send("hosts", "slurm_nodes", names={str(node): f"gpu-{node}" for node in range(nodes)})
        stream.send("hosts", "end")
    left = tuple(sorted(set(range(nodes)) - set(lost_nodes)))
    stream.trouble(
        *({"node": node, "how": how, "waited_s": waited_s, "detail": detail} for node in lost_nodes), waiting=left
    )
    stream.kill(*left)
    events = stream.close(ranks=False, nodes=left).events
    gone = next((event for event in events if event["kind"] == lost), None)
    return blame(fold([event for event in events if event is not gone]))


def test_a_silent_node_is_named_while_another_is_reachable() -> None:
    for found in (silent(3, 2), silent(3, 2, conductor="laptop"), silent(2, 1, conductor="laptop")):
        (finding,) = found
        assert (finding.severity, finding.culprit.kind) == ("fail", "node")
    assert [finding.culprit.ranks for finding in silent(4, 2, 3)] == [(2,), (3,)]


@pytest.mark.parametrize("name", ["3f2a9c01b7de", "toolbx", "devbox-7c9d-x2k"])
def test_the_machine_of_a_controller_in_a_container_is_not_known(name: str) -> None:
    """It may be on the node that is heard, whose own link then failed."""
    (finding,) = silent(2, 1, conductor=name, in_container=True)
    assert (finding.severity, finding.culprit.kind) == ("fail", "link")
    (finding,) = silent(3, 1, conductor=name, in_container=True)
    assert finding.culprit.name == "node gpu-1", "at least one of the two others is reached over the network"


def test_the_name_of_a_host_tells_nothing_of_a_container() -> None:
    """Some login hosts have their MAC address as a name."""
    (finding,) = silent(2, 1, conductor="0025909a1b2c")
    assert (finding.severity, finding.culprit.name) == ("fail", "node gpu-1")


def test_a_container_with_the_name_of_a_node_is_on_that_node() -> None:
    (finding,) = silent(1, 0, conductor="gpu-0", in_container=True)
    assert finding.culprit.name == "node gpu-0"


def test_a_line_that_somebody_in_the_path_changed_makes_no_node_fail() -> None:
    for nodes in (2, 3):
        (finding,) = silent(nodes, 1, how="lost", detail=CHANGED)
        assert (finding.severity, finding.culprit) == ("error", NOBODY)
        assert finding.what.endswith(", by that node or by somebody in the network between it and the controller")
        (finding,) = silent(nodes, 1, how="lost", detail="the control connection was closed")
        assert (finding.severity, finding.culprit.kind) == ("fail", "node")


def test_a_node_that_does_not_answer_the_last_command_is_told_as_that() -> None:
    for nodes in (2, 3):
        (finding,) = silent(nodes, 1, waited_s=0.3)
        words = "node gpu-1 fell silent in collectives and did not answer the command to end its ranks"
        assert finding.what.partition(":")[0] == words


def test_of_two_nodes_the_link_is_named() -> None:
    (finding,) = silent(2, 1)
    assert finding.severity == "fail"
    assert finding.culprit == Culprit(
        kind="link", name="link gpu-0–gpu-1, endpoints not separable", nodes=("gpu-0", "gpu-1")
    )
    assert finding.what == (
        "node gpu-1 fell silent in collectives and sent nothing more for 15 s: it, or the network between it and gpu-0"
    )


@pytest.mark.parametrize("conductor", ["gpu-0", "laptop"])
@pytest.mark.parametrize("lost", ["run", "node"])
def test_an_incomplete_record_names_no_node(conductor: str, lost: str) -> None:
    (finding,) = silent(2, 1, conductor=conductor, lost=lost)
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "events were lost" in finding.what


def test_a_closed_connection_names_its_node() -> None:
    (finding,) = silent(2, 1, how="lost")
    assert finding.culprit.name == "node gpu-1"
    assert [finding.culprit.ranks for finding in silent(3, 1, 2, how="lost")] == [(1,), (2,)]


def test_the_conductors_own_node_needs_no_network() -> None:
    (finding,) = silent(1, 0)
    assert finding.culprit.name == "node gpu-0"
    (finding,) = silent(3, 0)
    assert finding.culprit.name == "node gpu-0"


@pytest.mark.parametrize(("conductor", "blamed"), [("gpu-0", True), ("laptop", False), ("", True)])
def test_all_nodes_but_one_at_once_are_the_fabric(conductor: str, blamed: bool) -> None:
    (finding,) = silent(4, 1, 2, 3, conductor=conductor)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert finding.culprit.name == "the network between node gpu-0 and the others"
    assert "all 3 nodes but gpu-0 fell silent at once in collectives and sent nothing more for 15 s: " in finding.what
    assert ("the link of gpu-0, or what gpu-1, gpu-2, gpu-3 share" in finding.what) is blamed
    assert "what gpu-1, gpu-2, gpu-3 share" in finding.action
    assert ("cable and switch port of gpu-0" in finding.action) is blamed


@pytest.mark.parametrize(
    ("nodes", "words"),
    [(3, "all 3 nodes fell silent at once"), (2, "both nodes fell silent at once"), (1, "the only node, gpu-0, fell")],
)
def test_all_nodes_at_once_may_be_the_conductors_network(nodes: int, words: str) -> None:
    (finding,) = silent(nodes, *range(nodes), conductor="laptop")
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.what.startswith(words)


def test_one_of_several_nodes_on_the_conductors_machine_needs_no_network() -> None:
    stream = Stream(2, nodes=2, conductor="gpu-0", hostnames=("gpu-0", "gpu-0"))
    for event in stream.events:
        if event["kind"] == "node":
            event["address"] = "10.0.0.1"
    stream.until("collectives").trouble({"node": 1, "how": "silent"}, waiting=(0,))
    stream.kill(0)
    (finding,) = blame(fold(stream.close(ranks=False, nodes=(0,)).events))
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "node", (1,))


def test_an_unknown_conductor_may_be_on_either_node() -> None:
    """The host name of the conductor may be missing, or that of several machines."""
    for found in (silent(2, 1, conductor=""), silent(2, 1, conductor="same", hostnames=("same", "same"))):
        (finding,) = found
        assert finding.culprit.kind == "link"
    (finding,) = silent(3, 1, conductor="")
    assert finding.culprit.name == "node gpu-1", "at least one of the two others is reached over the network"


def agents(hosts: int, per_host: int = 4) -> dict[str, Any]:
    """Return hosts ``gpu-0`` and so on on which each rank has a separate agent, as torchrun starts them."""
    names = [f"gpu-{node // per_host}" for node in range(hosts * per_host)]
    return {"hostnames": names, "places": names, "launcher": "torchrun"}


def test_agents_of_one_host_do_not_show_that_the_network_works() -> None:
    """The conductor hears the agents of its own machine whatever its network is like."""
    (finding,) = silent(8, 4, 5, 6, 7, **agents(2))
    assert finding.culprit.name == "link gpu-0–gpu-1, endpoints not separable"
    (finding,) = silent(12, *range(4, 12), **agents(3))
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert "all 2 nodes but gpu-0 fell silent at once" in finding.what
    assert "the link of gpu-0, or what gpu-1, gpu-2 share" in finding.what


def test_a_host_with_many_agents_is_named_once() -> None:
    for how in ("silent", "lost"):
        (finding,) = silent(12, 4, 5, 6, 7, how=how, **agents(3))
        assert (finding.severity, finding.culprit.name) == ("fail", "node gpu-1")
        assert finding.culprit.ranks == (4, 5, 6, 7)
    (finding,) = silent(12, *range(8), how="lost", **agents(3))
    assert finding.what == "2 of 3 nodes were lost at once in collectives, node gpu-0 first, node gpu-2 was not"


def test_an_agent_whose_neighbors_are_heard_was_not_cut_off() -> None:
    (finding,) = silent(8, 6, **agents(2))
    assert (finding.severity, finding.culprit.name, finding.culprit.ranks) == ("fail", "node gpu-1", (6,))
    found = silent(8, 1, 4, 5, 6, 7, **agents(2))
    assert [finding.culprit.kind for finding in found] == ["node", "link"]
    assert found[0].culprit.ranks == (1,)


def test_nodes_that_are_all_lost_at_once_are_not_blamed() -> None:
    """Under MPICH a host that kills what its launcher started there has the agents of all hosts killed."""
    (finding,) = silent(3, 2, 0, 1, how="lost")
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.what == "all 3 nodes were lost at once in collectives, node gpu-2 first"
    assert silent(1, 0, how="lost")[0].culprit.name == "node gpu-0"


ONE_LAUNCHER = [{"target": "mpirun"}, {"target": "slurm"}, {"launcher": "hydra"}, {"launcher": "torchrun"}]


@pytest.mark.parametrize("job", ONE_LAUNCHER, ids=str)
def test_no_host_has_those_named_that_its_launcher_ended(job: dict[str, str]) -> None:
    """A host that ends what the launcher started there, and itself goes on, has the agents of all others killed."""
    (finding,) = silent(4, 1, 0, 2, how="lost", **job)
    assert (finding.severity, finding.culprit) == ("error", NOBODY)
    assert finding.what == "3 of 4 nodes were lost at once in collectives, node gpu-1 first, node gpu-3 was not"
    assert "node gpu-1, whose loss came first, at gpu-3, and at the output of the launcher" in finding.action
    (finding,) = silent(3, 0, 1, how="lost", **job)
    assert finding.culprit == NOBODY
    (finding,) = silent(4, 0, 1, how="lost", **job)
    assert finding.culprit == NOBODY, "the launcher may need longer for the others"


@pytest.mark.parametrize("job", ONE_LAUNCHER, ids=str)
def test_under_one_launcher_a_few_lost_nodes_are_named(job: dict[str, str]) -> None:
    for nodes, gone in ((2, (1,)), (4, (2,)), (8, (2, 5, 6))):
        found = silent(nodes, *gone, how="lost", **job)
        assert [finding.culprit.name for finding in found] == [f"node gpu-{node}" for node in gone]
    # Six agents of two hosts, of which one is gone.
    found = silent(6, 3, 4, 5, how="lost", places=("a", "a", "a", "b", "b", "b"), **job)
    assert [finding.culprit.name for finding in found] == ["node gpu-3", "node gpu-4", "node gpu-5"]


def test_a_host_with_many_agents_counts_once() -> None:
    """It ends some of its agents, too, and has those of two hosts with one agent each ended."""
    places = ("a", "b", *("c",) * 6)
    (finding,) = silent(8, 0, 1, 2, how="lost", places=places, target="mpirun")
    assert finding.culprit == NOBODY


def test_losses_in_two_generations_count_together() -> None:
    stream = Stream(6, nodes=6, target="mpirun").until("collectives")
    stream.trouble({"node": 0, "how": "lost"}, {"node": 1, "how": "lost"}, waiting=(2, 3, 4, 5))
    stream.kill(2, 3, 4, 5)
    stream.generation = 1
    stream.start((2, 3, 4, 5))
    stream.begin("collectives")
    stream.trouble({"node": 2, "how": "lost"}, {"node": 3, "how": "lost"}, waiting=(4, 5))
    stream.kill(4, 5)
    found = blame(fold(stream.close(ranks=False, nodes=(4, 5)).events))
    assert [finding.culprit for finding in found if "lost" in finding.what] == [NOBODY, NOBODY]


@pytest.mark.parametrize("job", [{"target": "mpirun"}, {"launcher": "hydra"}], ids=str)
def test_of_two_hosts_neither_is_named_where_the_launcher_ends_both(job: dict[str, str]) -> None:
    """MPICH and Intel MPI end all that they started once a signal has ended one of them."""
    (finding,) = silent(2, 0, how="lost", ends_together=True, **job)
    assert (finding.severity, finding.culprit) == ("error", NOBODY)
    assert finding.what == "node gpu-0 was lost in collectives, node gpu-1 was not"
    assert silent(3, 0, how="lost", ends_together=True, **job)[0].culprit.name == "node gpu-0"
    found = silent(3, 0, how="lost", places=("a", "a", "a"), ends_together=True, **job)
    assert found[0].culprit.name == "node gpu-0", "an agent of one machine"


def test_a_node_that_is_lost_after_all_others_is_not_named() -> None:
    stream = Stream(4, nodes=2, target="mpirun", ends_together=True).until("collectives")
    stream.trouble({"node": 0, "how": "lost"}, waiting=(2, 3))
    stream.kill(2, 3)
    stream.generation = 1
    stream.start((2, 3))
    stream.begin("collectives")
    stream.trouble({"node": 1, "how": "lost"})
    found = blame(fold(stream.close(ranks=False, nodes=()).events))
    words = [finding.what for finding in found if "lost" in finding.what and finding.culprit == NOBODY]
    assert words[0] == "node gpu-0 was lost in collectives, node gpu-1 was not"
    assert words[1] == "after a restart without ranks 0, 1, node gpu-1 was lost in collectives"


def test_a_network_between_nodes_tells_its_nodes() -> None:
    (finding,) = silent(4, 0, 1, 3, conductor="laptop")
    assert finding.culprit.name == "the network between node gpu-2 and the others"
    assert finding.culprit.nodes == ("gpu-0", "gpu-1", "gpu-2", "gpu-3")


@pytest.mark.parametrize("cause", ["fabric", "out of memory: x"])
def test_no_word_of_a_rank_hides_that_its_node_closed_its_connection(cause: str) -> None:
    """Where memory ran out while ranks met, the node is missed for a reason: only a death says that."""
    stream = Stream(4, nodes=2).until("collectives")
    stream.error(2, cause, "Connection reset", "collectives/all_reduce 8 B")
    closed = {"node": 1, "how": "lost", "detail": "the control connection was closed"}
    stream.trouble({"rank": 2, "how": "error", "detail": cause}, closed, waiting=(0, 1, 3))
    stream.kill(0, 1)
    (finding,) = blame(fold(stream.close(ranks=False, nodes=(0,)).events))
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "node", ("gpu-1",))
