"""Implementations of mpirun: how ``--version`` identifies each, and the options that each needs.

Open MPI 4 and 5 share one syntax; MPICH and Intel MPI share that of hydra. Each option below was tested with Open MPI
4.1.4 and 5.0.11, MPICH 5.0.2 and Intel MPI 2021.18; docs/launching.md explains what each is for.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from seatrial.errors import RequestError
from seatrial.files import open_to_read

Kind = Literal["openmpi", "mpich", "intel"]
_NAMES: Mapping[Kind, str] = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}
_VERSION_PATTERNS: Sequence[tuple[Kind, str]] = (
    ("openmpi", r"\(Open MPI\) (\d+[\w.]*)"),
    ("intel", r"Intel\(R\) MPI Library[^,\n]*, Version (\d+[\w.]*)"),
    ("mpich", r"HYDRA build details:\s+Version:\s+(\d+[\w.]*)"),
)
_OLDEST_OPEN_MPI = 4
_PRRTE_SINCE = 5
"""Open MPI has the launcher PRRTE since then."""
_BASES_OF_ORTE = ("OMPI_MCA_orte_local_tmpdir_base", "OMPI_MCA_orte_remote_tmpdir_base")
_SHARED_MEMORY = "/dev/shm"
_SEGMENTS = ("btl_vader", "btl_sm", "osc_sm", "osc_rdma")
"""Components of Open MPI that put files with predictable names into the folder of shared memory."""
_FILES = "OMPI_MCA_mca_base_param_files"
_MOST_SETTINGS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiLauncher:
    """One mpirun: its path, implementation and version."""

    path: str
    kind: Kind
    version: str

    def __str__(self) -> str:
        return f"{_NAMES[self.kind]} {self.version}"


def recognize(path: str, output: str) -> MpiLauncher:
    """Return the mpirun at ``path`` from the output of ``--version``. Raises RequestError for an unsupported one."""
    for kind, pattern in _VERSION_PATTERNS:
        match = re.search(pattern, output)
        if match is None:
            continue
        if kind == "openmpi" and int(match[1].partition(".")[0]) < _OLDEST_OPEN_MPI:
            raise RequestError(f"{path} is Open MPI {match[1]}; name one of version {_OLDEST_OPEN_MPI} or newer.")
        return MpiLauncher(path=path, kind=kind, version=match[1])
    lines = output.strip().splitlines()
    raise RequestError(
        f"{path} --version prints {lines[0][:80]!a}, which is none of {', '.join(_NAMES.values())};"
        " name another mpirun."
        if lines
        else f"{path} --version prints nothing, so its MPI is unknown; name another mpirun."
    )


def hostfile_of(launcher: MpiLauncher, hosts: Iterable[tuple[str, int]]) -> str:
    """Return the text of the hostfile for ``hosts``: pairs of a name and its number of ranks."""
    separator = " slots=" if launcher.kind == "openmpi" else ":"
    return "".join(f"{host}{separator}{slots}\n" for host, slots in hosts)


def argv_of(
    launcher: MpiLauncher,
    *,
    hostfile: str,
    rank_count: int,
    exported: Iterable[str],
    as_root: bool,
    start_in: str | None = None,
    extra_args: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return mpirun and its options, which precede the command of the ranks. Ranks fill the hosts in their order.

    ``exported``: names of variables in mpirun's environment that the ranks need. Their values are on no command line,
    where every user of the machine could read them. ``extra_args``: arguments from the user, which come last.
    """
    number = str(rank_count)
    if launcher.kind == "openmpi":
        options = ["--hostfile", hostfile, "-np", number, "--map-by", "slot", "--bind-to", "none"]
        # Without this Open MPI 4 drops the domain of host names; 5 accepts the option and always keeps the domain.
        options += ["--mca", "orte_keep_fqdn_hostnames", "1"]
        # Without this the death of one agent ends all others before they can report what they saw.
        options += ["--enable-recovery"]
        for name in exported:
            options += ["-x", name]
        if as_root:
            options += ["--allow-run-as-root"]
    else:
        # Not -f: Intel MPI reads only the names in that file, and gives each host as many ranks as it has cores.
        options = ["-machinefile", hostfile, "-np", number]
        # Intel MPI accepts -bind-to for compatibility with MPICH, but only I_MPI_PIN=0 turns off its binding.
        options += ["-bind-to", "none"] if launcher.kind == "mpich" else []
    if start_in is not None and not {"-wdir", "--wdir", "-wd", "--wd"} & {*extra_args}:
        options += ["--wdir" if launcher.kind == "openmpi" else "-wdir", start_in]
    return (launcher.path, *options, *extra_args)


