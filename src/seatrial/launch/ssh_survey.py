"""What runs on a host to see whether it can take part: sent as text, with the file that travels on its path."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from typing import Any

__all__ = ["MARK", "look"]

MARK = "seatrial-survey "


def look(asked: dict[str, Any]) -> None:
    """Print what was found, or why it cannot take part, as one line of JSON behind the mark."""
    from seatrial.errors import SeatrialError
    from seatrial.launch import place
    from seatrial.probe.torch_install import find_torch

    told: dict[str, Any]
    try:
        here = place.choose(python=sys.executable, **asked)
        told = {
            "place": dataclasses.asdict(here),
            "torch": find_torch(sys.executable).version,
            "python": platform.python_version(),
            # client address, its port, our address, our port
            "address": os.environ.get("SSH_CONNECTION", "").split(" ")[2:3],
        }
    except SeatrialError as error:
        told = {"refused": str(error)}
    print(f"\n{MARK}{json.dumps(told)}", flush=True)
