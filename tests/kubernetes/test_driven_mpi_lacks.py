"""Kinds under MPI without a part that their operators provide, on the double of a cluster."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from kubernetes.double.cluster import made_cluster
from kubernetes.driven import SHORT_TRIAL, await_in_file, driven

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun"),
]
_VOLUMES = {
    # As mpi-operator and Trainer name them (the recordings run-mpijob, run-trainjob-mpi).
    "mpijob": {"ssh-auth": "ssh-auth", "hostfile": "mpi-job-config"},
    "trainjob-mpi": {"ssh-auth": "mpi-ssh-auth", "hostfile": "mpi-hostfile"},
}


@pytest.mark.parametrize("target", ["mpijob", pytest.param("trainjob-mpi", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        pytest.param(
            ("ssh-auth", "*"),
            "id_rsa.pub is not there: the operator has not mounted the key of the run",
            marks=pytest.mark.nightly,
        ),
        (
            ("ssh-auth", "*-launcher-*"),
            "id_rsa.pub is not there: the operator has not mounted the key of the run",
        ),
        (
            ("hostfile", "*"),
            "hostfile is not there: the operator has not mounted the list of the nodes",
        ),
    ],
)
def test_a_missing_part_of_the_operator_is_named(
    target: str, lacks: tuple[str, str], words: str, tmp_path: Path
) -> None:
    what, pods = lacks
    with made_cluster() as cluster:
        cluster.plant({"fault": "unmounted", "volume": _VOLUMES[target][what], "pods": pods})
        ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, target)
    assert ended.code == 3, ended.said
    assert words in ended.said
    assert not ended.blames


def test_a_name_that_never_comes_is_waited_for_in_words(tmp_path: Path) -> None:
    """An operator may make the names later than the pods, so the launcher waits until the join timeout of the run."""
    with made_cluster() as cluster:
        cluster.plant({"fault": "no-service"})
        waiting = 'seatrial: the launcher pod says: "waiting for trial-1-worker-0'

        def press(process: subprocess.Popen[bytes]) -> None:
            """Press Ctrl-C when the user has read it, and not only the log of the pod."""
            await_in_file(tmp_path / "out.said", waiting)
            process.send_signal(signal.SIGINT)

        ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, "mpijob", meanwhile=press)
    assert ended.code == 130, ended.said
    assert re.search(
        r'^seatrial: the launcher pod says: "waiting for trial-1-worker-0\S* \(.+\), trial-1-.* \(.+\), for \d+ s"$',
        ended.said,
        re.M,
    )
    assert not ended.blames
