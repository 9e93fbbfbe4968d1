"""The judge of training: what one rank adds to the sums of all decides nothing that the shares of others contradict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checks.simulated_training import SMOKE, trained

from seatrial.checks.training.judge import judge
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling


def _changed(evidence: Evidence, name: str, rank: int, **changes: Any) -> Evidence:
    facts = (
        replace(fact, value={**fact.value, **changes}) if (fact.name, fact.rank) == (name, rank) else fact
        for fact in evidence.facts
    )
    return replace(evidence, facts=tuple(facts))


def _without(evidence: Evidence, name: str, *ranks: int) -> Evidence:
    return replace(
        evidence, facts=tuple(fact for fact in evidence.facts if fact.name != name or fact.rank not in ranks)
    )


def _passes(ruling: Ruling) -> bool:
    return not ruling.findings and not ruling.absent


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("liar", [0, 5])
def test_one_rank_makes_no_accuracy_of_all(liar: int, runs: int) -> None:
    own = {**dict.fromkeys(range(6), 6 * runs), liar: 60 * runs}
    counts, accuracy = judge(trained(6, accuracy=0.95, own_correct=own, runs=runs), SMOKE).findings
    assert counts.what == "the counts of test samples, summed over all ranks, are wrong"
    assert counts.measured == "not the sum of what each rank counted"
    assert f"rank {liar}: {60 * runs} of {60 * runs}" in counts.evidence[-1], counts.evidence
    assert accuracy.what.startswith("digits: accuracy 0.2500 is below the required")
    assert (counts.culprit.kind, accuracy.culprit.kind) == ("none", "none")


@pytest.mark.parametrize("own", [(61, 61), (-1, 60), (0, 0), (True, True), (2.0, 60), (5, 120), (10**400, 10**400)])
def test_nobody_counts_more_or_fewer_than_a_share(own: tuple[Any, Any]) -> None:
    evidence = _changed(trained(6), "own_counts", 5, correct=own[0], evaluated=own[1])
    assert not _passes(judge(evidence, SMOKE))


@pytest.mark.parametrize("num_ranks", [1, 7, 1_001])
def test_shares_may_differ_by_one_sample_and_be_empty(num_ranks: int) -> None:
    assert _passes(judge(trained(num_ranks, accuracy=1.0), SMOKE))


def test_the_lowest_of_several_runs_is_below_the_mean_of_the_shares() -> None:
    assert _passes(judge(trained(4, accuracy=0.95, runs=3, own_correct=dict.fromkeys(range(4), 268)), SMOKE))


@pytest.mark.parametrize(
    ("fell", "passes"),
    [
        ({}, True),
        ({0: (2.0, 2.5), 1: (2.0, 2.1)}, True),
        (dict.fromkeys(range(4), (2.0, 2.5)), False),
        ({**dict.fromkeys(range(4), (2.0, 2.5)), 4: (900.0, 0.0), 5: (900.0, 0.0)}, False),
        # A host counts by the sum of its ranks, as a host with one rank does.
        ({0: (2.0, 2.1), 2: (2.0, 2.1)}, True),
    ],
)
def test_the_loss_falls_where_most_hosts_see_that(fell: dict[int, tuple[float, float]], passes: bool) -> None:
    """Six ranks on three hosts; the loss of all, which anybody can change, falls."""
    ruling = judge(trained(6, own_loss=fell), SMOKE)
    assert _passes(ruling) == passes
    if not passes:
        assert ruling.absent[0].startswith("a loss that falls on most hosts, each by its own samples: it does on ")


def test_hosts_without_samples_have_no_vote() -> None:
    """Of two samples a step, most of many hosts have none within the window."""
    evidence = trained(6)
    for rank in (0, 1, 2, 3):
        evidence = _changed(evidence, "own_loss", rank, first_sum=0.0, first_samples=0)
    assert _passes(judge(evidence, SMOKE))
    for rank in (4, 5):
        evidence = _changed(evidence, "own_loss", rank, last_sum=0.0, last_samples=0)
    assert _passes(judge(evidence, SMOKE))


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf"), 1e300, "1", None, 10**400])
def test_a_loss_that_no_share_has_is_no_report(value: Any) -> None:
    evidence = _changed(trained(6), "own_loss", 4, last_sum=value)
    assert judge(evidence, SMOKE).absent == ("a readable own_loss of rank 4", "own_loss of rank 4")


@pytest.mark.parametrize("name", ["own_counts", "own_loss"])
def test_a_share_that_one_rank_leaves_out_is_no_pass(name: str) -> None:
    assert judge(_without(trained(6), name, 3), SMOKE).absent == (f"{name} of rank 3",)
    # Of an earlier version nobody reports any.
    assert judge(_without(_without(trained(6), "own_loss", *range(6)), "own_counts", *range(6)), SMOKE).absent == ()


def test_shares_are_not_compared_where_a_rank_did_not_finish() -> None:
    evidence = replace(trained(6), asked=(0, 1, 2, 3, 4))
    assert judge(evidence, SMOKE).findings == judge(_without(evidence, "own_counts", *range(6)), SMOKE).findings
