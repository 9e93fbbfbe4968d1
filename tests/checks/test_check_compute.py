"""The compute check: its judge on hand-made evidence, and its measurement on the CPU of this machine."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from checks.fake_context import FakeContext

from seatrial.checks.compute import CHECK, measure
from seatrial.checks.compute.judge import suspects
from seatrial.checks.compute.params import Params
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Limit
from seatrial.evidence.measurement import Fact, Measurement

H100 = "NVIDIA H100 80GB HBM3"
ONE = Params(cpu_dtypes=("fp32",), gpu_dtypes=("bf16",))


@pytest.fixture
def context() -> FakeContext:
    return FakeContext(check="compute", rank=3, ranks=(3,))


def reading(name: str, value: float, rank: int, dtype: str = "bf16", stage: str = "measure") -> Measurement:
    return Measurement(check="compute", name=name, value=value, unit="TFLOP/s", rank=rank, variant=dtype, stage=stage)


def evidence(
    speeds: list[float],
    again: dict[int, float] | None = None,
    *,
    device: str = "some device",
    device_type: str = "cuda",
    wrong: dict[int, int] | None = None,
    shares: dict[int, float] | None = None,
    facts: tuple[Fact, ...] = (),
) -> Evidence:
    """Return the evidence of a fleet of one device model, one dtype."""
    dtype = "bf16" if device_type == "cuda" else "fp32"
    measurements = [reading("tflops", value, rank, dtype) for rank, value in enumerate(speeds)]
    measurements += [reading("wrong_elements", (wrong or {}).get(rank, 0), rank, dtype) for rank in range(len(speeds))]
    measurements += [reading("wrong_elements", 0, rank, "convolution") for rank in range(len(speeds))]
    measurements += [reading("tflops", value, rank, dtype, "repeat") for rank, value in (again or {}).items()]
    measurements += [reading("cpu_share", value, rank, dtype, "repeat") for rank, value in (shares or {}).items()]
    seen = {
        rank: RankRecord(rank=rank, node=f"n{rank}", node_rank=rank, local_rank=0, device=device, kind=device)
        for rank in range(len(speeds))
    }
    return Evidence(
        ranks=seen, asked=tuple(seen), measurements=tuple(measurements), facts=facts, device_type=device_type
    )


def test_a_healthy_fleet_passes_and_every_speed_is_judged() -> None:
    fleet = evidence([700, 701, 699, 702])
    ruling = CHECK.judge(fleet, ONE)
    assert (ruling.findings, ruling.absent) == ((), ())
    assert len(ruling.judged) == 12
    assert all(entry.passed for entry in ruling.judged)
    assert suspects(fleet, ONE) == ()


def test_one_unknown_device_is_measured_only() -> None:
    ruling = CHECK.judge(evidence([5]), ONE)
    assert (ruling.findings, ruling.absent) == ((), ())
    assert [entry.measurement.variant for entry in ruling.judged] == ["bf16", "convolution"]


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_a_wrong_element_fails_its_device_also_alone(num_ranks: int) -> None:
    last = num_ranks - 1
    first = {"dtype": "bf16", "round": 0, "count": 2}
    places = Fact(check="compute", name="wrong_values", value=first | {"first": ["[5, 7] is 3, not 4"]}, rank=last)
    ruling = CHECK.judge(evidence([700.0] * num_ranks, wrong={last: 2}, facts=(places,)), ONE)
    (finding,) = ruling.findings
    assert finding.severity == "fail"
    assert finding.culprit.ranks == (last,)
    assert f"rank {last} (some device" in finding.culprit.name
    assert finding.limit == Limit(value=0, unit="1", origin="exact")
    assert finding.evidence[0] == "bf16: 2 wrong in round 0; element [5, 7] is 3, not 4"


def test_wrong_values_that_cannot_be_read_are_no_pass() -> None:
    fact = Fact(check="compute", name="wrong_values", value={"dtype": "bf16"}, rank=1)
    assert "a readable wrong_values of rank 1" in CHECK.judge(evidence([700, 701, 699], facts=(fact,)), Params()).absent


def test_a_slow_rank_is_named_after_its_repeat() -> None:
    first = [700.0, 701, 500, 702, 699]
    assert suspects(evidence(first), ONE) == (0, 1, 4, 2), "three typical ranks, the slow one"
    ruling = CHECK.judge(evidence(first, {0: 700, 1: 700, 2: 505}), ONE)
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.ranks, finding.culprit.nodes) == ("fail", (2,), ("n2",))
    assert finding.limit is not None
    assert finding.limit.origin == "fleet, median 6 MAD and 5 % of 5"
    assert [entry.passed for entry in ruling.judged if entry.measurement.stage == "repeat"] == [False]


def test_a_slow_rank_that_was_not_repeated_is_inconclusive() -> None:
    for again in (None, {2: 505.0}, {0: 700.0, 1: 700.0}, {0: 700.0, 2: 505.0}):
        ruling = CHECK.judge(evidence([700, 701, 500, 702, 699], again), ONE)
        assert ruling.findings == ()
        assert len(ruling.absent) == 1
        assert ruling.absent[0].startswith("tflops bf16 of rank 2 measured again")


def test_typical_ranks_come_first_and_then_the_slowest() -> None:
    speeds = [400.0, 650.0, 300.0, *[500.0 - rank for rank in range(8)], *[700.0] * 20]
    asked = suspects(evidence(speeds), ONE)
    assert [speeds[rank] for rank in asked[:3]] == [700.0] * 3
    assert asked[3:] == (2, 0, *range(10, 2, -1), 1)


def test_one_host_of_many_names_is_one_of_those_to_compare_with() -> None:
    """Ranks 0 to 2 claim a host each, and their agents joined from one place: they would outvote all others."""
    whole = evidence([100.0, 100.0, 100.0, 99.0, 99.0, 50.0])
    places = {0: "10.0.0.1", 1: "10.0.0.1", 2: "10.0.0.1", 3: "10.0.0.3", 4: "10.0.0.4", 5: "10.0.0.5"}
    assert suspects(whole, ONE) == (0, 1, 2, 5)
    assert suspects(replace(whole, places_of_nodes=places), ONE) == (3, 4, 0, 5)


def test_behind_one_address_one_node_makes_nobody_slow_alone() -> None:
    """Four nodes of four ranks; those of the last one say that alone they are 30 % faster."""
    speeds = [99.8, 100.1, 100.3, 99.9, 90.0, 100.4, 99.7, 100.2, 100.5, 99.6, 100.1, 99.9, *[100.0] * 4]

    def with_nodes(again: dict[int, float]) -> Evidence:
        made = evidence(speeds, again)
        ranks = {rank: replace(seen, node=f"n{rank // 4}", node_rank=rank // 4) for rank, seen in made.ranks.items()}
        return replace(made, ranks=ranks, places_of_nodes=dict.fromkeys(range(4), "10.0.0.9"))

    asked = suspects(with_nodes({}), ONE)
    assert len({rank // 4 for rank in asked[:3]}) == 3
    again = {rank: 130.0 if rank >= 12 else 100.0 for rank in asked}
    (finding,) = CHECK.judge(with_nodes(again), ONE).findings
    assert (finding.severity, finding.culprit.ranks) == ("warn", (4,))


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_a_host_with_most_of_the_ranks_makes_no_other_one_slow(device_type: str) -> None:
    """Ranks 0 to 7 are on one host, which claims to be twice as fast; 8 to 11 on one host each; 12 is slow."""
    places = {node: f"10.0.0.{max(node, 7)}" for node in range(13)}
    for speeds, slow in (([200.0] * 8 + [100.0] * 4, set()), ([200.0] * 8 + [100.0] * 4 + [50.0], {12})):
        together = replace(evidence(speeds, device_type=device_type), places_of_nodes=places)
        assert {rank for rank in suspects(together, ONE) if speeds[rank] < 100} == slow
        again = dict.fromkeys(range(7, len(speeds)), 100.0) | dict.fromkeys(slow, 50.0) | {7: 200.0}
        findings = CHECK.judge(
            replace(evidence(speeds, again, device_type=device_type), places_of_nodes=places), ONE
        ).findings
        assert {(each.severity, each.culprit.ranks) for each in findings} == {("fail", (rank,)) for rank in slow}


@pytest.mark.parametrize("lie", [250.0, 40.0])
@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_one_host_of_four_hides_no_slow_one(lie: float, device_type: str) -> None:
    speeds = [100.0, 101.0, 40.0, lie]
    first = evidence(speeds, device_type=device_type)
    assert 2 in suspects(first, ONE)
    for again in ({}, {2: 41.0, 3: lie}, {0: 100.0, 1: 101.0, 2: 41.0, 3: lie}):
        ruling = CHECK.judge(evidence(speeds, again, device_type=device_type), ONE)
        failed = [each.culprit.ranks for each in ruling.findings if each.severity == "fail"]
        assert (2,) in failed or any("of rank 2" in each for each in ruling.absent)
        assert not {(0,), (1,)} & {*failed}
    # As fast as the others alone: what slowed it is gone. What ranks share makes all of them faster alone.
    for alone, is_slow in (({0: 100.0, 1: 101.0, 2: 101.0, 3: 101.0}, False), ({2: 101.0}, True)):
        ruling = CHECK.judge(evidence(speeds, alone, device_type=device_type), ONE)
        assert any("of rank 2" in each for each in ruling.absent) == is_slow
    ruling = CHECK.judge(evidence(speeds, {0: 250.0, 1: 252.0, 2: 100.0, 3: lie}, device_type=device_type), ONE)
    failed = [each.culprit.ranks for each in ruling.findings if each.severity == "fail"]
    assert (2,) in failed or any("of rank 2" in each for each in ruling.absent)
    # The limit of the user needs no other rank.
    limited = CHECK.judge(evidence(speeds, {2: 41.0}, device_type=device_type), replace(ONE, min_tflops=30.0))
    assert not any("compared without host" in each for each in limited.absent)


def test_a_dtype_that_nobody_asked_for_is_not_judged() -> None:
    whole = evidence([100.0, 100.0, 50.0])
    made_up = tuple(reading("tflops", 1.0 + rank, rank, f"made up {rank}") for rank in range(3))
    more = replace(whole, measurements=(*whole.measurements, *made_up))
    assert CHECK.judge(more, ONE) == CHECK.judge(whole, ONE)
    assert suspects(more, ONE) == suspects(whole, ONE)


def test_a_fault_that_does_not_repeat_is_a_warning() -> None:
    ruling = CHECK.judge(evidence([700, 701, 500, 702, 699], {0: 700, 1: 701, 2: 698}), ONE)
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.ranks) == ("warn", (2,))
    assert all(entry.passed for entry in ruling.judged)


def test_a_rank_without_cpu_time_is_never_blamed() -> None:
    fleet = evidence([1.0, 0.4], {0: 1.0, 1: 0.4}, device_type="cpu", shares={0: 1.0, 1: 0.5})
    ruling = CHECK.judge(fleet, ONE)
    (finding,) = ruling.findings
    assert finding.severity == "warn"
    assert "other processes held the CPU" in finding.what
    assert ruling.unjudged == (finding.what,), "a PASS is partial"
    assert [entry.measurement.rank for entry in ruling.judged if entry.measurement.name == "tflops"] == [0]


@pytest.mark.parametrize(("alone", "share"), [(0.1, 1.0), (1.0, 0.5)])
def test_a_disturbed_reference_is_no_pass(alone: float, share: float) -> None:
    ruling = CHECK.judge(evidence([1.0, 0.4], {0: alone, 1: 0.4}, device_type="cpu", shares={0: share, 1: 1.0}), ONE)
    assert (ruling.findings, ruling.unjudged) == ((), ())
    (absent,) = ruling.absent
    assert absent.startswith("tflops fp32 of rank 1 compared with ranks that were not disturbed themselves; alone: ")
    assert ("without the CPU time" in absent) == (share < 1)


@pytest.mark.parametrize(("device", "said"), [("NVIDIA H200", "datasheet of H200 SXM x 1.25"), ("X100", "10 x the")])
def test_an_impossible_speed_is_damage_of_its_rank(device: str, said: str) -> None:
    fleet = evidence([700, 1e9], device=device)
    ruling = CHECK.judge(fleet, ONE)
    assert ruling.findings == ()
    (absent,) = ruling.absent
    assert absent.startswith("tflops bf16 of rank 1 that can be: it reports 1e+09 TFLOP/s, above ")
    assert said in absent
    assert suspects(fleet, ONE) == ()


def test_a_claim_within_the_datasheet_fails_no_healthy_device() -> None:
    ruling = CHECK.judge(evidence([700, 985], device="NVIDIA H200"), ONE)
    assert (ruling.findings, ruling.absent) == ((), ())
    assert suspects(evidence([560, 780], device="NVIDIA H200"), ONE) == (1, 0)


def test_a_starved_rank_does_not_pass_the_users_limit() -> None:
    params = Params(cpu_dtypes=("fp32",), min_tflops=0.5)
    speeds: dict[str, Any] = {"speeds": [1.0, 0.4], "again": {0: 1.0, 1: 0.4}, "device_type": "cpu"}
    ruling = CHECK.judge(evidence(**speeds, shares={0: 1.0, 1: 0.62}), params)
    assert [finding.severity for finding in ruling.findings] == ["warn"]
    assert ruling.absent == ("tflops fp32 of rank 1: other processes took its CPU, cpu_share 0.62",)
    (finding,) = CHECK.judge(evidence(**speeds, shares={0: 0.5, 1: 0.97}), params).findings
    assert finding.severity == "fail", "the user's limit does not depend on the rank beside it"
    assert finding.limit == Limit(value=0.5, unit="TFLOP/s", origin="user compute.min_tflops")
    reached = CHECK.judge(evidence([1.0, 0.45], {0: 1.0, 1: 0.45}, device_type="cpu", shares={1: 0.62}), ONE)
    assert reached.absent == ()


def test_a_slow_cpu_with_all_its_time_is_blamed() -> None:
    fleet = evidence([1.0, 0.4], {0: 1.0, 1: 0.4}, device_type="cpu", shares={0: 1.0, 1: 0.97})
    (finding,) = CHECK.judge(fleet, ONE).findings
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


def test_a_known_device_has_the_limit_of_its_model() -> None:
    limit = 730 * 0.85
    assert CHECK.judge(evidence([limit + 1], device=H100), ONE).findings == ()
    slow = evidence([limit - 1], {0: limit - 1}, device=H100)
    assert suspects(slow, ONE) == (0,)
    (finding,) = CHECK.judge(slow, ONE).findings
    assert finding.severity == "fail"
    assert finding.limit is not None
    assert finding.limit.value == pytest.approx(limit)
    assert "0.85 x 730 TFLOP/s, attainable by H100 SXM (measured, " in finding.limit.origin


def test_small_matrices_have_no_attainable_limit() -> None:
    small = Params(gpu_dtypes=("bf16",), gpu_size=1024)
    assert CHECK.judge(evidence([100], device=H100), small).findings == ()


def test_a_datasheet_warns_and_never_fails() -> None:
    (finding,) = CHECK.judge(evidence([100], device="NVIDIA L40S"), ONE).findings
    assert finding.severity == "warn"
    assert CHECK.judge(evidence([200], device="NVIDIA L40S"), ONE).findings == ()


def test_the_users_limit_applies_to_the_first_dtype() -> None:
    params = Params(gpu_dtypes=("bf16",), min_tflops=600)
    assert CHECK.judge(evidence([601]), params).findings == ()
    (finding,) = CHECK.judge(evidence([599], {0: 599}), params).findings
    assert finding.limit == Limit(value=600, unit="TFLOP/s", origin="user compute.min_tflops")


def test_a_second_dtype_lacks_no_limit_of_the_user() -> None:
    one = evidence([5], device_type="cpu")
    both = (*one.measurements, reading("tflops", 5, 0), reading("wrong_elements", 0, 0))
    for min_tflops, unlimited in ((1.0, ()), (None, ("compute.min_tflops",))):
        assert CHECK.judge(replace(one, measurements=both), Params(min_tflops=min_tflops)).unlimited == unlimited


def test_different_models_are_not_compared() -> None:
    fleet = evidence([700, 350])
    mixed = {
        0: fleet.ranks[0],
        1: RankRecord(rank=1, node="n1", node_rank=1, local_rank=0, device="other", kind="other"),
    }
    both = Evidence(ranks=mixed, asked=(0, 1), measurements=fleet.measurements, facts=(), device_type="cuda")
    ruling = CHECK.judge(both, ONE)
    assert ruling.findings == ()
    assert len(ruling.unjudged) == 2
    assert all("no other host says" in each for each in ruling.unjudged)
    assert suspects(fleet, ONE) == (0, 1)
    assert CHECK.judge(both, replace(ONE, min_tflops=300.0)).unjudged == ()


def test_missing_measurements_are_absent() -> None:
    full = evidence([700, 701])
    for gone in full.measurements:
        rest = tuple(measurement for measurement in full.measurements if measurement is not gone)
        less = Evidence(ranks=full.ranks, asked=full.asked, measurements=rest, facts=(), device_type="cuda")
        assert CHECK.judge(less, ONE).absent == (f"{gone.name} {gone.variant} of rank {gone.rank}",)
    nobody = Evidence(ranks=full.ranks, asked=(), measurements=(), facts=(), device_type="cuda")
    assert CHECK.judge(nobody, ONE).absent == ("any rank that finished",)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_a_speed_that_is_no_speed_is_absent(speed: float) -> None:
    assert CHECK.judge(evidence([700, speed]), ONE).absent == ("tflops bf16 of rank 1",)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"min_tflops": 3000}, "min_tflops is 3000 TFLOP/s; .* at most 2517, the physical peak"),
        ({"min_tflops": 0}, "above 0"),
        ({"cpu_dtypes": ("fp8",)}, "one or more of fp32, fp16, bf16"),
        ({"gpu_dtypes": ()}, "gpu_dtypes is"),
        ({"fraction": 1.1}, "fraction is 1.1"),
        ({"rounds": 0}, "rounds is 0"),
        ({"minutes": 2, "timeout_s": 60}, "must fit into timeout_s, 60 s"),
        ({"seconds": 2, "rounds": 10}, "seconds is 2; 10 times for 3 dtypes it must fit into timeout_s, 60 s"),
        ({"seconds": 7, "rounds": 1}, "seconds is 7; 3 times for 3 dtypes"),
        ({"seconds": -1}, "seconds is -1"),
    ],
)
def test_an_impossible_value_is_refused(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Params(**params)


def test_this_cpu_multiplies_rightly(context: FakeContext) -> None:
    params = Params(cpu_size=192, cpu_dtypes=("fp32", "bf16", "fp16"), seconds=0.01, rounds=3)
    measure.measure(context, params)
    measured = {(measurement.name, measurement.variant): measurement for measurement in context.measurements}
    assert len(measured) == len(context.measurements) == 10
    assert measured["wrong_elements", "convolution"].value == 0
    for dtype in params.cpu_dtypes:
        assert measured["wrong_elements", dtype].value == 0
        assert measured["tflops", dtype].value > 0
        assert measured["tflops", dtype].better == "high"
        assert 0 < measured["cpu_share", dtype].value < 2
    assert {fact.name for fact in context.facts} == {"contention"}
    parts = [*(f"gemm {dtype}" for dtype in params.cpu_dtypes), "convolution"]
    assert context.phases == [f"{part} round {turn}" for turn in range(3) for part in parts]


@pytest.mark.parametrize("has_instructions", [True, False])
def test_an_emulated_dtype_is_timed_on_a_quarter_of_the_rows(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch, has_instructions: bool
) -> None:
    """An AVX2 CPU multiplies 16-bit matrices of 1024 rows in seconds: it missed its deadlines and failed."""
    timed: list[tuple[str, int]] = []

    def one_second(_: Any, size: int, __: Params, dtype: str, ___: int) -> tuple[float, float]:
        timed.append((dtype, size))
        return 1.0, 1.0

    monkeypatch.setattr(measure, "_has_instructions", lambda dtype: has_instructions)
    monkeypatch.setattr(measure, "_time_gemm", one_second)
    measure.measure(context, Params(cpu_size=64, cpu_dtypes=("fp32", "bf16"), seconds=0.001, rounds=1))
    rows = 64 if has_instructions else 16
    assert timed == [("fp32", 64), ("bf16", rows)]
    speeds = {
        measurement.variant: measurement.value for measurement in context.measurements if measurement.name == "tflops"
    }
    assert speeds == {"fp32": 2 * 64**3 / 1e12, "bf16": 2 * rows**3 / 1e12}


def test_a_wrong_product_is_seen_with_its_place(context: FakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.mm

    def wrong_mm(left: torch.Tensor, other: torch.Tensor, **options: Any) -> torch.Tensor:
        product = right(left, other, **options)
        product[5, 7] += 1
        return product

    monkeypatch.setattr(torch, "mm", wrong_mm)
    measure.measure(context, Params(cpu_size=64, cpu_dtypes=("fp32",), seconds=0.001, rounds=2))
    counts = {
        measurement.variant: measurement.value
        for measurement in context.measurements
        if measurement.name == "wrong_elements"
    }
    assert counts == {"fp32": 2, "convolution": 0}, "one in each round"
    (fact,) = (fact for fact in context.facts if fact.name == "wrong_values")
    (place,) = fact.value["first"]
    match = re.fullmatch(r"\[5, 7\] is (-?\d+), not (-?\d+)", place)
    assert match is not None, place
    assert int(match[1]) == int(match[2]) + 1


def test_a_repeat_reports_the_speed_only(context: FakeContext) -> None:
    context.stage = "repeat"
    measure.measure(context, Params(cpu_size=64, cpu_dtypes=("fp32",), seconds=0.001))
    assert [(measurement.name, measurement.stage) for measurement in context.measurements] == [
        ("tflops", "repeat"),
        ("cpu_share", "repeat"),
    ]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("bound", [2**8, 2**11, 2**24])
def test_no_partial_sum_of_the_exact_test_can_leave_its_bound(seed: int, bound: int) -> None:
    left, right = measure._operands(300, bound, seed)
    assert int((left.abs() @ right.abs()).max()) <= bound
    assert (left.shape, right.shape) == ((300, 300), (300, 300))
    assert int(left.abs().max()) == int(right.abs().max()) == 8
    assert int((left @ right != 0).sum()) > 0.5 * 300 * 300, "an answer of zeros would check nothing"


def test_operands_differ_by_seed() -> None:
    assert not torch.equal(measure._operands(64, 2**24, 0)[0], measure._operands(64, 2**24, 2)[0])


@pytest.mark.gpu
def test_this_device_multiplies_and_convolves_rightly(context: FakeContext) -> None:
    from seatrial.rank.device import open_device

    context.device = open_device("cuda", 0, 4)
    measure.measure(context, Params(gpu_size=2048, seconds=0.02, rounds=2))
    measured = {(measurement.name, measurement.variant): measurement.value for measurement in context.measurements}
    assert {measured["wrong_elements", variant] for variant in ("bf16", "fp16", "fp32", "convolution")} == {0}
    assert all(measured["tflops", dtype] > 0.5 for dtype in ("bf16", "fp16", "fp32"))


@pytest.mark.parametrize(
    "value",
    [
        {"dtype": "bf16 matrix products, since rank 0 disturbs it, and", "count": 1},
        {"dtype": "bf16", "count": 0},
        {"dtype": "bf16", "count": 2**1023},
        {"dtype": "bf16", "count": True},
    ],
)
def test_a_wrong_result_has_a_name_of_ours_and_a_number_that_can_be(value: dict[str, Any]) -> None:
    """The name stands in the headline, and sums of larger numbers are no floats."""
    facts = (Fact(check="compute", name="wrong_values", value=value, rank=1),)
    told = replace(evidence([100] * 4), facts=facts)
    measurements = (*told.measurements, reading("wrong_elements", 5, 1, "bf16 of rank 0"))
    ruling = CHECK.judge(replace(told, measurements=measurements), ONE)
    assert (ruling.findings, ruling.absent) == ((), ("a readable wrong_values of rank 1",))


@pytest.mark.parametrize("per_host", [2, 4, 8])
@pytest.mark.parametrize(("slow", "lie", "gains", "lie_alone"), [(90.0, 130.0, 1.0, 260.0), (70.0, 121.0, 2.1, 20.0)])
def test_a_fast_host_of_three_is_not_the_only_one_to_compare_with(
    slow: float, lie: float, gains: float, lie_alone: float, per_host: int
) -> None:
    """Without either of the others the ranks of one are slow beside it. Rank 0 was disturbed once, or is slow."""
    places = {node: f"10.0.0.{node // per_host}" for node in range(3 * per_host)}
    first = [slow, *[100.0] * (2 * per_host - 1), *[lie] * per_host]

    def at(again: dict[int, float]) -> Evidence:
        return replace(evidence(first, again, device_type="cuda"), places_of_nodes=places)

    is_slow = slow == 70.0
    alone = {rank: gains * (first[rank] if is_slow else 100.0) for rank in suspects(at({}), ONE)}
    ruling = CHECK.judge(at(alone | {rank: lie_alone for rank in alone if rank >= 2 * per_host}), ONE)
    failed = {each.culprit.ranks for each in ruling.findings if each.severity == "fail"}
    assert failed <= ({(0,)} if is_slow else set())
    assert not is_slow or failed or ruling.absent


@pytest.mark.parametrize("lie_alone", [495.0, 198.0, 20.0])
@pytest.mark.parametrize("per_host", [2, 3])
def test_a_fast_host_of_two_hides_no_slow_rank_of_a_small_one(per_host: int, lie_alone: float) -> None:
    """Rank 0 is slow beside its neighbors; the other host makes all of them slow, and says what acquits them alone."""
    places = {node: f"10.0.0.{node // per_host}" for node in range(2 * per_host)}
    first = [75.0, *[100.0] * (per_host - 1), *[198.0] * per_host]

    def at(again: dict[int, float]) -> Evidence:
        return replace(evidence(first, again, device_type="cuda"), places_of_nodes=places)

    alone = {rank: lie_alone if rank >= per_host else 2.5 * first[rank] for rank in suspects(at({}), ONE)}
    ruling = CHECK.judge(at(alone), ONE)
    assert ruling.unjudged or ruling.absent or any(each.severity == "fail" for each in ruling.findings)


@pytest.mark.parametrize("num_hosts", [3, 4, 6])
@pytest.mark.parametrize("lie_alone", [1.0, 1.5])
def test_a_slow_host_leaves_room_for_ranks_of_several_hosts(lie_alone: float, num_hosts: int) -> None:
    """Eight slow ranks, and a host that claims to be the most typical one."""
    places = {node: f"10.0.0.{node // 8}" for node in range(8 * num_hosts)}
    first = [80.0] * 8 + [100.0] * (8 * num_hosts - 16) + [99.9] * 8
    asked = suspects(replace(evidence(first, device_type="cuda"), places_of_nodes=places), ONE)[:11]
    assert {*range(8)} < {*asked}
    assert len({places[rank] for rank in asked}) == min(4, num_hosts)
    for healthy in (True, False):
        alone = {rank: 100.0 if healthy or rank >= 8 else 80.0 for rank in asked}
        alone |= {rank: lie_alone * first[rank] for rank in asked if rank >= len(first) - 8}
        ruling = CHECK.judge(replace(evidence(first, alone, device_type="cuda"), places_of_nodes=places), ONE)
        failed = {rank for each in ruling.findings if each.severity == "fail" for rank in each.culprit.ranks}
        assert failed == (set() if healthy else {*range(8)}) or (not failed and ruling.absent)


@pytest.mark.parametrize("gain", [1.0, 3.0])
@pytest.mark.parametrize(("slow", "per_host"), [(2, 1), (2, 4), (3, 1)])
def test_slow_hosts_do_not_acquit_one_another(slow: int, per_host: int, gain: float) -> None:
    """Just under half of the hosts are slow, and one says a value between."""
    num_hosts = 2 * slow + 1
    places = {node: f"10.0.0.{node // per_host}" for node in range(num_hosts * per_host)}
    speeds = [40.0] * slow + [100.0] * slow + [55.0]
    first = [speed for speed in speeds for _ in range(per_host)]
    asked = suspects(replace(evidence(first, device_type="cpu"), places_of_nodes=places), ONE)[:11]
    alone = {rank: gain * first[rank] for rank in asked}
    ruling = CHECK.judge(replace(evidence(first, alone, device_type="cpu"), places_of_nodes=places), ONE)
    assert ruling.absent or ruling.unjudged or any(each.severity == "fail" for each in ruling.findings)
