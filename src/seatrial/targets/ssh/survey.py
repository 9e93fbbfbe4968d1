"""The program that reports the resources of a host: ``python3 seatrial.pyz -m seatrial.targets.ssh.survey JSON``."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from typing import Any

from seatrial.errors import SeatrialError
from seatrial.probe.capacity import refuse_too_many
from seatrial.probe.torch_install import find_torch
from seatrial.targets import resources

MARK = "seatrial-survey "


def report_resources(request: dict[str, Any]) -> None:
    """Print one line, the mark and JSON: the resources of this host, or the reason why it cannot take part.

    ``request``: arguments of ``resources.local_resources``; ``oversubscribe``; and ``of_torch`` as
    ``refuse_too_many`` has it.
    """
    result: dict[str, Any]
    oversubscribe, of_torch = request.pop("oversubscribe"), request.pop("of_torch")
    try:
        local = resources.local_resources(python=sys.executable, **request)
        if local.device == "cpu" and not oversubscribe:
            words = f"--nproc-per-node {local.nproc_per_node}"
            refuse_too_many(local.nproc_per_node, words, of_torch=of_torch)
        found = dataclasses.asdict(local)
        # The controller makes the environment of the ranks.
        loopback = found.pop("env").get("GLOO_SOCKET_IFNAME", "")
        result = {
            "resources": found,
            "loopback": loopback,
            "torch": find_torch(sys.executable).version,
            "python": platform.python_version(),
            # SSH_CONNECTION holds: client address, client port, server address, server port.
            "address": os.environ.get("SSH_CONNECTION", "").split(" ")[2:3],
        }
    except SeatrialError as error:
        result = {"refused": str(error)}
    print(f"\n{MARK}{json.dumps(result)}", flush=True)


if __name__ == "__main__":
    report_resources(json.loads(sys.argv[1]))
