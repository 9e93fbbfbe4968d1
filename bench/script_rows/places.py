"""Where the cases of the bench of scripts run: on real launchers of this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from hosts import Hosts, made_hosts  # noqa: E402
from launchers.slurm_cluster import slurm_cluster  # noqa: E402

SETTINGS = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SEATRIAL_TEST_")}
"""What ``.ci/run`` sets, out of the sight of the scripts."""
RUN_VARIABLE = "SEATRIAL_TEST_RUN"
"""A variable of all processes that the bench starts; the hosts of the tests carry it over ssh."""
os.environ[RUN_VARIABLE] = uuid.uuid4().hex
LAUNCHED = ROOT / "bench" / "script_rows" / "launched"
SCRIPTS = ROOT / "tests" / "scripts"
_SEATRIAL = (sys.executable, "-m", "seatrial")
_LAUNCH = (*_SEATRIAL, "launch", "--device", "cpu")
_HOSTS = ("--hosts", "node0,node1")
_MPIRUNS = {"Open MPI 5": "/.venv-openmpi/", "MPICH": "/.venv-mpich/", "Open MPI 4": "/usr/bin/"}
"""MPI -> part of the path of its mpirun in SEATRIAL_TEST_MPIRUNS, as ``.ci/run`` sets it."""


class NotHereError(Exception):
    """This machine lacks what a place needs."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this machine has for the cases."""

    folder: Path
    """All users can go there."""
    hosts: Hosts | None
    slurm: Mapping[str, str]
    """The variables by which srun finds the cluster; empty: there is none."""

    def paths(self, needs: Sequence[str]) -> dict[str, str]:
        """Return the variables by which Python finds folders of packages."""
        folders = []
        for need in needs:
            variable = {"heavy": "SEATRIAL_TEST_HEAVY_FRAMEWORKS", "mpi4py": "SEATRIAL_TEST_MPI4PY"}
            name = variable.get(need, "SEATRIAL_TEST_FRAMEWORKS")
            if not SETTINGS.get(name):
                raise NotHereError(f"{name} names no folder")
            folders.append(SETTINGS[name])
        variables = {"PYTHONWARNINGS": "ignore", "ACCELERATE_USE_CPU": "true"}
        return variables | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})

    def mpirun(self, mpi: str) -> str:
        """Return the path of an mpirun."""
        paths = SETTINGS.get("SEATRIAL_TEST_MPIRUNS", "").split(":")
        path = next((path for path in paths if _MPIRUNS[mpi] in path), "")
        if not path:
            raise NotHereError(f"SEATRIAL_TEST_MPIRUNS names no mpirun of {mpi}")
        return path

    def environ_of_tests(self) -> dict[str, str]:
        """Return the environment in which pytest starts."""
        return {**os.environ, **SETTINGS}

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield (path of this machine, word for it)."""
        if self.hosts:
            yield str(self.hosts.folder), "HOSTS"
        yield str(self.folder), "BENCH"
        for mpi in _MPIRUNS:
            try:
                yield self.mpirun(mpi), f"mpirun[{mpi}]"
            except NotHereError:
                continue
        torch = find_spec("torch")
        if torch and torch.origin:
            yield str(Path(torch.origin).parents[1]), "PACKAGES"
        for name, word in (("FRAMEWORKS", "FRAMEWORKS"), ("HEAVY_FRAMEWORKS", "HEAVY"), ("MPI4PY", "MPI4PY")):
            if path := SETTINGS.get(f"SEATRIAL_TEST_{name}"):
                yield path, word


@contextmanager
def made_machine() -> Iterator[Machine]:
    """Make the hosts and the cluster of Slurm, for as long as the block lasts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seatrial-bench-", dir="/tmp")))
        folder.chmod(0o755)
        slurm: dict[str, str] = {}
        if shutil.which("slurmctld"):
            (folder / "slurm").mkdir()
            slurm = {"SLURM_CONF": stack.enter_context(slurm_cluster(folder / "slurm"))["SLURM_CONF"]}
        has_hosts = os.geteuid() == 0 and shutil.which("sshd") and shutil.which("ip")
        hosts = stack.enter_context(made_hosts(3)) if has_hosts else None
        yield Machine(folder=folder, hosts=hosts, slurm=slurm)


_Command = tuple[list[str], dict[str, str]]
_Place = Callable[[Machine, Path, Mapping[str, str], list[str]], _Command]
"""(machine, folder of the case, variables, words) -> arguments of a process, and its environment."""


