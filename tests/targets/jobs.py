"""A job for tests that never start it."""

from __future__ import annotations

import sys

from fake_checks import a_plan

from seatrial.targets.job import Job

A_JOB = Job(
    run="",
    plan=a_plan(()),
    target="local",
    nodes=1,
    nproc_per_node=2,
    device="cpu",
    backend="gloo",
    python=sys.executable,
    env={},
)
