"""The ssh key of one run under MPI, which the controller makes: an operator takes any key that lies at its name."""

from __future__ import annotations

import os

from seatrial.errors import RequestError
from seatrial.files import read_trusted
from seatrial.folders import passing_file
from seatrial.util.tool import find_tool, run_tool

# As the operators make it. Machines under FIPS refuse ed25519.
_TYPE = ("-t", "ecdsa", "-b", "521")
_MOST_BYTES = 1 << 14


def new_ssh_key(target: str) -> str:
    """Return a new private key in the form of OpenSSH, without a passphrase.

    Raises RequestError where ssh-keygen is missing or makes none. ``target``: the word after ``--on``, for its message.
    """
    what = f"--on {target}: the key by which the pods of the run reach one another"
    program = find_tool("ssh-keygen")
    if program is None:
        raise RequestError(
            f"{what} cannot be made, since ssh-keygen was not found; install OpenSSH's client, or add its folder to"
            " PATH."
        )
    try:
        with passing_file("") as path:
            # That of this process, whose descriptor it leads through.
            named = path.replace("self", str(os.getpid()), 1)
            code, said = run_tool([program, "-q", *_TYPE, "-N", "", "-C", "", "-f", named])
            if code == 0:
                return read_trusted(path, _MOST_BYTES, private=True).decode("ascii")
    except OSError as error:
        raise RequestError(
            f"{what} cannot be made in a temporary folder ({error}); set TMPDIR to another one."
        ) from error
    why = "it did not answer in time" if code is None else said.strip()[-200:] or f"exit code {code}"
    raise RequestError(f"{what} was not made by {program} ({why!a}); see that it makes one by hand.")
