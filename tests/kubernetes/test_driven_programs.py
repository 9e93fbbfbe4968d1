"""Scripts and trainings run by the controller, on the double of a cluster: output and exit code."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.driven import await_in_logs, driven, plant_after, stop
from kubernetes.runs import SUM, TRAINING, digest_here, digest_in

pytestmark = pytest.mark.cluster
_LAUNCH = ("launch", "--pvc=code:/code", "--", "/code/script.py")


@pytest.mark.nightly
def test_a_script_is_followed_to_its_end(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.claim("code") / "script.py").write_text(f"{SUM}dist.destroy_process_group()\n")
    ended = driven(cluster, tmp_path / "out", _LAUNCH)
    assert ended.code == 0, ended.said
    assert re.search(r"^(\S+ )?nodes 11$", ended.said, re.MULTILINE), ended.said


def test_all_output_comes_home(cluster: Cluster, tmp_path: Path) -> None:
    """Of 60,000 lines a rank 2,172 were shown, and 80 were kept."""
    prints = "import os\nfor number in range(20_000):\n    print(os.environ['RANK'], 'line', number)\n"
    (cluster.claim("code") / "script.py").write_text(prints)
    ended = driven(cluster, tmp_path / "out", _LAUNCH)
    assert ended.code == 0, ended.said
    for rank in (0, 1):
        text = (ended.folder / f"rank{rank}.gen0.log").read_text()
        assert text == "".join(f"{rank} line {number}\n" for number in range(20_000))
    assert "the file of the rank has them" in ended.said
    assert "missing" not in ended.said


def test_a_script_under_mpi_succeeds_by_the_ends_of_its_ranks(cluster: Cluster, tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    more = "print('ours', [name for name in os.environ if name.startswith('SEATRIAL_') and 'TEST' not in name])\n"
    (cluster.claim("code") / "script.py").write_text(f"{SUM}{more}dist.destroy_process_group()\n")
    ended = driven(cluster, tmp_path / "out", _LAUNCH, "mpijob")
    assert ended.code == 0, ended.said
    assert re.search(r"^nodes 11$", ended.said, re.MULTILINE), ended.said
    assert "ours []" in ended.said
    assert sorted(path.name for path in ended.folder.glob("rank*")) == ["rank0.gen0.log", "rank1.gen0.log"]


@pytest.mark.nightly
@pytest.mark.parametrize("worker", [0, 1])
def test_a_killed_worker_fails_a_script_under_mpi(worker: int, cluster: Cluster, tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    (cluster.claim("code") / "script.py").write_text(f"{SUM}import time\ntime.sleep(600)\n")
    killed = plant_after(cluster, "nodes 11", {"fault": "oom-killed", "pods": f"*-worker-{worker}"})
    ended = driven(cluster, tmp_path / "out", _LAUNCH, "mpijob", meanwhile=killed)
    assert ended.code == 1, ended.said
    assert re.search(rf"pod trial-1-worker-{worker} on node node-\d was killed because it needed", ended.said), (
        ended.said
    )


def test_a_script_that_fails_is_named_with_its_code(cluster: Cluster, tmp_path: Path) -> None:
    end = "if dist.get_rank() == 1:\n    print('no such file: data', flush=True)\n    os._exit(7)\ndist.barrier()\n"
    (cluster.claim("code") / "script.py").write_text(SUM + end)
    ended = driven(cluster, tmp_path / "out", _LAUNCH)
    assert ended.code == 1, ended.said
    words = (
        r'rank 1 on node node-[01] failed with exit code 7 without a traceback; its last line: "no such file: data";'
    )
    assert re.search(words, ended.said), ended.said


@pytest.mark.nightly
def test_a_script_is_stopped_by_ctrl_c(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.claim("code") / "script.py").write_text(f"{SUM}import time\ntime.sleep(600)\n")
    ended = driven(cluster, tmp_path / "out", _LAUNCH, "jobset", meanwhile=stop(cluster, "nodes 11"))
    assert ended.code == 130, ended.said


@pytest.mark.parametrize(
    "target",
    [pytest.param("job", marks=pytest.mark.nightly), "trainjob", pytest.param("mpijob", marks=pytest.mark.slow)],
)
def test_a_training_returns_its_parameters(target: str, cluster: Cluster, tmp_path: Path) -> None:
    if target == "mpijob" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    ended = driven(cluster, tmp_path / "out", TRAINING, target)
    assert ended.code == 0, ended.said
    assert digest_in(ended.said) == digest_here()


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["pytorchjob", "mpijob"])
def test_a_slow_kubectl_makes_no_interruption(target: str, cluster: Cluster, tmp_path: Path) -> None:
    """The operators delete the other pods when the first one has succeeded (the recording slow-train-mpijob-1)."""
    if target == "mpijob" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    cluster.plant({"fault": "slow", "seconds": 0.4})
    ended = driven(cluster, tmp_path / "out", TRAINING, target)
    assert ended.code == 0, ended.said
    assert "was deleted" not in ended.said
    assert digest_in(ended.said) == digest_here()


@pytest.mark.nightly
def test_a_killed_worker_fails_a_training_under_mpi(cluster: Cluster, tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    killed = plant_after(cluster, "local rank 0, process", {"fault": "oom-killed", "pods": "*-worker-1"})
    ended = driven(cluster, tmp_path / "out", ("train", "--epochs=1000", "--", "digits"), "mpijob", meanwhile=killed)
    assert ended.code == 1, ended.said
    assert re.search(r"pod trial-1-worker-1 on node node-\d was killed because it needed more memory", ended.said)


@pytest.mark.nightly
def test_a_training_with_a_pod_out_of_memory_fails(cluster: Cluster, tmp_path: Path) -> None:
    killed = plant_after(cluster, "local rank 0, process", {"fault": "oom-killed", "pods": "trial-1-1-*"})
    ended = driven(cluster, tmp_path / "out", ("train", "--epochs=1000", "--", "digits"), meanwhile=killed)
    assert ended.code == 1, ended.said
    assert re.search(r"pod trial-1-1-\S+ on node node-\d was killed because it needed more memory", ended.said)


@pytest.mark.slow
@pytest.mark.timeout(160)
@pytest.mark.parametrize("fault", ["oom-killed", "evicted"])
def test_a_training_whose_pods_start_again_succeeds(fault: str, cluster: Cluster, tmp_path: Path) -> None:
    def strike_once(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, "local rank 0, process", 60)
        time.sleep(3)
        cluster.plant({"fault": fault, "pods": "trial-1-node-0-1-*"})
        time.sleep(1)
        cluster.plant()

    words = ("train", "--max-restarts=1", "--epochs=60", "--checkpoint-dir=/tmp/ck", "--", "digits")
    ended = driven(cluster, tmp_path / "out", words, "jobset", meanwhile=strike_once, end_s=150.0)
    assert ended.code == 0, ended.said
    assert "all pods start again (restart 1)" in ended.said


@pytest.mark.slow
def test_a_training_is_stopped_by_ctrl_c(cluster: Cluster, tmp_path: Path) -> None:
    words = ("train", "--epochs=1000", "--", "digits")
    ended = driven(cluster, tmp_path / "out", words, meanwhile=stop(cluster, "local rank 0, process"))
    assert ended.code == 130, ended.said


def test_a_script_of_this_machine_goes_along(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("import os, sys\nprint('it is', sys.argv[0], os.environ['RANK'])\n")
    monkeypatch.chdir(tmp_path)
    ended = driven(cluster, tmp_path / "out", ("launch", "--", "mine.py"))
    assert ended.code == 0, ended.said
    assert "it is /tmp/seatrial/mine.py 0" in ended.said
