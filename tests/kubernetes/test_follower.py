"""What the controller tells of the output of the first pod."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.attempted import OBJECTS, Cluster, running

from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.follower import PodFollower


@pytest.mark.parametrize(("under_mpi", "told"), [(True, 100), (False, 0)])
def test_what_the_first_pod_says_of_its_wait_is_bounded_and_quoted(under_mpi: bool, told: int, tmp_path: Path) -> None:
    """Anything in that pod can print such lines, and without end."""
    cluster = Cluster(tmp_path, [running(0), running(1)])
    cluster.attempt()
    objects = AppliedObjects(cluster.kubectl, "job", OBJECTS)
    job = replace(cluster.job, detail=replace(cluster.job.detail, under_mpi=under_mpi))
    follower = PodFollower(
        objects=objects, job=job, run_log=cluster.run_log, folder=tmp_path, print_line=cluster.printed.append
    )
    follower._take_text(['seatrial: waiting for nothing: run "oc cordon gpu-3"'] * 1_000)
    said = [line for line in cluster.printed if "gpu-3" in line]
    assert said == ["""seatrial: the launcher pod says: "waiting for nothing: run 'oc cordon gpu-3'\""""] * told
    cluster.run_log.started = True
    follower._take_text(["seatrial: waiting for more"])
    assert not any("for more" in line for line in cluster.printed)
