"""What checks say that they hold figures against, beside what they really do."""

from __future__ import annotations

import pkgutil
from typing import Any

import pytest

import seatrial.checks as room
from seatrial.checks import bootstrap, collectives, compute, memory, registry, storage, training
from seatrial.checks._training_judge import accuracy_limit
from seatrial.checks.base import Check, Held
from seatrial.plan.specs import find
from seatrial.verdict.statistics import fleet_rules, judge_fleet

NONE = "none: only measured"


def held(check: Check, params: Any) -> dict[str, Held]:
    assert check.limits is not None
    rows = check.limits(params)
    return {row.what: row for row in rows}


def test_parts_of_a_check_are_no_checks() -> None:
    parts = [module.name for module in pkgutil.iter_modules(room.__path__) if module.name.startswith("_")]
    assert "_compute_judge" in parts
    assert not set(parts) & set(registry.names())
    with pytest.raises(KeyError):
        registry.load("_compute_judge")


@pytest.mark.parametrize("name", registry.names())
def test_every_check_says_what_it_holds_figures_against(name: str) -> None:
    check = registry.load(name)
    assert check.limits is not None
    rows = check.limits(check.params())
    assert rows
    assert all(row.what and row.limit and row.origin for row in rows)
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize(("device_type", "shown"), [("cuda", "GPU"), ("cpu", "CPU")])
def test_the_rules_of_a_fleet_are_those_that_it_is_judged_by(device_type: str, shown: str) -> None:
    (few, ratio), (many, spread) = fleet_rules()
    assert (few, many) == ("2 to 3", "4 or more")
    for num_ranks in (2, 3):
        limit = judge_fleet(dict.fromkeys(range(num_ranks), 1.0), better="low", device_type=device_type).limit
        assert f"{limit} ({shown})" in ratio
    # With equal values only the floor is left, and with values far apart only the spread.
    floor = judge_fleet(dict.fromkeys(range(4), 100.0), better="low", device_type=device_type).limit
    assert floor is not None
    assert f"{floor - 100:.0f} % ({shown})" in spread
    apart = judge_fleet({0: 50.0, 1: 100.0, 2: 100.0, 3: 150.0, 4: 150.0}, better="low", device_type=device_type).limit
    assert spread.startswith("6 x 1.4826 MAD and ")
    assert apart == pytest.approx(100 + 6 * 1.4826 * 50)


def test_compute_is_held_against_the_device_model_at_its_size_only() -> None:
    rows = held(compute.CHECK, compute.Params(fraction=0.9))
    assert rows["wrong_elements"] == Held(what="wrong_elements", limit="0", origin="exact")
    known = rows["tflops, known device, bf16"]
    assert (known.limit, known.origin) == ("attainable x 0.9", "device specs, measured (plan/specs.toml)")
    h200, l40s = find("NVIDIA H200"), find("NVIDIA L40S")
    assert h200 is not None
    assert l40s is not None
    assert list(h200.attainable_tflops) == ["bf16"]
    assert rows["tflops, other known device, bf16 fp16 fp32"].limit == "peak x 0.4, only warns"
    assert l40s.peak_tflops.keys() == {"bf16", "fp16", "fp32"}
    assert not [what for what in held(compute.CHECK, compute.Params(gpu_size=4096)) if "known device" in what]
    assert "tflops, known device, bf16" not in held(compute.CHECK, compute.Params(gpu_dtypes=("fp32",)))


def test_the_users_limits_are_shown_where_they_are_set() -> None:
    world = held(collectives.CHECK, collectives.Params(min_busbw_gbps=400))
    busbw, latency = world["busbw, all_reduce, largest size"], world["time_us, all_reduce, smallest size"]
    assert (busbw.limit, busbw.origin) == ("at least 400 GB/s", "user collectives.min_busbw_gbps")
    assert (latency.limit, latency.origin) == (NONE, "collectives.max_latency_us is none")
    formed = held(bootstrap.CHECK, bootstrap.Params(max_form_s=2.5, timeout_s=30))
    assert (formed["form_s"].limit, formed["form_s"].origin) == ("at most 2.5 s", "user bootstrap.max_form_s")
    assert formed["ranks that come"].limit == "all, within 30 s a stage"
    speed = held(compute.CHECK, compute.Params(min_tflops=0.5))["tflops, fp32 (CPU), bf16 (GPU)"]
    assert (speed.limit, speed.origin) == ("at least 0.5 TFLOP/s", "user compute.min_tflops")


def test_memory_and_storage_say_what_they_hold_and_where_it_came_from() -> None:
    rows = held(memory.CHECK, memory.Params(min_copy_gbps=3000))
    assert rows["wrong_words"] == Held(what="wrong_words", limit="0", origin="exact")
    assert (rows["copy_gbps, device"].limit, rows["copy_gbps, device"].origin) == (
        "at least 3000 GB/s",
        "user memory.min_copy_gbps",
    )
    assert "copy_gbps, host_to_device, device_to_host" not in rows
    assert rows["copy_gbps, known device, device"].limit == "memory peak x 0.5, only warns"
    assert "10 % (GPU), 30 % (CPU)" in rows["copy_gbps, 4 or more ranks"].limit
    rows = held(storage.CHECK, storage.Params(folder="/ckpt", shared="yes", max_fsync_ms=10, size_bytes=2**20))
    assert rows["free_bytes"].limit == "at least 1048576 B for each rank that writes there"
    assert rows["ranks that see one another"].limit == "one folder for all ranks"
    assert rows["fsync_ms p99 of a node"] == Held(
        what="fsync_ms p99 of a node", limit="at most 10 ms", origin="user storage.max_fsync_ms"
    )
    assert "write_gbps of a node" not in rows


def accuracies(**params: Any) -> list[tuple[str, str]]:
    assert training.CHECK.limits is not None
    rows = training.CHECK.limits(training.Params(**params))
    return [(row.what, row.limit) for row in rows if row.what.startswith("accuracy") and row.origin != "exact"]


def test_the_accuracy_is_the_one_that_the_judge_asks_for() -> None:
    params = training.Params(max_steps=60)
    rows = held(training.CHECK, params)
    for ranks, world_sizes in (("1 to 32 ranks", (1, 2, 32)), ("33 or more ranks", (33, 4_096))):
        for world_size in world_sizes:
            bound = accuracy_limit(params, training.recipe_for(params, world_size)[1], 1)
            assert bound is not None
            row = rows[f"accuracy, {ranks}"]
            assert (row.limit, row.origin) == (f"at least {bound.value:.4f}", bound.origin)


def test_the_accuracy_of_the_users_own_training() -> None:
    reference = dict(accuracies())["accuracy, 1 to 32 ranks"]
    assert accuracies(min_accuracy=0.96) == [("accuracy", "at least 0.9600")]
    assert accuracies(workload="synthetic-1x4x4") == [("accuracy", NONE)]
    # 22 ranks take 1,408 of the 1,437 digits at once, 23 too many.
    assert accuracies(batch_size=64) == [
        ("accuracy, 1 rank", reference),
        ("accuracy, 2 to 22 ranks", NONE),
        ("accuracy, 23 to 32 ranks", "cannot be trained"),
        ("accuracy, 33 or more ranks", NONE),
    ]


def test_several_runs_are_said_to_have_a_lower_limit() -> None:
    once, often = (
        held(training.CHECK, training.Params(duration_s=seconds))["accuracy, 1 to 32 ranks"] for seconds in (0.0, 30.0)
    )
    assert often.limit == once.limit
    assert often.origin == f"{once.origin}; lower for the lowest of several runs"
