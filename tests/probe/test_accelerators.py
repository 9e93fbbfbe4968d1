"""Counting accelerators with a stand-in for the vendor's tool, and by what a launcher lets us see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.probe.accelerators import count_accelerators

pytestmark = pytest.mark.skipif(
    Path("/proc/driver/nvidia/gpus").exists() or Path("/sys/class/kfd").exists(), reason="this machine has accelerators"
)

StandIn = Callable[[str], None]


@pytest.fixture
def stand_in_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Puts a script that stands in for nvidia-smi first on the path."""

    def write(script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return write


def _devices(count: int) -> str:
    return "\n".join(f"echo 'GPU {index}: NVIDIA H200 (UUID: GPU-{index})'; echo '  MIG 1g'" for index in range(count))


def test_no_tool_and_no_driver_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = count_accelerators({})
    assert (found.count, found.vendor) == (0, "")


def test_the_tool_says_how_many(stand_in_tool: StandIn) -> None:
    stand_in_tool(_devices(8))
    found = count_accelerators({})
    assert (found.count, found.vendor, found.source) == (8, "nvidia", "nvidia-smi -L")


@pytest.mark.parametrize(
    "script", ["exit 9", "echo 'No devices were found'", "echo 'GPU 0: x'; exit 9"], ids=["fails", "none", "both"]
)
def test_a_tool_that_fails_counts_nothing(stand_in_tool: StandIn, script: str) -> None:
    stand_in_tool(script)
    assert count_accelerators({}).count == 0


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0, GPU-1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7,8,9"}, 8),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 8),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "0"}, 8),
    ],
)
def test_what_a_launcher_lets_us_see(stand_in_tool: StandIn, environ: dict[str, str], count: int) -> None:
    stand_in_tool(_devices(8))
    found = count_accelerators(environ)
    assert found.count == count
    assert found.vendor == "nvidia"
