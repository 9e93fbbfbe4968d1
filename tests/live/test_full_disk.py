"""A disk that fills up under --out: the verdict and the measurements appear, and lost evidence gives no PASS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import made_disk
from live.trials import trial

pytestmark = pytest.mark.root

_SIZE_BYTES = 256 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB with little left."""
    with made_disk(tmp_path, _SIZE_BYTES) as disk:
        (disk / "filler").write_bytes(bytes(_SIZE_BYTES - (40 << 10)))
        yield disk


def test_a_full_disk_is_reported_and_loses_no_measurement(small_disk: Path, tmp_path: Path) -> None:
    ended = trial(small_disk, env={"TMPDIR": str(tmp_path)})
    assert ended.exit_code == 3
    assert {check["status"] for check in ended.report["checks"].values()} == {"pass"}
    texts = [finding["what"] for finding in ended.grave()]
    assert any("No space left on device" in text for text in texts)
    elsewhere = list(tmp_path.glob("seatrial-*/*/report.json"))
    assert len(elsewhere) == 1
    assert any(measurement["name"] == "busbw" for measurement in ended.report["measurements"])


def test_a_full_disk_does_not_hide_a_fault(small_disk: Path, tmp_path: Path) -> None:
    ended = trial(small_disk, plant=["kill@training/step 5:1"], env={"TMPDIR": str(tmp_path)})
    assert ended.exit_code == 1
    assert [1] in [finding["culprit"]["ranks"] for finding in ended.grave()]
