"""``seatrial bundle``: write the whole package as one executable file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from pathlib import Path

    file = Option(flags=(), name="file", help="File to write.", type=Path, metavar="FILE", required=True)
    return {"Options": (file,)}


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Write the bundle; return the exit code."""
    from seatrial.bundle import write_bundle

    written = write_bundle(options["file"])
    print(f"{written.file}: {written.size_bytes:,} bytes, SHA-256 {written.sha256}", flush=True)
    return 0


COMMAND = Command(
    name="bundle",
    order=7,
    summary="write seatrial.pyz, a single file that runs seatrial without installing anything",
    text="""Write FILE, an executable that holds seatrial without an installation: python3 FILE run.

It needs Python 3.10 and torch 2.4, or newer, and nothing else; copy it into the image or onto the nodes that will
train. The same version of seatrial and of zlib writes the same bytes everywhere.
""",
    options=options,
    run=run,
)
