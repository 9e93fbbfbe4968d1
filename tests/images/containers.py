"""Containers of our images, for the tests here: run to their end, or started, and gone whatever happens.

SEATRIAL_TEST_IMAGES is what the names of the images begin with; tools/build_images.py makes them.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_PREFIX = os.environ.get("SEATRIAL_TEST_IMAGES", "")
MARKS = [
    pytest.mark.podman,
    pytest.mark.skipif(not _PREFIX, reason="SEATRIAL_TEST_IMAGES names no images (tools/build_images.py makes them)"),
]

NO_RIGHTS = [
    *("--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp", "--volume", "/home/seatrial"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
]
"""The rights of pods of our manifests: a read-only root but for what they mount, and no right."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A container that is over."""

    code: int
    output: str
    """Both streams."""


def image(target: str) -> str:
    """The name of the image that the target became."""
    return f"{_PREFIX}-{target}"


def podman(*words: str, timeout_s: float = 30.0) -> Ended:
    """Call it, to its end."""
    done = subprocess.run(
        ["podman", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    return Ended(code=done.returncode, output=done.stdout)


@contextmanager
def gone_afterwards() -> Iterator[str]:
    """A name for a container, which is removed whatever happens."""
    name = f"trial-{uuid.uuid4().hex[:10]}"
    try:
        yield name
    finally:
        podman("rm", "-f", "-v", "-i", "-t", "0", name)


def run(target: str, *words: str, options: Sequence[str] = (), timeout_s: float = 50.0) -> Ended:
    """Run a container to its end."""
    with gone_afterwards() as name:
        return podman("run", "--name", name, *options, image(target), *words, timeout_s=timeout_s)


@contextmanager
def started(target: str, *words: str, options: Sequence[str] = ()) -> Iterator[str]:
    """A container that runs; its name."""
    with gone_afterwards() as name:
        begun = podman("run", "-d", "--name", name, *options, image(target), *words)
        assert begun.code == 0, begun.output
        yield name


def report_in(folder: Path) -> dict[str, Any]:
    """The newest report there."""
    found: dict[str, Any] = json.loads((folder / "cluster_test_report.json").read_text("utf-8"))
    return found
