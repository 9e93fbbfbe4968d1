"""Ranks that were kept from their cores in a training, by counters made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks.simulated_training import SMOKE, a_measurement, trained

from seatrial.checks.shared.host_activity import load_of_others
from seatrial.checks.training.judge import judge
from seatrial.checks.training.judge_held_up import held_up
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Finding
from seatrial.evidence.measurement import Fact

CALM = {
    "wall_s": 10.0,
    "cpu_s": 4.0,
    "waited_s": 0.5,
    "busy_s": 4.5,
    "steal_s": 0.0,
    "stalled_s": 0.0,
    "throttled_s": 0.0,
    "mhz": 2500.0,
}


def counted(*ranks: dict[str, float], without: str = "") -> Evidence:
    """Return evidence in which the counters of each rank are calm but for these."""
    whole = trained(len(ranks))
    # Nobody else is below their quotas.
    full = ({**CALM, "below_quota_s": each.get("cpu_s", CALM["cpu_s"]), **each} for each in ranks)
    values = ({name: value for name, value in each.items() if name != without} for each in full)
    facts = (Fact(check="training", name="contention", value=value, rank=rank) for rank, value in enumerate(values))
    return replace(whole, facts=(*whole.facts, *facts))


def only(evidence: Evidence) -> Finding:
    (finding,) = judge(evidence, SMOKE).findings
    return finding


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_rank_stopped_by_a_quota_fails_and_the_waiting_do_not(num_ranks: int) -> None:
    finding = only(counted(*({} for _ in range(num_ranks - 1)), {"throttled_s": 6.0}))
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (num_ranks - 1,))
    assert finding.measured == "60 % of the CPU time that it could have used"
    assert finding.limit is not None
    assert finding.limit.value == pytest.approx(20)
    assert any("during the group run its CPU quota kept 60 %" in line for line in finding.evidence)


def test_a_rank_stopped_by_a_quota_has_one_finding() -> None:
    whole = counted({}, {}, {"throttled_s": 6.0, "waited_s": 9.0}, {})
    slow = trained(4, compute_s={2: 0.050}, alone_s={2: 0.050, 0: 0.010})
    for evidence in (whole, replace(slow, facts=whole.facts)):
        ruling = judge(evidence, SMOKE)
        assert [(each.severity, each.culprit.ranks) for each in ruling.findings] == [("fail", (2,))]
        assert "by the CPU quota" in ruling.findings[0].what
        assert ruling.absent == ()


@pytest.mark.parametrize(("below_quota_s", "severity"), [(4.2, "fail"), (9.0, "warn")])
def test_a_quota_that_others_used_up_is_a_warning(below_quota_s: float, severity: str) -> None:
    """Any user below the quota can use it up: the neighbors of a service, or a container beside that of the rank."""
    finding = only(counted({}, {}, {"throttled_s": 6.0, "below_quota_s": below_quota_s}))
    assert (finding.severity, finding.culprit.ranks) == (severity, (2,))
    assert only(counted({}, {}, {"throttled_s": 6.0}, without="below_quota_s")).severity == "warn"
    two = {"throttled_s": 6.0, "below_quota_s": 8.1}
    evidence = counted({}, {}, {}, two, two)
    ranks = {rank: replace(record, node="same") if rank > 2 else record for rank, record in evidence.ranks.items()}
    assert held_up(replace(evidence, ranks=ranks), "throttled_s").keys() == {3, 4}
    slow = trained(3, compute_s={2: 0.050}, alone_s={2: 0.050, 0: 0.010})
    ruling = judge(replace(slow, facts=counted({}, {}, {"throttled_s": 6.0, "below_quota_s": 9.0}).facts), SMOKE)
    assert "fail" in {each.severity for each in ruling.findings}, "it is slow again, alone, with all of its CPU time"


def test_a_rank_that_shares_its_cores_is_a_warning() -> None:
    finding = only(counted({}, {}, {"waited_s": 8.0, "busy_s": 9.9, "cpu_s": 2.0, "steal_s": 1.0, "mhz": 1200.0}))
    assert (finding.severity, finding.culprit.ranks) == ("warn", (2,))
    text = "\n".join(finding.evidence)
    assert "others on its cores kept 80 %" in text
    assert "other processes used 0.8 of its cores (rank 0 on node node-0: 0.1)" in text
    assert "the hypervisor took its cores (steal) for 10 % of the time" in text
    assert "its cores ran at 1200 MHz (rank 0 on node node-0: 2500)" in text


@pytest.mark.parametrize(
    "ranks",
    [
        [{}, {}],
        [{"throttled_s": 6.0}] * 4,
        [{"waited_s": 8.0}] * 3,
        [{}, {"throttled_s": 1.9}],
        [{}, {"waited_s": 3.4}],
        [{}, {"throttled_s": 0.3, "cpu_s": 0.1}],
        [{"waited_s": 8.0}],
    ],
)
def test_a_loss_that_all_ranks_have_blames_no_rank(ranks: list[dict[str, float]]) -> None:
    assert judge(counted(*ranks), SMOKE).findings == ()


def waiting(evidence: Evidence, waits: dict[int, float]) -> Evidence:
    """Return the evidence with these seconds of waiting in each step, of which 10 ms is the rest."""
    parts = {"data_s": 0.0, "compute_s": 0.01, "optimizer_s": 0.0}
    steps = ({**parts, "wait_s": wait_s} for wait_s in waits.values())
    measurements = [
        a_measurement(name, value, rank)
        for rank, each in zip(waits, steps, strict=True)
        for name, value in each.items()
    ]
    return replace(evidence, measurements=(*evidence.measurements, *measurements))


@pytest.mark.parametrize("num_others", [1, 3])
def test_a_rank_that_spins_while_it_waits_delays_no_rank(num_others: int) -> None:
    evidence = counted(*({} for _ in range(num_others)), {"throttled_s": 6.0})
    alike = dict.fromkeys(range(num_others + 1), 0.005)
    assert only(waiting(evidence, alike)).severity == "fail"
    finding = only(waiting(evidence, {**alike, num_others: 0.03}))
    assert (finding.severity, finding.culprit.ranks) == ("warn", (num_others,))
    assert "while it waited itself" in finding.what
    assert finding.action.startswith("raise the CPU limit")
    # A rank that waits for a core while it waits for others delays no rank either.
    beside_others = counted(*({} for _ in range(num_others)), {"waited_s": 8.0})
    assert only(waiting(beside_others, alike)).severity == "warn"
    assert judge(waiting(beside_others, {**alike, num_others: 0.03}), SMOKE).findings == ()


def test_a_quota_of_several_ranks_counts_once() -> None:
    """Two ranks a node share a control group, whose counter both report: each lost 15 % of what it could use."""
    shared = {"throttled_s": 3.0, "cpu_s": 8.5}
    assert judge(counted({}, {}, {}, {}, shared, {**shared, "throttled_s": 3.01}), SMOKE).findings == ()
    # A group for each rank, or one quota that took more from both.
    assert only(counted({}, {}, {}, {}, shared, {"cpu_s": 8.5})).culprit.ranks == (4,)
    much = {"throttled_s": 8.0, "cpu_s": 6.0}
    assert [each.culprit.ranks for each in judge(counted({}, {}, {}, {}, much, much), SMOKE).findings] == [(4,), (5,)]


def test_a_quota_of_one_node_counts_for_no_other() -> None:
    """Rank 2 is on the second of four nodes and rank 4 on the third; their counters are equal by chance."""
    lost = {"throttled_s": 3.0, "cpu_s": 8.5}
    found = judge(counted({}, {}, lost, {}, lost, {}, {}, {}), SMOKE).findings
    assert [each.culprit.ranks for each in found] == [(2,), (4,)]


def test_a_clock_that_only_one_rank_reads_is_not_compared() -> None:
    whole = counted({}, {"throttled_s": 6.0})
    for rank in (0, 1):
        facts = tuple(
            replace(fact, value={name: value for name, value in fact.value.items() if name != "mhz"})
            if (fact.name, fact.rank) == ("contention", rank)
            else fact
            for fact in whole.facts
        )
        assert only(replace(whole, facts=facts)).culprit.ranks == (1,)


def test_without_counters_no_rank_is_named() -> None:
    evidence = counted({}, {"throttled_s": 9.0}, without="throttled_s")
    assert held_up(evidence, "throttled_s") == {}
    assert held_up(trained(2), "waited_s") == {}


def test_a_rank_without_other_activity_on_its_host() -> None:
    whole = counted(*({} for _ in range(8)))
    slow = trained(8, compute_s={1: 0.030}, alone_s={1: 0.028, **dict.fromkeys((0, 2, 4, 6), 0.009)})
    ruling = judge(replace(slow, facts=whole.facts), SMOKE)
    lines = [line for finding in ruling.findings for line in finding.evidence]
    assert any(line.startswith("during the group run no other activity on the host explains it") for line in lines), (
        ruling
    )


def on_hosts(evidence: Evidence, *counts: int) -> Evidence:
    """Return the evidence of hosts with these numbers of ranks."""
    node_of = [node for node, count in enumerate(counts) for _ in range(count)]
    ranks = {rank: replace(seen, node_rank=node_of[rank]) for rank, seen in evidence.ranks.items()}
    return replace(evidence, ranks=ranks, places_of_nodes={node: f"10.0.0.{node}" for node in range(len(counts))})


@pytest.mark.parametrize(
    ("counts", "lost", "named"),
    [
        ((8, 1, 1), {8: 4.0, 9: 4.0}, set()),
        ((8, 1, 1), {8: 6.0}, {8}),
        ((8, 1, 1), dict.fromkeys(range(8), 60.0), set(range(8))),
        ((1, 1, 1), {0: 6.0}, {0}),
        ((1, 1, 1), {1: 4.0, 2: 4.0}, set()),
        ((1, 1, 1, 1), {2: 6.0, 3: 6.0}, {2, 3}),
        ((4, 4), dict.fromkeys(range(4, 8), 30.0), set(range(4, 8))),
    ],
)
def test_a_host_of_many_ranks_is_not_most_others(
    counts: tuple[int, ...], lost: dict[int, float], named: set[int]
) -> None:
    evidence = on_hosts(counted(*({"throttled_s": lost.get(rank, 0.0)} for rank in range(sum(counts)))), *counts)
    assert held_up(evidence, "throttled_s").keys() == named


def test_each_rank_is_compared_with_those_of_its_node_only() -> None:
    """Each with each of 32,768 ranks would be minutes, and most nodes have eight."""
    count = 8_192
    ranks = {
        rank: RankRecord(
            rank=rank, node=f"n{rank // 8}", node_rank=rank // 8, local_rank=rank % 8, device="X", kind="X"
        )
        for rank in range(count)
    }
    lost = {9: 60.0, 17: 60.0}
    facts = tuple(
        Fact(
            check="training",
            name="contention",
            value={**CALM, "below_quota_s": 4.0, "throttled_s": lost.get(rank, 0.0)},
            rank=rank,
        )
        for rank in ranks
    )
    evidence = Evidence(ranks=ranks, asked=tuple(ranks), measurements=(), facts=facts)
    shares = held_up(evidence, "throttled_s")
    # Ranks of two nodes with equal counters share no quota.
    assert {rank: round(share, 3) for rank, (share, _) in shares.items()} == dict.fromkeys(lost, round(60 / 64, 3))
    assert load_of_others(evidence) == ""


@pytest.mark.parametrize("has_separate_agents", [False, True])
def test_ranks_of_one_machine_share_its_quota_and_cores(has_separate_agents: bool) -> None:
    """Under torchrun, mpirun and srun each of them has a separate agent, and the machine has one name."""
    ranks = {
        rank: RankRecord(
            rank=rank,
            node=f"n{rank // 8}",
            node_rank=rank if has_separate_agents else rank // 8,
            local_rank=rank % 8,
            device="X",
            kind="X",
        )
        for rank in range(32)
    }
    # 4 % of what eight ranks could use, and 32 % of what one of them could; all cores are busy with the ranks alone.
    own = {**CALM, "cpu_s": 9.0, "waited_s": 4.0, "busy_s": 72.0}
    facts = tuple(
        Fact(check="training", name="contention", value={**own, "throttled_s": 3.2 * (rank < 8)}, rank=rank)
        for rank in ranks
    )
    evidence = Evidence(ranks=ranks, asked=tuple(ranks), measurements=(), facts=facts)
    assert held_up(evidence, "throttled_s") == {}
    assert load_of_others(evidence) == ""
