"""Turns the output of a failed launcher into one sentence with what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from seatrial.targets.slurm.reasons import last_error
from seatrial.util.text import as_name

_SHARED = "put --out on a file system that all hosts share at the same path"
_MOST_CHARS = 300
"""Characters of a line that are repeated; hosts write it."""
_MOST_LINES, _MOST_LINE_CHARS = 200, 2_000
"""Lines at the end of the output that are read, and characters of each."""
_PYTHON = "a host has no {what}; name a Python that all hosts have with --python"
_PATH = "name an mpirun with --mpirun that all hosts have at the same path"
_AGENT_ERRORS: Sequence[tuple[str, str]] = (
    (r"seatrial agent: (.+?)\.?$", "{what}"),
    (r"Error: (the bundle) \S.* cannot be read here", f"a host cannot read the bundle; {_SHARED}"),
    (r"Error: (the bundle .+?)\.?$", "{what}"),
    (r"agent: (?:line )?1: (.+?): (?:not found|No such file|Permission denied)", _PYTHON),
    (r"seatrial: (node \d+ waits for .+?)\.?$", "{what}"),
    (r".*\benv: (?:can't execute )?['\u2018]([^'\u2018\u2019]+)['\u2019]: No such file", _PYTHON),
)
"""Errors of an agent, whose launcher may continue; they take precedence over all others. A host
chooses the lines: no pattern may search the rest of one from several places in it."""
_LAUNCHER_ERRORS: Sequence[tuple[str, str]] = (
    # ssh, with which all launchers reach other hosts.
    (r"ssh: (.+)", "ssh: {what}"),
    (r"(Host key verification failed)", "ssh: {what}; connect to each host by hand once and compare its key"),
    (r".*(UNPROTECTED PRIVATE KEY FILE)", "ssh: other users can read the private key; run chmod 600 on it"),
    (r"(.*Permission denied \([^()]+\))", "ssh: {what}; `ssh HOST` must work without a password prompt"),
    # Open MPI 4 and 5.
    (r"Remote daemon: +\S+ on node (\S+)", "it has lost its daemon on {what}"),
    (r"(A hostfile was provided that contains multiple)", "two of the host names are one machine; name it once"),
    (r"(.*(?:orted|prted): (?:command )?not found)", f"{{what}}; {_PATH}"),
    # hydra
    (r".*execvp error on file (\S+)", _PYTHON),
    (
        r".*Unable to run bstrap_proxy on ([^ :]+)",
        "{what} is unreachable; `ssh {what}` must work without a password prompt",
    ),
    (r".*(hydra_[a-z]{1,20}_proxy): (?:command )?(?:not found|No such file)", f"a host has no {{what}}; {_PATH}"),
)
"""(pattern at the start of a line, sentence with the text of its group); the first that matches any line counts."""
_REFUSALS: Sequence[tuple[str, str]] = (
    (r"seatrial agent refuses: (.+?)\.?$", "an agent refuses: {what}"),
    (r"There are not enough slots( )available", "there are not enough slots for the ranks; request fewer"),
    # Arguments added by the user: Open MPI 4, Open MPI 5, hydra, srun.
    (r".*mpirun: Error: (unknown option .+)", "mpirun: {what}; see --mpi-arg"),
    (r"Option: +(-\S+)$", "mpirun: unknown option {what}; see --mpi-arg"),
    (r"\[mpiexec.*(unrecognized argument \S+)", "mpirun: {what}; see --mpi-arg"),
    (
        r"The MCA param (\w+tmpdir_base) was specified",
        "mpirun: {what} is set in a file of settings that seatrial has not found; set it in the environment, too",
    ),
    (r"srun: ((?:unrecognized |invalid )?option .+)", "srun: {what}; see --slurm-arg and --container-image"),
    (r".*exec: (srun): (?:command )?not found", "{what} was not found in PATH; run this command on a host where it is"),
    (r"srun: error: ((?:Invalid|Only allocated) .+)", "srun: {what}; change the request"),
    (
        r"srun: error: (Unable to create step .+(?:not available|not permitted|Invalid).*)",
        "srun: {what}; request no more than the job has",
    ),
)
"""The same for options that a launcher, or an agent on its host, refuses."""


def reason(output: str) -> str:
    """Return why a launcher ended; empty when its output has no known error."""
    return reason_of_agent(output) or refused(output) or _first(_LAUNCHER_ERRORS, output) or last_error(output)


def reason_of_agent(output: str) -> str:
    """Return why an agent did not connect, which may not end its launcher; empty when no agent printed an error."""
    return _first(_AGENT_ERRORS, output)


def refused(output: str) -> str:
    """Return why a launcher refused its options; empty when it failed for another reason.

    The words of the launcher, or of a host, are in quotes.
    """
    return _first(_REFUSALS, output, as_name)


def _first(patterns: Sequence[tuple[str, str]], output: str, shown: Callable[[str], str] = str) -> str:
    # Hosts write there, too, as much as they like, and this is read each second.
    lines = [line[:_MOST_LINE_CHARS] for line in map(str.strip, output.splitlines()) if line][-_MOST_LINES:]
    matches = ((re.match(pattern, line), words) for pattern, words in patterns for line in lines)
    return next((words.format(what=shown(match[1][:_MOST_CHARS])) for match, words in matches if match), "")
