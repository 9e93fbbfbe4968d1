"""What one rank of a training decides by itself: its threads, its exit code."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.worker import train

WELL: dict[str, Any] = {"nonfinite": None, "difference": "", "stopped": False, "missed": None}


@pytest.mark.parametrize(
    ("environ", "ranks", "threads"),
    [
        ({}, 1, 8),
        ({}, 3, 2),
        # The wrong way: at least one thread a core in each rank, hundreds of times slower than one.
        ({}, 64, 1),
        ({"OMP_NUM_THREADS": "5"}, 4, 5),
        ({"OMP_NUM_THREADS": "1"}, 4, 1),
        # torchrun says 1 where the user has said nothing.
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, 4, 2),
        ({"OMP_NUM_THREADS": "many"}, 4, 2),
        ({"OMP_NUM_THREADS": "0"}, 4, 2),
    ],
    ids=str,
)
def test_a_rank_has_its_share_of_the_cores_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], ranks: int, threads: int
) -> None:
    monkeypatch.setattr(train, "usable_cores", lambda: 8)
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert train._threads(ranks) == threads


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"missed": 0.9}, 1),
        ({"stopped": True}, 130),
        ({"stopped": True, "missed": 0.9}, 130),
        ({"difference": "rank 1 holds other parameters"}, 1),
        ({"difference": "rank 1 holds other parameters", "stopped": True}, 1),
        ({"nonfinite": {"what": "loss", "ranks": []}}, 1),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_training_is_never_hidden_by_how_it_ended(changes: dict[str, Any], code: int) -> None:
    assert train._code({**WELL, **changes}) == code
