"""The collectives check in real groups of Gloo processes.

Run as a program, this file is one rank of such a group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from checks.fake_context import FakeContext

from seatrial.checks.collectives import CHECK
from seatrial.checks.collectives.operations import busbw_factor
from seatrial.checks.collectives.params import Params
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.measurement import Fact, Measurement

MOVING = ("all_gather", "broadcast", "all_to_all", "send_recv")
REDUCING = ("all_reduce", "reduce_scatter")
FAILS = {
    "lacking": "Backend gloo does not support alltoall",
    "broken": "Connection closed by peer",
    "driver": "NCCL error in: x.cpp:1, unhandled cuda error. Last error: Cuda failure 801 'operation not supported'",
}
SMALL = Params(cpu_sizes=(8, 4096), repeats=2)


def test_one_rank_measures_no_collectives() -> None:
    context = FakeContext(check="collectives")
    CHECK.measure(context, SMALL)
    assert (context.measurements, [fact.name for fact in context.facts]) == ([], ["not_checked"])


@pytest.mark.parametrize(
    ("operation", "world_size", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce", 8, 1.75),
        ("all_gather", 2, 0.5),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 8, 0.875),
        ("broadcast", 8, 1.0),
        ("send_recv", 2, 1.0),
    ],
)
def test_busbw_factors(operation: str, world_size: int, factor: float) -> None:
    assert busbw_factor(operation, world_size) == factor


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"cpu_sizes": ()}, "cpu_sizes is"),
        ({"gpu_sizes": (16, 8)}, "gpu_sizes is .* ascending multiples of 4 bytes"),
        ({"cpu_sizes": (6,)}, "multiples of 4"),
        ({"repeats": 0}, "repeats is 0"),
        ({"minutes": 2, "timeout_s": 120}, "must fit into timeout_s"),
        ({"min_busbw_gbps": 0}, "above 0"),
    ],
)
def test_an_impossible_value_is_refused(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Params(**params)


def run_world(tmp_path: Path, world_size: int, params: dict[str, Any], fault: str = "", bad: int = -1) -> list[Any]:
    """Start the ranks; return the output of each, or its stderr when it failed."""
    asked = json.dumps({"params": params, "fault": fault, "bad": bad})
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(world_size), str(tmp_path / "store"), asked],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=50) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads(out) if out else error for out, error in outputs]


def evidence_of(outputs: list[Any]) -> Evidence:
    num_ranks = len(outputs)
    return Evidence(
        ranks={
            rank: RankRecord(rank=rank, node="here", node_rank=0, local_rank=rank, device="a CPU", kind="a CPU")
            for rank in range(num_ranks)
        },
        asked=tuple(range(num_ranks)),
        measurements=tuple(Measurement(**measurement) for rank in outputs for measurement in rank["measurements"]),
        facts=tuple(Fact(**fact) for rank in outputs for fact in rank["facts"]),
        backend="gloo",
        device_type="cpu",
    )


@pytest.mark.slow
def test_two_healthy_ranks_at_the_sizes_of_quick(tmp_path: Path) -> None:
    outputs = run_world(tmp_path, 2, {"repeats": 2, "minutes": 1e-6})
    params = Params(repeats=2)
    evidence = evidence_of(outputs)
    ruling = CHECK.judge(evidence, params)
    assert (ruling.findings, ruling.absent) == ((), ())
    assert len(ruling.judged) == 12
    assert outputs[0]["phases"] == outputs[1]["phases"]
    per_size = [f"{operation} {size} B" for operation in (*MOVING, *REDUCING) for size in params.cpu_sizes]
    # The minutes, which are over at once, count from the end of the first round on: there is one more.
    assert {outputs[0]["phases"].count(phase) for phase in per_size} == {2}
    assert {outputs[0]["phases"].count(f"{phase} values") for phase in per_size} == {2}
    assert all(rank["memory_bytes"] < 700e6 for rank in outputs)
    measurements = {
        (measurement.name, measurement.variant, measurement.size_bytes): measurement
        for measurement in evidence.measurements
        if measurement.rank == 0
    }
    for operation in (*MOVING, *REDUCING):
        for size in params.cpu_sizes:
            algbw = measurements["algbw", operation, size].value
            assert algbw == pytest.approx(size / measurements["time_us", operation, size].value / 1e3)
            assert measurements["busbw", operation, size].value == pytest.approx(algbw * busbw_factor(operation, 2))


@pytest.mark.parametrize(("world_size", "bad"), [(2, 1), pytest.param(3, 0, marks=pytest.mark.slow)])
def test_a_wrong_contribution_is_traced_to_its_rank(tmp_path: Path, world_size: int, bad: int) -> None:
    outputs = run_world(tmp_path, world_size, {"cpu_sizes": [8, 4096], "repeats": 2, "rounds": 2}, "contribution", bad)
    (finding,) = CHECK.judge(evidence_of(outputs), SMALL).findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (bad,))
    assert all(operation in finding.what for operation in ("all_gather", "all_reduce", "all_to_all", "send_recv"))


@pytest.mark.slow
def test_an_operation_that_the_backend_lacks_is_reported(tmp_path: Path) -> None:
    outputs = run_world(tmp_path, 2, {"cpu_sizes": [8, 4096], "repeats": 2}, "lacking")
    ruling = CHECK.judge(evidence_of(outputs), SMALL)
    assert ruling.absent == ()
    (finding,) = ruling.findings
    assert (finding.severity, finding.what) == ("warn", "all_to_all was not checked: backend gloo does not have it")


@pytest.mark.slow
@pytest.mark.parametrize("fault", by_day(["broken", "driver"]))
def test_a_broken_connection_or_driver_is_no_lacking_operation(tmp_path: Path, fault: str) -> None:
    outputs = run_world(tmp_path, 2, {"cpu_sizes": [8], "repeats": 2}, fault)
    assert all(FAILS[fault] in error for error in outputs)


def be_rank(rank: int, world_size: int, store: str, asked: dict[str, Any]) -> None:
    """Be one rank of a real group, with a fault planted in torch if ``asked`` has one."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    meeting = dist.FileStore(store, world_size)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=world_size)
    if asked["fault"] == "contribution" and rank == asked["bad"]:
        plant_wrong_contributions(dist)
    if asked["fault"] in FAILS:

        def fails(*_: Any, **__: Any) -> None:
            raise RuntimeError(FAILS[asked["fault"]])

        dist.all_to_all_single = fails
    context = FakeContext(
        check="collectives",
        rank=rank,
        group_rank=rank,
        world_size=world_size,
        ranks=tuple(range(world_size)),
        group=dist.group.WORLD,
        store=meeting,
    )
    params: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in asked["params"].items()
    }
    CHECK.measure(context, Params(**params))
    dist.destroy_process_group()
    output = {
        "measurements": [measurement.to_json() for measurement in context.measurements],
        "facts": [fact.to_json() for fact in context.facts],
        "phases": context.phases,
        "memory_bytes": peak_memory_bytes(),
    }
    print(json.dumps(output))


def peak_memory_bytes() -> int:
    """Return the peak of this program alone: ``ru_maxrss`` starts with the peak of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def plant_wrong_contributions(dist: Any) -> None:
    """Make the last element of every contribution of this rank one too large."""

    def spoil(name: str, place: int) -> None:
        right = getattr(dist, name, None)

        def wrong(*tensors: Any, **options: Any) -> Any:
            tensors[place][-1] += 1
            return right(*tensors, **options)  # type: ignore[misc]

        if right is not None:
            setattr(dist, name, wrong)

    for name, place in (
        ("all_reduce", 0),
        ("broadcast", 0),
        ("all_gather_single", 1),
        ("all_gather_into_tensor", 1),
        ("reduce_scatter_single", 1),
        ("reduce_scatter_tensor", 1),
        ("all_to_all_single", 1),
    ):
        spoil(name, place)
    batch = dist.batch_isend_irecv

    def wrong_batch(operations: Any) -> Any:
        operations[0].tensor[-1] += 1
        return batch(operations)

    dist.batch_isend_irecv = wrong_batch


if __name__ == "__main__":
    be_rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
