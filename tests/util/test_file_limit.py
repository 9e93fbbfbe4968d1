"""The limit of open files, in a process of its own: a limit that was lowered stays so."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("wanted", "soft"), [("None", 256), ("100", 100), ("30", 64), ("5000", 256)])
def test_it_is_raised_as_far_as_it_may_be(wanted: str, soft: int) -> None:
    code = (
        "import resource\n"
        "from seatrial.util.file_limit import raise_file_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))\n"
        f"raise_file_limit({wanted})\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == f"({soft}, 256)\n"
