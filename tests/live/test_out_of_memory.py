"""The kernel's out-of-memory killer ends a rank in a real control group with a limit: the report says so."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live.trials import END_S

pytestmark = pytest.mark.root

LIMIT_BYTES = 300 << 20
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group that allows 300 MiB. Skips where this user may make none."""
    is_v1 = (_V1 / "memory.limit_in_bytes").exists()
    folder = (_V1 if is_v1 else _V2) / f"seatrial-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(LIMIT_BYTES))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    yield folder
    until = time.monotonic() + 5
    while folder.exists() and time.monotonic() < until:
        with contextlib.suppress(OSError):
            folder.rmdir()
        time.sleep(0.05)


def in_group(group: Path, *command: str) -> subprocess.CompletedProcess[str]:
    enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    return subprocess.run(
        ["sh", "-c", enter, "sh", *command], capture_output=True, text=True, timeout=END_S, check=False
    )


@pytest.mark.parametrize("who", ["rank", "child"])
def test_an_out_of_memory_kill_is_called_that(group: Path, tmp_path: Path, who: str) -> None:
    script = tmp_path / "greedy.py"
    # The kernel takes the largest process; rank 0 waits for its end.
    use = "held = [bytearray(8 << 20) for _ in range(100)]"
    if who == "child":
        use = f"import subprocess; subprocess.run([sys.executable, '-c', {use!r}], check=True)"
    script.write_text(f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {use}\ntime.sleep(50)\n")
    words = ["launch", "--device", "cpu", "--nproc-per-node", "2", "--out", str(tmp_path / "out"), str(script)]
    done = in_group(group, sys.executable, "-m", "seatrial", *words)
    assert done.returncode == 1, done.stderr
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert "rank 1" in error
    assert "the kernel's out-of-memory killer ended it or a process that it started" in error
    assert "allows 300 MiB" in error
    assert "see dmesg" not in done.stderr
