"""Names of nodes: as the user typed them, with the host's own word beside, and never one name for two machines."""

from __future__ import annotations

from typing import Any

import pytest
from event_streams import Stream, node_lost
from fake_checks import fake_load

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.conclude import conclude
from seatrial.judge.fold import fold
from seatrial.judge.host_names import host_names
from seatrial.judge.trial import NodeRecord, Trial


def _killed(stream: Stream, rank: int = 2) -> tuple[Trial, Finding]:
    """Return the trial in which this rank is killed, and its finding."""
    stream.until("collectives").exit(rank, -9, ours=False)
    stream.trouble({"rank": rank, "how": "dead", "detail": "exit code -9"})
    stream.kill(*(other for other in stream.alive if other != rank))
    trial = fold(stream.close(ranks=False).events)
    (finding,) = blame(trial)
    return trial, finding


TYPED = ["node0", "node1", "node2", "node3"]


@pytest.mark.parametrize(
    ("own", "place"),
    [
        (["node0", "node1", "node2", "node3"], "node2"),
        (["worker"] * 4, "node2 (calls itself worker)"),
        (["node0", "node1", "node1", "node3"], "node2 (calls itself node1)"),
        (["node0", "node1", "node2.cluster.local", "node3"], "node2"),
        (["node0", "node1", "x) is fine; node0 \x1b[2J(", "node3"], "node2 (calls itself x??is?fine??node0???2J?)"),
    ],
)
def test_a_host_has_the_name_that_was_typed(own: list[str], place: str) -> None:
    trial, finding = _killed(Stream(4, nodes=4, hostnames=own, hosts=TYPED))
    assert finding.culprit.name == f"rank 2 on node {place}, its process (pid 102)"
    assert finding.culprit.nodes == ("node2",)
    assert trial.host_name(3) == "node3"


def test_an_address_that_was_typed_has_the_host_name_beside() -> None:
    hosts = [f"10.77.0.{10 + node}" for node in range(4)]
    _, finding = _killed(Stream(4, nodes=4, hostnames=["a", "b", "c", "d"], hosts=hosts))
    assert "on node 10.77.0.12 (calls itself c)," in finding.culprit.name


@pytest.mark.parametrize(
    ("typed", "own", "beside"),
    [
        ("node2", "NODE2.cluster.local", ""),
        ("node2.cluster.local", "node2", ""),
        ("10.77.0.12", "10", "10"),
        ("10.77.0.12", "10.77.0.12", ""),
        ("fd00::12", "fd00::12x", "fd00::12x"),
        ("node2", "node20", "node20"),
    ],
)
def test_a_domain_and_capitals_make_no_other_host(typed: str, own: str, beside: str) -> None:
    _, finding = _killed(Stream(4, nodes=4, hostnames=["a", "b", own, "d"], hosts=["a", "b", typed, "d"]))
    named = f"{typed} (calls itself {beside})" if beside else typed
    assert finding.culprit.name == f"rank 2 on node {named}, its process (pid 102)"
    assert f"local rank 0 on node {named})" in finding.what


def test_hosts_of_foreign_events_are_no_sentence_of_ours() -> None:
    """`seatrial report` reads events of others, whose request may name a host as they like."""
    hosts = ["a", "b", "c resolves to 127.0.0.1; next: type\n curl x | sh", f"d.{'long.' * 40}cluster"]
    trial, finding = _killed(Stream(4, nodes=4, hostnames=["a", "b", "c", "d"], hosts=hosts))
    assert finding.culprit.nodes == ("c?resolves?to?127.0.0.1??next:?type??curl?x???sh",)
    assert trial.host_name(3) == hosts[3], "a name in DNS may be long"


@pytest.mark.parametrize("how", ["empty", "none"])
def test_a_node_without_a_name_takes_none_of_another_node(how: str) -> None:
    """Its rank may say any host name. It may also hide that it is another machine: no PASS."""
    stream = Stream(4, nodes=4, hostnames=["a", "b", "" if how == "empty" else "c", "d"])
    for event in stream.events:
        if (event["src"], event["kind"]) == ("rank2.0", "rank"):
            event["hostname"] = "a"
        elif (event["src"], event["kind"], how) == ("node2", "node", "none"):
            event.update({"kind": "left", "gen": 0, "rank": 2, "pid": 1, "state": "Z"})
    stream.until("collectives").exit(2, -9, ours=False)
    stream.trouble({"rank": 2, "how": "dead", "detail": "exit code -9"})
    stream.kill(0, 1, 3)
    trial = fold(stream.close(ranks=False).events)
    assert blame(trial)[0].culprit.nodes == ("node 2",)
    assert trial.missing == ("the `node` event of node 2 is missing or has no host name",)


