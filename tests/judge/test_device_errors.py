"""A device that fails while NCCL uses it: first NCCL complains, then torch."""

from __future__ import annotations

import pytest
from event_streams import Stream, on_gpus

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
