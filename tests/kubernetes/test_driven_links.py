"""Links between pods: the first pod works out which of them to measure, with what lies beside the file that travels."""

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


@pytest.mark.parametrize("target", ["job", "mpijob"])
def test_links_between_pods_are_measured_and_judged(target: str, cluster: Cluster, tmp_path: Path) -> None:
    ended = driven(cluster, tmp_path / "out", ("run", "--only=inventory,links", "--", "standard"), target)
    assert ended.code == 0, ended.said
    told = {
        (figure["name"], figure["rank"], figure["peer"])
        for figure in ended.report["figures"]
        if figure["check"] == "links"
    }
    assert {("gbps", 0, 1), ("gbps", 1, 0), ("latency_us", 0, 1)} <= told
    assert not any("links" in reason for reason in ended.report["acceptance"]["partial"]), ended.report["acceptance"]