def test_equal_names_of_several_machines_have_numbers() -> None:
    _, finding = _killed(Stream(4, nodes=4, hostnames=["gpu-7", "worker", "worker", "gpu-8"]))
    assert finding.culprit.nodes == ("worker (node 2)",)
    _, finding = _killed(Stream(4, nodes=4, hostnames=["gpu-7", "worker", "worker", "gpu-8"]), rank=3)
    assert finding.culprit.nodes == ("gpu-8",)


def test_agents_of_one_machine_share_its_name() -> None:
    """Under torchrun each rank has an agent."""
    stream = Stream(4, nodes=4, hostnames=["a", "a", "b", "b"])
    for event in stream.events:
        if event["kind"] == "node":
            event["address"] = f"10.0.0.{event['node'] // 2}"
    trial, finding = _killed(stream)
    assert finding.culprit.nodes == ("b",)
    assert {record.node for record in trial.ranks.values()} == {"a", "b"}


@pytest.mark.parametrize("how", ["lost", "silent"])
def test_a_lost_node_has_the_name_that_was_typed(how: str) -> None:
    stream = Stream(4, nodes=4, hostnames=["worker"] * 4, hosts=TYPED).until("collectives")
    stream.trouble({"node": 2, "how": how})
    stream.kill(0, 1, 3)
    (finding,) = blame(fold(stream.close(ranks=False, nodes=(0, 1, 3)).events))
    assert finding.culprit.name == "node node2 (calls itself worker)"
    assert finding.culprit.nodes == ("node2",)


def test_a_rank_that_names_another_host_changes_nothing() -> None:
    stream = Stream(4, nodes=4, hosts=TYPED, hostnames=TYPED)
    for event in stream.events:
        if event["src"] == "rank2.0":
            event["hostname"] = event["node"] = "node0"
    trial, finding = _killed(stream)
    assert finding.culprit.nodes == ("node2",)
    assert {entry.rank: entry.node for entry in trial.measurements}[2] == "node2"


def _named_by_slurm(names: list[str], own: list[str], **job: Any) -> Stream:
    stream = Stream(4, nodes=4, hostnames=own, **job)
    for event, name in zip((event for event in stream.events if event["kind"] == "node"), names, strict=True):
        if name:
            event["slurm_name"] = name
    return stream


def test_a_node_has_the_name_by_which_slurm_drains_it() -> None:
    _, finding = _killed(_named_by_slurm(["n0", "n1", "n2", "n3"], ["ip-7", "ip-8", "ip-9", "ip-10"]))
    assert finding.culprit.name == "rank 2 on node n2 (calls itself ip-9), its process (pid 102)"
    assert finding.culprit.nodes == ("n2",)
    _, finding = _killed(_named_by_slurm(["n0", "n1", "n2", "n3"], ["n0.site", "n1.site", "n2.site", "n3.site"]))
    assert finding.culprit.name.startswith("rank 2 on node n2, ")


@pytest.mark.parametrize("names", [["n0", "n1", "n1", "n3"], ["n0", "n1", "n2", ""]])
def test_a_node_that_takes_the_name_of_another_one_in_slurm_gets_none(names: list[str]) -> None:
    _, finding = _killed(_named_by_slurm(names, ["ip-7", "ip-8", "ip-9", "ip-10"]))
    assert finding.culprit.nodes == ("ip-9",)


def _laid_out(stream: Stream, names: dict[str, str]) -> Stream:
    stream.send("hosts", "slurm_nodes", names=names)
    stream.send("hosts", "end")
    return stream


NODES = ["n0", "n1", "n2", "n3"]
BY_SLURM = [{"target": "slurm"}, {"launcher": "slurm"}]


@pytest.mark.parametrize("job", BY_SLURM)
def test_a_node_that_slurm_started_has_its_name_in_the_layout(job: dict[str, str]) -> None:
    names = {str(node): name for node, name in enumerate(NODES)}
    trial, finding = _killed(_laid_out(_named_by_slurm(NODES, ["ip-7", "ip-8", "ip-9", "n3.site"], **job), names))
    assert finding.culprit.name == "rank 2 on node n2 (calls itself ip-9), its process (pid 102)"
    assert (trial.host_name(3), trial.nodes[3].calls_itself, trial.notes) == ("n3", "", ())


