"""Device, backend and number of processes, with interpreters and accelerators that are stand-ins."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from seatrial.errors import RequestError
from seatrial.launch.place import Place, choose

pytestmark = pytest.mark.skipif(
    Path("/proc/driver/nvidia/gpus").exists() or Path("/sys/class/kfd").exists(), reason="this machine has accelerators"
)
CPU, CUDA, ROCM = ("None", "None"), ("'12.8'", "None"), ("None", "'7.1'")


class _StandInHost:
    """A host with an interpreter whose torch is a version file, and a script for nvidia-smi."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "python")
        (folder / "python").write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
        (folder / "python").chmod(0o755)
        for package in ("torch", "seatrial"):
            (folder / package).mkdir()
            (folder / package / "__init__.py").touch()

    def has(self, torch: tuple[str, str], gpus: int) -> None:
        cuda, hip = torch
        (self.folder / "torch" / "version.py").write_text(f"__version__ = '2.9.0'\ncuda = {cuda}\nhip = {hip}\n")
        tool = self.folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\n" + "".join(f"echo 'GPU {index}: stand-in'\n" for index in range(gpus)))
        tool.chmod(0o755)

    def choose(self, device: str = "auto", backend: str = "auto", nproc_per_node: int | None = None) -> Place:
        return choose(device=device, backend=backend, nproc_per_node=nproc_per_node, python=self.python)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _StandInHost:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return _StandInHost(tmp_path)


def test_without_accelerators_two_processes_on_the_cpu(host: _StandInHost) -> None:
    for torch in (CPU, CUDA):
        host.has(torch, gpus=0)
        place = host.choose()
        assert (place.device, place.nproc_per_node, place.env) == ("cpu", 2, {"GLOO_SOCKET_IFNAME": "lo"})


def test_one_process_per_accelerator(host: _StandInHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.has(CUDA, gpus=8)
    place = host.choose()
    assert (place.device, place.nproc_per_node, place.env) == ("cuda", 8, {})
    assert host.choose(nproc_per_node=3).nproc_per_node == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    place = host.choose()
    assert (place.nproc_per_node, place.because) == (2, "CUDA_VISIBLE_DEVICES=4,5")


def test_the_cpu_where_it_is_asked_for(host: _StandInHost) -> None:
    host.has(CUDA, gpus=8)
    place = host.choose(device="cpu", nproc_per_node=5)
    assert (place.device, place.nproc_per_node) == ("cpu", 5)


@pytest.mark.parametrize(
    ("torch", "gpus", "options", "words"),
    [
        (CPU, 0, {"nproc_per_node": 0}, "--nproc-per-node 0: at least one"),
        (CPU, 0, {"nproc_per_node": -2}, "--nproc-per-node -2: at least one"),
        (CPU, 0, {"nproc_per_node": 513}, "--nproc-per-node 513: more than 512"),
        (CUDA, 8, {"nproc_per_node": 9}, "--nproc-per-node 9: this machine shows 8 accelerators (nvidia-smi -L)"),
        (CPU, 0, {"device": "cuda"}, "--device cuda: torch 2.9.0 is built for the CPU only"),
        (CUDA, 0, {"device": "rocm"}, "--device rocm: torch 2.9.0 is built for cuda"),
        (ROCM, 0, {"device": "rocm"}, "--device rocm: no NVIDIA or AMD device found"),
        (CUDA, 0, {"device": "cuda"}, "--device cuda: no NVIDIA or AMD device found"),
        (CPU, 0, {"backend": "nccl"}, "--backend nccl: NCCL moves data between GPUs only"),
        (CPU, 8, {}, "has 8 nvidia devices (nvidia-smi -L), but torch 2.9.0 is built for the CPU only"),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_option(
    host: _StandInHost, torch: tuple[str, str], gpus: int, options: dict[str, int | str], words: str
) -> None:
    host.has(torch, gpus)
    with pytest.raises(RequestError, match=re.escape(words)):
        host.choose(**options)  # type: ignore[arg-type]
