"""The training check: reports of real ranks, and the judge on hand-made evidence, in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from checks.fake_context import FakeContext
from checks.simulated_training import KEY, LOSSES, SMOKE, a_measurement, trained

from seatrial.checks.training import CHECK
from seatrial.checks.training.judge import judge, suspects
from seatrial.checks.training.params import Params, recipe_for
from seatrial.errors import RequestError
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.targets.kubernetes.run_log import nodes_to_cordon
from seatrial.training.references import find_reference
from seatrial.util.text import named_ranks


def _only(ruling: Ruling) -> Finding:
    (finding,) = ruling.findings
    return finding


def test_a_rank_that_reports_another_accuracy_than_most_is_shown_first() -> None:
    healthy = trained(32)
    measurements = tuple(
        replace(entry, value=0.1234) if (entry.name, entry.rank) == ("accuracy", 20) else entry
        for entry in healthy.measurements
    )
    findings = judge(replace(healthy, measurements=measurements), SMOKE).findings
    assert len(findings) == 2
    for finding in findings:
        assert "another accuracy than most hosts is reported by rank 20" in finding.evidence
    assert findings[0].evidence[0].startswith("accuracy: rank 20: 0.1234, rank 0: ")


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_a_healthy_training_passes_and_is_judged(num_ranks: int) -> None:
    ruling = judge(trained(num_ranks), SMOKE)
    assert (ruling.findings, ruling.absent) == ((), ())
    assert all(entry.passed for entry in ruling.judged)
    names = {entry.measurement.name for entry in ruling.judged}
    assert names == {"loss", "accuracy", "evaluated"} | ({"compute_s"} if num_ranks > 1 else set())


def test_an_accuracy_below_the_reference_fails_without_a_culprit() -> None:
    reference = find_reference(KEY)
    assert reference is not None
    ruling = judge(trained(accuracy=reference.limit(1) - 0.001), SMOKE)
    finding = _only(ruling)
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")
    assert finding.limit is not None
    assert finding.limit.origin == f"reference {KEY}, {reference.num_seeds} seeds"
    assert judge(trained(accuracy=reference.limit(1)), SMOKE).findings == ()


def test_the_lowest_of_many_runs_is_allowed_to_be_lower_than_one() -> None:
    reference = find_reference(KEY)
    assert reference is not None
    lowest = (reference.limit(1) + reference.limit(1_000)) / 2
    assert judge(trained(accuracy=lowest, runs=1_000), SMOKE).findings == ()
    assert _only(judge(trained(accuracy=lowest), SMOKE)).severity == "fail"


def test_the_users_limit_wins_over_the_reference() -> None:
    finding = _only(judge(trained(), replace(SMOKE, min_accuracy=0.96)))
    assert finding.limit is not None
    assert (finding.limit.value, finding.limit.origin) == (0.96, "user training.min_accuracy")
    assert judge(trained(accuracy=0.5), replace(SMOKE, min_accuracy=0.4)).findings == ()


def test_a_recipe_without_a_reference_is_measured_only() -> None:
    own = replace(SMOKE, max_steps=61)
    ruling = judge(trained(accuracy=0.2, params=own), own)
    finding = _only(ruling)
    assert (finding.severity, finding.culprit.kind) == ("warn", "none")
    assert finding.what == "accuracy 0.2000 was only measured: there is no reference for this recipe"
    assert finding.action == "set training.min_accuracy."
    assert "accuracy" not in {entry.measurement.name for entry in ruling.judged}
    assert (ruling.absent, ruling.unjudged) == ((), ("accuracy not judged",))
    assert judge(trained(), SMOKE).unjudged == ()


def test_a_loss_that_does_not_fall_fails() -> None:
    finding = _only(judge(trained(losses=(2.3,) * 60), SMOKE))
    assert (finding.severity, finding.what) == ("fail", "the loss does not fall")


@pytest.mark.parametrize("count", [2, 19])
def test_a_few_losses_show_nothing(count: int) -> None:
    ruling = judge(trained(losses=(2.3, *(2.4,) * (count - 1))), SMOKE)
    assert ruling.findings == ()
    assert f"{count} cannot show" in ruling.absent[0]


@pytest.mark.parametrize(("ranks", "named"), [([2], (2,)), ([0, 1, 2, 3], ()), ([], ())])
def test_a_nonfinite_loss_names_the_rank_where_it_arose(ranks: list[int], named: tuple[int, ...]) -> None:
    # All ranks stopped, so there is nothing else.
    whole = trained()
    facts = tuple(_nonfinite(rank, ranks) for rank in range(4))
    finding = _only(judge(replace(whole, measurements=(), facts=facts), SMOKE))
    assert finding.severity == "fail"
    assert finding.culprit.ranks == named
    assert "step 7" in finding.what


def _nonfinite(rank: int, ranks: Sequence[int], step: int = 7, **more: Any) -> Fact:
    value = {"step": step, "seed": 1, "ranks": list(ranks), "ordinary": True, "samples": 16, **more}
    return Fact(check="training", name="nonfinite", value=value, rank=rank)


def _stopped(num_hosts: int, ranks: Sequence[int], more: Mapping[int, dict[str, Any]]) -> Finding:
    """Return the finding about ranks with a host each, of which some have a loss that is not finite."""
    whole = trained(num_hosts)
    records = {rank: replace(record, node=f"n{rank}", node_rank=rank) for rank, record in whole.ranks.items()}
    facts = tuple(_nonfinite(rank, [rank] if rank in ranks else [], **more.get(rank, {})) for rank in records)
    return _only(judge(replace(whole, ranks=records, measurements=(), facts=facts), SMOKE))


@pytest.mark.parametrize("liar_says", [True, False])
@pytest.mark.parametrize("num_hosts", [2, 3, 4])
def test_gradients_that_a_rank_spoils_name_no_other_one(num_hosts: int, liar_says: bool) -> None:
    """The last rank adds NaN to the sum and says that its own loss is finite."""
    honest = range(num_hosts - 1)
    more = {**{rank: {"ordinary": False} for rank in honest}, num_hosts - 1: {"ordinary": liar_says}}
    finding = _stopped(num_hosts, honest, more)
    assert (finding.culprit.kind, finding.culprit.ranks) == ("none", ())
    assert "stopped before" not in str(finding)


@pytest.mark.parametrize("is_ordinary", [True, False])
def test_ranks_without_samples_do_not_accuse_the_others(is_ordinary: bool) -> None:
    """A training diverges where the last batch has samples for one or two of four hosts."""
    for with_samples in ([0], [0, 1]):
        more = {rank: {"samples": 16 * (rank in with_samples), "ordinary": is_ordinary} for rank in range(4)}
        finding = _stopped(4, with_samples, more)
        assert (finding.culprit.kind, finding.culprit.ranks) == ("none", ())
        assert "training.lr" in finding.action


@pytest.mark.parametrize(("num_hosts", "ranks", "named"), [(2, [1], (1,)), (3, [1], (1,)), (4, [1, 2], ())])
def test_few_ranks_that_spoil_their_own_loss_are_named(
    num_hosts: int, ranks: list[int], named: tuple[int, ...]
) -> None:
    finding = _stopped(num_hosts, ranks, {})
    assert (finding.culprit.kind, finding.culprit.ranks) == ("rank" if named else "none", named)


@pytest.mark.parametrize("of", ["loss", "parameters"])
def test_one_rank_may_have_received_parameters_that_are_not_finite(of: str) -> None:
    more = {rank: {"what": of, "ordinary": rank != 2 if of == "loss" else None} for rank in range(4)}
    finding = _stopped(4, [2], more)
    assert (finding.culprit.kind, finding.culprit.ranks, finding.culprit.nodes) == ("fabric", (2,), ())
    assert finding.culprit.name == "rank 2 on node n2 or the links that lead to it, not separable"
    assert nodes_to_cordon([finding]) == []


def test_a_report_that_says_nothing_of_the_parameters_names_nobody() -> None:
    """As an older version wrote it."""
    finding = _stopped(4, [2], {rank: {"ordinary": None} for rank in range(4)})
    assert finding.culprit.kind == "none"


@pytest.mark.parametrize("num_hosts", [2, 3, 4])
def test_one_sample_by_running_statistics_accuses_nobody(num_hosts: int) -> None:
    """A rank spoils the parameters so that a share of one sample overflows, and one of two samples does not."""
    lone = {"samples": 1, "ordinary": None}
    finding = _stopped(num_hosts, [1], {1: lone})
    assert (finding.culprit.kind, finding.culprit.ranks) == ("none", ())
    assert finding.evidence == ("normalized one sample by running statistics: rank 1",)
    assert "training.batch_size" in finding.action
    # Nor do such ranks speak for others: here all that would know have it.
    others = dict.fromkeys(range(1, num_hosts), lone)
    assert _stopped(num_hosts, [0], others).culprit.kind == "none"


def test_a_rank_is_named_among_those_of_which_one_has_one_sample() -> None:
    assert _stopped(4, [1, 2], {2: {"samples": 1, "ordinary": None}}).culprit.ranks == (1,)


def test_a_stop_that_few_ranks_report_accuses_nobody() -> None:
    """All stop together, so a rank that alone says so has made it up; the rest is judged as ever."""
    healthy = trained()
    ruling = judge(replace(healthy, facts=(*healthy.facts, _nonfinite(1, [0]))), SMOKE)
    assert ruling.findings == judge(healthy, SMOKE).findings
    assert ruling.absent == (
        "training that stopped on most hosts: only rank 1 said so",
        *(f"the step at which training stopped, of rank {rank}" for rank in (0, 2, 3)),
    )


def test_a_stop_that_one_host_reports_accuses_nobody() -> None:
    """However many of the ranks it has."""
    healthy = trained(6)
    ranks = {rank: replace(record, node="node-0", node_rank=0) for rank, record in healthy.ranks.items() if rank < 4}
    facts = (*healthy.facts, *(_nonfinite(rank, [0]) for rank in ranks))
    ruling = judge(replace(healthy, ranks={**healthy.ranks, **ranks}, facts=facts), SMOKE)
    assert (ruling.findings, len(ruling.absent)) == (judge(healthy, SMOKE).findings, 3)


@pytest.mark.parametrize("accused", [[0], [0, 2, 3], []])
def test_a_rank_is_named_by_its_own_report_only(accused: list[int]) -> None:
    """Rank 1 lies about where the loss is not finite."""
    facts = (_nonfinite(1, accused), *(_nonfinite(rank, [2]) for rank in (0, 2, 3)))
    finding = _only(judge(replace(trained(), measurements=(), facts=facts), SMOKE))
    assert finding.culprit.ranks == (2,)
    facts = (_nonfinite(1, accused, step=3), *(_nonfinite(rank, [2]) for rank in (0, 2, 3)))
    finding = _only(judge(replace(trained(), measurements=(), facts=facts), SMOKE))
    assert (finding.culprit.ranks, finding.what) == ((2,), "the loss is not finite at step 7 (seed 1)")


@pytest.mark.parametrize(("step", "value"), [(-1, 1e9), (1_000_000, 1e9), (1_000_000, 0.0)])
def test_the_loss_is_that_of_the_first_rank(step: int, value: float) -> None:
    for losses in (LOSSES, LOSSES[::-1]):
        whole = trained(losses=losses)
        made_up = replace(next(one for one in whole.measurements if one.name == "loss"), rank=1, step=step, value=value)
        assert judge(replace(whole, measurements=(*whole.measurements, made_up)), SMOKE) == judge(whole, SMOKE)


def test_the_recipe_is_that_of_the_first_rank() -> None:
    whole = trained(accuracy=0.2)
    recipe = next(fact for fact in whole.facts if fact.name == "recipe")
    made_up = replace(recipe, rank=1, value={**recipe.value, "key": "unknown"})
    assert judge(replace(whole, facts=(made_up, *whole.facts)), SMOKE) == judge(whole, SMOKE)


@pytest.mark.parametrize("odd", [0, 3])
def test_the_replica_that_differs_is_named(odd: int) -> None:
    finding = _only(judge(trained(digests={odd: "bb" * 32}), SMOKE))
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", (odd,))
    # The last hop of a ring reaches one rank only: it may have received another sum.
    name = f"rank {odd} on node node-{odd // 2} or the links that lead to it, not separable"
    assert finding.culprit.name == name
    assert nodes_to_cordon([finding]) == []


@pytest.mark.parametrize(
    ("num_ranks", "digests"), [(2, {1: "bb"}), (4, {2: "bb", 3: "bb"}), (3, {0: "bb", 1: "cc", 2: "dd"})]
)
def test_replicas_without_a_majority_are_not_separable(num_ranks: int, digests: dict[int, str]) -> None:
    finding = _only(judge(trained(num_ranks, digests=digests), SMOKE))
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")
    assert "not separable" in finding.culprit.name
    assert finding.culprit.ranks == tuple(range(num_ranks))


def test_a_host_with_many_agents_makes_no_replica_of_others_odd() -> None:
    """Nodes 0 to 2 are agents of one host: six of ten ranks, and one of three hosts."""
    lies = trained(10, digests=dict.fromkeys(range(6), "bb" * 32), batches=dict.fromkeys(range(6), ("other", "other")))
    places = {0: "10.0.0.9", 1: "10.0.0.9", 2: "10.0.0.9", 3: "10.0.0.3", 4: "10.0.0.4"}
    findings = judge(replace(lies, places_of_nodes=places), SMOKE).findings
    assert {finding.culprit.ranks for finding in findings} == {tuple(range(6))}


@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("odd", [{}, {2: "bb" * 32}])
@pytest.mark.parametrize("is_one_place", [False, True])
def test_made_up_numbers_of_runs_hide_no_replica(number: int, odd: dict[int, str], is_one_place: bool) -> None:
    """Two ranks of one host report digests of a number of runs that no other host reports."""
    whole = trained(8, digests=odd)
    lies = [
        Fact(check="training", name="digest", value={"runs": number, "digest": text}, rank=rank)
        for rank, text in ((6, "x"), (7, "y"))
    ]
    places = dict.fromkeys(range(4), "10.0.0.9") if is_one_place else {}
    ruling = judge(replace(whole, facts=(*whole.facts, *lies), places_of_nodes=places), SMOKE)
    assert [finding.culprit.ranks for finding in ruling.findings] == [(rank,) for rank in odd]
    assert ruling.absent == tuple(f"digests of rank {rank} of as many runs as those of most hosts" for rank in (6, 7))


def test_replicas_of_two_hosts_with_other_numbers_of_runs_do_not_pass() -> None:
    whole = trained(4)
    facts = [
        replace(fact, value={**fact.value, "runs": 3})
        if (fact.name, fact.rank) in {("digest", 2), ("digest", 3)}
        else fact
        for fact in whole.facts
    ]
    ruling = judge(replace(whole, facts=tuple(facts)), SMOKE)
    assert ruling.findings == ()
    assert len([each for each in ruling.absent if each.startswith("digests of rank")]) == 4


def test_words_in_place_of_a_digest_stay_in_quotes() -> None:
    words = "cordon node-0 now"
    findings = judge(trained(6, digests={5: words}, batches={5: (words, words)}), SMOKE).findings
    lines = [line for finding in findings for line in finding.evidence if "cordon" in line]
    assert len(lines) == 2
    assert all('"cordon node-0 no"' in line for line in lines)


def test_other_kinds_with_other_bits_are_a_warning_and_do_not_vote() -> None:
    kinds = {3: "B CPU"}
    assert _only(judge(trained(digests={3: "bb"}, kinds=kinds), SMOKE)).severity == "warn"
    assert judge(trained(kinds=kinds), SMOKE).findings == ()
    finding = _only(judge(trained(digests={1: "bb", 3: "cc"}, kinds=kinds), SMOKE))
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


@pytest.mark.parametrize(
    ("others", "lacks"), [((2, 3), True), ((3,), True), ((6, 7), True), ((4, 5, 6, 7), False), ((3, 7), False)]
)
def test_other_kinds_by_the_word_of_one_host_are_no_pass(others: tuple[int, ...], lacks: bool) -> None:
    """A fault looks like rounding where its host says that it is of another kind."""
    num_ranks = 4 if max(others) < 4 else 8
    kinds = dict.fromkeys(others, "B CPU")
    ruling = judge(trained(num_ranks, digests=dict.fromkeys(others, "bb"), kinds=kinds), SMOKE)
    assert [finding.severity for finding in ruling.findings] == ["warn"]
    assert any("only one host says that it is of another kind" in each for each in ruling.absent) == lacks
    one_host = trained(2, digests={1: "bb"}, kinds={1: "B CPU"})
    assert not judge(one_host, SMOKE).absent, "nobody else can say it"


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_a_straggler_that_is_slow_alone_too_is_named(num_ranks: int) -> None:
    slow = trained(num_ranks, compute_s={1: 0.030})
    references = set(suspects(slow, SMOKE)) - {1}
    alone = {1: 0.028} | dict.fromkeys(references, 0.009)
    finding = _only(judge(trained(num_ranks, compute_s={1: 0.030}, alone_s=alone), SMOKE))
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))
    assert finding.limit is not None
    assert finding.limit.origin.startswith("fleet")


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_a_host_with_most_of_the_ranks_makes_no_other_one_a_straggler(device_type: str) -> None:
    """Ranks 0 to 7 are those of four agents of one host, and two each of three others."""
    lies = trained(14, compute_s=dict.fromkeys(range(8), 0.004))
    places = {node: f"10.0.0.{max(node, 3)}" for node in range(7)}
    assert suspects(replace(lies, places_of_nodes=places, device_type=device_type), SMOKE) == ()


def test_one_host_of_four_hides_no_straggler() -> None:
    """Ranks 4 and 5 are slow on their host; 6 and 7 are those of a host that claims to be fast."""
    slow = dict.fromkeys((4, 5), 0.025) | dict.fromkeys((6, 7), 0.004)
    assert {4, 5} <= set(suspects(trained(8, compute_s=slow), SMOKE))
    for again in ({}, {4: 0.025, 5: 0.025}, {4: 0.008, 5: 0.008}):
        alone_s = again and again | {0: 0.010, 2: 0.010, 6: 0.004}
        ruling = judge(trained(8, compute_s=slow, alone_s=alone_s), SMOKE)
        failed = {each.culprit.ranks for each in ruling.findings if each.severity == "fail"}
        assert failed == ({(4,), (5,)} if again.get(4) == 0.025 else set())
        assert any("compute_s of rank 4" in each for each in ruling.absent) == (not again)


def test_a_straggler_is_compared_with_its_own_host_first() -> None:
    """Ranks 0 and 1 are on one host, and the ranks of the other one are as slow as rank 1, or say so."""
    ruling = judge(trained(4, compute_s={1: 0.050, 2: 0.050, 3: 0.050}), SMOKE)
    assert not ruling.findings
    assert ruling.unjudged == ("compute_s of rank 1 and the others: the values lie too far apart to compare",)


def test_two_hosts_far_apart_are_no_full_pass() -> None:
    apart = trained(4, compute_s=dict.fromkeys((2, 3), 0.050))
    ruling = judge(apart, SMOKE)
    assert not ruling.findings
    assert ruling.unjudged == (
        "compute_s of rank 2 and rank 3 and the others: the values lie too far apart to compare",
    )
    assert not judge(replace(apart, device_type="cuda"), SMOKE).unjudged, "on a GPU a slow rank only warns"
    asked = suspects(apart, SMOKE)
    assert set(asked) == {0, 2, 3} or set(asked) == {1, 2, 3}, "one of the other host to compare with"
    slow = dict.fromkeys((2, 3), 0.050)
    for alone_s, is_apart in (
        (dict.fromkeys(asked, 0.010), False),
        ({rank: 0.025 if rank in slow else 0.005 for rank in asked}, True),
        (dict.fromkeys(slow, 0.010), True),
    ):
        assert bool(judge(trained(4, compute_s=slow, alone_s=alone_s), SMOKE).unjudged) == is_apart


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_a_straggler_that_is_fast_alone_is_a_warning(num_ranks: int) -> None:
    references = set(suspects(trained(num_ranks, compute_s={1: 0.030}), SMOKE)) - {1}
    alone = {1: 0.010} | dict.fromkeys(references, 0.009)
    finding = _only(judge(trained(num_ranks, compute_s={1: 0.030}, alone_s=alone), SMOKE))
    assert (finding.severity, finding.culprit.ranks) == ("warn", (1,))


def test_a_straggler_that_was_starved_is_a_warning() -> None:
    whole = trained(2, compute_s={1: 0.030}, alone_s={0: 0.009, 1: 0.028})
    share = a_measurement("cpu_share", 0.6, 1, stage="repeat")
    ruling = judge(replace(whole, measurements=(*whole.measurements, share)), SMOKE)
    assert _only(ruling).severity == "warn"
    assert "other processes held the CPU" in _only(ruling).what
    assert 1 not in {entry.measurement.rank for entry in ruling.judged if entry.measurement.name == "compute_s"}
    share = a_measurement("cpu_share", 0.97, 1, stage="repeat")
    assert _only(judge(replace(whole, measurements=(*whole.measurements, share)), SMOKE)).severity == "fail"


def test_a_disturbed_reference_is_no_pass() -> None:
    whole = trained(2, compute_s={1: 0.030}, alone_s={0: 0.009, 1: 0.028})
    share = a_measurement("cpu_share", 0.6, 0, stage="repeat")
    starved = replace(whole, measurements=(*whole.measurements, share))
    for disturbed in (starved, trained(2, compute_s={1: 0.030}, alone_s={0: 0.029, 1: 0.028})):
        ruling = judge(disturbed, SMOKE)
        assert ruling.findings == ()
        assert [words[:40] for words in ruling.absent] == ["compute_s of rank 1 compared with ranks "]


def test_an_impossible_time_is_no_standard() -> None:
    ruling = judge(trained(2, compute_s={1: 1e-9}), SMOKE)
    assert (ruling.findings, ruling.absent) == ((), ("compute_s of rank 1",))


@pytest.mark.parametrize("alone_s", [None, {0: 0.009, 1: 0.028}, {0: 0.029, 1: 0.028}])
def test_a_gpu_is_only_warned_of(alone_s: dict[int, float] | None) -> None:
    ruling = judge(replace(trained(2, compute_s={1: 0.030}, alone_s=alone_s), device_type="cuda"), SMOKE)
    assert (_only(ruling).severity, _only(ruling).culprit.ranks, ruling.absent) == ("warn", (1,), ())


def test_typical_ranks_come_first_and_then_the_slowest() -> None:
    asked = suspects(trained(30, compute_s={rank: 0.020 + rank * 1e-3 for rank in range(10)}), SMOKE)
    assert min(asked[:3]) >= 10
    assert asked[3:] == tuple(range(9, -1, -1))


def test_a_straggler_without_a_repeat_is_inconclusive() -> None:
    ruling = judge(trained(compute_s={1: 0.030}), SMOKE)
    assert ruling.findings == ()
    assert "rank 1 measured again" in ruling.absent[0]


def test_fast_ranks_and_other_models_are_no_suspects() -> None:
    assert suspects(trained(8, compute_s={1: 0.001}), SMOKE) == ()
    assert suspects(trained(8, compute_s={6: 0.03, 7: 0.03}, kinds={6: "B CPU", 7: "B CPU"}), SMOKE) == ()


@pytest.mark.parametrize("evaluated", [{2: 359}, dict.fromkeys(range(4), 720)])
def test_a_wrong_count_of_test_samples_fails(evaluated: dict[int, int]) -> None:
    finding = _only(judge(trained(evaluated=evaluated), SMOKE))
    assert finding.severity == "fail"
    assert "counts of test samples" in finding.what
    assert finding.evidence[-1] == f"a wrong number of samples is reported by {named_ranks(sorted(evaluated))}"


def test_of_several_wrong_counts_that_of_the_first_rank_is_told() -> None:
    assert _only(judge(trained(evaluated={1: 358, 2: 359}), SMOKE)).measured == "358 samples"


def test_ranks_that_report_another_accuracy_fail() -> None:
    whole = trained()
    measurements = tuple(
        replace(measurement, value=0.96) if (measurement.name, measurement.rank) == ("accuracy", 3) else measurement
        for measurement in whole.measurements
    )
    assert "counts of test samples" in _only(judge(replace(whole, measurements=measurements), SMOKE)).what


@pytest.mark.parametrize("name", ["compute_s", "accuracy", "evaluated", "runs", "digest", "one_batch"])
def test_a_missing_report_is_absent(name: str) -> None:
    whole = trained()
    measurements = tuple(
        measurement for measurement in whole.measurements if (measurement.name, measurement.rank) != (name, 2)
    )
    facts = tuple(fact for fact in whole.facts if (fact.name, fact.rank) != (name, 2))
    ruling = judge(replace(whole, measurements=measurements, facts=facts), SMOKE)
    assert ruling.absent == (f"{name} of rank 2",)


def test_no_evidence_is_no_pass() -> None:
    ruling = judge(Evidence(ranks={}, asked=(), measurements=(), facts=()), SMOKE)
    assert "any rank that finished" in ruling.absent


def test_a_time_of_zero_was_not_measured() -> None:
    assert judge(trained(compute_s={1: 0.0}), SMOKE).absent == ("compute_s of rank 1",)


def test_the_target_does_not_depend_on_the_number_of_ranks() -> None:
    up_to_32 = {recipe_for(SMOKE, world_size) for world_size in range(1, 33)}
    assert len(up_to_32) == 1
    above, larger = recipe_for(SMOKE, 33), recipe_for(SMOKE, 4_096)
    assert above[1] == larger[1] != KEY
    assert [recipe.global_batch_size for recipe, _ in (above, larger)] == [33 * 16, 4_096 * 16]
    assert larger[0].num_samples >= larger[0].global_batch_size


def test_epochs_and_batch_size_of_the_user_decide() -> None:
    recipe, key = recipe_for(Params(epochs=3, batch_size=50), 4)
    assert (recipe.global_batch_size, recipe.max_steps) == (200, 3 * 8)
    assert find_reference(key) is None


@pytest.mark.parametrize(
    "values",
    [
        {"workload": "digit"},
        {"model": "resnet"},
        {"max_steps": 0},
        {"lr": 0.0},
        {"min_accuracy": 95.0},
        {"duration_s": 60.0},
        {"workload": "synthetic-9999x9999x9999"},
        {"workload": "synthetic-3x32x32", "num_samples": 10**9},
    ],
)
def test_a_wrong_parameter_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises((RequestError, ValueError), match="|".join(values) + "|unknown"):
        Params(**values)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(RequestError, match="1437"):
        recipe_for(Params(batch_size=400), 4)


def on_3_ranks(rank: int, folder: str) -> list[FakeContext]:
    import torch.distributed as dist

    contexts, kept = [], dict[str, Any]()
    for number, (params, stage) in enumerate(
        [(SMOKE, "measure"), (SMOKE, "repeat"), (replace(SMOKE, duration_s=0.01), "measure")]
    ):
        context = FakeContext(
            check="training",
            rank=rank,
            group_rank=rank,
            world_size=3,
            ranks=(0, 1, 2),
            group=dist.group.WORLD if stage == "measure" else None,
            store=dist.FileStore(f"{folder}.store{number}", 3),
            stage=stage,
            kept=kept,
        )
        CHECK.measure(context, params)
        context.group, context.store, context.kept = None, None, {}
        contexts.append(context)
    return contexts


def _read(ranks: list[list[FakeContext]], number: int) -> tuple[list[Measurement], list[Fact], list[list[str]]]:
    contexts = [contexts[number] for contexts in ranks]
    measurements = [measurement for context in contexts for measurement in context.measurements]
    facts = [fact for context in contexts for fact in context.facts]
    return measurements, facts, [context.phases for context in contexts]


@pytest.mark.timeout(150)  # it waits for the ranks of five files
def test_real_ranks_report_all_that_the_judge_needs(three_ranks: dict[str, list[Any]]) -> None:
    ranks = three_ranks[__name__]
    measurements, facts, phases = _read(ranks, 0)
    repeated, again, _ = _read(ranks, 1)
    evidence = replace(trained(3), measurements=(*measurements, *repeated), facts=tuple(facts))
    ruling = judge(evidence, SMOKE)
    # A test cannot know how fast the processes of a shared machine are.
    assert [finding for finding in ruling.findings if finding.culprit.kind != "rank"] == []
    assert [what for what in ruling.absent if "that were not disturbed" not in what] == []
    assert (phases[0] == phases[1] == phases[2], phases[0][0], phases[0][-1]) == (True, "one batch", "one batch")
    batches = [fact.value for fact in (*facts, *again) if fact.name == "one_batch"]
    assert (len(batches), len({str(batch) for batch in batches})) == (3 * (2 + 3), 1), "the same bits, all of them"
    assert [point.step for point in measurements if point.name == "loss"] == list(range(60))
    assert {measurement.rank for measurement in measurements if measurement.name == "samples_per_s"} == {0}
    assert {(measurement.name, measurement.rank) for measurement in repeated} == {
        (name, rank) for name in ("compute_s", "cpu_share", "wrong_elements") for rank in (0, 1, 2)
    }

    measurements, facts, _ = _read(ranks, 2)
    runs = {measurement.value for measurement in measurements if measurement.name == "runs"}
    assert len(runs) == 1
    assert {measurement.value for measurement in measurements if measurement.name == "evaluated"} == {
        360 * number for number in runs
    }
    assert {fact.value["runs"] for fact in facts if fact.name == "digest"} == runs
    assert len({fact.value["digest"] for fact in facts if fact.name == "digest"}) == 1
