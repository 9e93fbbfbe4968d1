"""The collectives check: its judgement on hand-made evidence, and real groups of Gloo processes.

Run as a program, this file is one rank of such a group.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from seatrial.checks import collectives
from seatrial.checks.collectives import CHECK, Params, busbw_factor
from seatrial.verdict.evidence import Evidence, RankSeen
from seatrial.verdict.figures import Better, Fact, Figure
from seatrial.worker.device import Device

MOVING = ("all_gather", "broadcast", "all_to_all", "send_recv")
REDUCING = ("all_reduce", "reduce_scatter")
SMALL = Params(cpu_sizes=(8, 4096), repeats=2)


@dataclass(kw_only=True)
class RecordingContext:
    """Keeps what a check tells, in one rank."""

    device: Device
    rank: int
    world_size: int
    ranks: tuple[int, ...]
    group_rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    node: str = "here"
    address: str = "127.0.0.1"
    backend: str = "gloo"
    group: Any = None
    store: Any = None
    stage: str = "measure"
    timeout_s: float = 60.0
    given: dict[str, Any] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)

    def figure(self, name: str, value: float, unit: str, better: Better | None = None, **where: Any) -> None:
        self.figures.append(
            Figure(check="collectives", name=name, value=value, unit=unit, better=better, rank=self.rank, **where)
        )

    def fact(self, name: str, value: Any) -> None:
        self.facts.append(Fact(check="collectives", name=name, value=value, rank=self.rank))

    def phase(self, label: str) -> None:
        self.phases.append(label)

    def share(self, name: str, value: Any) -> None:
        raise AssertionError("collectives shares nothing")


CPU = Device(type="cpu", vendor="cpu", index=0, name="a CPU", backend="gloo", memory_bytes=1, libraries="torch")


def seen(num_ranks: int) -> dict[int, RankSeen]:
    return {
        rank: RankSeen(rank=rank, node=f"n{rank}", node_rank=rank, local_rank=0, device="a CPU", kind="a CPU")
        for rank in range(num_ranks)
    }


def healthy(num_ranks: int, params: Params = SMALL) -> Evidence:
    """What ranks tell when all is well."""
    figures = []
    for rank in range(num_ranks):
        context = RecordingContext(device=CPU, rank=rank, world_size=num_ranks, ranks=tuple(range(num_ranks)))
        for operation in (*MOVING, *REDUCING, "barrier"):
            for size in collectives._sizes(operation, params.cpu_sizes, num_ranks):
                context.figure("time_us", 10.0, "us", "low", variant=operation, size_bytes=size or None)
                if size and rank == 0:
                    context.figure("busbw", 5.0, "GB/s", "high", variant=operation, size_bytes=size)
            if operation != "barrier":
                context.figure("wrong_elements", 0, "1", "low", variant=operation)
        figures += context.figures
    return Evidence(
        ranks=seen(num_ranks),
        asked=tuple(range(num_ranks)),
        figures=tuple(figures),
        facts=(),
        backend="gloo",
        device_type="cpu",
    )


def corrupted(num_ranks: int, wrong: dict[tuple[str, int], list[int]]) -> Evidence:
    """(operation, rank that saw it) -> whose contributions were wrong there."""
    evidence = healthy(num_ranks)
    figures = tuple(
        replace(figure, value=3)
        if figure.name == "wrong_elements" and (figure.variant, figure.rank) in wrong
        else figure
        for figure in evidence.figures
    )
    facts = tuple(
        Fact(
            check="collectives", name="wrong_values", value={"operation": operation, "contributors": givers}, rank=rank
        )
        for (operation, rank), givers in wrong.items()
    )
    return replace(evidence, figures=figures, facts=facts)


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_healthy_world_passes_and_all_values_are_judged(num_ranks: int) -> None:
    ruling = CHECK.judge(healthy(num_ranks), SMALL)
    assert (ruling.findings, ruling.absent) == ((), ())
    assert len(ruling.judged) == 6 * num_ranks


def test_one_rank_is_not_checked() -> None:
    ruling = CHECK.judge(Evidence(ranks=seen(1), asked=(0,), figures=(), facts=(), device_type="cpu"), SMALL)
    (finding,) = ruling.findings
    assert (finding.severity, ruling.judged) == ("info", ())
    context = RecordingContext(device=CPU, rank=0, world_size=1, ranks=(0,))
    collectives.measure(context, SMALL)
    assert (context.figures, [fact.name for fact in context.facts]) == ([], ["not_checked"])


@pytest.mark.parametrize("bad", [0, 2])
def test_who_sees_its_own_contribution_wrong_is_named(bad: int) -> None:
    wrong = {("all_gather", rank): [bad] for rank in range(3)} | {("all_reduce", rank): [] for rank in range(3)}
    (finding,) = CHECK.judge(corrupted(3, wrong), SMALL).findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (bad,))
    assert finding.what == "wrong values in all_gather, all_reduce"
    assert finding.measured == "18 wrong elements on 3 ranks"


@pytest.mark.parametrize(
    ("wrong", "kind", "name", "ranks"),
    [
        ({("send_recv", 1): [0]}, "link", "link rank 0–rank 1, endpoints not", (0, 1)),
        ({("send_recv", 1): [0], ("all_to_all", 0): [1]}, "link", "link rank 0–rank 1", (0, 1)),
        ({("all_to_all", 1): [0], ("all_to_all", 2): [0]}, "fabric", "rank 0 or the links that leave it", (0,)),
        ({("all_to_all", 1): [0, 2]}, "fabric", "rank 1 or the links that lead to it", (1,)),
        ({("all_to_all", 1): [0, 2], ("all_to_all", 0): [2]}, "fabric", "not separable", ()),
        ({("all_reduce", 1): []}, "fabric", "not separable", ()),
    ],
)
def test_what_cannot_be_separated_blames_nobody(
    wrong: dict[tuple[str, int], list[int]], kind: str, name: str, ranks: tuple[int, ...]
) -> None:
    (finding,) = CHECK.judge(corrupted(3, wrong), SMALL).findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", kind, ranks)
    assert name in finding.culprit.name
    assert "not separable" in finding.culprit.name


def test_two_faults_are_two_findings() -> None:
    wrong = {("all_gather", rank): [0] for rank in range(4)} | {("all_to_all", 3): [2]}
    culprits = [finding.culprit.ranks for finding in CHECK.judge(corrupted(4, wrong), SMALL).findings]
    assert culprits == [(0,), (2, 3)]


def test_missing_figures_are_absent() -> None:
    full = healthy(2)
    for gone in full.figures:
        less = replace(full, figures=tuple(figure for figure in full.figures if figure is not gone))
        absent = CHECK.judge(less, SMALL).absent
        if gone.rank == 1 and gone.size_bytes == 8:
            assert absent == (), "only rank 0 tells its small sizes"
            continue
        (name,) = absent
        assert name.startswith(f"{gone.name} {gone.variant} of rank {gone.rank}")
    assert CHECK.judge(replace(full, asked=(), figures=()), SMALL).absent == ("any operation, from any rank",)


def test_limits_speak_of_the_stated_sizes_of_rank_0() -> None:
    evidence = healthy(2)
    good = Params(cpu_sizes=(8, 4096), min_busbw_gbps=5.0, max_latency_us=10.0)
    assert CHECK.judge(evidence, good).findings == ()
    assert len(CHECK.judge(evidence, good).judged) == 12 + 2
    bad = Params(cpu_sizes=(8, 4096), min_busbw_gbps=5.1, max_latency_us=9.9)
    latency, busbw = CHECK.judge(evidence, bad).findings
    assert busbw.limit is not None
    assert latency.limit is not None
    assert (busbw.severity, busbw.limit.origin) == ("fail", "user collectives.min_busbw_gbps")
    assert (latency.severity, latency.limit.origin) == ("fail", "user collectives.max_latency_us")
    assert "4096 B" in busbw.what
    assert " 8 B" in latency.what
    assert busbw.culprit.ranks == latency.culprit.ranks == (), "all wait for the slowest"


def test_an_operation_is_only_lacking_when_every_rank_says_so() -> None:
    full = healthy(2)
    told = tuple(
        Fact(check="collectives", name="unsupported", value={"operation": "all_to_all"}, rank=rank) for rank in (0, 1)
    )
    less = replace(full, figures=tuple(figure for figure in full.figures if figure.variant != "all_to_all"))
    ruling = CHECK.judge(replace(less, facts=told), SMALL)
    assert [finding.severity for finding in ruling.findings] == ["info"]
    assert (ruling.absent, len(ruling.judged)) == ((), 10)
    assert len(CHECK.judge(replace(less, facts=told[:1]), SMALL).absent) > 0


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


def test_blocks_are_whole_elements() -> None:
    assert collectives._sizes("all_gather", (8, 4096), 3) == (12, 4104)
    assert collectives._sizes("all_gather", (8, 16, 4096), 8) == (32, 4096)
    assert collectives._sizes("all_reduce", (8, 4096), 3) == (8, 4096)
    assert collectives._sizes("barrier", (8, 4096), 3) == (0,)


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
def test_a_value_that_cannot_be_meant_is_refused(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Params(**params)


def run_world(tmp_path: Path, world_size: int, params: dict[str, Any], fault: str = "", bad: int = -1) -> list[Any]:
    """Start the ranks; what each told, or what it said on stderr when it failed."""
    asked = json.dumps({"params": params, "fault": fault, "bad": bad})
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(world_size), str(tmp_path / "store"), asked],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        told = [rank.communicate(timeout=50) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads(out) if out else error for out, error in told]


def evidence_of(told: list[Any]) -> Evidence:
    num_ranks = len(told)
    return Evidence(
        ranks=seen(num_ranks),
        asked=tuple(range(num_ranks)),
        figures=tuple(Figure(**figure) for rank in told for figure in rank["figures"]),
        facts=tuple(Fact(**fact) for rank in told for fact in rank["facts"]),
        backend="gloo",
        device_type="cpu",
    )


def test_two_healthy_ranks_at_the_sizes_of_quick(tmp_path: Path) -> None:
    told = run_world(tmp_path, 2, {"repeats": 2, "minutes": 1e-6})
    params = Params(repeats=2)
    evidence = evidence_of(told)
    ruling = CHECK.judge(evidence, params)
    assert (ruling.findings, ruling.absent) == ((), ())
    assert len(ruling.judged) == 12
    assert told[0]["phases"] == told[1]["phases"]
    per_size = [f"{operation} {size} B" for operation in (*MOVING, *REDUCING) for size in params.cpu_sizes]
    assert all(told[0]["phases"].count(phase) == told[0]["phases"].count(f"{phase} values") == 1 for phase in per_size)
    assert all(rank["memory_bytes"] < 700e6 for rank in told)
    figures = {
        (figure.name, figure.variant, figure.size_bytes): figure for figure in evidence.figures if figure.rank == 0
    }
    for operation in (*MOVING, *REDUCING):
        for size in params.cpu_sizes:
            algbw = figures["algbw", operation, size].value
            assert algbw == pytest.approx(size / figures["time_us", operation, size].value / 1e3)
            assert figures["busbw", operation, size].value == pytest.approx(algbw * busbw_factor(operation, 2))


@pytest.mark.parametrize(("world_size", "bad"), [(2, 1), (3, 0)])
def test_a_wrong_contribution_is_traced_to_its_rank(tmp_path: Path, world_size: int, bad: int) -> None:
    told = run_world(tmp_path, world_size, {"cpu_sizes": [8, 4096], "repeats": 2, "rounds": 2}, "contribution", bad)
    (finding,) = CHECK.judge(evidence_of(told), SMALL).findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (bad,))
    assert all(operation in finding.what for operation in ("all_gather", "all_reduce", "all_to_all", "send_recv"))


def test_an_operation_that_the_backend_lacks_is_told_and_passed_over(tmp_path: Path) -> None:
    told = run_world(tmp_path, 2, {"cpu_sizes": [8, 4096], "repeats": 2}, "lacking")
    ruling = CHECK.judge(evidence_of(told), SMALL)
    assert ruling.absent == ()
    (finding,) = ruling.findings
    assert (finding.severity, finding.what) == ("info", "all_to_all was not checked: backend gloo does not have it")


def test_a_broken_connection_is_no_lacking_operation(tmp_path: Path) -> None:
    told = run_world(tmp_path, 2, {"cpu_sizes": [8], "repeats": 2}, "broken")
    assert all("Connection closed by peer" in error for error in told)


def be_rank(rank: int, world_size: int, store: str, asked: dict[str, Any]) -> None:
    """One rank of a real group, with a fault planted in torch where one is asked for."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    meeting = dist.FileStore(store, world_size)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=world_size)
    if asked["fault"] == "contribution" and rank == asked["bad"]:
        plant_wrong_contributions(dist)
    if asked["fault"] in ("lacking", "broken"):
        reason = {"lacking": "Backend gloo does not support alltoall", "broken": "Connection closed by peer"}

        def fails(*_: Any, **__: Any) -> None:
            raise RuntimeError(reason[asked["fault"]])

        dist.all_to_all_single = fails
    context = RecordingContext(
        device=CPU,
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
    collectives.measure(context, Params(**params))
    dist.destroy_process_group()
    told = {
        "figures": [figure.to_json() for figure in context.figures],
        "facts": [fact.to_json() for fact in context.facts],
        "phases": context.phases,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(told))


def plant_wrong_contributions(dist: Any) -> None:
    """What this rank puts into an operation is one too large in its last element."""

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
