"""Secrets that munge passes between the processes of one user on the hosts of a cluster (its commands, any version).

A credential holds a text that munged decrypts for one user only, and it names the user who made it. The text begins
with what the credential is for: one that was made for something else, such as the proof of an agent, which anybody on
the network can read, or the token of another run of this user, is not the token of this run.
"""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
from dataclasses import dataclass

from seatrial.util.tool import find_tool

_TIMEOUT_S = 10.0
"""Time for munged, which answers in milliseconds and waits for nobody else, unless the caller has less."""
_DAEMON_CODES = (6, 7)
"""Exit codes of a munged that is not there, or does not answer."""
_READABLE_CODES = (0, 15, 16, 17)
"""Exit codes of unmunge with which it prints the text: 0, and for credentials that are expired, from the future (clocks
that differ), or read before (two ranks on one host get the same one). Only this user can read any of them."""

PROOF = "proof of an agent"
"""The purpose of a credential with a proof, which itself belongs to one connection."""
_BY_MUNGE = "munge:"
_CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:")


class MungeError(Exception):
    """Munge does not work here. The text is its complaint."""


def token_of(run: str) -> str:
    """Return the purpose of a credential with the token of a run."""
    return f"token of run {run}"


def agent_token(run: str) -> str:
    """Return SEATRIAL_TOKEN of an agent that gets the token of its run by munge."""
    return f"{_BY_MUNGE}{run}"


def run_of_agent_token(token: str) -> str | None:
    """Return the run of an ``agent_token``; None: it is a token itself."""
    return token.removeprefix(_BY_MUNGE) if token.startswith(_BY_MUNGE) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a credential of this user holds."""

    text: str
    host: str
    """The IPv4 address that munged on the host of its maker takes for its own. Empty for a token, and where that says
    nothing: munged may know no address, or only one for the host itself, such as Debian's 127.0.1.1."""


def make_credential(purpose: str, text: str, *, within_s: float = _TIMEOUT_S) -> str:
    """Return a credential with a text that only this user can read. Raises MungeError.

    ``purpose``: ``PROOF``, or as of ``token_of``.
    """
    data = _head(purpose) + text
    code, output, complaint = _run("munge", f"--restrict-uid={os.geteuid()}", data=data, within_s=within_s)
    if code != 0:
        raise MungeError(complaint)
    return output.decode("ascii").strip()


def read_credential(purpose: str, credential: str, *, within_s: float = _TIMEOUT_S) -> Credential | None:
    """Return what a credential for this purpose holds; None where another user made it, or it is for something else.

    Raises MungeError.
    """
    if not _CREDENTIAL.fullmatch(credential):
        return None
    # With the host unmunge asks the resolver for its name, which may take longer than an agent has.
    keys = "UID,ENCODE_HOST" if purpose == PROOF else "UID"
    code, output, complaint = _run("unmunge", f"--keys={keys}", data=credential, within_s=within_s)
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
    if owner is None or int(owner[1]) != os.geteuid() or not text.startswith(_head(purpose)):
        return None
    host = re.search(r"^ENCODE_HOST:.*?\(?([0-9.]+)\)?\s*$", head, re.MULTILINE)
    return Credential(text=text.removeprefix(_head(purpose)), host=_address(host[1]) if host else "")


def _head(purpose: str) -> str:
    return f"seatrial {purpose}: "


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    return "" if address.is_loopback or address.is_unspecified else str(address)


def _run(command: str, option: str, *, data: str, within_s: float) -> tuple[int, bytes, str]:
    program = find_tool(command)
    if program is None:
        raise MungeError(f"{command} is not installed")
    try:
        done = subprocess.run(
            [program, option], input=data.encode(), capture_output=True, timeout=max(within_s, 0.0), check=False
        )
    except OSError as error:
        raise MungeError(f"{command} cannot be started: {error}") from error
    except subprocess.TimeoutExpired:
        raise MungeError(f"{command} did not answer within {within_s:.1f} s") from None
    complaint = " ".join(done.stderr.decode(errors="replace").split())[:120]
    return done.returncode, done.stdout, complaint or f"{command} ended with exit code {done.returncode}"
