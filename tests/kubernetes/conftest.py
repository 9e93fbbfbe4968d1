"""Doubles of a cluster with two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kubernetes.double.cluster import Cluster, made_cluster

from seatrial.targets.kubernetes import attempt, follower


@pytest.fixture(autouse=True)
def lists_follow_each_other_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double of kubectl answers at once: it is asked ten times as often as a real cluster."""
    monkeypatch.setattr(attempt, "_TURN_S", 0.02)
    monkeypatch.setattr(follower, "_POLL_S", 0.2)
    monkeypatch.setattr(follower, "_CHANGING_POLL_S", 0.1)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A fresh one for each test."""
    with made_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def same_cluster() -> Iterator[Cluster]:
    """One for all tests of a file, which must leave nothing in it."""
    with made_cluster() as made:
        yield made
