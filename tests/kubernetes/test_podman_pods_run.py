"""Pods of the double of a cluster as containers of podman: what a manifest asks for, a container runtime holds.

SEATRIAL_TEST_BASE_IMAGE names a Debian image with Python of our version that podman has (tools/make_base_image.sh);
SEATRIAL_TEST_IMAGES is what the names of our own images begin with (tools/build_images.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_day import by_day
from kubernetes.double.cluster import Cluster, made_cluster
from kubernetes.driven import RIGHTS_SCRIPT, SHORT_TRIAL, driven, may_write
from kubernetes.runs import TRAINING, digest_here, digest_in
from passes import passes

_IMAGE = os.environ.get("SEATRIAL_TEST_BASE_IMAGE")
_IMAGES = os.environ.get("SEATRIAL_TEST_IMAGES")
pytestmark = [pytest.mark.cluster, pytest.mark.podman]
_HOG = (
    "import os, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "if dist.get_rank() == 1:\n"
    "    held = bytearray(os.urandom(1 << 20) * 2048)\n"
    "dist.barrier()\n"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if _IMAGE is None:
        pytest.skip("SEATRIAL_TEST_BASE_IMAGE names no image")
    # A name that is asked for too early is a topic of the tests without podman.
    with made_cluster(image=_IMAGE, dns_denial_s=1.0) as made:
        yield made


@pytest.mark.slow
def test_a_trial_passes(cluster: Cluster, tmp_path: Path) -> None:
    ended = driven(cluster, tmp_path / "out", ("run", "--", "smoke"))
    assert ended.code == 0, ended.said
    assert passes(ended.said), ended.said


# By day without containers (test_driven_programs.py).
@pytest.mark.nightly
def test_a_training_has_the_same_parameters_as_locally(cluster: Cluster, tmp_path: Path) -> None:
    ended = driven(cluster, tmp_path / "out", TRAINING)
    assert ended.code == 0, ended.said
    assert digest_in(ended.said) == digest_here()


def test_a_container_has_no_more_rights_than_its_manifest_says(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.claim("code") / "rights.py").write_text(RIGHTS_SCRIPT)
    words = ("launch", "--pvc=code:/code", "--shm-size=96Mi", "--", "/code/rights.py")
    ended = driven(cluster, tmp_path / "out", words, "jobset")
    assert ended.code == 0, ended.said
    assert "uid 10001 gid 10001 groups [10001]" in ended.said
    assert "caps 0000000000000000 0000000000000000 escalation 1 seccomp 2" in ended.said
    assert f"shm {96 << 20}" in ended.said
    assert may_write(ended.said) == ["/home/seatrial", "/tmp", "/dev/shm"]


def test_a_rank_over_the_memory_limit_of_its_pod_is_named(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.claim("code") / "hog.py").write_text(_HOG)
    words = ("launch", "--pvc=code:/code", "--memory=1Gi", "--shm-size=64Mi", "--", "/code/hog.py")
    ended = driven(cluster, tmp_path / "out", words, "pytorchjob")
    assert ended.code == 1, ended.said
    assert re.search(r"rank 1 on node node-\d was killed by signal 9", ended.said), ended.said


@pytest.mark.skipif(not _IMAGES, reason="SEATRIAL_TEST_IMAGES names no images")
@pytest.mark.parametrize("words", by_day([(SHORT_TRIAL,), (("run", "--", "smoke"),)]), ids=["short", "whole"])
def test_launcher_and_workers_are_containers_of_our_image_for_mpi(words: tuple[str, ...], tmp_path: Path) -> None:
    with made_cluster(image=f"{_IMAGES}-mpi", image_has_torch=True) as cluster:
        ended = driven(cluster, tmp_path / "out", words, "mpijob")
    assert ended.code == 0, ended.said
    assert passes(ended.said) if words != SHORT_TRIAL else "PASS (partial" in ended.said, ended.said
