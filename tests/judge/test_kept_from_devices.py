"""Ranks that cannot use a GPU that works: the driver, the libraries or another process of the node is at fault."""

from __future__ import annotations

import pytest
from event_streams import Stream, on_gpus

from seatrial.evidence.findings import Finding
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
    assert "compare its driver" in _failed(NO_KERNEL, 2)[0].action
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
    stream = Stream(4, nodes=2).until("collectives")
    if is_early:
        stream.error(1, "fabric", "NCCL error: remote process exited", "collectives/all_reduce 8 B")
    lines = ("terminate called after throwing an instance of 'c10::Error'", f"  what():  {message}", "Exception raised")
    stream.exit(1, -6, ours=False, last_lines=lines)
    stream.trouble({"rank": 1, "how": "dead", "detail": "exit code -6"}, waiting=(0, 2, 3))
    stream.kill(0, 2, 3)
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
    for rank, cause, message in ((1, "setup", NO_KERNEL), (2, "device", BROKEN)):
        stream.error(rank, cause, message, "training/step 3 forward")
    stream.trouble(*({"rank": rank, "how": "error"} for rank in (1, 2)), waiting=(0, 3))
    stream.kill(0, 1, 2, 3)
    kinds = {finding.culprit.kind for finding in blame(fold(on_gpus(stream.close(ranks=False)).events))}
    assert kinds == {"node", "device"}
