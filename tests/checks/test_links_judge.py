"""The links check as a whole but for the wires: it asks, a simulated cluster answers as ranks do, it judges."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from checks.simulated_links import DEAD, SimulatedCluster, Slow, slow_node

from seatrial.checks.links import CHECK
from seatrial.checks.links.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling
from seatrial.evidence.measurement import Fact


def _only(ruling: Ruling) -> Finding:
    (finding,) = ruling.findings
    assert finding.severity == "fail"
    return finding


@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 20])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_healthy_cluster_has_no_finding(nodes: int, device_type: str) -> None:
    ruling = SimulatedCluster(nodes=nodes, nproc_per_node=2, device_type=device_type).trial()
    assert (ruling.findings, ruling.absent) == ((), ())
    assert ruling.judged
    assert all(each.passed for each in ruling.judged)


@pytest.mark.parametrize("nodes", [4, 6, 20])
@pytest.mark.parametrize("left", [0.1, 0.0])
def test_a_slow_or_dead_node_is_named_with_its_peers_rate(nodes: int, left: float) -> None:
    finding = _only(SimulatedCluster(nodes=nodes, slow=slow_node(2, left)).trial())
    assert (finding.culprit.kind, finding.culprit.name, finding.culprit.ranks) == ("node", "node n2", (2,))
    assert finding.limit is not None
    assert finding.limit.origin.startswith("fleet")
    assert finding.what == (
        "node n2 reaches 1 GB/s, its peers 10 GB/s" if left else f"node n2 carries nothing ({DEAD})"
    )


@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 20])
def test_a_rank_that_claims_an_impossible_rate_is_no_standard_for_others(nodes: int) -> None:
    ruling = SimulatedCluster(nodes=nodes, slow={(1, None): 1e8}).trial()
    assert ruling.findings == ()
    assert "of rank 1 that can be" in str(ruling.absent)
    slow = SimulatedCluster(nodes=nodes, slow={(1, None): 1e8, (0, nodes - 1): 0.1, (nodes - 1, 0): 0.1}).trial()
    assert all("1e+0" not in finding.what for finding in slow.findings)


@pytest.mark.parametrize("nodes", [3, 4, 5, 6, 8, 20])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_one_rank_that_claims_to_be_fast_has_no_other_blamed(nodes: int, device_type: str) -> None:
    """Only its own word says what it sends; a latency is measured by both ends."""
    liar = nodes - 1
    cluster = SimulatedCluster(nodes=nodes, device_type=device_type, slow={(liar, None): 10.0})
    evidence = _measured(cluster)
    told = [entry for entry in evidence.measurements if entry.name == "latency_us" and liar in (entry.rank, entry.peer)]
    others = [entry.peer if entry.rank == liar else entry.rank for entry in told]
    honest = [replace(entry, rank=other, peer=liar) for entry, other in zip(told, others, strict=True)]
    lies = [replace(entry, rank=liar, peer=entry.rank, value=0.02) for entry in honest]
    kept = [entry for entry in evidence.measurements if entry not in told]
    ruling = CHECK.judge(replace(evidence, measurements=(*kept, *honest, *lies)), Params())
    assert {finding.severity for finding in ruling.findings} <= {"warn"}
    negative = SimulatedCluster(nodes=nodes, device_type=device_type, resent={(liar, None): -0.0099}).trial()
    assert (negative.findings, negative.absent) == ((), (f"a resent_share of rank {liar} that can be",))


@pytest.mark.parametrize("nodes", [3, 4, 5, 6, 8])
def test_one_rank_that_claims_a_little_more_has_no_other_blamed(nodes: int) -> None:
    """With the rates of all others within 3 % of one another, one tenth less than what it claims is about the same."""
    liar = nodes - 1
    for seed in range(12):
        noise = random.Random(seed)
        pairs = itertools.permutations(range(nodes), 2)
        rates: Slow = {(a, b): 1.12 if a == liar else noise.uniform(0.98, 1.01) for a, b in pairs}
        ruling = SimulatedCluster(nodes=nodes, device_type="cuda", slow=rates).trial()
        assert {(finding.severity, finding.culprit.kind) for finding in ruling.findings} <= {("warn", "none")}, seed
        # Of three, two that are slow alike look the same: that is no PASS, and says whose links are faster.
        assert [name for name in ruling.absent if f"n{liar}" not in name] == [], seed
        assert (ruling.absent == ()) or nodes == 3, seed


@pytest.mark.parametrize("nodes", [17, 33, 64])
def test_a_node_that_fails_groups_but_no_pair_is_named(nodes: int) -> None:
    """Its partner must say the same: another member may have kept it out of the group."""
    ruling = SimulatedCluster(nodes=nodes, breaks_groups=nodes - 1).trial()
    assert _only(ruling).culprit.name == f"node n{nodes - 1}"
    alone = SimulatedCluster(nodes=nodes, breaks_groups=nodes - 1, tells=False).trial()
    assert alone.findings == ()
    assert f"rank {nodes - 1} says that it could not join, which most do not say: {DEAD}" in str(alone.absent)


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("nproc_per_node", [1, 2])
def test_of_two_nodes_no_word_of_one_has_the_other_named_alone(
    liar: int, device_type: str, nproc_per_node: int
) -> None:
    mine = range(liar * nproc_per_node, (liar + 1) * nproc_per_node)
    cluster = SimulatedCluster(nodes=2, nproc_per_node=nproc_per_node, device_type=device_type)
    evidence, found = _measured(cluster), 0
    for name, share in (("gbps", 5.0), ("gbps", 0.2), ("latency_us", 50.0), ("cpu_share", 0.01), ("resent_share", 0)):
        told = [
            replace(entry, value=entry.value * share or 0.5)
            if (entry.name, entry.rank in mine) == (name, True)
            else entry
            for entry in evidence.measurements
        ]
        for finding in CHECK.judge(replace(evidence, measurements=tuple(told)), Params()).findings:
            found += 1
            assert set(mine) & set(finding.culprit.ranks) or not finding.culprit.ranks, finding
    assert found


def test_the_slow_direction_is_named() -> None:
    assert "node n1 (sending) reaches 2 GB/s" in _only(SimulatedCluster(nodes=5, slow={(1, None): 0.2}).trial()).what
    link = _only(SimulatedCluster(nodes=5, slow={(3, 1): 0.2}).trial())
    assert (link.culprit.kind, link.culprit.name) == ("link", "link n1–n3")
    assert "(from n3 to n1)" in link.what


def test_the_direction_that_comes_through_is_not_at_fault() -> None:
    link = _only(SimulatedCluster(nodes=5, device_type="cuda", slow={(3, 1): 0.0}).trial())
    assert link.what == f"link n1–n3 (from n3 to n1) carries nothing ({DEAD})"


@pytest.mark.parametrize("nodes", [4, 20])
def test_a_dead_link_between_two_good_nodes(nodes: int) -> None:
    finding = _only(SimulatedCluster(nodes=nodes, slow={(0, 3): 0.0, (3, 0): 0.0}).trial())
    assert (finding.culprit.kind, finding.culprit.nodes) == ("link", ("n0", "n3"))


def test_the_ends_of_two_nodes_alone_are_not_separable() -> None:
    finding = _only(SimulatedCluster(nodes=2, slow={(0, 1): 0.0, (1, 0): 0.0}).trial())
    assert finding.culprit.name == "link n0–n1, endpoints not separable"


def test_one_direction_of_two_nodes_is_compared_with_the_other() -> None:
    finding = _only(SimulatedCluster(nodes=2, slow={(1, 0): 0.2}).trial())
    name = "link n0–n1, endpoints not separable (from n1 to n0)"
    assert finding.what == f"{name} reaches 2 GB/s, the other direction 10 GB/s"
    assert finding.limit is not None
    assert finding.limit.origin == "fleet: what the other direction reaches x 0.5"
    assert finding.action.startswith("repeat the trial")
    assert "third node" in finding.action


@pytest.mark.parametrize(("nodes", "slow"), [(2, {(1, 0): 0.2}), (4, slow_node(1, 0.2)), (20, slow_node(1, 0.2))])
def test_a_rank_that_lacked_the_cpu_is_not_blamed(nodes: int, slow: Slow) -> None:
    ruling = SimulatedCluster(nodes=nodes, slow=slow, cpu_share={1: 0.5}).trial()
    assert {finding.severity for finding in ruling.findings} == {"warn"}
    assert "n1 got 50 % of the CPU time that its threads could use" in ruling.findings[0].evidence
    assert "while no other processes hold the CPU" in ruling.unjudged[0]
    assert all(entry.passed for entry in ruling.judged)
    # The limit of a user must be decided.
    limited = SimulatedCluster(nodes=nodes, slow=slow, cpu_share={1: 0.5}).trial(Params(min_gbps=8.0))
    assert "while no other processes hold the CPU" in str(limited.absent)
    # What had the CPU is blamed, and so is a link that carries nothing.
    assert _only(SimulatedCluster(nodes=nodes, slow=slow, cpu_share={1: 0.9}).trial())
    assert _only(SimulatedCluster(nodes=nodes, slow=dict.fromkeys(slow, 0.0), cpu_share={1: 0.5}).trial())


@pytest.mark.parametrize("nodes", [4, 20])
def test_a_slow_node_with_one_busy_peer_is_named(nodes: int) -> None:
    finding = _only(SimulatedCluster(nodes=nodes, slow=slow_node(1, 0.2), cpu_share={0: 0.5}).trial())
    assert finding.culprit.nodes == ("n1",)


@pytest.mark.parametrize("slow", [{(1, None): 0.2}, {(None, 1): 0.2}])
def test_a_peer_without_the_cpu_does_not_clear_a_slow_node(slow: Slow) -> None:
    """Of three nodes one tells of a lack of CPU: the slow link between the two others stays a failure."""
    finding = _only(SimulatedCluster(nodes=3, slow=slow, cpu_share={0: 0.0}).trial())
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("n1", "n2"))
    assert "endpoints not separable" in finding.culprit.name


def test_two_nodes_slow_alike_miss_the_users_limit() -> None:
    both: Slow = {(0, 1): 0.5, (1, 0): 0.5}
    assert SimulatedCluster(nodes=2, slow=both).trial().findings == ()
    finding = _only(SimulatedCluster(nodes=2, slow=both).trial(Params(min_gbps=8.0)))
    assert finding.limit is not None or "user links.min_gbps" in str(finding)


def test_a_device_slow_within_its_node_is_named() -> None:
    slow: Slow = {key: 0.5 for other in (4, 6, 7) for key in ((5, other), (other, 5))}
    finding = _only(SimulatedCluster(nodes=3, nproc_per_node=4, device_type="cuda", slow=slow).trial())
    assert (finding.severity, finding.culprit.kind) == ("fail", "device")
    assert finding.culprit.name == "rank 5 (a device, local rank 1 on node n1)"


def test_each_rail_of_devices_is_compared_by_itself() -> None:
    slow: Slow = {key: 0.6 for other in (1, 3, 7) for key in ((5, other), (other, 5))}
    finding = _only(SimulatedCluster(nodes=4, nproc_per_node=2, device_type="cuda", slow=slow).trial())
    assert finding.culprit.ranks == (5,)


def test_a_late_node_is_named_and_scheduler_noise_is_not() -> None:
    assert SimulatedCluster(nodes=4, late_us={2: 900.0}).trial().findings == ()
    finding = _only(SimulatedCluster(nodes=4, late_us={2: 5000.0}).trial())
    assert finding.culprit.name == "node n2"
    assert finding.what == "node n2 has a latency of 5050 us, its peers 50 us"
    assert finding.limit is not None
    assert finding.limit.value == pytest.approx(1100.0)


@pytest.mark.parametrize("nodes", [4, 6, 20])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_node_that_loses_segments_is_named(nodes: int, device_type: str) -> None:
    cluster = SimulatedCluster(nodes=nodes, device_type=device_type, resent={(None, 2): 0.05})
    finding = _only(cluster.trial())
    assert (finding.culprit.kind, finding.culprit.ranks) == ("node", (2,))
    assert "(receiving) makes TCP send again 5.00 %, its peers 0.00 %" in finding.what
    assert finding.limit is not None
    assert finding.limit.value == pytest.approx(0.01)


@pytest.mark.parametrize("nodes", [5, 17, 40])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_lossy_link_is_named_in_a_large_cluster_too(nodes: int, device_type: str) -> None:
    link = _only(SimulatedCluster(nodes=nodes, device_type=device_type, resent={(3, 1): 0.05}).trial())
    assert link.culprit.name == "link n1–n3"
    assert "(from n3 to n1) makes TCP send again 5.00 %" in link.what


def test_a_lossy_link_is_named_and_loss_everywhere_is_not() -> None:
    link = _only(SimulatedCluster(nodes=5, resent={(3, 1): 0.05}).trial())
    assert link.culprit.name == "link n1–n3"
    assert "(from n3 to n1)" in link.what
    assert SimulatedCluster(nodes=5, resent={(3, 1): 0.008}).trial().findings == ()
    everywhere = SimulatedCluster(nodes=5, resent=dict.fromkeys([(rank, None) for rank in range(5)], 0.05)).trial()
    assert (everywhere.findings, everywhere.absent) == ((), ())


def test_a_node_slow_late_and_lossy_is_one_culprit() -> None:
    lossy: Slow = {(None, 2): 0.05}
    finding = _only(SimulatedCluster(nodes=5, slow=slow_node(2, 0.2), late_us={2: 5000.0}, resent=lossy).trial())
    assert "reaches 2 GB/s" in finding.what
    assert any("has a latency of 5050 us" in line for line in finding.evidence)
    assert any("makes TCP send again 5.00 %" in line for line in finding.evidence)
    ruling = SimulatedCluster(nodes=5, slow={(0, 2): 0.2}, resent=lossy).trial()
    assert [(each.severity, each.culprit.kind) for each in ruling.findings] == [("info", "link"), ("fail", "node")]


@pytest.mark.parametrize("slow", [{}, slow_node(1, 0.2)])
def test_a_search_that_was_cut_short_is_no_pass(slow: Slow) -> None:
    cluster = SimulatedCluster(nodes=6, slow=slow)
    full = cluster.trial()
    for most_rounds in range(len(cluster.rounds)):
        cut = SimulatedCluster(nodes=6, slow=slow).trial(most_rounds=most_rounds)
        assert cut.absent
        assert {f.culprit for f in cut.findings} <= {f.culprit for f in full.findings}


def test_a_link_that_was_not_measured_again_is_an_open_question() -> None:
    question = "a clear result for link n1–n3"
    absent = [SimulatedCluster(nodes=6, slow={(1, 3): 0.2}).trial(most_rounds=most).absent for most in (4, 5, 6)]
    assert [question in lacks for lacks in absent] == [False, True, False]


@pytest.mark.parametrize("nodes", [6, 16, 40])
def test_loss_by_contention_is_measured_again_with_fewer_pairs(nodes: int) -> None:
    """A link that loses no more than pairs under contention is found, too."""
    crowded = SimulatedCluster(nodes=nodes, crowd_resends=0.01)
    ruling = crowded.trial()
    assert (ruling.findings, ruling.absent) == ((), ())
    link = _only(SimulatedCluster(nodes=nodes, crowd_resends=0.01, resent={(3, 1): 0.03}).trial())
    assert link.culprit.name == "link n1–n3"


def test_a_late_group_is_no_pass_and_not_requested_again() -> None:
    cluster = SimulatedCluster(nodes=20, largest_in_time=19, slow={(4, 9): 0.1})
    ruling = cluster.trial()
    assert _only(ruling).culprit.name == "link n4–n9", "what it reported in time is measured again all the same"
    assert any("time for all exchanges of 1 groups (raise links.timeout_s)" in text for text in ruling.absent)
    assert any("pairs were not measured" in text for text in ruling.absent)
    assert sum(bool(part["groups"]) for request in cluster.rounds for part in request["parts"]) == 1


def test_a_group_that_failed_and_is_late_is_traced() -> None:
    dead: Slow = {(4, 9): 0.0, (9, 4): 0.0}
    ruling = SimulatedCluster(nodes=20, largest_in_time=19, slow=dead).trial()
    assert (_only(ruling).culprit.name, ruling.absent) == ("link n4–n9", ())


def test_a_group_without_healthy_pairs_is_judged_by_its_median() -> None:
    """The first pairs of a large cluster lie on links that are all dead."""
    order = [tuple(pair) for pair in _first_pairs(20)]
    dead: Slow = {key: 0.0 for a, b in order for key in ((a, b), (b, a))}
    ruling = SimulatedCluster(nodes=20, slow=dead).trial()
    assert any(finding.severity == "fail" for finding in ruling.findings)


def _first_pairs(nodes: int) -> list[list[int]]:
    cluster = SimulatedCluster(nodes=nodes)
    cluster.trial(most_rounds=1)
    (part,) = cluster.rounds[0]["parts"]
    found: list[list[int]] = part["pairs"]
    return found


def test_additional_devices_are_measured_where_two_nodes_have_them() -> None:
    """One of three nodes has a single device instead of two; then one of two nodes."""
    slow: Slow = {(1, 3): 0.0, (3, 1): 0.0}
    three = SimulatedCluster(nodes=3, nproc_per_node=2, device_type="cuda", slow=slow, lacks=frozenset({5}))
    finding = _only(three.trial())
    assert finding.culprit.ranks == (1, 3)
    two = SimulatedCluster(nodes=2, nproc_per_node=2, device_type="cuda", lacks=frozenset({3})).trial()
    assert (two.findings, two.absent) == ((), ())
    assert two.unjudged == ("links: no other node has a device to pair with rank 1",)


def test_processes_on_the_cpus_of_one_node_have_no_link() -> None:
    cluster = SimulatedCluster(nodes=1, nproc_per_node=4)
    ruling = cluster.trial()
    assert (cluster.rounds, ruling.absent, ruling.judged) == ([], (), ())
    assert [finding.severity for finding in ruling.findings] == ["info"]


def test_one_rank_has_no_link() -> None:
    cluster = SimulatedCluster(nodes=1)
    assert (cluster.trial(), cluster.rounds) == (Ruling(), [])


def test_mpi_measures_no_links_and_says_so() -> None:
    why = "MPI has no group before the world"
    evidence = SimulatedCluster(nodes=2).evidence()
    facts = (Fact(check="links", name="not_checked", value=why, rank=0, stage="store"),)
    evidence = replace(evidence, facts=facts, backend="mpi")
    assert CHECK.next_round is not None
    assert CHECK.next_round(evidence, Params()) is None
    assert CHECK.judge(evidence, Params()) == Ruling(unjudged=(f"links not measured: {why}",))


def _measured(cluster: SimulatedCluster) -> Evidence:
    """All rounds of a cluster."""
    evidence = cluster.evidence()
    assert CHECK.next_round is not None
    while (asked := CHECK.next_round(evidence, Params())) is not None:
        evidence = cluster.answer(evidence, asked[1])
    return evidence


def _lie(evidence: Evidence, name: str, value: object, stage: str = "round 1") -> Evidence:
    """Rank 3 says something else, too."""
    return replace(evidence, facts=(Fact(check="links", name=name, value=value, rank=3, stage=stage), *evidence.facts))


def test_one_rank_cannot_say_that_nobody_measured() -> None:
    evidence = _measured(SimulatedCluster(nodes=4, slow={(1, None): 0.1}))
    ruling = CHECK.judge(evidence, Params())
    assert [finding.culprit.nodes for finding in ruling.findings] == [("n1",)]
    assert CHECK.judge(_lie(evidence, "not_checked", "1 rank"), Params()) == ruling


@pytest.mark.parametrize("stage", ["round 1", "round 2", "round 77"])
def test_one_rank_cannot_make_up_a_round(stage: str) -> None:
    """Of a round that nobody was asked for, nobody has results."""
    evidence = _measured(SimulatedCluster(nodes=4))
    ruling = CHECK.judge(evidence, Params())
    assert ruling.findings == ()
    made_up = {"fabric": "nodes", "at_once": 1, "repeats": 1, "groups": [[0, 1]], "list_below_gbps": None}
    assert CHECK.judge(_lie(evidence, "asked", made_up, stage), Params()) == ruling


def test_a_rank_that_hides_that_its_round_began_is_named() -> None:
    evidence = _measured(SimulatedCluster(nodes=4))
    hidden = tuple(fact for fact in evidence.facts if fact.name != "asked" or fact.rank != 0)
    absent = CHECK.judge(replace(evidence, facts=hidden), Params()).absent
    assert absent[0] == "round 1 on nodes, which rank 0 was to begin"


def test_a_request_of_one_stage_that_is_there_twice_counts_once() -> None:
    evidence = _measured(SimulatedCluster(nodes=3))
    twice = {stage: {**request, "parts": request["parts"] * 2} for stage, request in evidence.rounds.items()}
    once, more = CHECK.judge(evidence, Params()), CHECK.judge(replace(evidence, rounds=twice), Params())
    assert not once.absent
    assert more.judged == once.judged
    assert more.absent == tuple(f"one request for {stage} on nodes" for stage in evidence.rounds)


def test_a_request_for_groups_with_a_common_rank_is_not_read() -> None:
    evidence = _measured(SimulatedCluster(nodes=20))
    stage = next(stage for stage, request in evidence.rounds.items() if request["parts"][0]["groups"])
    (part,) = evidence.rounds[stage]["parts"]
    assert not CHECK.judge(evidence, Params()).absent
    for wrong in ({"groups": [*part["groups"], [0, 1]]}, {"pairs": [0]}):
        rounds = {**evidence.rounds, stage: {"parts": [part | wrong]}}
        assert CHECK.judge(replace(evidence, rounds=rounds), Params()).absent[0] == "the last rounds between nodes"


def test_a_store_that_one_rank_cannot_reach_hides_no_slow_link() -> None:
    evidence = _measured(SimulatedCluster(nodes=4, slow={(1, None): 0.1}))
    unreachable = {"host": "x" * 300, "port": 1, "how": "refused"}
    # A rank that finished was there.
    assert CHECK.judge(_lie(evidence, "store_unreachable", unreachable), Params()) == CHECK.judge(evidence, Params())
    unfinished = replace(_lie(evidence, "store_unreachable", unreachable), asked=(0, 1, 2))
    unfinished = _lie(unfinished, "store_unreachable", {**unreachable, "port": 2})
    store, slow = CHECK.judge(unfinished, Params()).findings
    assert (len(store.what) < 400, store.culprit.nodes) == (True, ("n0", "n3"))
    assert slow.culprit.nodes == ("n1",)


_PER_RANK = {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.3", **dict.fromkeys(range(3, 8), "10.0.0.9")}
"""Agents of each rank, as under torchrun and srun: from node 3 on all are on one host."""


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("agents", [1, 2, 3, 4, 5])
def test_many_agents_of_one_host_do_not_outvote_an_honest_node(device_type: str, agents: int) -> None:
    """They are slow towards node 0, or only say so: which end it is, no third host has seen."""
    liars = range(3, 3 + agents)
    lies: Slow = {(liar, 0): 0.1 for liar in liars}
    both: Slow = lies | {(0, liar): 0.1 for liar in liars}
    for slow in (lies, both):
        ruling = SimulatedCluster(nodes=3 + agents, device_type=device_type, slow=slow, places=_PER_RANK).trial()
        found = {(each.culprit.kind, each.culprit.nodes) for each in ruling.findings if each.severity == "fail"}
        assert found == {("link", ("n0", "n3"))}


def test_two_agents_of_one_host_do_not_outvote_the_only_other_node() -> None:
    slow: Slow = {pair: 0.1 for liar in (1, 2) for pair in ((liar, 0), (0, liar))}
    ruling = SimulatedCluster(nodes=3, slow=slow, places={0: "10.0.0.1", 1: "10.0.0.9", 2: "10.0.0.9"}).trial()
    assert "node" not in {each.culprit.kind for each in ruling.findings}


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_links_within_a_host_are_no_standard_for_the_network(device_type: str) -> None:
    places = {node: f"10.0.0.{node // 4}" for node in range(12)}
    network: Slow = {(a, b): 0.01 for a in places for b in places if places[a] != places[b]}
    ruling = SimulatedCluster(nodes=12, device_type=device_type, slow=network, places=places).trial()
    assert (ruling.findings, ruling.absent) == ((), ())
    slow_host: Slow = {(a, b): 0.001 for a, b in network if 5 in (a, b) or 6 in (a, b) or {4, 7} & {a, b}}
    ruling = SimulatedCluster(nodes=12, device_type=device_type, slow=network | slow_host, places=places).trial()
    ranks = {each.culprit.ranks for each in ruling.findings if each.severity == "fail"}
    assert ranks == ({(4, 5, 6, 7)} if device_type == "cpu" else {(rank,) for rank in (4, 5, 6, 7)})


def test_machines_behind_one_address_are_no_full_pass() -> None:
    cluster = SimulatedCluster(nodes=4, places={0: "10.0.0.1", 1: "10.0.0.9", 2: "10.0.0.9", 3: "10.0.0.9"})
    evidence = cluster.evidence()
    named = {rank: replace(seen, hostname=f"h{rank % 2}") for rank, seen in evidence.ranks.items()}
    cluster.evidence = lambda: replace(evidence, ranks=named)  # type: ignore[method-assign]
    assert cluster.trial().unjudged == ("links between h1, h0: they joined from one address and count as one node",)


def test_pairs_of_one_node_may_differ_by_design_and_only_warn() -> None:
    """Two bridges between four devices, a common design; another node shows whether it is by design."""
    pairs = [(a, b) for a in range(4) for b in range(4) if {a, b} not in ({0, 1}, {2, 3})]
    slow: Slow = dict.fromkeys(pairs, 0.5)
    ruling = SimulatedCluster(nodes=1, nproc_per_node=4, device_type="cuda", slow=slow).trial()
    assert {finding.severity for finding in ruling.findings} <= {"warn"}
    assert (ruling.absent, [entry for entry in ruling.judged if not entry.passed]) == ((), [])
    both: Slow = {(a + node, b + node): 0.5 for a, b in pairs for node in (0, 4)}
    alike = SimulatedCluster(nodes=2, nproc_per_node=4, device_type="cuda", slow=both).trial()
    assert {finding.severity for finding in alike.findings} <= {"warn"}


def test_a_dead_link_within_one_node_fails() -> None:
    dead: Slow = {(1, 2): 0.0, (2, 1): 0.0}
    finding = _only(SimulatedCluster(nodes=1, nproc_per_node=4, device_type="cuda", slow=dead).trial())
    assert finding.culprit.ranks == (1, 2)


def test_a_device_with_a_warning_does_not_explain_a_dead_link() -> None:
    """It is a little slow with all others of its node, which may be design; one of its links carries nothing."""
    slow: Slow = {**slow_node(1, 0.88), (1, 2): 0.0, (2, 1): 0.0}
    ruling = SimulatedCluster(nodes=1, nproc_per_node=6, device_type="cuda", slow=slow).trial()
    findings = {(each.severity, each.culprit.kind, each.culprit.ranks) for each in ruling.findings}
    assert findings == {("warn", "device", (1,)), ("fail", "link", (1, 2))}


@pytest.mark.parametrize(("nodes", "slow_ones"), [(5, 3), (16, 10), (40, 30)])
def test_a_few_fast_nodes_show_that_most_are_slow(nodes: int, slow_ones: int) -> None:
    slow = {key: left for rank in range(slow_ones) for key, left in slow_node(rank, 0.4).items()}
    (finding,) = SimulatedCluster(nodes=nodes, slow=slow).trial().findings
    assert (finding.severity, finding.culprit.kind) == ("warn", "none")
    assert "10 GB/s against 4 GB/s" in finding.what
    given = _only(SimulatedCluster(nodes=nodes, slow=slow).trial(Params(min_gbps=8.0)))
    assert given.culprit.kind == "fabric"
    # A limit of the user that all links reach leaves no question.
    assert SimulatedCluster(nodes=nodes, slow=slow).trial(Params(min_gbps=3.0)).findings == ()


@pytest.mark.parametrize("nodes", [1, 3])
def test_devices_of_one_machine_have_no_network_between_them(nodes: int) -> None:
    """Also where each has a separate agent: two of six are joined by a bridge, and the others by PCIe alone."""
    bridged = {frozenset((node * 6, node * 6 + 1)) for node in range(nodes)}
    pcie: Slow = {
        (a, b): 0.3
        for a in range(nodes * 6)
        for b in range(nodes * 6)
        if a // 6 == b // 6 and a != b and frozenset((a, b)) not in bridged
    }
    rulings = [
        SimulatedCluster(
            nodes=nodes, nproc_per_node=6, device_type="cuda", slow=pcie, agent_per_rank=agent_per_rank
        ).trial()
        for agent_per_rank in (False, True)
    ]
    assert rulings[0] == rulings[1]
    assert all(finding.severity != "fail" for finding in rulings[1].findings)


def test_a_dead_device_of_one_machine_with_several_agents_fails() -> None:
    cluster = SimulatedCluster(
        nodes=1, nproc_per_node=6, device_type="cuda", slow=slow_node(2, 0.0), agent_per_rank=True
    )
    finding = _only(cluster.trial())
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "device", (2,))
    assert "NVLink" in finding.action


def test_processes_on_the_cpus_of_one_machine_have_no_links() -> None:
    """Also where each has a separate agent; a rank that another process slows down is no fault of a link."""
    ruling = SimulatedCluster(nodes=1, nproc_per_node=4, slow=slow_node(2, 0.1), agent_per_rank=True).trial()
    assert [finding.severity for finding in ruling.findings] == ["info"]


def test_machines_with_several_names_at_one_place_have_links() -> None:
    """As where a proxy stands before all agents."""
    for device_type in ("cpu", "cuda"):
        cluster = SimulatedCluster(nodes=4, nproc_per_node=2, device_type=device_type, slow=slow_node(4, 0.1))
        cluster.agent_per_rank, cluster.places = True, dict.fromkeys(range(8), "this machine")
        assert [finding.culprit.ranks for finding in cluster.trial().findings if finding.severity == "fail"] == [
            (4, 5) if device_type == "cpu" else (4,)
        ]


def test_nodes_of_one_name_are_distinguished() -> None:
    cluster = SimulatedCluster(nodes=5, nproc_per_node=2, slow=slow_node(4, 0.1))
    evidence = cluster.evidence()
    same = {rank: replace(seen, node="localhost") for rank, seen in evidence.ranks.items()}
    cluster.evidence = lambda: replace(evidence, ranks=same)  # type: ignore[method-assign]
    found = _only(cluster.trial())
    assert found.culprit.ranks == (4, 5)
    # One name: one machine that starts as several nodes.
    assert found.culprit.name == "node localhost#2"
    assert "cable" not in found.action


@pytest.mark.parametrize(
    ("key", "value"),
    [("cpu_bytes", 4), ("seconds", 0.0), ("pair_timeout_s", 500.0), ("pair_timeout_s", 0.9e-3), ("min_gbps", -1.0)],
)
def test_invalid_values_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=key):
        Params(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "pings", "words"),
    [
        (DEAD, False, "cable"),
        (DEAD, True, "compare the MTU"),
        ("timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.2]:2989$0", False, "open all TCP ports"),
        ("timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:2989$0", False, "map the name"),
    ],
)
def test_a_link_that_carries_nothing_says_what_to_look_at(reason: str, pings: bool, words: str) -> None:
    """8 bytes that pass while a transfer never does have one usual cause; closed ports and names are no cables."""
    dead: Slow = {(1, 2): 0.0, (2, 1): 0.0}
    finding = _only(SimulatedCluster(nodes=4, slow=dead, dead_reason=reason, dead_pings=pings).trial())
    assert finding.culprit.name == "link n1–n2"
    assert words in finding.action
