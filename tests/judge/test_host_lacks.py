"""A rank whose host has no thread or process left for it: any user there may have taken them, so nobody is named."""

from __future__ import annotations

import pytest
from event_streams import Stream, on_gpus
from fake_checks import fake_load

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.conclude import conclude
from seatrial.judge.fold import fold

LIBGOMP = "libgomp: Thread creation failed: Resource temporarily unavailable"
PHASE = "training/step 3 forward"


def _ended(code: int, *lines: str, gpus: bool = False) -> list[Finding]:
    """Return the findings where rank 1 of four ends with this output; rank 3 sees a communication error."""
    stream = Stream(4, nodes=2).until("training")
    stream.error(3, "fabric", "Connection closed by peer", PHASE)
    stream.exit(1, code, ours=False, phase=PHASE, last_lines=lines)
    dead = {"rank": 1, "how": "dead", "phase": PHASE, "detail": f"exit code {code}"}
    stream.trouble(dead, {"rank": 3, "how": "error", "detail": "fabric"}, waiting=(0, 2))
    stream.kill(0, 2, 3)
    return list(blame(fold((on_gpus(stream) if gpus else stream).close(ranks=False).events)))


def _of_error(cause: str, message: str, *ranks: int) -> list[Finding]:
    stream = Stream(4, nodes=2).until("training")
    for rank in ranks:
        stream.error(rank, cause, message, PHASE)
    stream.trouble(*({"rank": rank, "how": "error", "detail": cause} for rank in ranks))
    stream.kill(0, 1, 2, 3)
    return list(blame(fold(stream.close(ranks=False).events)))


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (1, ("", LIBGOMP)),
        (1, ("OMP: Error #34: System unable to allocate necessary resources for OMP thread:", "OMP: Hint Try")),
        (1, ("OMP: System error #11: Resource temporarily unavailable",)),
        (1, ("Traceback (most recent call last):", "RuntimeError: can't start new thread")),
        (1, ("BlockingIOError: [Errno 11] Resource temporarily unavailable",)),
        (
            -6,
            (
                "terminate called after throwing an instance of 'std::system_error'",
                "  what():  Resource temporarily unavailable",
            ),
        ),
        (-2, ("OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource temporarily unavailable",)),
        (
            -11,
            ("OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource temporarily unavailable",),
        ),
    ],
)
def test_a_rank_that_ends_without_a_thread_is_not_named(code: int, lines: tuple[str, ...], gpus: bool) -> None:
    (finding,) = _ended(code, *lines, gpus=gpus)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("error", "none", ())
    assert f'on node gpu-0) got no further thread or process from its host in "{PHASE}": "' in finding.what
    for words in ("pid_max", "ulimit -u", "pids.max", "TasksMax", "memory"):
        assert words in finding.action
    assert any("rank 3" in line and "Connection closed" in line for line in finding.evidence)


def test_the_trial_is_inconclusive() -> None:
    stream = Stream(2).until("training")
    stream.exit(1, 1, ours=False, phase=PHASE, last_lines=(LIBGOMP,))
    stream.trouble({"rank": 1, "how": "dead", "phase": PHASE, "detail": "exit code 1"}, waiting=(0,))
    stream.kill(0)
    assert conclude(stream.close(ranks=False).events, load=fake_load).verdict.status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (1, "another line"),
        (1, f"a file of rank 0 says: {LIBGOMP}"),
        (1, "read: Resource temporarily unavailable"),
        (-9, LIBGOMP),
        (-15, LIBGOMP),
        (-11, "Fatal Python error: Segmentation fault"),
    ],
)
def test_other_ends_name_the_rank(code: int, line: str) -> None:
    (finding,) = _ended(code, line)
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


@pytest.mark.parametrize(("phase", "named"), [("bootstrap/meet at the store", ()), ("training/step 3", (1,))])
def test_a_library_that_lacks_its_second_thread_while_a_group_forms(phase: str, named: tuple[int, ...]) -> None:
    stream = Stream(2).until("bootstrap")
    stream.exit(1, -6, ours=False, phase=phase, last_lines=("terminate called without an active exception",))
    stream.trouble({"rank": 1, "how": "dead", "phase": phase, "detail": "exit code -6"}, waiting=(0,))
    stream.kill(0)
    (finding,) = blame(fold(stream.close(ranks=False).events))
    assert finding.culprit.ranks == named
    assert ("got no further thread or process from its host" in finding.what) == (named == ())


def test_words_of_the_device_outweigh_it() -> None:
    (finding,) = _ended(1, LIBGOMP, "CUDA error: uncorrectable ECC error encountered", gpus=True)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (1,))


def test_there_is_one_finding_for_each_host() -> None:
    findings = _of_error("processes", "can't start new thread", 0, 1, 2)
    assert [finding.culprit.kind for finding in findings] == ["none", "none"]
    assert "; nor did rank 1; all are taken there" in findings[0].what
    assert findings[1].what.startswith("rank 2 ")
    assert "nor did" not in findings[1].what


def test_a_real_fault_beside_it_stays_named() -> None:
    stream = Stream(4, nodes=2).until("training")
    stream.error(0, "device", "CUDA error: uncorrectable ECC error encountered", PHASE)
    stream.error(2, "processes", "can't start new thread", PHASE)
    stream.trouble(*({"rank": rank, "how": "error"} for rank in (0, 2)))
    stream.kill(0, 1, 2, 3)
    named = {finding.severity: finding.culprit.ranks for finding in blame(fold(stream.close(ranks=False).events))}
    assert named == {"fail": (0,), "error": ()}