def _typed(before: Sequence[str], machine: Machine, _: Path, environ: Mapping[str, str], words: list[str]) -> _Command:
    return [*before, *words], _environ(environ)


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    path = [environ.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    joined = os.pathsep.join(filter(None, path))
    return {**os.environ, **environ, **({"PYTHONPATH": joined} if joined else {})}


def _on_hosts(
    before: Sequence[str],
    own_is_loopback: bool,
    machine: Machine,
    folder: Path,
    environ: Mapping[str, str],
    words: list[str],
) -> _Command:
    """``own_is_loopback``: each host finds itself as 127.0.1.1, as Debian's installer writes /etc/hosts.

    Then the command is typed on a third host, as the sshd of these hosts listens on their address only.
    """
    if machine.hosts is None:
        raise NotHereError("no root, ip or sshd")
    made = machine.hosts
    for host in made:
        own = "127.0.1.1" if own_is_loopback else host.address
        names = [f"{own if other is host else other.address} {other.name}" for other in made]
        (host.etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    variables = [word for name, value in environ.items() for word in ("--env", f"{name}={value}")]
    typed = made.seatrial("launch", "--device", "cpu", "--python", str(made.python), *_HOSTS, *before, *variables)
    return made[2 if own_is_loopback else 0].argv("env", "-C", str(folder), *typed, *words), dict(os.environ)


def _on_hosts_by_mpirun(machine: Machine, folder: Path, environ: Mapping[str, str], words: list[str]) -> _Command:
    before = ("--on", "mpirun", "--mpirun", machine.mpirun("Open MPI 4"))
    return _on_hosts(before, False, machine, folder, environ, words)


def _on_mpirun(mpi: str, machine: Machine, folder: Path, environ: Mapping[str, str], words: list[str]) -> _Command:
    return [*_LAUNCH, "--on", "mpirun", "--mpirun", machine.mpirun(mpi), *words], _environ(environ)


def _by_mpirun(
    mpi: str, before: Sequence[str], machine: Machine, _: Path, environ: Mapping[str, str], words: list[str]
) -> _Command:
    options = ["--oversubscribe", "--allow-run-as-root"] if mpi.startswith("Open MPI") else []
    return [machine.mpirun(mpi), *options, "-np", "2", *before, *words], _environ(environ)


def _by_slurm(
    before: Sequence[str], machine: Machine, _: Path, environ: Mapping[str, str], words: list[str]
) -> _Command:
    if not machine.slurm:
        raise NotHereError("no slurmctld")
    return [*before, *words], _environ({**environ, **machine.slurm})


def _in_sbatch(machine: Machine, folder: Path, environ: Mapping[str, str], words: list[str]) -> _Command:
    """The script of the batch prints into a file, which is shown at its end."""
    line = shlex.join([*_LAUNCH, "--nproc-per-node", "2", *words])
    batch = ["sbatch", "--wait", "--nodes=1", "--ntasks=1", f"--output={folder}/batch", f"--wrap={line}"]
    shown = ["sh", "-c", '"$@"; code=$?; cat batch; exit $code', "sh"]
    return _by_slurm([*shown, *batch], machine, folder, environ, [])


_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
_SRUN = ("srun", "-N2", "--ntasks-per-node=1")
_SLURM = (*_LAUNCH, "--on", "slurm", "--nodes", "2")
PLACES: dict[str, _Place] = {
    "here": partial(_typed, _LAUNCH),
    "here, 2 nodes": partial(_typed, (*_LAUNCH, "--nodes", "2")),
    "ssh, 2 hosts": partial(_on_hosts, ("--on", "ssh"), False),
    "ssh, 2 hosts that are 127.0.1.1 to themselves": partial(_on_hosts, ("--on", "ssh"), True),
    "Open MPI 4, 2 hosts": _on_hosts_by_mpirun,
    "slurm, 2 nodes": partial(_by_slurm, _SLURM),
    "salloc": partial(_by_slurm, ("salloc", "--quiet", "--nodes=2", "--exclusive", *_SLURM)),
    "sbatch": _in_sbatch,
    "typed under torchrun": partial(_typed, (*_TORCHRUN, "-m", "seatrial", "launch")),
    # n0 and n1 are names that only this cluster knows.
    "typed under srun": partial(_by_slurm, ("env", "MASTER_ADDR=127.0.0.1", *_SRUN, *_SEATRIAL, "launch")),
    "typed under srun, no MASTER_ADDR": partial(_by_slurm, (*_SRUN, *_SEATRIAL, "launch")),
    "torchrun alone": partial(_typed, _TORCHRUN),
    "seatrial": partial(_typed, _SEATRIAL),
    "piped into head": partial(_typed, ("bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "bash", *_LAUNCH)),
    **{f"--on {mpi}": partial(_on_mpirun, mpi) for mpi in _MPIRUNS},
    **{f"typed under {mpi}": partial(_by_mpirun, mpi, (*_SEATRIAL, "launch")) for mpi in _MPIRUNS},
    **{f"{mpi} alone": partial(_by_mpirun, mpi, (sys.executable,)) for mpi in _MPIRUNS},
}
"""Name -> how a command is made there."""
