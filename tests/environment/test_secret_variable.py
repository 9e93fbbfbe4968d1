"""Secrets in the environment of a process, as another process of the same user sees them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import os, subprocess, sys
from seatrial.environment.secret_variable import take_secret
shown = lambda: b"hush" in open("/proc/self/environ", "rb").read()
child = [sys.executable, "-S", "-c", "import os; print(sorted(n for n in os.environ if n in ('A', 'SECRET', 'Z')))"]
print(shown(), take_secret("SECRET"), shown(), take_secret("SECRET"), os.environ["Z"])
sys.stdout.flush()
subprocess.run(child, check=True)
"""


@pytest.mark.parametrize("order", [("A", "SECRET", "Z"), ("SECRET", "A", "Z"), ("Z", "A", "SECRET")])
def test_a_secret_that_was_taken_is_seen_nowhere(order: tuple[str, ...]) -> None:
    values = {"A": "", "SECRET": "hush-hush", "Z": "SECRET=of another"}
    environ = {**{name: values[name] for name in order}, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environ, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["True hush-hush False None SECRET=of another", "['A', 'Z']"]
