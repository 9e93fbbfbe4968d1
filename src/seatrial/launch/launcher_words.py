"""What a launcher printed before it gave up, as one sentence with what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.launch.slurm_words import complaint

__all__ = ["reason", "reason_of_agent", "refused"]

_SHARED = "put --out on a file system that all hosts share at the same path"
_PYTHON = "a host has no {what}; name a Python that all hosts have with --python"
_PATH = "name an mpirun with --mpirun that all hosts have at the same path"
_OWN: Sequence[tuple[str, str]] = (
    (r"seatrial agent: (.+?)\.?$", "{what}"),
    (r"(the launcher has .+)", "{what}; see that it heeds the hosts it is given"),
    (r".*Error while finding module specification for '(seatrial)\.", f"a host does not see our code; {_SHARED}"),
    (r".*No module named '?(seatrial)", f"a host does not see our code; {_SHARED}"),
    (r"agent: (?:line )?1: (.+?): (?:not found|No such file|Permission denied)", _PYTHON),
)
"""Why an agent has not come, although its launcher may go on: whatever else there is, this comes first."""
_SIGNS: Sequence[tuple[str, str]] = (
    # ssh, by which all of them reach other hosts.
    (r"ssh: (.+)", "ssh: {what}"),
    (r"(Host key verification failed)", "ssh: {what}; log in to each host by hand once and look at its key"),
    (r".*(UNPROTECTED PRIVATE KEY FILE)", "ssh: others can read the private key; take their rights away (chmod 600)"),
    (r"(.*Permission denied \(.+\))", "ssh: {what}; each host must let us in without a password"),
    # Open MPI's boxes of text, 4 and 5.
    (r"(A hostfile was provided that contains multiple)", "two names among the hosts are one machine; name it once"),
    (r"(.*(?:orted|prted): (?:command )?not found)", f"{{what}}; {_PATH}"),
    # hydra
    (r".*execvp error on file (\S+)", _PYTHON),
    (
        r".*Unable to run bstrap_proxy on ([^ :]+)",
        "{what} cannot be reached; see that ssh lets us in without a password",
    ),
    (r".*(hydra_\w+_proxy): (?:command )?(?:not found|No such file)", f"a host has no {{what}}; {_PATH}"),
)
"""What stands in a line -> the sentence, with what stood in the parentheses; the first that fits any line counts."""
_REFUSED: Sequence[tuple[str, str]] = (
    (r"There are (not enough slots) available", "there are {what} for so many ranks; ask for fewer"),
    # What a person has added: Open MPI 4, 5, hydra, srun.
    (r".*mpirun: Error: (unknown option .+)", "mpirun: {what}; see --mpi-arg"),
    (r"Option: +(-\S+)$", "mpirun: unknown option {what}; see --mpi-arg"),
    (r"\[mpiexec.*(unrecognized argument \S+)", "mpirun: {what}; see --mpi-arg"),
    (r"srun: ((?:unrecognized |invalid )?option .+)", "srun: {what}; see --slurm-arg and --container-image"),
    (r".*exec: (srun): (?:command )?not found", "{what} is not to be found; type this where PATH leads to it"),
    (r"srun: error: ((?:Invalid|Only allocated) .+)", "srun: {what}; change what it is asked for"),
    (
        r"srun: error: (Unable to create step .+(?:not available|not permitted|Invalid).*)",
        "srun: {what}; ask for what the job has",
    ),
)
"""The same for what a launcher was asked for and does not do."""


def reason(output: str) -> str:
    """Why a launcher ended; empty when nothing in it is known."""
    return reason_of_agent(output) or refused(output) or _first(_SIGNS, output) or complaint(output)


def reason_of_agent(output: str) -> str:
    """Why an agent has not come, which its launcher may not care about; empty when none has complained."""
    return _first(_OWN, output)


def refused(output: str) -> str:
    """Why a launcher that has ended did not even begin: what it was asked for is wrong. Empty when it is not that."""
    return _first(_REFUSED, output)


def _first(signs: Sequence[tuple[str, str]], output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    matches = ((re.match(sign, line), words) for sign, words in signs for line in lines)
    return next((words.format(what=match[1]) for match, words in matches if match), "")
