"""A double of ``ssh`` that runs the command on this machine: everything but the network is real."""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$3"
"""


def write_ssh_double(folder: Path) -> Path:
    """Write the double, and return the folder to put at the front of PATH."""
    script = folder / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(_SCRIPT)
    script.chmod(0o755)
    return script.parent
