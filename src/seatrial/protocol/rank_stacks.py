"""The Python stacks of a rank, as faulthandler writes them: thread by thread, the one that runs the steps last."""

from __future__ import annotations

STEP_LOOP = "worker/worker_main.py"


def innermost_frame(text: str) -> str | None:
    """Return the innermost frame of the thread that runs the steps. None: the text does not show that thread.

    Then nothing is known of the rank: under load it writes its stacks late, or a part of them.
    """
    for thread in text.split("\n\n"):
        frames = [line.strip() for line in thread.splitlines() if line.lstrip().startswith("File ")]
        if any(STEP_LOOP in frame for frame in frames):
            return frames[0]
    return None
