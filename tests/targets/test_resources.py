"""Device, backend and number of processes, with stand-ins for interpreters and accelerators."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from seatrial.errors import RequestError
from seatrial.targets.resources import LocalResources, local_resources

pytestmark = pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").exists(), reason="this machine has accelerators")
CPU, CUDA, ROCM = ("None", "None"), ("'12.8'", "None"), ("None", "'7.1'")


class _StandInHost:
    """A host with an interpreter whose torch is a version file, and a script for nvidia-smi."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sysfs = folder / "sys"
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

    def has_on_the_bus(self, vendor: str, count: int) -> None:
        for number in range(count):
            folder = self.sysfs / "bus" / "pci" / "devices" / f"0000:{number:02x}:00.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            (folder / "class").write_text("0x030200\n")

    def has_amd_driver(self) -> None:
        folder = self.sysfs / "class" / "kfd" / "kfd" / "topology" / "nodes" / "1"
        folder.mkdir(parents=True)
        (folder / "properties").write_text("cpu_cores_count 0\nsimd_count 1216\n")

    def local_resources(
        self,
        device: str = "auto",
        backend: str = "auto",
        nproc_per_node: int | None = None,
        processes_by: str = "",
        *,
        started: bool = False,
    ) -> LocalResources:
        return local_resources(
            device=device,
            backend=backend,
            nproc_per_node=nproc_per_node,
            processes_by=processes_by,
            python=self.python,
            started=started,
            sysfs=self.sysfs,
        )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _StandInHost:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return _StandInHost(tmp_path)


def test_without_accelerators_two_processes_on_the_cpu(host: _StandInHost) -> None:
    for torch in (CPU, CUDA):
        host.has(torch, gpus=0)
        resources = host.local_resources()
        assert (resources.device, resources.nproc_per_node, resources.env) == ("cpu", 2, {"GLOO_SOCKET_IFNAME": "lo"})


def test_a_launcher_may_show_each_process_a_different_device(
    host: _StandInHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.has(CUDA, gpus=8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert host.local_resources(nproc_per_node=8, started=True).device == "cuda"
    with pytest.raises(RequestError, match="this machine shows 1 accelerators"):
        host.local_resources(nproc_per_node=8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    with pytest.raises(RequestError, match="this machine shows 2 accelerators"):
        host.local_resources(nproc_per_node=8, started=True)


def test_one_process_per_accelerator(host: _StandInHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.has(CUDA, gpus=8)
    resources = host.local_resources()
    assert (resources.device, resources.nproc_per_node, resources.env) == ("cuda", 8, {})
    assert host.local_resources(nproc_per_node=3).nproc_per_node == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    resources = host.local_resources()
    assert (resources.nproc_per_node, resources.because) == (2, "CUDA_VISIBLE_DEVICES=4,5")


def test_the_cpu_when_it_is_requested(host: _StandInHost) -> None:
    host.has(CUDA, gpus=8)
    resources = host.local_resources(device="cpu", nproc_per_node=5)
    assert (resources.device, resources.nproc_per_node) == ("cpu", 5)


@pytest.mark.parametrize(
    ("torch", "gpus", "options", "words"),
    [
        (CUDA, 8, {"processes_by": "cpu"}, "--nproc-per-node cpu counts cores, and the ranks would use cuda"),
        (CPU, 0, {"nproc_per_node": 0}, "--nproc-per-node 0: expected at least 1"),
        (CPU, 0, {"nproc_per_node": -2}, "--nproc-per-node -2: expected at least 1"),
        (CPU, 0, {"nproc_per_node": 513}, "--nproc-per-node 513: at most 512"),
        (CUDA, 8, {"nproc_per_node": 9}, "--nproc-per-node 9: this machine shows 8 accelerators (nvidia-smi -L)"),
        (CPU, 0, {"device": "cuda"}, "--device cuda: torch 2.9.0 is built for the CPU only"),
        (CUDA, 0, {"device": "rocm"}, "--device rocm: torch 2.9.0 is built for cuda"),
        (ROCM, 0, {"device": "rocm"}, "--device rocm: no NVIDIA or AMD device found"),
        (CUDA, 0, {"device": "cuda"}, "--device cuda: no NVIDIA or AMD device found"),
        (CPU, 0, {"backend": "nccl"}, "--backend nccl: NCCL moves data between GPUs only"),
        (CPU, 8, {}, "has 8 nvidia devices (nvidia-smi -L), but torch 2.9.0 is built for the CPU only"),
    ],
)
def test_impossible_options_are_refused_by_name(
    host: _StandInHost, torch: tuple[str, str], gpus: int, options: dict[str, int | str], words: str
) -> None:
    host.has(torch, gpus)
    with pytest.raises(RequestError, match=re.escape(words)):
        host.local_resources(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("torch", [CPU, CUDA, ROCM])
def test_devices_without_a_driver_are_never_ignored(host: _StandInHost, torch: tuple[str, str]) -> None:
    host.has(torch, gpus=0)
    host.has_on_the_bus("0x10de", 4)
    words = "--device auto: 4 NVIDIA devices are on the PCI bus, but the driver shows none (nvidia-smi: no output)"
    with pytest.raises(RequestError, match=re.escape(words)):
        host.local_resources()
    assert host.local_resources(device="cpu").device == "cpu"


def test_a_driver_that_hangs_is_never_ignored(host: _StandInHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.has(CUDA, gpus=8)
    (host.folder / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr("seatrial.probe.accelerators._TOOL_TIMEOUT_S", 0.2)
    for device in ("auto", "cuda"):
        with pytest.raises(
            RequestError, match=rf"--device {device}: nvidia-smi did not answer in 0\.2 s; .*--device cpu"
        ):
            host.local_resources(device=device)


def test_a_torch_built_for_another_vendor_is_refused(host: _StandInHost) -> None:
    """Otherwise every rank would report a broken device."""
    host.has_amd_driver()
    host.has(CUDA, gpus=0)
    with pytest.raises(RequestError, match=r"has 1 amd devices \(.*kfd\), but torch 2\.9\.0 is built for cuda;"):
        host.local_resources()
    host.has(ROCM, gpus=8)
    assert (host.local_resources().device, host.local_resources().nproc_per_node) == ("rocm", 1)
