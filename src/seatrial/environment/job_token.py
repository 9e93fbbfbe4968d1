"""SEATRIAL_TOKEN as a user sets it, and what else gives the processes of a job a secret."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.errors import RequestError

MUNGE = "munge"
"""The value with which munge carries the token of the run, on Slurm alone."""
LEAST_CHARS = 20
"""Characters of a secret. Shorter ones could be guessed from an overheard handshake, with billions of guesses a second,
if people type them."""
TOKEN_FILE = "~/.config/seatrial/token"

_FILE = (
    f"make a secret in a shared home ((umask 077; mkdir -p ~/.config/seatrial; openssl rand -hex 32 > {TOKEN_FILE}))"
)
_READABLE = (
    f"set SEATRIAL_TOKEN everywhere to {LEAST_CHARS} random characters (readable on the network of Slurm and mpirun)"
)


def read_token(environ: Mapping[str, str]) -> str:
    """Return SEATRIAL_TOKEN: a secret, ``munge``, or empty where it is not set.

    Raises RequestError for a value that is neither, such as ``MUNGE``: without munge the token would be readable.
    """
    token = environ.get("SEATRIAL_TOKEN", "")
    if token and token != MUNGE and len(token) < LEAST_CHARS:
        raise RequestError(
            f"SEATRIAL_TOKEN has {len(token)} characters, and a secret needs at least {LEAST_CHARS}: openssl rand -hex"
            f" 32 makes one. On Slurm the value {MUNGE}, in just these letters, has munge carry one."
        )
    return token


def ways_to_secret(launcher: str) -> str:
    """Return what the user can do for a secret: first what nobody on the network can read.

    ``launcher``: as in ``Identity``, or ``--on slurm``.
    """
    if launcher == "--on slurm":
        return (
            "get munge to work on all nodes, or use --on ssh; without SEATRIAL_TOKEN, Slurm sends the token readable"
            " over its network"
        )
    if launcher == "slurm":
        return f"{_FILE}, or get munge to work, or {_READABLE}"
    return f"{_FILE}, or {_READABLE}"
