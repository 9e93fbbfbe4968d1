"""Ranks that cannot use a GPU that works: the driver, the libraries or another process of the node is at fault."""

from __future__ import annotations

import pytest
from event_streams import Stream, on_gpus

from seatrial.evidence.findings import Finding
from seatrial.judge import kept_from_devices
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.worker.failures import cause_of

NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
NOT_READY = "CUDA error: system not yet initialized"
NO_DEVICE = "CUDA error: no device is left for local rank 1: torch finds 1 usable"
BROKEN = "CUDA error: uncorrectable ECC error encountered"


def _failed(message: str, *ranks: int, nodes: int = 2, rank_of_peers: int | None = None) -> list[Finding]:
    """Return the findings where ranks of four end with this error; ``rank_of_peers``: one that complains of others."""
    stream = Stream(4, nodes=nodes).until("training")
    seen = []
    for rank in ranks:
        stream.error(rank, cause_of(RuntimeError(message)), message, "training/step 3 forward")
        seen.append({"rank": rank, "how": "error", "detail": cause_of(RuntimeError(message))})
    if rank_of_peers is not None:
        stream.error(rank_of_peers, "fabric", "NCCL error: remote process exited", "training/step 3 backward")
    stream.trouble(*seen, waiting=tuple({0, 1, 2, 3} - {*ranks}))
    stream.kill(0, 1, 2, 3)
    return list(blame(fold(on_gpus(stream.close(ranks=False)).events)))


@pytest.mark.parametrize("message", [NO_KERNEL, BUSY, NOT_READY, NO_DEVICE])
def test_the_node_is_named_and_no_device(message: str) -> None:
    (finding,) = _failed(message, 2, 3, rank_of_peers=0)
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "node", ("gpu-1",))
    assert finding.culprit.ranks == (2, 3)
    assert finding.what.startswith("rank 2 (NVIDIA H200")
    assert f'could not use its GPU in "training/step 3 forward": "{message}"; nor could rank 3' in finding.what
    assert "replace" not in finding.action
    assert any("rank 0" in line for line in finding.evidence)


def test_the_action_is_about_what_the_words_are_about() -> None:
    assert "what else uses that GPU" in _failed(BUSY, 2)[0].action
    assert "or what else uses its GPUs" in _failed(BUSY, 2)[0].culprit.name
    assert "compare its driver" in _failed(NO_KERNEL, 2, rank_of_peers=0)[0].action
    assert "get_arch_list" in _failed(NO_KERNEL, 0, 2)[0].action


@pytest.mark.parametrize(
    ("message", "ranks"), [(NO_KERNEL, (0, 2)), (NO_KERNEL, (0, 1, 2, 3)), (BUSY, (0, 1, 2, 3)), (NOT_READY, range(4))]
)
def test_where_all_nodes_are_alike_nobody_is_named(message: str, ranks: tuple[int, ...]) -> None:
    (finding,) = _failed(message, *ranks)
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("error", "none", ())
    assert finding.what.endswith("; all nodes are alike")
    assert "replace" not in finding.action


def test_gpus_that_others_use_are_named_on_each_node() -> None:
    findings = _failed(BUSY, 1, 2)
    assert [(finding.severity, finding.culprit.nodes) for finding in findings] == [
        ("fail", ("gpu-0",)),
        ("fail", ("gpu-1",)),
    ]


@pytest.mark.parametrize(
    ("message", "kind"), [(NO_KERNEL, "none"), (BUSY, "node"), (NO_DEVICE, "node"), (BROKEN, "device")]
)
def test_of_one_node_only_the_build_of_torch_is_no_fault(message: str, kind: str) -> None:
    (finding,) = _failed(message, 1, nodes=1)
    assert (finding.severity, finding.culprit.kind) == ("error" if kind == "none" else "fail", kind)


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize(("message", "kind"), [(NO_KERNEL, "node"), (BROKEN, "rank")])
def test_what_a_rank_prints_before_it_ends_counts_alike(message: str, kind: str, is_early: bool) -> None:
    """The watchdog of NCCL reports such an error, too; the rank may have complained of the fabric before."""
    stream = Stream(2, nodes=2).until("collectives")
    if is_early:
        stream.error(1, "fabric", "NCCL error: remote process exited", "collectives/all_reduce 8 B")
    lines = ("terminate called after throwing an instance of 'c10::Error'", f"  what():  {message}", "Exception raised")
    stream.exit(1, -6, ours=False, phase="collectives/begin measure", last_lines=lines)
    stream.trouble({"rank": 1, "how": "dead", "detail": "exit code -6"}, waiting=(0,))
    stream.kill(0)
    (finding,) = blame(fold(on_gpus(stream.close(ranks=False)).events))
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", kind, (1,))
    assert any(message in line for line in finding.evidence)


