"""Links between pods, on the double of a cluster: the first pod chooses which of them to measure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.double.cluster import Cluster, made_cluster
from kubernetes.driven import driven

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with made_cluster() as made:
        yield made


@pytest.mark.parametrize("target", ["job", pytest.param("mpijob", marks=pytest.mark.nightly)])
def test_links_between_pods_are_measured_and_judged(target: str, cluster: Cluster, tmp_path: Path) -> None:
    ended = driven(cluster, tmp_path / "out", ("run", "--only=inventory,links", "--", "standard"), target)
    assert ended.code == 0, ended.said
    measured = {
        (measurement["name"], measurement["rank"], measurement["peer"])
        for measurement in ended.report["measurements"]
        if measurement["check"] == "links"
    }
    assert {("gbps", 0, 1), ("gbps", 1, 0), ("latency_us", 0, 1)} <= measured
    assert not any("links" in reason for reason in ended.report["acceptance"]["partial"]), ended.report["acceptance"]
