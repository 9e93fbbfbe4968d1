"""A real DNS server that remembers for 30 s that a name was not there: two pods' commands find each other all the same.

The double of a cluster has a server of its own that remembers for 5 s (double/dns.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes import pods_behind_dnsmasq

import seatrial

pytestmark = [
    pytest.mark.root,
    pytest.mark.nightly,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="no dnsmasq"),
]


def test_a_name_that_was_denied_is_asked_for_late_and_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    words = ["unshare", "--net", "--mount", "--kill-child", sys.executable, pods_behind_dnsmasq.__file__, str(tmp_path)]
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": str(Path(seatrial.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    said = {number: (tmp_path / f"pod{number}").read_text() for number in (0, 1)}
    assert done.returncode == 0, done.stderr + said[0] + said[1]
    found = json.loads(done.stdout)
    assert found["codes"] == [0, 0], said
    assert "FINAL ACCEPTANCE: PASS (partial" in said[0]
    # It was hidden by the memory of the server, and not only late.
    assert found["denied from memory"], found["queries"]
    # The early one and those of node 1: the name in full, and never along the search path.
    asked = [query.partition(" query[")[2] for query in found["queries"] if "trial-0" in query]
    assert {query.partition("] ")[2] for query in asked} == {"trial-0.trial.team.svc.cluster.local from 10.1.1.1"}
    # An agent that asked at each try of each port sent hundreds a second (34,622 within 70 s on a real cluster). It
    # pauses for ever longer: 11 questions within the 120 s of its patience. The others are asked once it knows.
    assert sum(query.startswith("A]") for query in asked) <= 16, asked
