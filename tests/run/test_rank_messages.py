"""Messages of ranks from the log of a pod: whoever wrote them, they are about a rank and a generation of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.test_program_display import PROGRESS
from targets.jobs import A_JOB

from seatrial.protocol.commands import MOST_OUTPUT_CHARS
from seatrial.protocol.fields import MOST_GENERATIONS, DamageError
from seatrial.run.conduct import conduct
from seatrial.run.rank_messages import READ, require_sound
from seatrial.targets.registry import TARGETS

_LAST = {"rank": 1, "gen": 2}
_SOUND: dict[str, dict[str, Any]] = {
    "log": {"kind": "log", "at": 0, "data": "", "last": True},
    "output": {"kind": "output", "lines": ["a line"], "left_out": 0},
    "progress": PROGRESS,
}


def test_all_that_is_read_has_a_case() -> None:
    assert set(READ) == set(_SOUND)


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize(("key", "value"), [("rank", 2), ("rank", 2**62), ("gen", 3), ("rank", -1), ("gen", True)])
def test_a_rank_or_generation_that_the_run_does_not_have_is_damage(kind: str, key: str, value: int) -> None:
    require_sound({**_SOUND[kind], **_LAST}, 2, 3)
    with pytest.raises(DamageError, match=key):
        require_sound({**_SOUND[kind], **_LAST, key: value}, 2, 3)


@pytest.mark.parametrize("lines", [["x" * MOST_OUTPUT_CHARS], [""] * (MOST_OUTPUT_CHARS + 1), ["x", 1], "x", None])
def test_output_that_no_agent_sends_is_damage(lines: object) -> None:
    with pytest.raises(DamageError, match="lines"):
        require_sound({**_SOUND["output"], **_LAST, "lines": lines}, 2, 3)


@pytest.mark.parametrize("kind", READ)
def test_more_than_is_read_is_damage(kind: str) -> None:
    """It would fill the log of a pod, and nothing bounds it."""
    with pytest.raises(DamageError, match="x"):
        require_sound({**_SOUND[kind], **_LAST, "x": 1}, 2, 3)


def test_a_log_that_is_followed_speaks_of_the_ranks_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[dict[str, Any]] = []

    def follow(job: Any, run: Any, folder: Path, on_event: Any, on_message: Any, signals: Any) -> int:
        on_message({**_SOUND["output"], "rank": job.world_size - 1, "gen": MOST_GENERATIONS - 1})
        for changes in ({"rank": job.world_size, "gen": 0}, {"rank": 0, "gen": MOST_GENERATIONS}):
            with pytest.raises(DamageError):
                on_message({**_SOUND["output"], **changes})
        return 0

    target = replace(TARGETS[A_JOB.target], submit_and_follow=follow)
    monkeypatch.setattr("seatrial.run.conduct.TARGETS", {A_JOB.target: target})
    assert conduct(A_JOB, tmp_path, lambda event: None, [], on_message=taken.append) == 0
    assert len(taken) == 1
