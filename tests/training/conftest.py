"""One set of rank processes for all files here that need three ranks: starting them costs more than what they do."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from training.rank_processes import run_jobs


@pytest.fixture(scope="session")
def three_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What ``on_3_ranks(rank, folder)`` gave, of each collected file that has one: file -> by rank."""
    collected = {item.module.__name__ for item in request.session.items if isinstance(item, pytest.Function)}
    names = sorted(name for name in collected if hasattr(sys.modules[name], "on_3_ranks"))
    folder = tmp_path_factory.mktemp("ranks")
    return run_jobs(3, {name: (sys.modules[name].on_3_ranks, (str(folder / name),)) for name in names})
