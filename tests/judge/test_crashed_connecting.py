"""A rank that crashes while it connects to other hosts: one of them may have sent what ended it, so nobody is named."""

from __future__ import annotations

from typing import Any

import pytest
from event_streams import Stream, on_gpus

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold

MEET = "bootstrap/meet at the store"


def _crashed(
    code: int = -11,
    *ranks: int,
    nodes: int = 3,
    phase: str = MEET,
    last_lines: tuple[str, ...] = ("Fatal Python error: Segmentation fault",),
    exits: bool = True,
    gpus: bool = False,
    **more: Any,
) -> list[Finding]:
    """Return the findings where ranks, without others rank 0, end in this way; rank 2 sees a communication error.

    ``exits``: their agents say so, and not the conductor alone. ``more``: fields of the events of their agents.
    """
    ranks = ranks or (0,)
    stream = Stream(3, nodes=nodes)
    stream.begin(phase.partition("/")[0], "world")
    stream.error(2, "fabric", "Connection closed by peer", MEET)
    dead = [{"rank": rank, "how": "dead", "phase": phase, "detail": f"exit code {code}"} for rank in ranks]
    for rank in ranks if exits else ():
        stream.exit(rank, code, ours=False, phase=phase, last_lines=last_lines)
        stream.events[-1] |= more
    stream.trouble(*dead, {"rank": 2, "how": "error", "detail": "fabric"})
    stream.kill(*({0, 1, 2} - set(ranks)))
    stream.close(ranks=False)
    return list(blame(fold((on_gpus(stream) if gpus else stream).events)))


@pytest.mark.parametrize("exits", [True, False])
@pytest.mark.parametrize("code", [-11, -7, -4, -8, -6])
def test_a_crash_among_hosts_names_nobody_and_says_where(code: int, exits: bool) -> None:
    (finding,) = _crashed(code, exits=exits)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert finding.culprit.nodes == ("gpu-0", "gpu-1", "gpu-2")
    assert finding.what.startswith("rank 0 (Test CPU, local rank 0 on node gpu-0) was killed by signal ")
    assert ' in "bootstrap/meet at the store", while connecting to other nodes: what it runs, or' in finding.what
    assert "libraries and plugins" in finding.action
    assert any("Segmentation fault" in line for line in finding.evidence) is exits
    assert any("rank 2" in line and "Connection closed by peer" in line for line in finding.evidence)


def test_several_crashes_are_one_finding() -> None:
    (finding,) = _crashed(-11, 0, 1)
    assert finding.culprit.kind == "fabric"
    assert finding.what.endswith("; rank 1 ended there, too")


def test_a_full_store_is_no_fault_of_the_rank_that_keeps_it() -> None:
    """Any process that reaches the store can fill it until the kernel ends rank 0."""
    (finding,) = _crashed(-9, oom_limit_bytes=1 << 30)
    assert (finding.severity, finding.culprit.kind) == ("fail", "fabric")
    assert "(the kernel's out-of-memory killer ended it" in finding.what


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes": 1},
        {"phase": "collectives/all_reduce 8 B"},
        {"phase": "bootstrap/world formed"},
        {"phase": "links/nodes turn 1 transfers"},
        {"code": -9},
        {"code": 3},
    ],
    ids=str,
)
def test_a_rank_that_ends_by_itself_is_still_named(changed: dict[str, Any]) -> None:
    (finding,) = _crashed(**changed)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "process", (0,))


@pytest.mark.parametrize(("gpus", "kind"), [(True, "rank"), (False, "fabric")])
def test_what_a_gpu_says_names_its_rank(gpus: bool, kind: str) -> None:
    """Without a GPU such words come from somewhere else, such as the name of another host."""
    (finding,) = _crashed(-6, last_lines=("CUDA error: uncorrectable ECC error encountered",), gpus=gpus)
    assert finding.culprit.kind == kind


NO_DESCRIPTORS = (
    "NCCL error in: /pytorch/NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.3",
    "Last error:",
    "Call to socket failed: Too many open files",
)


