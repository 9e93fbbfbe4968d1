"""From the values of the where-options to a place, and from there to what every job has in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seatrial.errors import RequestError
from seatrial.launch.comm import comm_settings
from seatrial.launch.option import is_given
from seatrial.launch.target import Placement, Target, Where
from seatrial.launch.targets import TARGETS
from seatrial.probe import own_code

__all__ = ["place_of_job", "where_of"]

_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def _target_of(name: str) -> Target:
    """Raises RequestError for one that is not there."""
    if name not in TARGETS:
        here = "" if own_code.BUNDLE is None else " in the file that travels; an installed seatrial has more"
        raise RequestError(f"--on {name}: no such target; there is {', '.join(TARGETS)}{here}.")
    return TARGETS[name]


def where_of(values: Mapping[str, Any], typed: tuple[str, ...] = ()) -> Where:
    """Raises RequestError for an unknown target, for an option of another one, and for a wrong ``--env``."""
    target = _target_of(values["target"])
    for other in TARGETS.values():
        for option in other.options:
            if option not in target.options and is_given(option, values[option.name]):
                takes = ", ".join(each.name for each in TARGETS.values() if option in each.options)
                raise RequestError(
                    f"{option.flags[0]} is for --on {takes}, not for --on {target.name}; leave one of the two out."
                )
    return Where(
        target=target.name,
        nproc_per_node=values["nproc_per_node"],
        device=values["device"],
        backend=values["backend"],
        python=values["python"],
        # What a person says himself stands.
        env={
            **comm_settings(values["comm_profile"], debug=values["comm_debug"]),
            **dict(map(_variable, values["env"])),
        },
        dry_run=values["dry_run"],
        own={option.name: values[option.name] for option in target.options},
        typed=typed,
    )


def _variable(told: str) -> tuple[str, str]:
    name, equals, value = told.partition("=")
    if not (equals and re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)) or "\0" in value:
        # What was meant as a value may be a secret.
        raise RequestError(f"--env {name}{equals}{equals and '...'}: NAME=VALUE is expected.")
    if name in _OURS or name.startswith("SEATRIAL_"):
        raise RequestError(f"--env {name}: it is set by seatrial itself.")
    return name, value


def place_of_job(where: Where, placement: Placement) -> dict[str, Any]:
    """The fields of ``job.Processes`` but for the name of the run."""
    return {
        "target": where.target,
        "nodes": placement.nodes,
        "nproc_per_node": placement.nproc_per_node,
        "device": placement.device,
        "backend": placement.backend,
        "python": placement.python,
        "env": {**placement.env, **where.env},
        "absent": placement.absent,
        "detail": placement.detail,
    }
