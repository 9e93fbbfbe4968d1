"""``seatrial bundle``: the one file that travels."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["bundle"]


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def bundle(file: Path) -> None:
    """Write FILE, an executable that holds the trial without an installation: python3 FILE run.

    It needs Python 3.10 and torch 2.4, or newer, and nothing else; copy it into the image or onto the nodes that will
    train. The same version of seatrial writes the same bytes everywhere. FILE.more is written, too: where it lies
    beside FILE, the check links can be judged; all else needs FILE alone.
    """
    from seatrial.launch.bundle import write_bundle

    for made in write_bundle(file):
        click.echo(f"{made.file}: {made.size_bytes:,} bytes, SHA-256 {made.sha256}")
