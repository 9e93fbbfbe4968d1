"""The double of a CUDA device is as unkind as a device, and counts its devices as a driver does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_double.driver import Driver, DriverError, uuid
from cuda_double.install import environment


def test_it_is_as_unkind_as_a_device(tmp_path: Path) -> None:
    variables = environment(tmp_path, fault="0:1000:an illegal memory access was encountered")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "unkindness.py")],
        env={**os.environ, **variables, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "as unkind as a device\n"), done.stderr


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("2,0", (2, 0)),
        ("1,7,0", (1,)),
        ("1,1", ()),
        (f"GPU-{uuid(2)}", (2,)),
    ],
)
def test_visible_devices(monkeypatch: pytest.MonkeyPatch, value: str | None, numbers: tuple[int, ...]) -> None:
    monkeypatch.setenv("SEATRIAL_CUDA_DOUBLE_DEVICES", "3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert Driver.from_environ().numbers == numbers


def test_an_error_comes_with_a_wait_and_stays() -> None:
    driver = Driver(numbers=(0,), total_bytes=1, fault=(0, 1, "uncorrectable ECC error encountered"))
    driver.launch(0)
    driver.launch(0)
    for call in (driver.synchronize, lambda: driver.launch(0)):
        with pytest.raises(DriverError, match="uncorrectable ECC error"):
            call()