def environ_of(launcher: MpiLauncher, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that mpirun needs in addition to those of ``environ``."""
    if launcher.kind != "intel":
        return {}
    folder = os.path.dirname(launcher.path)
    search_path = environ.get("PATH", "")
    # Intel's mpirun is a script that searches PATH for mpiexec.hydra.
    if folder not in search_path.split(os.pathsep):
        search_path = f"{folder}{os.pathsep}{search_path}".rstrip(os.pathsep)
    return {"I_MPI_PIN": "0", "PATH": search_path}


def for_mpirun_alone(launcher: MpiLauncher) -> tuple[str, ...]:
    """Return the variables that mpirun hands on to its ranks although they must not see them.

    Each daemon of Open MPI 4 also gives its ranks the base that it has chosen for the session, and MPI_Init refuses one
    beside the choices. PRRTE removes its variables.
    """
    return _BASES_OF_ORTE if launcher.kind == "openmpi" and not _has_prrte(launcher) else ()


def own_folders_of(
    launcher: MpiLauncher, environ: Mapping[str, str], words: Sequence[str], *, only_this_machine: bool
) -> dict[str, tuple[str, ...]]:
    """Return the variables that name folders for this user alone, as ``FileCommand.own_folders`` has them.

    Open MPI keeps its session at names that neighbors can foresee, in a folder of all users, and uses whatever it finds
    there: ``TMPDIR/ompi.HOST.UID/pid.N`` (4) or ``TMPDIR/ompi.PID`` (5); its ranks do so with segments of shared
    memory. MPICH and Intel MPI take random names. A variable for the local session alone: other hosts have other
    folders, and mpirun hands the variables on. Settings of the user stay, also those in arguments and files.

    Args:
        launcher: The mpirun.
        environ: The environment in which it starts.
        words: Arguments from the user.
        only_this_machine: Whether all ranks run here.
    """
    if launcher.kind != "openmpi":
        return {}
    session = "PRTE_MCA_prte_local_tmpdir_base" if _has_prrte(launcher) else _BASES_OF_ORTE[0]
    is_set = partial(re.search, string="\n".join([*environ, *words, *_settings(launcher, environ)]))
    folders = {}
    # Open MPI refuses a base for this host beside one for all.
    if not is_set(r"((?<!remote_)tmpdir_base|(top|jobfam)_session_dir)\b"):
        folders[""] = (session,)
    segments = tuple(
        f"OMPI_MCA_{component}_backing_directory"
        for component in _SEGMENTS
        if not is_set(rf"{component}_backing_directory\b")
    )
    return {**folders, **({_SHARED_MEMORY: segments} if segments and only_this_machine else {})}


def _has_prrte(launcher: MpiLauncher) -> bool:
    return int(launcher.version.partition(".")[0]) >= _PRRTE_SINCE


def _settings(launcher: MpiLauncher, environ: Mapping[str, str]) -> list[str]:
    """Return the lines of the files of settings of Open MPI that are there: of the user, of the installation, of
    distributions, and those that the user names."""
    home, prefix = environ.get("HOME", ""), os.path.dirname(os.path.dirname(launcher.path))
    paths = [f"{home}/.openmpi/mca-params.conf", f"{home}/.prte/mca-params.conf"]
    paths += [f"{prefix}/etc/{name}-mca-params.conf" for name in ("openmpi", "prte")]
    paths += [*glob.glob("/etc/openmpi*/openmpi-mca-params.conf"), *re.split(r"[:,]", environ.get(_FILES, ""))]
    lines = []
    for path in paths:
        with contextlib.suppress(OSError), open_to_read(path) as file:
            lines += file.read(_MOST_SETTINGS_BYTES).decode(errors="replace").splitlines()
    return [line for line in lines if not line.lstrip().startswith("#")]
