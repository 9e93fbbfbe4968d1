"""Secrets that munge passes between the processes of one user on the hosts of a cluster (its commands, any version).

A credential holds a text that munged decrypts for one user only, and it names the user who made it. The text begins
with what the credential is for: one that was made for something else, such as the proof of an agent, which anybody on
the network can read, is no token.
"""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from seatrial.util.tool import find_tool

_TIMEOUT_S = 10.0
"""Time for munged, which answers in milliseconds and waits for nobody else."""
_DAEMON_CODES = (6, 7)
"""Exit codes of a munged that is not there, or does not answer."""
_READABLE_CODES = (0, 15, 16, 17)
"""Exit codes of unmunge with which it prints the text: 0, and for credentials that are expired, from the future (clocks
that differ), or read before (two ranks on one host get the same one). Only this user can read any of them."""


Purpose = Literal["token", "proof"]
_HEADS: Mapping[Purpose, str] = {"token": "seatrial token of a run: ", "proof": "seatrial proof of an agent: "}
_CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:")


class MungeError(Exception):
    """Munge does not work here. The text is its complaint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a credential of this user holds."""

    text: str
    host: str
    """The IPv4 address that munged on the host of its maker takes for its own. Empty for a token, and where that says
    nothing: munged may know no address, or only one for the host itself, such as Debian's 127.0.1.1."""


def make_credential(purpose: Purpose, text: str) -> str:
    """Return a credential with a text that only this user can read. Raises MungeError."""
    code, output, complaint = _run("munge", f"--restrict-uid={os.geteuid()}", data=_HEADS[purpose] + text)
    if code != 0:
        raise MungeError(complaint)
    return output.decode("ascii").strip()


def read_credential(purpose: Purpose, credential: str) -> Credential | None:
    """Return what a credential for this purpose holds; None where another user made it, or it is for something else.

    Raises MungeError.
    """
    if not _CREDENTIAL.fullmatch(credential):
        return None
    # With the host unmunge asks the resolver for its name, which may take longer than an agent has.
    keys = "UID" if purpose == "token" else "UID,ENCODE_HOST"
    code, output, complaint = _run("unmunge", f"--keys={keys}", data=credential)
    if code in _DAEMON_CODES:
        raise MungeError(complaint)
    if code not in _READABLE_CODES:
        return None
    # Another user can make one with any bytes in it.
    try:
        head, _, text = output.decode().partition("\n\n")
    except UnicodeError:
        return None
    owner = re.search(r"^UID:.*?\(?([0-9]+)\)?\s*$", head, re.MULTILINE)
    if owner is None or int(owner[1]) != os.geteuid() or not text.startswith(_HEADS[purpose]):
        return None
    host = re.search(r"^ENCODE_HOST:.*?\(?([0-9.]+)\)?\s*$", head, re.MULTILINE)
    return Credential(text=text.removeprefix(_HEADS[purpose]), host=_address(host[1]) if host else "")


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    return "" if address.is_loopback or address.is_unspecified else str(address)


def _run(command: str, option: str, *, data: str) -> tuple[int, bytes, str]:
    program = find_tool(command)
    if program is None:
        raise MungeError(f"{command} is not installed")
    try:
        done = subprocess.run(
            [program, option], input=data.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise MungeError(f"{command} cannot be started: {error}") from error
    except subprocess.TimeoutExpired:
        raise MungeError(f"{command} did not answer within {_TIMEOUT_S:.0f} s") from None
    return (
        done.returncode,
        done.stdout,
        " ".join(done.stderr.decode(errors="replace").split())[:200] or f"exit code {done.returncode}",
    )
