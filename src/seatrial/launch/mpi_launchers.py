"""The mpiruns there are, told apart by what ``--version`` says, and how each of them is called.

Open MPI 4 and 5 understand one common spelling; MPICH and Intel MPI share hydra's. Each option below was seen working
with Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2 and Intel MPI 2021.18; docs/launching.md says what it is for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seatrial.errors import RequestError

__all__ = ["MpiLauncher", "argv_of", "environ_of", "hostfile_of", "recognise"]

Kind = Literal["openmpi", "mpich", "intel"]
_NAMES: Mapping[Kind, str] = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}
_SIGNS: Sequence[tuple[Kind, str]] = (
    ("openmpi", r"\(Open MPI\) (\d+[\w.]*)"),
    ("intel", r"Intel\(R\) MPI Library[^,\n]*, Version (\d+[\w.]*)"),
    ("mpich", r"HYDRA build details:\s+Version:\s+(\d+[\w.]*)"),
)
_OLDEST_OPEN_MPI = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiLauncher:
    """One mpirun."""

    path: str
    kind: Kind
    version: str

    def __str__(self) -> str:
        return f"{_NAMES[self.kind]} {self.version}"


def recognise(path: str, told: str) -> MpiLauncher:
    """By what it prints when it is asked for its version. Raises RequestError for one that nobody here has seen."""
    for kind, sign in _SIGNS:
        match = re.search(sign, told)
        if match is None:
            continue
        if kind == "openmpi" and int(match[1].partition(".")[0]) < _OLDEST_OPEN_MPI:
            raise RequestError(f"{path} is Open MPI {match[1]}; name one of version {_OLDEST_OPEN_MPI} or newer.")
        return MpiLauncher(path=path, kind=kind, version=match[1])
    lines = told.strip().splitlines()
    raise RequestError(
        f"{path} --version says {lines[0][:80]!a} and is none of {', '.join(_NAMES.values())}; name another mpirun."
        if lines
        else f"{path} --version says nothing, so it cannot be told which MPI it is; name another mpirun."
    )


def hostfile_of(launcher: MpiLauncher, hosts: Iterable[tuple[str, int]]) -> str:
    """The text of the file with the hosts and how many ranks each of them gets."""
    between = " slots=" if launcher.kind == "openmpi" else ":"
    return "".join(f"{host}{between}{slots}\n" for host, slots in hosts)


def argv_of(
    launcher: MpiLauncher,
    *,
    hostfile: str,
    count: int,
    passed_on: Iterable[str],
    as_root: bool,
    more: Sequence[str] = (),
) -> tuple[str, ...]:
    """All that stands before the command. Ranks fill the hosts in their order.

    ``passed_on``: names of variables in mpirun's environment that the ranks need. Their values stand on no command
    line, where everybody on the machine could read them. ``more``: what the user adds, last.
    """
    number = str(count)
    if launcher.kind == "openmpi":
        words = ["--hostfile", hostfile, "-np", number, "--map-by", "slot", "--bind-to", "none"]
        # Without it 4 cuts the domain off the names of hosts; 5 takes it and keeps them anyway.
        words += ["--mca", "orte_keep_fqdn_hostnames", "1"]
        # Else the death of one agent ends all others before they could say what they saw.
        words += ["--enable-recovery"]
        for name in passed_on:
            words += ["-x", name]
        if as_root:
            words += ["--allow-run-as-root"]
    else:
        # Not -f: Intel's reads the names of that file alone, and gives each host as many ranks as it has cores.
        words = ["-machinefile", hostfile, "-np", number]
        # Intel's is told by a variable: its hydra takes the option for MPICH's sake and pins all the same.
        words += ["-bind-to", "none"] if launcher.kind == "mpich" else []
    return (launcher.path, *words, *more)


def environ_of(launcher: MpiLauncher, environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment of mpirun must have beside ``environ``."""
    if launcher.kind != "intel":
        return {}
    folder = os.path.dirname(launcher.path)
    before = environ.get("PATH", "")
    # Its mpirun is a script that looks for mpiexec.hydra in PATH.
    path = before if folder in before.split(os.pathsep) else f"{folder}{os.pathsep}{before}".rstrip(os.pathsep)
    return {"I_MPI_PIN": "0", "PATH": path}
