"""Fixtures of agents that run in the process of the tests."""

from __future__ import annotations

import pytest

from seatrial.agent import orphans


@pytest.fixture
def keeps_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an agent in this process end none of its other children, such as the resource tracker of multiprocessing."""
    monkeypatch.setattr(orphans, "adopt", lambda: None)
    monkeypatch.setattr(orphans, "end", lambda: None)