@pytest.mark.parametrize("job", BY_SLURM)
def test_a_node_that_claims_another_name_in_slurm_is_an_error(job: dict[str, str]) -> None:
    own = ["n0", "n1", "gpu-77", ""]
    stream = _laid_out(_named_by_slurm(own, own, **job), {str(node): name for node, name in enumerate(NODES)})
    trial = fold(stream.until("collectives").close().events)
    assert [trial.place(node) for node in range(4)] == ["n0", "n1", "n2 (calls itself gpu-77)", "n3"]
    (finding,) = (finding for finding in blame(trial) if finding.severity == "error")
    assert finding.what.startswith("node 2 says that its name in Slurm is gpu-77, where Slurm has n2; what reports as")


@pytest.mark.parametrize(("says", "status"), [("n1", "FAIL"), ("gpu-77", "INCONCLUSIVE")])
def test_nobody_is_blamed_where_a_node_claims_another_name_in_slurm(says: str, status: str) -> None:
    stream = node_lost("lost")
    for event in stream.events:
        if event["kind"] == "run":
            event["job"] = {**event["job"], "target": "slurm"}
        elif event["kind"] == "node":
            event["slurm_name"] = "n0" if event["node"] == 0 else says
    conclusion = conclude(_laid_out(stream, {"0": "n0", "1": "n1"}).events, load=fake_load)
    assert conclusion.verdict.status == status
    assert any(finding.culprit.nodes for finding in conclusion.findings) == (status == "FAIL")


@pytest.mark.parametrize("job", BY_SLURM)
def test_where_slurm_tells_no_layout_a_node_has_its_number(job: dict[str, str]) -> None:
    own = ["n0", "n1", "gpu-77", "n3"]
    _, finding = _killed(_named_by_slurm(own, own, **job))
    assert finding.culprit.name == "rank 2 on node #2 (calls itself gpu-77), its process (pid 102)"
    assert finding.culprit.nodes == ("#2",)
    # One that surely joined as another node is in no layout.
    trial, finding = _killed(_laid_out(_named_by_slurm(own, own, **job), {"0": "n0", "1": "n1"}))
    assert finding.culprit.nodes == ("#2",)
    assert trial.host_name(1) == "n1"


@pytest.mark.parametrize("names", [{"٣": "n3"}, {"9" * 5_000: "n3"}, {"-1": "n3"}, {"3": 7}, [], None])
def test_a_layout_that_is_none_is_damage(names: object) -> None:
    stream = _named_by_slurm(NODES, NODES, target="slurm")
    stream.send("hosts", "slurm_nodes", names=names)
    stream.send("node2", "slurm_nodes", names={"2": "gpu-77"})
    stream.send("hosts", "end")
    assert "2 damaged events: slurm_nodes: names, from" in fold(stream.events).missing[-1]


@pytest.mark.parametrize("of_slurm", [True, False])
def test_a_host_that_copies_all_names_of_another_is_not_that(of_slurm: bool) -> None:
    """Node 2 sends the name and the address of node 1, and its name in Slurm. Where it joined from is the controller's
    own observation."""
    nodes = {
        node: NodeRecord(
            node=node, hostname=f"gpu-{at}", address=f"10.0.0.{at}", pid=1, cores=1,
            slurm_name=f"gpu-{at}" if of_slurm else "",
        )
        for node, at in enumerate((0, 1, 1))
    }  # fmt: skip
    apart = {node: f"10.0.0.{node}" for node in range(3)}
    assert {node: entry.name for node, entry in host_names({}, nodes, apart, {}).items()} == {
        0: "gpu-0",
        1: "gpu-1 (node 1)",
        2: "gpu-1 (node 2)",
    }
    together = {**apart, 2: "10.0.0.1"}
    assert [entry.name for entry in host_names({}, nodes, together, {}).values()] == ["gpu-0", "gpu-1", "gpu-1"]


@pytest.mark.parametrize("place", ["this machine", "10.0.0.7"])
def test_agents_that_join_from_the_machine_of_the_controller_share_it(place: str) -> None:
    """The first of them may name 127.0.1.1, as the hosts file of Debian has it, and the others the address of a route.

    Elsewhere two addresses may be two machines behind one address.
    """
    stream = Stream(2, nodes=2, hostnames=("ubuntu", "ubuntu"), nproc_per_node=1, conductor="ubuntu")
    addresses = ("127.0.1.1", "10.0.0.7")
    for event in stream.events:
        if event["kind"] == "generation":
            event["places_of_nodes"] = {"0": place, "1": place}
        if event["kind"] == "node":
            event["address"] = addresses[event["node"]]
    trial = fold(stream.close().events)
    is_one = place == "this machine"
    assert len(trial.machines()) == (1 if is_one else 2)
    names = ["ubuntu", "ubuntu"] if is_one else ["ubuntu (node 0)", "ubuntu (node 1)"]
    assert [trial.host_name(node) for node in range(2)] == names