def test_a_rank_that_was_killed_is_named_for_that() -> None:
    stream = Stream(4, nodes=2).until("collectives")
    stream.exit(1, -9, ours=False, last_lines=(NO_KERNEL,))
    stream.trouble({"rank": 1, "how": "dead", "detail": "exit code -9"}, waiting=(0, 2, 3))
    stream.kill(0, 2, 3)
    (finding,) = blame(fold(on_gpus(stream.close(ranks=False)).events))
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "process", (1,))


def test_a_device_that_failed_beside_is_named() -> None:
    stream = Stream(4, nodes=2).until("training")
    for rank, cause, message, phase in ((1, "setup", NO_KERNEL, "forward"), (2, "device", BROKEN, "backward")):
        stream.error(rank, cause, message, f"training/step 3 {phase}")
    stream.trouble(*({"rank": rank, "how": "error"} for rank in (1, 2)), waiting=(0, 3))
    stream.kill(0, 1, 2, 3)
    kinds = {finding.culprit.kind for finding in blame(fold(on_gpus(stream.close(ranks=False)).events))}
    assert kinds == {"node", "device"}


FORWARD = "training/step 300 forward"


def _one(
    message: str,
    *others: int,
    nodes: int = 2,
    phase: str = FORWARD,
    later: str = "training/step 300 backward",
    restarts: int | None = None,
) -> list[Finding]:
    """Return the findings where rank 3 of four fails so in a phase, and others were in a later one when they were
    ended. ``restarts``: the rank that fails so after the restart; -1: none does."""
    stream = Stream(4, nodes=nodes).until("training")
    cause = cause_of(RuntimeError(message))
    stream.error(3, cause, message, phase)
    stream.trouble({"rank": 3, "how": "error", "detail": cause})
    for rank in range(4):
        stream.exit(rank, -9, ours=True, phase=later if rank in others else phase)
    if restarts is not None:
        stream.generation = 1
        stream.start((0, 1, 2))
        stream.begin("training")
        if restarts < 0:
            for rank in stream.alive:
                stream.done(rank)
            stream.step_end()
            return list(blame(fold(on_gpus(stream.close()).events)))
        stream.error(restarts, cause, message, phase)
        stream.trouble({"rank": restarts, "how": "error", "detail": cause})
        for rank in stream.alive:
            stream.exit(rank, -9, ours=True, phase=phase)
    return list(blame(fold(on_gpus(stream.close(ranks=False)).events)))


LIBRARY = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"


@pytest.mark.parametrize("message", [NO_KERNEL, LIBRARY, NO_DEVICE])
def test_a_node_is_named_once_another_one_has_come_further(message: str) -> None:
    """A torch that is wrong everywhere fails first where a rank is first: by seconds, if the others start slowly."""
    (finding,) = _one(message)
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.what.endswith("; no rank of another node had come further")
    (finding,) = _one(message, 1)
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "node", ("gpu-1",))


@pytest.mark.parametrize("message", [NO_KERNEL, LIBRARY, NO_DEVICE])
def test_of_three_nodes_or_more_one_alone_names_no_other(message: str) -> None:
    """All may have the wrong torch, and one that lies would have come further."""

    def judged(*others: int, per_node: int = 1) -> Finding:
        stream = Stream(4 * per_node, nodes=4).until("training")
        stream.error(3 * per_node, "setup", message, FORWARD)
        stream.trouble({"rank": 3 * per_node, "how": "error", "detail": "setup"})
        for rank in range(4 * per_node):
            stream.exit(rank, -9, ours=True, phase="training/step 300 backward" if rank in others else FORWARD)
        (finding,) = blame(fold(on_gpus(stream.close(ranks=False)).events))
        return finding

    for finding in (judged(1), judged(2, 3, per_node=2)):
        assert finding.culprit.kind == "none"
        assert finding.what.endswith("; only one other host says that it had come further")
    assert judged(0, 1).culprit.nodes == ("gpu-3",)
    if message == NO_KERNEL:
        assert judged(0, 7, per_node=2).culprit.ranks == (6,), "its own node may say that another rank came further"


@pytest.mark.parametrize("message", [BUSY, NOT_READY])
def test_what_is_surely_of_a_node_needs_no_other_one(message: str) -> None:
    (finding,) = _one(message)
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "node", ("gpu-1",))


def test_the_first_ranks_of_a_node_say_nothing_of_devices_for_the_others() -> None:
    (finding,) = _one(NO_DEVICE, 0)
    assert finding.culprit.kind == "none"


def test_a_restart_shows_whether_the_other_nodes_are_alike() -> None:
    (finding,) = _one(NO_KERNEL, restarts=-1)
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("gpu-1",))
    assert [finding.culprit.kind for finding in _one(NO_KERNEL, restarts=0)] == ["none", "none"]


