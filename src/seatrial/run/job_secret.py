"""The secret by which the processes of one job recognize one another, where another launcher has started them.

In this order: SEATRIAL_TOKEN in all processes; on one machine a file that only this user can read; a file of the user
in a home folder that all nodes share; under Slurm munge. Across machines there is no run without one of them, unless
``--unprotected`` is typed: whoever knows what a job's processes share could speak as each of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.environment.job_token import LEAST_CHARS, MUNGE, TOKEN_FILE, read_token, ways_to_secret
from seatrial.errors import RequestError
from seatrial.files import create_whole, read_trusted, status_behind_links
from seatrial.folders import NotPrivateError, open_private, own_folder_name
from seatrial.protocol.munge import MungeError, make_credential, token_of

_MOST_BYTES = 4_096
_MADE = re.compile("[0-9a-f]{64}")
"""A secret of a machine, as ``_machine_secret`` makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSecret:
    """The secret of a job."""

    text: str = ""
    """It is the same in all processes; empty where there is none, or where munge passes it."""
    munge: bool = False
    """Whether the first process makes the secret and munge passes it to the others."""

    @property
    def protected(self) -> bool:
        """Return whether there is a secret."""
        return bool(self.text) or self.munge


def find_job_secret(launcher: str, environ: Mapping[str, str], *, on_one_machine: bool, unprotected: bool) -> JobSecret:
    """Return the secret of this job. Raises RequestError where there is none, or one that others could know."""
    token = read_token(environ)
    if token == MUNGE:
        if problem := _munge_problem(launcher):
            ways = "" if on_one_machine else f" and {ways_to_secret(launcher)}"
            raise RequestError(f"SEATRIAL_TOKEN={MUNGE}: {problem}; leave it out{ways}.")
        return JobSecret(munge=True)
    if token:
        return JobSecret(text=token)
    if on_one_machine:
        machine_secret = _machine_secret(environ)
        if machine_secret:
            return JobSecret(text=machine_secret)
    file_secret = _file_secret()
    if file_secret:
        return JobSecret(text=file_secret)
    problem = _munge_problem(launcher)
    if not problem:
        return JobSecret(munge=True)
    if unprotected:
        return JobSecret()
    reason = f" ({problem})" if launcher == "slurm" else ""
    raise RequestError(
        f"the processes of {launcher} have no secret in common{reason}, and others could execute code as you:"
        f" {ways_to_secret(launcher)}; --unprotected runs without one."
    )


def _munge_problem(launcher: str) -> str:
    """Return why munge does not carry the secret of a job here; empty: it does."""
    if launcher != "slurm":
        return "munge carries the secret under srun and with --on slurm alone"
    try:
        make_credential(token_of(""), "")
    except MungeError as error:
        return str(error)
    return ""


def _file_secret() -> str:
    """Return the text of the token file of this user, or an empty text where there is none. Raises RequestError."""
    path = os.path.expanduser(TOKEN_FILE)
    try:
        text = read_trusted(path, _MOST_BYTES, private=True).decode(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise RequestError(
            f"{path}: {error.strerror}; a secret must be a file of yours that nobody else can read."
        ) from error
    if len(text) < LEAST_CHARS:
        raise RequestError(
            f"{path} holds {len(text)} characters, and a secret needs at least {LEAST_CHARS}: openssl rand -hex 32 >"
            f" {TOKEN_FILE} makes one."
        )
    return text


def _machine_secret(environ: Mapping[str, str]) -> str:
    """Return a random text that only this user's processes on this machine can read; the first one creates it.

    Returns an empty text where it cannot be stored. Raises RequestError when others could read or write its folder.
    """
    import secrets
    import tempfile

    runtime = environ.get("XDG_RUNTIME_DIR", "")
    try:
        # The folder of the login: no other user can have made one of this name there before.
        parent = runtime if os.path.isabs(runtime) and _is_own_folder(runtime) else tempfile.gettempdir()
        folder = os.path.join(parent, own_folder_name())
        opened = open_private(folder)
        try:
            path = f"/proc/self/fd/{opened}/secret"
            with contextlib.suppress(FileExistsError):
                create_whole(path, secrets.token_hex(32).encode(), mode=0o600)
            return _private_text(path, folder)
        finally:
            os.close(opened)
    except NotPrivateError as error:
        raise RequestError(f"{error.strerror}.") from error
    except OSError:  # no space, or a file system without hard links
        return ""


def _private_text(path: str, folder: str) -> str:
    try:
        text = read_trusted(path, _MOST_BYTES, private=True).decode("ascii", errors="replace")
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise
        problem = f"{error.strerror}"
    else:
        # Where others can rename, they may have put another private folder of this user there, with a file they know.
        if _MADE.fullmatch(text):
            return text
        problem = "secret is a file that seatrial has not made"
    raise RequestError(
        f"{folder}: {problem}; set XDG_RUNTIME_DIR or TMPDIR to a folder in which nobody else can rename."
    )


def _is_own_folder(folder: str) -> bool:
    """Return whether a folder is this user's: after ``su`` the variables of the login are still those of another."""
    try:
        # That user may have mounted one there that answers nothing.
        status = status_behind_links(folder, "/")
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