@pytest.mark.parametrize(
    "last_lines", [NO_DESCRIPTORS, (*NO_DESCRIPTORS[:2], "Call to malloc failed: Cannot allocate memory")]
)
@pytest.mark.parametrize(("nodes", "phase"), [(3, MEET), (1, MEET), (3, "collectives/all_reduce 8 B")])
def test_strangers_may_have_taken_what_a_host_lacks(nodes: int, phase: str, last_lines: tuple[str, ...]) -> None:
    """They can connect to the store that its first rank keeps until no descriptor is left."""
    (finding,) = _crashed(-6, last_lines=last_lines, gpus=True, nodes=nodes, phase=phase)
    assert (finding.culprit.kind == "fabric") is (nodes == 3 and phase == MEET)


def _lacked(message: str, phase: str = MEET, nodes: int = 3) -> Finding:
    """Return the finding where ranks 1 and 2 report this error as one of communication."""
    stream = Stream(3, nodes=nodes)
    stream.begin(phase.partition("/")[0], "world")
    for rank in (1, 2):
        stream.error(rank, "fabric", "Connection closed by peer" if rank == 1 else message, phase, "MeetingError")
    stream.trouble(*({"rank": rank, "how": "error", "detail": "fabric"} for rank in (1, 2)), waiting=(0,))
    stream.kill(0, 1, 2)
    (finding,) = blame(fold(on_gpus(stream.close(ranks=False)).events))
    return finding


@pytest.mark.parametrize(
    ("message", "lack", "limit"),
    [
        ("\n".join(NO_DESCRIPTORS), "open file", "ulimit -n"),
        ("[/pytorch/gloo/transport/tcp/listener.cc:38] bind: Address already in use", "port", "ip_local_port_range"),
    ],
)
def test_the_finding_says_which_rank_lacked_what(message: str, lack: str, limit: str) -> None:
    finding = _lacked(message)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    label = "rank 2 (NVIDIA H200, 0000:1a:00, local rank 0 on node gpu-2)"
    assert finding.what.startswith(f'{label} got no further {lack} from its host in "{MEET}": "')
    assert finding.what.endswith(
        f'{message[-20:]}", while connecting to other nodes: what it runs, or what came from them, is at fault'
    )
    assert limit in finding.action
    assert finding.options == ()
    assert any("Connection closed by peer" in line for line in finding.evidence)


@pytest.mark.parametrize("phase", ["bootstrap/open the store", "collectives/all_reduce 8 B"])
def test_a_lack_among_hosts_is_told_where_they_do_not_connect(phase: str) -> None:
    finding = _lacked("\n".join(NO_DESCRIPTORS), phase)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert f'got no further open file from its host in "{phase}": ' in finding.what
    assert finding.what.endswith("; none is left there, or a limit allows no more")
    assert "cables" not in finding.action


def test_a_host_that_lacks_something_is_told_without_others() -> None:
    finding = _lacked("\n".join(NO_DESCRIPTORS), nodes=1)
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert " got no further open file from its host in " in finding.what


def test_a_death_beside_a_crash_is_named() -> None:
    stream = Stream(3, nodes=3)
    stream.begin("bootstrap", "world")
    for rank, code in ((0, -11), (1, -9)):
        stream.exit(rank, code, ours=False, phase=MEET)
    stream.trouble(*({"rank": rank, "how": "dead", "phase": MEET} for rank in (0, 1)), waiting=(2,))
    stream.kill(2)
    (finding,) = blame(fold(stream.close(ranks=False).events))
    assert finding.culprit.ranks == (1,)
    assert any("rank 0" in line and "was killed by signal 11" in line for line in finding.evidence)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_words_of_a_cluster_for_a_lack_of_memory_are_shown(nodes: int) -> None:
    stream = Stream(2, nodes=nodes)
    stream.begin("bootstrap", "world")
    stream.trouble({"rank": 0, "how": "dead", "phase": MEET, "detail": "out of memory: pod t-0 was OOMKilled"})
    stream.kill(1)
    (finding,) = blame(fold(stream.close(ranks=False).events))
    assert "pod t-0 was OOMKilled" in finding.what
    assert finding.culprit.kind == ("process" if nodes == 1 else "fabric")


def test_a_crash_after_the_trial_was_interrupted_is_no_finding() -> None:
    stream = Stream(2, nodes=2)
    stream.begin("bootstrap", "world")
    stream.send("conductor", "interrupted", by="SIGINT")
    stream.step_end("interrupted")
    stream.exit(0, -6, ours=False, phase=MEET)
    stream.kill(1)
    assert blame(fold(stream.close(ranks=False).events)) == ()
