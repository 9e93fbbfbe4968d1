"""Kinds under MPI where a part that operators provide is missing, or somebody else's, on the double of a cluster."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from kubernetes.double.cluster import made_cluster
from kubernetes.driven import HALF_WAY, SHORT_TRIAL, await_in_file, await_in_logs, driven
from launchers.mpiruns import each_mpirun

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun"),
]
_HOST_FILES = {"mpijob": "mpi-job-config", "trainjob-mpi": "mpi-hostfile"}
"""Their volumes, as mpi-operator and Trainer name them (the recordings run-mpijob, run-trainjob-mpi)."""


@pytest.mark.parametrize("target", ["mpijob", pytest.param("trainjob-mpi", marks=pytest.mark.slow)])
def test_a_missing_host_file_is_named(target: str, tmp_path: Path) -> None:
    with made_cluster() as cluster:
        cluster.plant({"fault": "unmounted", "volume": _HOST_FILES[target], "pods": "*"})
        ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, target)
    assert ended.code == 3, ended.said
    assert "hostfile is not there: the operator has not mounted the list of the nodes" in ended.said
    assert not ended.blames


def test_a_key_of_somebody_else_runs_no_code_in_the_pods(tmp_path: Path) -> None:
    """Trainer takes any Secret of that name, whoever has made it, and an account may be allowed to create just that."""
    name, file = "trial-1-mpi-ssh-auth", tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)], check=True)
    public = file.with_suffix(".pub").read_text()
    command = r'command="echo A STRANGER RUNS CODE >&2; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"" '
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/ssh-auth",
        "metadata": {"name": name},
        # The first line is read as the host key, too.
        "stringData": {"ssh-privatekey": file.read_text(), "ssh-publickey": command + public + public},
    }
    with made_cluster() as cluster:
        made = cluster.call("create", "-f", "-", stdin=json.dumps(secret))
        assert made.returncode == 0, made.stderr

        def remove(process: subprocess.Popen[bytes]) -> None:
            """Remove the Secret when the ranks run, since nothing of it is to be left at the end."""
            await_in_logs(cluster, HALF_WAY)
            cluster.call("delete", "secret", name)

        ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, "trainjob-mpi", meanwhile=remove)
        logs = "".join(log.read_text(errors="replace") for log in cluster.folder.glob("pods/*/*.log"))
    assert ended.code == 0, ended.said
    assert HALF_WAY in logs
    assert logs.count("A STRANGER RUNS CODE") == 0


@pytest.mark.mpi
@each_mpirun
def test_a_service_of_the_name_of_the_launcher_gets_no_rank(mpirun: str, tmp_path: Path) -> None:
    """Whoever answered for that name told the proxies of hydra in the workers what to run."""
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in said:
        pytest.skip("Open MPI gives its daemons addresses")
    mpi = "intel" if "Intel(R) MPI" in said else "mpich"
    name = "trial-1-launcher"
    # The double has no pods of strangers: the name leads to one of the run that is not the launcher.
    elsewhere = {"training.kubeflow.org/job-name": "trial-1", "training.kubeflow.org/replica-index": "1"}
    spec = {"clusterIP": "None", "selector": elsewhere, "publishNotReadyAddresses": True}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    with made_cluster() as cluster:
        made = cluster.call("create", "-f", "-", stdin=json.dumps(service))
        assert made.returncode == 0, made.stderr

        def remove(process: subprocess.Popen[bytes]) -> None:
            """Remove the Service when the ranks run, since nothing of it is to be left at the end."""
            await_in_logs(cluster, HALF_WAY)
            cluster.call("delete", "service", name)

        words = [SHORT_TRIAL[0], f"--mpi={mpi}", f"--mpirun={mpirun}", *SHORT_TRIAL[1:]]
        ended = driven(cluster, tmp_path / "out", words, "mpijob", meanwhile=remove)
    assert ended.code == 0, ended.said


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
