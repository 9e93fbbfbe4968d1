"""Scripts and trainings that the controller drives, on the double of a cluster: their words and their end come here."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.driven import driven, plant_after, stop
from kubernetes.runs import SUM, TRAINING, digest_here, digest_in

pytestmark = pytest.mark.cluster
_LAUNCH = ("launch", "--pvc=code:/code", "--", "/code/script.py")


def test_a_script_is_followed_to_its_end(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.claim("code") / "script.py").write_text(f"{SUM}dist.destroy_process_group()\n")
    ended = driven(cluster, tmp_path / "out", _LAUNCH)
    assert ended.code == 0, ended.said
    assert re.search(r"^(\S+ )?nodes 11$", ended.said, re.MULTILINE), ended.said


def test_a_script_that_fails_is_named_with_its_code(cluster: Cluster, tmp_path: Path) -> None:
    end = "if dist.get_rank() == 1:\n    print('no such file: data', flush=True)\n    os._exit(7)\ndist.barrier()\n"
    (cluster.claim("code") / "script.py").write_text(SUM + end)
    ended = driven(cluster, tmp_path / "out", _LAUNCH)
    assert ended.code == 1, ended.said
    assert re.search(r"rank 1 on node-[01] failed with exit code 7: no such file: data;", ended.said), ended.said


def test_a_script_is_stopped_by_ctrl_c(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.claim("code") / "script.py").write_text(f"{SUM}import time\ntime.sleep(600)\n")
    ended = driven(cluster, tmp_path / "out", _LAUNCH, "jobset", meanwhile=stop(cluster, "nodes 11"))
    assert ended.code == 130, ended.said


@pytest.mark.parametrize("target", ["job", pytest.param("mpijob", marks=pytest.mark.slow)])
def test_a_training_ends_here_with_its_parameters(target: str, cluster: Cluster, tmp_path: Path) -> None:
    if target == "mpijob" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    ended = driven(cluster, tmp_path / "out", TRAINING, target)
    assert ended.code == 0, ended.said
    assert digest_in(ended.said) == digest_here()


def test_a_training_whose_pod_has_no_memory_left_fails(cluster: Cluster, tmp_path: Path) -> None:
    killed = plant_after(cluster, "local rank 0, process", {"fault": "oom-killed", "pods": "trial-1-1-*"})
    ended = driven(cluster, tmp_path / "out", ("train", "--epochs=1000", "--", "digits"), meanwhile=killed)
    assert ended.code == 1, ended.said
    assert re.search(r"pod trial-1-1-\S+ on node node-\d was killed because it needed more memory", ended.said)


@pytest.mark.slow
def test_a_training_is_stopped_by_ctrl_c(cluster: Cluster, tmp_path: Path) -> None:
    words = ("train", "--epochs=1000", "--", "digits")
    ended = driven(cluster, tmp_path / "out", words, meanwhile=stop(cluster, "local rank 0, process"))
    assert ended.code == 130, ended.said
