"""The rules of the checks: what ``plan show`` prints and what the judges apply."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.checks import bootstrap, collectives, compute, memory, registry, storage, training
from seatrial.checks.check import Check, Rule, exact_rule, user_rule
from seatrial.checks.storage.params import Params as StorageParams
from seatrial.checks.training.rules import accuracy_rule
from seatrial.devices.specs import find
from seatrial.evidence.findings import Limit
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.statistics import fleet_rules, judge_fleet

NONE = "none: only measured"


def rules_of(check: Check, params: Any) -> dict[str, Rule]:
    assert check.rules is not None
    return {rule.subject: rule for rule in check.rules(params)}


@pytest.mark.parametrize(
    ("comparison", "passing", "missing"),
    [("at least", (2.0, 2.5), 1.9), ("at most", (2.0, 1.5), 2.1), ("exactly", (2.0,), 2.1), ("below", (1.9,), 2.0)],
)
def test_a_rule_judges_by_its_comparison(comparison: Any, passing: tuple[float, ...], missing: float) -> None:
    rule = Rule(measurement="form_s", comparison=comparison, value=2.0, unit="s", origin="user bootstrap.max_form_s")
    assert rule.limit() == Limit(value=2.0, unit="s", origin="user bootstrap.max_form_s")
    assert [rule.passes(value) for value in passing] == [True] * len(passing)
    measurement = Measurement(check="bootstrap", name="form_s", value=missing, unit="s", rank=0)
    judged = rule.judge(measurement)
    assert (judged.measurement, judged.limit, judged.passed) == (measurement, rule.limit(), False)
    assert not rule.passes(float("nan"))


def test_a_rule_reads_as_a_sentence() -> None:
    rule = user_rule("busbw", "at least", 400, "GB/s", key="collectives.min_busbw_gbps", condition="all_reduce")
    assert (rule.subject, rule.requirement) == ("busbw, all_reduce", "at least 400 GB/s")
    assert exact_rule("wrong_words").requirement == "exactly 0"
    share = Rule(measurement="tflops", comparison="at least", value=0.4, share_of="peak", origin="", severity="warn")
    assert share.requirement == "at least 0.4 x peak, only warns"
    concrete = share.scaled(50.0, origin="datasheet")
    assert concrete.limit() == Limit(value=0.4 * 50.0, unit="1", origin="datasheet")


@pytest.mark.parametrize(
    "rule",
    [
        user_rule("form_s", "at most", None, "s", key="bootstrap.max_form_s"),
        Rule(measurement="digest", text="equal on ranks of one kind", origin="exact"),
        Rule(measurement="tflops", value=0.85, share_of="attainable", origin="device specs"),
    ],
)
def test_a_rule_without_a_number_judges_nothing(rule: Rule) -> None:
    with pytest.raises(ValueError, match="has no number"):
        rule.passes(1.0)


@pytest.mark.parametrize("name", registry.names())
def test_the_rules_of_every_check_can_be_printed(name: str) -> None:
    check = registry.load(name)
    rules = tuple(check.rules(check.params())) if check.rules is not None else ()
    assert all(rule.measurement and rule.requirement and rule.origin for rule in rules)
    assert len(set(rules)) == len(rules)


@pytest.mark.parametrize(("device_type", "shown"), [("cuda", "GPU"), ("cpu", "CPU")])
def test_the_fleet_rules_are_those_of_the_judge(device_type: str, shown: str) -> None:
    (few, of_few), (many, spread) = fleet_rules()
    assert (few, many) == ("2 to 3", "4 or more")
    for num_ranks in (2, 3):
        limit = judge_fleet(dict.fromkeys(range(num_ranks), 1.0), better="low", device_type=device_type).limit
        assert f"{limit} ({shown})" in of_few
    # With equal values only the floor is left, with values apart the spread, and with values far apart the ratio.
    floor = judge_fleet(dict.fromkeys(range(4), 100.0), better="low", device_type=device_type).limit
    assert floor is not None
    assert f"{floor - 100:.0f} % ({shown})" in spread
    assert spread.startswith("6 x 1.4826 MAD and ")
    ratio = 2.0 if device_type == "cpu" else 1.2
    assert f"{ratio} ({shown})" in spread.partition("at most ratio")[2]
    distance = 5.0 if device_type == "cpu" else 1.0
    near = {0: 100 - distance, 1: 100.0, 2: 100.0, 3: 100 + distance, 4: 100 + distance}
    far = {0: 50.0, 1: 50.0, 2: 100.0, 3: 100.0, 4: 100 * ratio + 1}
    for values, limit in ((near, 100 + 6 * 1.4826 * distance), (far, 100 * ratio)):
        assert judge_fleet(values, better="low", device_type=device_type).limit == pytest.approx(limit)


def test_compute_uses_the_device_model_at_its_size_only() -> None:
    rules = rules_of(compute.CHECK, compute.params.Params(fraction=0.9))
    assert rules["wrong_elements"] == exact_rule("wrong_elements")
    known = rules["tflops, known device, bf16"]
    assert (known.requirement, known.origin) == (
        "at least 0.9 x attainable",
        "device specs, measured (devices/specs.json)",
    )
    h200, l40s = find("NVIDIA H200"), find("NVIDIA L40S")
    assert h200 is not None
    assert l40s is not None
    assert list(h200.attainable_tflops) == ["bf16"]
    assert rules["tflops, other known device, bf16 fp16 fp32"].requirement == "at least 0.4 x peak, only warns"
    assert l40s.peak_tflops.keys() == {"bf16", "fp16", "fp32"}
    assert not [
        what for what in rules_of(compute.CHECK, compute.params.Params(gpu_size=4096)) if "known device" in what
    ]
    assert "tflops, known device, bf16" not in rules_of(compute.CHECK, compute.params.Params(gpu_dtypes=("fp32",)))


def test_the_users_limits_are_shown_with_their_key() -> None:
    world = rules_of(collectives.CHECK, collectives.params.Params(min_busbw_gbps=400))
    busbw, latency = world["busbw, all_reduce, largest size"], world["time_us, all_reduce, smallest size"]
    assert (busbw.requirement, busbw.origin) == ("at least 400 GB/s", "user collectives.min_busbw_gbps")
    assert (latency.requirement, latency.origin) == (NONE, "collectives.max_latency_us is none")
    formed = rules_of(bootstrap.CHECK, bootstrap.Params(max_form_s=2.5, timeout_s=30))
    assert (formed["form_s"].requirement, formed["form_s"].origin) == ("at most 2.5 s", "user bootstrap.max_form_s")
    assert formed["ranks that come"].requirement == "all, within 30 s a stage"
    speed = rules_of(compute.CHECK, compute.params.Params(min_tflops=0.5))["tflops, fp32 (CPU), bf16 (GPU)"]
    assert (speed.requirement, speed.origin) == ("at least 0.5 TFLOP/s", "user compute.min_tflops")


def test_memory_and_storage_rules() -> None:
    rules = rules_of(memory.CHECK, memory.params.Params(min_copy_gbps=3000))
    assert rules["wrong_words"] == exact_rule("wrong_words")
    copies = rules["copy_gbps, device"]
    assert (copies.requirement, copies.origin) == ("at least 3000 GB/s", "user memory.min_copy_gbps")
    assert "copy_gbps, host_to_device, device_to_host" not in rules
    assert rules["copy_gbps, known device, device"].requirement == "at least 0.5 x memory peak, only warns"
    assert "10 % (GPU), 30 % (CPU)" in rules["copy_gbps, 4 or more ranks"].requirement
    rules = rules_of(storage.CHECK, StorageParams(folder="/ckpt", shared="yes", max_fsync_ms=10, size_bytes=2**20))
    assert rules["free_bytes, for each rank that writes there"].requirement == f"at least {2**20 + 2**20} B"
    assert rules["ranks that see one another"].requirement == "one folder for all ranks"
    fsync = rules["fsync_ms, p99 of a node"]
    assert (fsync.requirement, fsync.origin) == ("at most 10 ms", "user storage.max_fsync_ms")
    assert "write_gbps, of a node" not in rules


def accuracies(**params: Any) -> list[tuple[str, str]]:
    assert training.CHECK.rules is not None
    rules = training.CHECK.rules(training.params.Params(**params))
    return [
        (rule.subject, rule.requirement)
        for rule in rules
        if rule.measurement.startswith("accuracy") and rule.origin != "exact"
    ]


def test_the_accuracy_shown_is_the_accuracy_required() -> None:
    params = training.params.Params(max_steps=60)
    rules = rules_of(training.CHECK, params)
    for ranks, world_sizes in (("1 to 32 ranks", (1, 2, 32)), ("33 or more ranks", (33, 4_096))):
        for world_size in world_sizes:
            rule = accuracy_rule(params, training.params.recipe_for(params, world_size)[1], 1)
            assert rule.value is not None
            shown = rules[f"accuracy, {ranks}"]
            assert (shown.limit(), shown.requirement) == (rule.limit(), rule.requirement)


def test_the_accuracy_of_the_users_own_training() -> None:
    reference = dict(accuracies())["accuracy, 1 to 32 ranks"]
    assert accuracies(min_accuracy=0.96) == [("accuracy", "at least 0.96")]
    assert accuracies(workload="synthetic-1x4x4") == [("accuracy", NONE)]
    # 22 ranks take 1,408 of the 1,437 digits at once, 23 too many.
    assert accuracies(batch_size=64) == [
        ("accuracy, 1 rank", reference),
        ("accuracy, 2 to 22 ranks", NONE),
        ("accuracy, 23 to 32 ranks", "cannot be trained"),
        ("accuracy, 33 or more ranks", NONE),
    ]


def test_several_runs_are_shown_with_a_lower_limit() -> None:
    once, often = (
        rules_of(training.CHECK, training.params.Params(duration_s=seconds))["accuracy, 1 to 32 ranks"]
        for seconds in (0.0, 30.0)
    )
    assert often.requirement == once.requirement
    assert often.origin == f"{once.origin}; lower for the lowest of several runs"
