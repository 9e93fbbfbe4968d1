"""Who was kept from its cores in a training, by counters made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks.simulated_training import SMOKE, a_figure, trained

from seatrial.checks._training_held import held_up
from seatrial.checks._training_judge import judge
from seatrial.probe import own_code
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Fact
from seatrial.verdict.findings import Finding

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
    """Each rank's counters are calm but for these."""
    whole = trained(len(ranks))
    told = ({name: value for name, value in {**CALM, **each}.items() if name != without} for each in ranks)
    facts = (Fact(check="training", name="contention", value=value, rank=rank) for rank, value in enumerate(told))
    return replace(whole, facts=(*whole.facts, *facts))


def only(evidence: Evidence) -> Finding:
    (finding,) = judge(evidence, SMOKE).findings
    return finding


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_who_is_stopped_by_a_quota_is_at_fault_and_who_waited_for_it_is_not(num_ranks: int) -> None:
    finding = only(counted(*({} for _ in range(num_ranks - 1)), {"throttled_s": 6.0}))
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (num_ranks - 1,))
    assert finding.measured == "60 % of the CPU time that it could have used"
    assert finding.limit is not None
    assert finding.limit.value == pytest.approx(20)
    assert any("in the group its CPU quota kept 60 %" in line for line in finding.evidence)


def test_whom_a_quota_stops_has_one_fault_though_it_waits_and_is_slow_by_it() -> None:
    whole = counted({}, {}, {"throttled_s": 6.0, "waited_s": 9.0}, {})
    slow = trained(4, compute_s={2: 0.050}, alone_s={2: 0.050, 0: 0.010})
    for evidence in (whole, replace(slow, facts=whole.facts)):
        ruling = judge(evidence, SMOKE)
        assert [(each.severity, each.culprit.ranks) for each in ruling.findings] == [("fail", (2,))]
        assert "by the CPU quota" in ruling.findings[0].what
        assert ruling.absent == ()


def test_who_shares_its_cores_is_warned_of_with_what_was_seen() -> None:
    finding = only(counted({}, {}, {"waited_s": 8.0, "busy_s": 9.9, "cpu_s": 2.0, "steal_s": 1.0, "mhz": 1200.0}))
    assert (finding.severity, finding.culprit.ranks) == ("warn", (2,))
    told = "\n".join(finding.evidence)
    assert "others on its cores kept 80 %" in told
    assert "other processes used 0.8 of its cores (rank 0: 0.1)" in told
    assert "the hypervisor took its cores (steal) for 10 % of the time" in told
    assert "its cores ran at 1200 MHz (rank 0: 2500)" in told


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
def test_what_all_lose_alike_or_costs_little_is_nobodys(ranks: list[dict[str, float]]) -> None:
    assert judge(counted(*ranks), SMOKE).findings == ()


def waiting(evidence: Evidence, waits: dict[int, float]) -> Evidence:
    """Each of them waits for so long in its steps, of which 10 ms is the rest."""
    parts = {"data_s": 0.0, "compute_s": 0.01, "optimizer_s": 0.0}
    told = ({**parts, "wait_s": wait_s} for wait_s in waits.values())
    figures = [
        a_figure(name, value, rank) for rank, each in zip(waits, told, strict=True) for name, value in each.items()
    ]
    return replace(evidence, figures=(*evidence.figures, *figures))


@pytest.mark.parametrize("num_others", [1, 3])
def test_who_spins_while_it_waits_uses_up_its_quota_and_holds_nobody_up(num_others: int) -> None:
    evidence = counted(*({} for _ in range(num_others)), {"throttled_s": 6.0})
    alike = dict.fromkeys(range(num_others + 1), 0.005)
    assert only(waiting(evidence, alike)).severity == "fail"
    finding = only(waiting(evidence, {**alike, num_others: 0.03}))
    assert (finding.severity, finding.culprit.ranks) == ("warn", (num_others,))
    assert "while it waited itself" in finding.what
    assert finding.action.startswith("raise the CPU limit")
    # Who waits for a core while it waits for others holds nobody up either.
    beside_others = counted(*({} for _ in range(num_others)), {"waited_s": 8.0})
    assert only(waiting(beside_others, alike)).severity == "warn"
    assert judge(waiting(beside_others, {**alike, num_others: 0.03}), SMOKE).findings == ()


def test_what_a_quota_of_several_ranks_took_is_counted_once() -> None:
    """Two ranks a node. Theirs is one control group, whose counter both tell: each lost 15 % of what it could use."""
    shared = {"throttled_s": 3.0, "cpu_s": 8.5}
    assert judge(counted({}, {}, {}, {}, shared, {**shared, "throttled_s": 3.01}), SMOKE).findings == ()
    # Each its own group, or one that took more from both.
    assert only(counted({}, {}, {}, {}, shared, {"cpu_s": 8.5})).culprit.ranks == (4,)
    much = {"throttled_s": 8.0, "cpu_s": 6.0}
    assert [each.culprit.ranks for each in judge(counted({}, {}, {}, {}, much, much), SMOKE).findings] == [(4,), (5,)]


def test_a_clock_that_only_one_rank_could_read_is_compared_with_nobodys() -> None:
    whole = counted({}, {"throttled_s": 6.0})
    for rank in (0, 1):
        facts = tuple(
            replace(fact, value={name: value for name, value in fact.value.items() if name != "mhz"})
            if (fact.name, fact.rank) == ("contention", rank)
            else fact
            for fact in whole.facts
        )
        assert only(replace(whole, facts=facts)).culprit.ranks == (1,)


def test_where_nothing_was_counted_nobody_is_named() -> None:
    evidence = counted({}, {"throttled_s": 9.0}, without="throttled_s")
    assert held_up(evidence, "throttled_s") == {}
    assert held_up(trained(2), "waited_s") == {}


def test_the_file_that_travels_judges_alike_and_has_fewer_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "is_whole", lambda: False)
    finding = only(counted({}, {"throttled_s": 6.0}))
    assert (finding.severity, finding.culprit.ranks, finding.evidence) == ("fail", (1,), ())


def test_that_nothing_stands_out_is_said() -> None:
    whole = counted(*({} for _ in range(8)))
    slow = trained(8, compute_s={1: 0.030}, alone_s={1: 0.028, 4: 0.009})
    ruling = judge(replace(slow, facts=whole.facts), SMOKE)
    told = [line for finding in ruling.findings for line in finding.evidence]
    assert any(line.startswith("in the group nothing beside it stands out") for line in told), ruling
