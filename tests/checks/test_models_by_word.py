"""Speeds are compared within the device model that each host names: a false one hides nobody, and makes nobody slow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks.simulated_training import SMOKE, trained

from seatrial.checks.compute.judge import judge as judge_compute
from seatrial.checks.compute.params import Params as Compute
from seatrial.checks.memory.judge import judge as judge_memory
from seatrial.checks.memory.params import COPIES
from seatrial.checks.memory.params import Params as Memory
from seatrial.checks.storage.judge import judge as judge_storage
from seatrial.checks.storage.params import Params as Storage
from seatrial.checks.training.judge import judge as judge_training
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact, Measurement


def _ranks(models: list[str]) -> dict[int, RankRecord]:
    return {
        rank: RankRecord(rank=rank, node=f"n{rank}", node_rank=rank, local_rank=0, device=model, kind=model)
        for rank, model in enumerate(models)
    }


def _of_devices(check: str, models: list[str], speeds: list[float]) -> Ruling:
    compute, memory, measurements = Compute(), Memory(), list[Measurement]()

    def add(name: str, value: float, rank: int, variant: str, unit: str = "1") -> None:
        for stage in ("measure", "repeat"):
            reading = Measurement(check=check, name=name, value=value, unit=unit, rank=rank, variant=variant)
            measurements.append(replace(reading, stage=stage))

    for rank, speed in enumerate(speeds):
        if check == "compute":
            for dtype in compute.dtypes("cuda"):
                add("tflops", speed, rank, dtype, "TFLOP/s")
            for variant in (*compute.dtypes("cuda"), "convolution"):
                add("wrong_elements", 0, rank, variant)
        else:
            for kind in COPIES["cuda"]:
                add("copy_gbps", speed, rank, kind, "GB/s")
            add("tested_bytes", 1e9, rank, "", "B")
            for pattern in memory.patterns:
                add("wrong_words", 0, rank, pattern)
    ranks = _ranks(models)
    evidence = Evidence(
        ranks=ranks,
        asked=tuple(ranks),
        measurements=tuple(measurements),
        facts=(),
        backend="nccl",
        device_type="cuda",
        places_of_nodes={node: f"10.0.0.{node}" for node in ranks},
    )
    return judge_compute(evidence, compute) if check == "compute" else judge_memory(evidence, memory)


def _of_training(models: list[str], speeds: list[float]) -> Ruling:
    evidence = trained(len(models))
    measurements = list[Measurement]()
    for measurement in evidence.measurements:
        if measurement.name != "compute_s" or measurement.rank is None:
            measurements.append(measurement)
            continue
        reading = replace(measurement, value=0.5 / speeds[measurement.rank])
        measurements += [reading, replace(reading, stage="repeat")]
    places = {node: f"10.0.0.{node}" for node in range(len(models))}
    ranks = {rank: replace(record, kind="one") for rank, record in _ranks(models).items()}
    seen = replace(evidence, measurements=tuple(measurements), ranks=ranks, places_of_nodes=places)
    return judge_training(seen, SMOKE)


def _ruling(check: str, models: list[str], speeds: list[float]) -> Ruling:
    return _of_training(models, speeds) if check == "training" else _of_devices(check, models, speeds)


@pytest.mark.parametrize(("check", "slow"), [("compute", 50.0), ("memory", 50.0), ("training", 60.0)])
def test_a_host_that_names_another_model_hides_no_slow_rank(check: str, slow: float) -> None:
    speeds = [slow, 60.0, 60.0, 60.0] if check != "training" else [slow, 110.0, 110.0, 110.0]
    honest = _ruling(check, ["X"] * 4, speeds)
    assert {finding.culprit.ranks for finding in honest.findings if finding.severity == "fail"} == {(0,)}
    assert honest.unjudged == ()
    ruling = _ruling(check, ["X", "X", "X", "Y"], speeds)
    assert any("rank 0 and the others: who is slow depends on" in each for each in ruling.unjudged)


@pytest.mark.parametrize("check", ["compute", "memory", "training"])
@pytest.mark.parametrize("lie", [60.0, 90.0, 900.0])
def test_a_host_that_names_the_model_of_one_other_makes_it_not_slow(check: str, lie: float) -> None:
    ruling = _ruling(check, ["X", "Y", "Y", "Y", "X"], [50.0, 80.0, 80.0, 80.0, lie])
    assert [finding for finding in ruling.findings if finding.severity == "fail"] == []
    assert lie < 200.0 or any("rank 0 and the others: who is slow depends on" in each for each in ruling.unjudged)


@pytest.mark.parametrize("check", ["compute", "memory", "training"])
def test_two_models_of_several_healthy_hosts_leave_nothing_open(check: str) -> None:
    ruling = _ruling(check, ["X"] * 4 + ["Y"] * 4, [60.0, 61.0, 60.5, 60.0, 90.0, 91.0, 90.0, 90.5])
    assert (ruling.findings, ruling.absent, ruling.unjudged) == ((), (), ())


def test_a_host_that_names_the_file_system_of_one_other_makes_it_not_slow() -> None:
    ranks = _ranks(["a CPU"] * 5)
    measurements, facts = list[Measurement](), list[Fact]()
    for rank, (rate, kind) in enumerate([(1.0, "ext4"), (2.0, "xfs"), (2.0, "xfs"), (2.0, "xfs"), (9.0, "ext4")]):
        for stage in ("measure", "repeat"):
            reading = Measurement(check="storage", name="write_gbps", value=rate, unit="GB/s", rank=rank, stage=stage)
            measurements.append(reading)
        folder = {"path": "/ckpt", "named": True, "in_memory": False, "kind": kind, "mount_point": "/ckpt"}
        facts.append(Fact(check="storage", name="folder", value=folder, rank=rank, stage="token"))
        moved = {"what": "write", "variant": "", "bytes": int(rate * 1e9), "began_s": 0.0, "seconds": 1.0}
        facts.append(Fact(check="storage", name="moved", value=moved, rank=rank, stage="measure"))
    evidence = Evidence(
        ranks=ranks, asked=tuple(ranks), measurements=tuple(measurements), facts=tuple(facts), device_type="cpu"
    )
    ruling = judge_storage(evidence, Storage())
    assert not any(finding.severity == "fail" for finding in ruling.findings)
