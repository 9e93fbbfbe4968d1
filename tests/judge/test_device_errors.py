"""A device that fails while NCCL uses it: first NCCL complains, then torch."""

from __future__ import annotations

import pytest
from event_streams import Stream, on_gpus

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold

WATCHDOG = "[rank1]:[E ProcessGroupNCCL.cpp:2068] [PG ID 0] Process group watchdog thread terminated with exception: "
MISSED = "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5"
BROKEN = "CUDA error: uncorrectable ECC error encountered"
UNHANDLED = (
    "NCCL error: unhandled cuda error, NCCL version 2.27.5",
    "Last error:",
    "Cuda failure 214 'uncorrectable ECC error encountered'",
)


@pytest.mark.parametrize(
    ("gpus", "message", "kind"),
    [(True, (BROKEN,), "rank"), (True, UNHANDLED, "rank"), (True, (MISSED,), "fabric"), (False, (BROKEN,), "fabric")],
)
@pytest.mark.parametrize("code", [-6, 1])
def test_a_device_is_named_where_nccl_heard_of_it_first(
    gpus: bool, message: tuple[str, ...], kind: str, code: int
) -> None:
    """Its main thread complained of the fabric before the watchdog ended it."""
    first, *more = message
    stream = Stream(4, nodes=2).until("collectives")
    stream.error(1, "fabric", MISSED, "collectives/all_reduce 8 B", "DistBackendError")
    stream.exit(1, code, ours=False, last_lines=(f"{WATCHDOG}{first}", *more))
    entries = (
        {"rank": 1, "how": "error", "detail": "fabric"},
        {"rank": 1, "how": "dead", "detail": f"exit code {code}"},
    )
    stream.trouble(*entries, waiting=(0, 2, 3))
    stream.kill(0, 2, 3)
    stream.close(ranks=False)
    (finding,) = blame(fold((on_gpus(stream) if gpus else stream).events))
    assert (finding.severity, finding.culprit.kind) == ("fail", kind)
    assert (finding.culprit.ranks == (1,)) == (kind == "rank")


NVLINK = "CUDA error: uncorrectable NVLink error detected during the execution"
ALL_REDUCE = "collectives/all_reduce 8 B"


def _see_a_bad_link(*ranks: int, lost: int | None = None, aborts: bool = False, alone: bool = False) -> list[Finding]:
    """Return the findings where ranks report that a link of their GPU failed, and another one perhaps its GPU."""
    stream = Stream(8, nodes=2).until("collectives")
    seen = []
    for rank in ranks:
        if aborts:
            first = () if alone else (WATCHDOG,)
            stream.exit(rank, -6, ours=False, last_lines=(*first, f"{'' if alone else WATCHDOG}{NVLINK}", "frame #0"))
            seen.append({"rank": rank, "how": "dead", "detail": "exit code -6"})
        else:
            stream.error(rank, "fabric", NVLINK, ALL_REDUCE, "AcceleratorError")
            seen.append({"rank": rank, "how": "error", "detail": "fabric"})
    if lost is not None:
        stream.error(lost, "device", "CUDA error: unspecified launch failure", ALL_REDUCE, "AcceleratorError")
        seen.append({"rank": lost, "how": "error", "detail": "device"})
    stream.error(7, "fabric", MISSED, ALL_REDUCE, "DistBackendError")
    stream.trouble(*seen, waiting=(3, 4, 5, 6))
    stream.kill(*({*range(8)} - ({*ranks} if aborts else set())))
    return list(blame(fold(on_gpus(stream.close(ranks=False)).events)))


@pytest.mark.parametrize(("aborts", "alone"), [(False, False), (True, False), (True, True)])
def test_an_error_of_a_link_names_neither_end_as_broken(aborts: bool, alone: bool) -> None:
    """The healthy end of an NVLink says the same as the other one."""
    (finding,) = _see_a_bad_link(0, aborts=aborts, alone=alone)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "link", ())
    assert finding.culprit.nodes == ("gpu-0",)
    assert "the GPU of rank 0 (NVIDIA H200" in finding.culprit.name
    assert finding.culprit.name.endswith(", or of a GPU that it is connected to")
    assert finding.what.startswith("rank 0 saw an error of a link between GPUs")
    assert NVLINK in finding.what
    assert "replace" not in finding.action
    assert any("rank 7" in line for line in finding.evidence)


def test_several_ends_of_links_are_one_finding() -> None:
    (finding,) = _see_a_bad_link(0, 2, 5)
    assert finding.culprit.kind == "link"
    assert "the GPUs of ranks 0, 2, 5, or of a GPU" in finding.culprit.name
    assert finding.culprit.nodes == ("gpu-0", "gpu-1")


@pytest.mark.parametrize("aborts", [False, True])
def test_a_gpu_that_is_lost_explains_the_errors_of_its_links(aborts: bool) -> None:
    (finding,) = _see_a_bad_link(0, 2, lost=1, aborts=aborts)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "device", (1,))
    assert any("rank 0" in line and NVLINK in line for line in finding.evidence)


def test_without_gpus_such_words_are_of_the_communication() -> None:
    stream = Stream(4, nodes=2).until("collectives")
    stream.error(0, "fabric", NVLINK, ALL_REDUCE)
    stream.trouble({"rank": 0, "how": "error", "detail": "fabric"}, waiting=(1, 2, 3))
    stream.kill(0, 1, 2, 3)
    (finding,) = blame(fold(stream.close(ranks=False).events))
    assert finding.culprit.kind == "fabric"


@pytest.mark.parametrize(
    "line",
    [
        "Memory access fault by GPU node-4 (Agent handle: 0x55d0) on address 0x7f2b. Reason: Unknown.",
        "HW Exception by GPU node-1 (Agent handle: 0x5581c3d0) reason :GPU Hang",
        ":0:rocdevice.cpp :3020: 31548 us:  Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: An",
        BROKEN,
    ],
)
@pytest.mark.parametrize("phase", ["bootstrap/begin world", ALL_REDUCE])
@pytest.mark.parametrize("is_beside", [False, True])
def test_a_runtime_that_aborts_for_its_gpu_names_that(line: str, phase: str, is_beside: bool) -> None:
    """ROCm raises nothing: it prints these words and aborts, also while the ranks connect."""
    stream = Stream(4, nodes=2).until(phase.partition("/")[0])
    stream.exit(1, -6, ours=False, phase=phase, last_lines=(line,))
    seen = [{"rank": 1, "how": "dead", "detail": "exit code -6"}]
    if is_beside:
        stream.exit(3, -9, ours=False, phase=phase)
        seen.append({"rank": 3, "how": "dead", "detail": "exit code -9"})
    stream.error(0, "fabric", MISSED, phase, "DistBackendError")
    stream.trouble(*seen, waiting=(2,))
    stream.kill(0, 2)
    findings = blame(fold(on_gpus(stream.close(ranks=False)).events))
    named = [(finding.severity, finding.culprit.kind, finding.culprit.ranks) for finding in findings]
    assert named == [("fail", "rank", (1,)), ("fail", "process", (3,))][: 1 + is_beside]
