"""Doubles of a cluster with two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kubernetes.double.cluster import Cluster, made_cluster


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
