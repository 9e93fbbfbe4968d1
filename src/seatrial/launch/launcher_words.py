"""What a launcher printed before it gave up, as one sentence with what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.launch.slurm_words import complaint

__all__ = ["reason"]

_SHARED = "put --out on a file system that all hosts share at the same path"
_SIGNS: Sequence[tuple[str, str]] = (
    # Of our own agents: the innermost, and in words already.
    (r"seatrial agent: (?P<what>.+?)\.?$", "{what}"),
    (r"(?P<what>the launcher has .+)", "{what}; see that it heeds the hosts it is given"),
    (r".*Error while finding module specification for 'seatrial\.|.*No module named '?seatrial", f"a host does not see our code; {_SHARED}"),
    (r".*can't open file '(?P<what>[^']+)'", f"a host has no {{what}}; {_SHARED}"),
    # ssh, by which all of them reach other hosts.
    (r"ssh: (?P<what>.+)", "ssh: {what}"),
    (r"(?P<what>Host key verification failed)", "ssh: {what}; log in to each host by hand once and look at its key"),
    (r"(?P<what>.*Permission denied \(.+\))", "ssh: {what}; each host must let us in without a password"),
    (r"(?P<what>.*WARNING: UNPROTECTED PRIVATE KEY FILE)", "ssh: a key can be read by others; chmod 600 it"),
    # Open MPI's boxes of text, 4 and 5.
    (r"There are not enough slots available", "there are fewer slots than ranks; ask for fewer, or give the hosts more"),
    (r"A hostfile was provided that contains multiple definitions", "two names of the hosts are the same machine; name it once"),
    (r"Executable: (?P<what>.+)", "a host has no {what}; name a Python that all hosts have with --python"),
    (r"(?P<what>.*(?:orted|prted): (?:command )?not found)", "{what}; name an mpirun with --mpirun that all hosts have at the same path"),
    # hydra
    (r".*execvp error on file (?P<what>\S+)", "a host has no {what}; name a Python that all hosts have with --python"),
    (r".*Unable to run bstrap_proxy on (?P<what>[^ :]+)", "{what} could not be reached; see that ssh {what} works without a password"),
    (r".*(?:hydra_pmi_proxy|hydra_bstrap_proxy): (?:command )?(?:not found|No such file)", "a host does not have this MPI at the same path"),
)  # fmt: skip
"""What stands in a line -> the sentence; the first that fits any line counts."""


def reason(output: str) -> str:
    """Empty when nothing in it is known."""
    lines = [line.strip() for line in output.splitlines()]
    for sign, words in _SIGNS:
        for line in lines:
            match = re.match(sign, line)
            if match:
                return words.format(**match.groupdict())
    return complaint(output)
