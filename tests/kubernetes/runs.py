"""Trials and trainings in pods of the double of a cluster."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from kubernetes.double.cluster import Cluster
from kubernetes.workloads import container_of, templates

import seatrial
from seatrial.targets.kubernetes.manifest.yaml_text import to_yaml

TARGETS: dict[str, tuple[str, ...]] = {
    "job": ("--on=job",),
    "jobset": ("--on=jobset",),
    "pytorchjob": ("--on=pytorchjob",),
    "trainjob": ("--on=trainjob",),
    "trainjob-mpi": ("--on=trainjob", "--runtime=mpi"),
    "mpijob": ("--on=mpijob",),
}
"""Name -> options that select the target."""
TRAINING = ("train", "--max-steps=30", "--", "digits")
SUM = (
    "import os, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "total = torch.tensor([10 ** int(os.environ['GROUP_RANK'])])\n"
    "dist.all_reduce(total)\n"
    "print('nodes', total.item(), flush=True)\n"
)
"""A script that prints ``nodes 11`` with one rank in each of two pods."""
_RUN = "trial-1"


def typed(words: Sequence[str], target: str, nproc_per_node: int) -> list[str]:
    """Return the arguments of ``seatrial``; ``words`` begin with the command."""
    size = ["--nodes=2", f"--nproc-per-node={nproc_per_node}", "--gpu-resource=none", f"--name={_RUN}"]
    # One thread a rank: a pod of the double believes that all cores of this machine are its own.
    where = [*TARGETS[target], "--image=registry.example.com/train:1", *size, "--env=OMP_NUM_THREADS=1"]
    return [words[0], *where, *words[1:]]


def start_in(cluster: Cluster, words: Sequence[str], target: str, nproc_per_node: int = 1) -> str:
    """Print the manifest, as a user would, apply it, and return what was printed."""
    source = Path(seatrial.__file__).parents[1]
    made = subprocess.run(
        [sys.executable, "-m", "seatrial", *typed([words[0], "--dry-run", *words[1:]], target, nproc_per_node)],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    objects = list(yaml.safe_load_all(made.stdout))
    for container in (container_of(pod) for thing in objects for pod in templates(thing)):
        for entry in container["env"]:
            if entry["name"] == "SEATRIAL_JOIN_TIMEOUT_S":
                # Here pods come at once or never: no image is pulled.
                entry["value"] = "20"
    done = cluster.call("apply", "-f", "-", stdin=to_yaml(objects))
    if "must be created before" in done.stderr:
        # As docs/kubernetes.md says of Trainer's webhook.
        time.sleep(0.5)
        done = cluster.call("apply", "-f", "-", stdin=to_yaml(objects))
    assert done.returncode == 0, done.stderr
    return made.stdout


def report_by_hand(cluster: Cluster, manifest: str, folder: Path) -> Any:
    """Return the report that the command in the first line of a printed manifest gets, as a user would type it."""
    found = re.match(r"# The report as JSON, when the trial has ended: (kubectl .+ > (\S+))\n", manifest)
    assert found, manifest[:200]
    environ = {**os.environ, "PATH": f"{cluster.kubectl.parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", found[1]], cwd=folder, env=environ, timeout=50, check=True)
    return json.loads((folder / found[2]).read_text())


def run_in(cluster: Cluster, words: Sequence[str], target: str, nproc_per_node: int = 1) -> tuple[str, str]:
    """Run in two pods; return what ``end_of`` does."""
    start_in(cluster, words, target, nproc_per_node)
    return end_of(cluster, target)


def end_of(cluster: Cluster, target: str) -> tuple[str, str]:
    """Return the end of the workload (``Failed``, ...) and the logs, the first pod's first.

    Pods that a controller has deleted meanwhile have no log.
    """
    end = cluster.await_end(TARGETS[target][0].partition("=")[2], _RUN)
    names = sorted(str(pod["metadata"]["name"]) for pod in cluster.get("pods")["items"])
    return end, "".join(map(cluster.log, sorted(names, key=lambda name: "-launcher-" not in name)))


def first_pod(cluster: Cluster) -> str:
    """Return the pod that conducts: the launcher if there is one."""
    names = sorted(str(pod["metadata"]["name"]) for pod in cluster.get("pods")["items"])
    return next((name for name in names if "-launcher-" in name), names[0])


def await_said(cluster: Cluster, text: str, timeout_s: float = 40.0) -> None:
    """Wait until the first pod has printed this."""
    until = time.monotonic() + timeout_s
    while not (cluster.get("pods")["items"] and text in cluster.log(first_pod(cluster))):
        assert time.monotonic() < until, f"nobody has said {text!r}"
        time.sleep(0.3)


def digest_in(said: str) -> str:
    """Return the digest of the parameters that a training printed."""
    found = re.search(r"digests of all ranks equal: ([0-9a-f]{64})", said)
    assert found, said
    return found[1]


@functools.cache
def digest_here() -> str:
    """Return the digest of the same training (TRAINING, two ranks) on this machine."""
    words = [sys.executable, "-m", "seatrial", "train", "--device=cpu", "--nproc-per-node=2", "--env=OMP_NUM_THREADS=1"]
    done = subprocess.run([*words, *TRAINING[1:]], capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    return digest_in(done.stdout + done.stderr)
