"""``train``: from the options to trained ranks, for the command line and for the file that travels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from seatrial.launch.program import hold
from seatrial.launch.train_request import resolve
from seatrial.probe.identity import identify
from seatrial.report.streams import tell

__all__ = ["run"]


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Train as the options ask for; returns the exit code, unless this process becomes a rank."""
    identity = identify(os.environ)
    if identity.note:
        tell(f"seatrial: {identity.note}")
    request = resolve(options, identity, os.environ, debug=debug)
    if options["dry_run"]:
        print("\n".join(request.dry_run()), flush=True)
        return 0
    if request.speaks:
        tell(request.summary)
    if request.job is None:
        request.execute()
    assert request.job is not None
    return hold(request.job, options["out"], debug=debug)
