"""Placeholders in the arguments of a script: ``{rank}`` and the others, which each rank replaces by its own values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_VARIABLES = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
    "nproc_per_node": "LOCAL_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
"""Placeholder -> the variable of the rank's environment with its value."""
_PLACEHOLDER = re.compile(rf"\{{(\{{)?({'|'.join(_VARIABLES)})\}}(?(1)\}})")


def fill_placeholders(args: Iterable[str], environ: Mapping[str, str], spawns: int) -> list[str]:
    """Return the arguments with their placeholders replaced; ``{{rank}}`` becomes ``{rank}``.

    ``environ``: environment of the rank; ``spawns``: processes that the script starts itself, 0: none. Raises KeyError
    with the name of a variable that ``environ`` lacks.
    """

    def value(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return match[0][1:-1]
        return str(spawns) if spawns and name == "nproc_per_node" else environ[_VARIABLES[name]]

    return [_PLACEHOLDER.sub(value, argument) for argument in args]
