"""Ranks that compute other bits of one batch than equal ranks: by vote, by repeats, by a known answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checks.simulated_training import SMOKE, a_batch, a_measurement, trained

from seatrial.checks.shared.host_inventory import listed
from seatrial.checks.training.judge import judge, suspects
from seatrial.checks.training.judge_one_batch import judge_one_batch
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding
from seatrial.evidence.measurement import Fact

WRONG = ("other", "other")
LOOSE = ("bits", "other")


def _only(evidence: Evidence) -> Finding:
    (finding,) = judge(evidence, SMOKE).findings
    assert (finding.severity, finding.check) == ("fail", "training")
    return finding


def _again(evidence: Evidence, results: dict[int, tuple[str, int]]) -> Evidence:
    """Return the evidence with repeats: by rank the gradients and the wrong elements of the convolution."""
    facts = [a_batch(rank, gradients, stage="repeat") for rank, (gradients, _) in results.items()]
    measurements = []
    for rank, (_, count) in results.items():
        measurements.append(
            replace(a_measurement("wrong_elements", count, rank, stage="repeat"), variant="convolution")
        )
        if count:
            facts.append(Fact(check="training", name="wrong_values", value={"count": count}, rank=rank, stage="repeat"))
    return replace(evidence, facts=(*evidence.facts, *facts), measurements=(*evidence.measurements, *measurements))


@pytest.mark.parametrize("odd", [0, 2])
def test_an_outvoted_rank_computes_again_and_is_named(odd: int) -> None:
    evidence = trained(4, batches={odd: WRONG})
    assert suspects(evidence, SMOKE) == (odd,)
    finding = _only(_again(evidence, {odd: ("other", 0)}))
    assert (finding.culprit.kind, finding.culprit.ranks) == ("rank", (odd,))
    assert finding.what == f"rank {odd} computed other gradients of one batch than the 3 equal ranks"
    assert finding.evidence[0] == f"gradients other: rank {odd}, 3 times"


def test_of_many_results_the_rarest_are_shown() -> None:
    evidence = trained(4)
    facts = tuple(a_batch(1, f"other-{number:02d}") for number in range(40))
    finding = _only(replace(evidence, facts=(*evidence.facts, *facts)))
    assert finding.culprit.ranks == (1,)
    assert finding.evidence == tuple(f"gradients other-{number:02d}: rank 1, 1 times" for number in range(8))


def test_a_wrong_forward_and_a_wrong_backward_are_told_apart() -> None:
    whole = trained(3, batches={1: ()})
    facts = tuple(a_batch(1, "other", scores="other") for _ in range(2))
    assert "other scores" in _only(replace(whole, facts=(*whole.facts, *facts))).what


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_nondeterministic_rank_is_named_also_of_two(num_ranks: int) -> None:
    evidence = trained(num_ranks, batches={1: LOOSE})
    assert suspects(evidence, SMOKE) == (1, 0), "the rank that was steady so far computes again, too"
    finding = _only(evidence)
    assert finding.culprit.ranks == (1,)
    assert "rank 1 is nondeterministic" in finding.what
    # Right the first two times, and wrong in the repeat.
    late = _only(_again(trained(num_ranks), {1: ("other", 0)}))
    assert late.culprit.ranks == (1,)


@pytest.mark.parametrize("wrong", [0, 1])
def test_of_two_that_differ_the_known_answer_names_one(wrong: int) -> None:
    evidence = trained(2, batches={1: WRONG})
    assert suspects(evidence, SMOKE) == (0, 1)
    again = {0: ("bits", 0), 1: ("other", 0)}
    again[wrong] = (again[wrong][0], 3)
    ruling = judge(_again(evidence, again), SMOKE)
    (finding,) = ruling.findings
    assert (finding.culprit.ranks, finding.measured) == ((wrong,), "3 wrong elements")
    assert finding.evidence[0] == "count 3"
    checked = {
        entry.measurement.rank: entry.passed for entry in ruling.judged if entry.measurement.name == "wrong_elements"
    }
    assert checked == {wrong: False, 1 - wrong: True}


@pytest.mark.parametrize("batches", [{1: WRONG}, {2: WRONG, 3: WRONG}, {0: ("a", "a"), 1: ("b", "b"), 2: ("c", "c")}])
def test_without_a_majority_and_a_wrong_answer_no_rank_is_named(batches: dict[int, tuple[str, ...]]) -> None:
    num_ranks = len(batches) * 2 if len(batches) < 3 else 3
    evidence = trained(num_ranks, batches=batches)
    assert suspects(evidence, SMOKE) == tuple(range(num_ranks))
    finding = _only(_again(evidence, {rank: (batches.get(rank, ("bits",))[0], 0) for rank in range(num_ranks)}))
    assert (finding.culprit.kind, finding.culprit.ranks) == ("none", tuple(range(num_ranks)))
    assert "not separable" in finding.culprit.name


@pytest.mark.parametrize("options", [{"kinds": {3: "B CPU"}}, {"alike": {3: "units 2"}}])
def test_ranks_that_compute_differently_are_not_compared(options: dict[str, Any]) -> None:
    ruling = judge(trained(4, batches={3: WRONG}, **options), SMOKE)
    assert (ruling.findings, ruling.absent) == ((), ())
    of_gradients = [each for each in ruling.unjudged if "gradients" in each]
    assert of_gradients == ["training: gradients of rank 3 not compared, as no other rank computes alike"]
    # Two groups that differ, each with equal results.
    both = {2: WRONG, 3: WRONG}
    (name, values), *_ = options.items()
    alike: dict[str, Any] = {name: {2: values[3], **values}}
    ruling = judge(trained(4, batches=both, **alike), SMOKE)
    assert ruling.findings == ()
    assert not any("gradients" in each for each in ruling.unjudged)


def test_one_rank_is_not_compared() -> None:
    for batches in ({}, {0: LOOSE}):
        evidence = trained(1, batches=batches)
        assert suspects(evidence, SMOKE) == ((0,) if batches else ())
        ruling = judge(evidence, SMOKE)
        assert (ruling.findings, ruling.unjudged) == ((), ("training: gradients not compared (1 rank)",))
    assert _only(_again(trained(1, batches={0: LOOSE}), {0: ("bits", 1)})).culprit.ranks == (0,)


def test_half_of_the_ranks_that_are_nondeterministic_are_each_named() -> None:
    findings = judge(trained(6, batches=dict.fromkeys((1, 3, 5), LOOSE)), SMOKE).findings
    assert [finding.culprit.ranks for finding in findings] == [(1,), (3,), (5,)]


def test_without_ranks_nothing_is_left_to_compare() -> None:
    assert judge_one_batch(replace(trained(2), ranks={})).unjudged == ()


def test_where_no_rank_stays_steady_no_rank_is_blamed() -> None:
    evidence = _again(trained(2, batches={1: LOOSE}), {1: ("another", 0), 0: ("other", 0)})
    ruling = judge(evidence, SMOKE)
    assert ruling.findings == ()
    assert ruling.unjudged == ("training: one batch gives different bits each time on ranks 0 and 1",)


def test_where_most_are_nondeterministic_no_rank_is_blamed() -> None:
    loose = {0: ("a", "b"), 1: ("c", "d"), 2: ("e", "f"), 3: ("g", "h"), 4: ("i", "k")}
    ruling = judge(trained(5, batches=loose), SMOKE)
    assert ruling.findings == ()
    assert ruling.unjudged == (f"training: one batch gives different bits each time on {listed('rank', range(5))}",)
    # Most hosts, not only most ranks: with two hosts that do not lie, and one that does.
    ruling = judge(trained(8, batches=dict.fromkeys((0, 1, 2, 4, 6), LOOSE)), SMOKE)
    assert (len(ruling.findings), ruling.unjudged, ruling.absent) == (5, (), ())


def test_random_bits_of_one_host_hide_no_nondeterministic_rank_of_another() -> None:
    # Ranks 0 and 1 are one host, 2 and 3 the other one.
    findings = judge(trained(4, batches=dict.fromkeys((0, 2, 3), LOOSE)), SMOKE).findings
    assert [finding.culprit.ranks for finding in findings] == [(0,), (2,), (3,)]


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_one_host_cannot_hide_a_nondeterministic_rank_in_a_pass(hosts: int) -> None:
    """Without its word most others repeat their results, and the one that does not would be named."""
    loose = range(4 if hosts < 4 else 6)  # two ranks a host
    ruling = judge(trained(2 * hosts, batches=dict.fromkeys(loose, LOOSE)), SMOKE)
    assert (ruling.findings, ruling.unjudged) == ((), ())
    assert ruling.absent == (
        f"most hosts with the same bits of one batch each time (not the same on {listed('rank', loose)})",
    )


def test_a_wrong_rank_is_named_after_a_training_that_stopped() -> None:
    whole = trained(4, batches={2: WRONG})
    value = {"step": 7, "seed": 1, "ranks": [0, 1, 2, 3]}
    nonfinite = tuple(Fact(check="training", name="nonfinite", value=value, rank=rank) for rank in range(4))
    findings = judge(replace(whole, measurements=(), facts=(*whole.facts, *nonfinite)), SMOKE).findings
    assert [finding.culprit.ranks for finding in findings] == [(), (2,)]
