"""The variables by which Gloo and NCCL are given a network interface, and the mark that we set them, not the user."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

MARK = "SEATRIAL_NIC"
"""``route``: the agent chooses the interface. ``chosen``: it has chosen, and the user had not."""
_CHOSEN = "chosen"
_VARIABLES = {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "="}
"""Variable -> what stands before the name: NCCL takes a name after "=" as it is, and any other as a prefix."""


def choose(environ: MutableMapping[str, str], interface: str) -> None:
    """Have Gloo and NCCL use an interface, unless the user chose one."""
    if environ.get(MARK) == _CHOSEN or not _VARIABLES.keys() & environ.keys():
        environ[MARK] = _CHOSEN
        environ.update({name: f"{sign}{interface}" for name, sign in _VARIABLES.items()})
    else:
        for name, sign in _VARIABLES.items():
            environ.setdefault(name, f"{sign}{interface}")


def is_free(environ: Mapping[str, str], requested: Mapping[str, str]) -> bool:
    """Return whether another interface may be chosen. ``requested``: variables that the user gives the ranks."""
    return environ.get(MARK) == _CHOSEN and not _VARIABLES.keys() & requested.keys()
