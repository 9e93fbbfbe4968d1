"""The Dockerfile at the root and those in deploy/images agree in the lines that they share."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[2]


def _base(file: str) -> list[str]:
    """The instructions of the stage with torch."""
    lines = [line for line in (_ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    begin = lines.index("FROM ${BASE_IMAGE} AS base")
    return lines[begin : lines.index('ARG TORCH=""') + 2]


def test_both_begin_with_the_same_layers() -> None:
    assert len(_base("Dockerfile")) == 7
    assert _base("Dockerfile") == _base("deploy/images/Dockerfile")