@pytest.mark.parametrize(
    "message",
    [
        "FIND was unable to find an engine to execute this computation",
        "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle )`",
        "CUDA error: invalid argument",
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_is_named_where_others_of_its_node_do_the_same(message: str, nodes: int) -> None:
    (finding,) = _one(message, 0, 1, 2, nodes=nodes)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (3,))
    assert "the same torch" in finding.action
    (finding,) = _one(message, nodes=1)
    assert finding.what.endswith("; there is no other node")


def test_a_step_of_one_rank_does_not_hide_the_other_nodes() -> None:
    stream = Stream(4, nodes=2).until("compute")
    stream.alive = (3,)
    stream.begin("compute", "repeat")
    stream.error(3, "setup", NO_KERNEL, "compute/gemm fp32 alone")
    stream.trouble({"rank": 3, "how": "error", "detail": "setup"})
    stream.kill(0, 1, 2, 3)
    (finding,) = blame(fold(on_gpus(stream.close(ranks=False)).events))
    assert finding.what.endswith("; no rank of another node had come further")


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("message", [NO_DEVICE, "The NVIDIA driver on your system is too old (found version 11040)."])
def test_while_ranks_start_those_that_are_ready_count(message: str, ready: bool) -> None:
    stream = Stream(4, nodes=2)
    kept = {"rank0.0", "rank2.0"} if ready and message != NO_DEVICE else {"rank0.0", "rank1.0"} if ready else set()
    stream.events = [event for event in stream.events if event["kind"] != "rank" or event["src"] in kept]
    for rank in range(4):
        if f"rank{rank}.0" not in kept:
            del stream._sources[f"rank{rank}.0"]
    stream.error(3, "setup", message, "start-up/open device")
    stream.trouble({"rank": 3, "how": "error", "detail": "setup", "phase": "start-up/open device"})
    stream.kill(0, 1, 2, 3)
    findings = blame(fold(on_gpus(stream.close(ranks=False)).events))
    assert [(finding.culprit.kind) for finding in findings] == [
        "rank" if "rank2.0" in kept else "node" if ready else "none"
    ]


@pytest.mark.parametrize(
    ("phase", "later", "is_named"),
    [
        ("training/step 9 forward", "training/step 10 forward", True),
        ("training/step 9 backward", "training/step 9 forward", False),
        ("training/step 9 forward", "training/step 9 losses", True),
        ("training/begin measure", "training/one batch", True),
        ("training/one batch", "training/done measure", True),
        ("training/done measure", "training/done measure", False),
        ("training/step 9 forward", "training/one batch", False),
        ("training/step 9 forward", "training/save step 9", False),
        ("compute/gemm fp32 round 0", "compute/gemm bf16 round 0", False),
        ("compute/gemm fp32 round 0", "compute/convolution round 0", True),
        ("compute/convolution round 0", "compute/gemm fp32 round 1", True),
        ("memory/copy device round 0", "memory/take memory round 0", True),
        ("training/step 9 forward", "memory/copy device round 10", False),
    ],
)
def test_a_later_phase_is_told_from_an_earlier_one(phase: str, later: str, is_named: bool) -> None:
    (finding,) = _one(NO_KERNEL, 0, phase=phase, later=later)
    assert finding.culprit.kind == ("node" if is_named else "none")


def test_phases_are_compared_once_however_many_ranks_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors of 4,095 of 4,096 ranks took a minute: each was compared with the phases of all ranks."""
    compared = list[tuple[str, str]]()
    is_later = kept_from_devices._is_later

    def counted(phase: str, than: str) -> bool:
        compared.append((phase, than))
        return is_later(phase, than)

    monkeypatch.setattr(kept_from_devices, "_is_later", counted)
    stream = Stream(32, nodes=4).until("training")
    for rank in range(1, 32):
        stream.error(rank, "setup", BUSY, "training/step 3 forward")
    stream.trouble(*({"rank": rank, "how": "error", "detail": "setup"} for rank in range(1, 32)), waiting=(0,))
    stream.kill(*range(32))
    findings = list(blame(fold(on_gpus(stream.close(ranks=False)).events)))
    assert len(findings) == 4
    assert len(compared) == len(set(compared))


def test_many_phases_of_one_node_hide_no_other_node() -> None:
    """Of all ways to fail only some are compared."""
    stream = Stream(280, nodes=4).until("training")
    for rank in range(140):
        stream.error(rank, "setup", NO_KERNEL, f"training/x{rank}" if rank < 70 else "training/step 3 forward")
    ahead = [{"rank": rank, "how": "stuck", "phase": "training/step 4 forward"} for rank in range(140, 280)]
    stream.trouble({"rank": 0, "how": "error"}, *ahead)
    findings = blame(fold(on_gpus(stream).events))
    assert [finding.culprit.nodes for finding in findings if finding.severity == "fail"] == [("gpu-1",)]
