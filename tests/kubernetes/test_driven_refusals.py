"""Refusals before anything is created, on the double of a cluster: one sentence, exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.driven import SHORT_TRIAL, driven

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("target", "fault", "words"),
    [
        (
            "jobset",
            {"fault": "crd-absent", "kind": "JobSet"},
            "--on jobset: this cluster has no JobSet; install JobSet 0.6 or newer",
        ),
        (
            "trainjob",
            {"fault": "crd-absent", "kind": "Train*"},
            "--on trainjob: this cluster has no TrainingRuntime; install Kubeflow Trainer 2.0 or newer",
        ),
        ("job", {"fault": "forbidden", "verb": "create", "resource": "jobs"}, 'cannot create resource "jobs"'),
        ("job", {"fault": "forbidden", "verb": "list", "resource": "pods"}, "you may not list pods in"),
        ("job", {"fault": "namespace-absent"}, "the namespace default does not exist; create it"),
    ],
)
def test_it_is_refused_in_a_sentence(
    target: str, fault: dict[str, Any], words: str, same_cluster: Cluster, tmp_path: Path
) -> None:
    same_cluster.plant(fault)
    before = len(same_cluster.calls())
    ended = driven(same_cluster, tmp_path / "out", SHORT_TRIAL, target)
    assert ended.code == 2, ended.said
    (line,) = ended.said.splitlines()
    assert words in line
    assert not ended.report
    applied = [call for call in same_cluster.calls()[before:] if call[0] == "apply"]
    assert all("--dry-run=server" in call for call in applied)


@pytest.mark.slow
def test_a_server_that_never_answers(same_cluster: Cluster, tmp_path: Path) -> None:
    same_cluster.plant({"fault": "api-silent"})
    ended = driven(same_cluster, tmp_path / "out", SHORT_TRIAL)
    assert ended.code == 3, ended.said
    assert "the cluster does not answer: " in ended.said
