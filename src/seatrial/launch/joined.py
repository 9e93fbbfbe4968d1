"""Ranks that another launcher started (torchrun, mpirun, srun, an operator): each process becomes the agent of its
rank or node, and the first one conducts as well.

They know one another only by their environment, so the address, a short list of ports and the key of the job are worked
out from it, alike in every process. What keeps others out is a secret: SEATRIAL_TOKEN where it is given to all of them;
on one machine a file that only this user can read; else there is none, and ``protected`` says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import sys
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from seatrial.errors import RequestError
from seatrial.launch import local, place
from seatrial.launch.command import Command
from seatrial.launch.job import Processes
from seatrial.launch.option import is_given
from seatrial.launch.target import Placement, Where
from seatrial.launch.targets import TARGETS
from seatrial.probe.identity import Identity

__all__ = [
    "UNPROTECTED",
    "Meeting",
    "agent_command",
    "agent_environ",
    "become_agent",
    "is_one_of_many",
    "is_rank",
    "meet",
    "placement",
    "rank_environ",
    "refuse_elsewhere",
]

UNPROTECTED = (
    "seatrial: anybody on these machines could join this job; set SEATRIAL_TOKEN to a secret in all processes."
)
_REAL_LAUNCHERS = ("torchrun", "openmpi", "hydra")
"""They set their words for a single rank too; those of others may be left over in a shell."""

_FIRST_PORT = 20_000
_PORTS = 12_000
"""Below the ports that Linux hands out by itself (from 32,768 on)."""
_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the processes of one job meet, and as what this one comes."""

    host: str
    ports: tuple[int, ...]
    """In this order: another job on the same machines may hold the first."""
    token: str
    protected: bool
    """Whether the token is a secret, and not only what tells jobs apart."""
    launcher: str
    number: int
    """Which agent this process is; the first one conducts."""
    agents: int

    @property
    def control(self) -> str:
        """As an agent is told: host:port, or host:port,port,..."""
        return f"{self.host}:{','.join(str(port) for port in self.ports)}"


def is_one_of_many(identity: Identity) -> bool:
    """Whether others were started together with this process. A rank 0 of 1 is a person's shell as much as a rank."""
    if identity.level == "rank":
        return identity.world_size != 1
    return identity.level == "node" and identity.nnodes != 1


def is_rank(identity: Identity) -> bool:
    """Whether this process is to become a rank of a program."""
    return identity.level == "rank" and (is_one_of_many(identity) or identity.launcher in _REAL_LAUNCHERS)


def rank_environ(identity: Identity, environ: Mapping[str, str]) -> dict[str, str]:
    """What such a rank lacks for torch's ``env://``; what the launcher has said itself stays as it is.

    Raises RequestError when the environment does not say enough.
    """
    meeting = meet(identity, environ)
    told = {
        "RANK": identity.rank,
        "WORLD_SIZE": identity.world_size,
        "LOCAL_RANK": identity.local_rank,
        "LOCAL_WORLD_SIZE": identity.local_world_size,
        "MASTER_ADDR": identity.master_addr or meeting.host,
        "MASTER_PORT": identity.master_port or meeting.ports[0],
    }
    return {name: str(value) for name, value in told.items() if value is not None and environ.get(name) != str(value)}


def refuse_elsewhere(where: Where, who: str) -> None:
    """Raises RequestError for options that say where ranks are to be started, where ``who`` has started them."""
    told = [option.flags[0] for option in TARGETS[where.target].options if is_given(option, where.own[option.name])]
    if where.target != "local" or told:
        words = " ".join([*([f"--on {where.target}"] if where.target != "local" else []), *told])
        raise RequestError(f"{words} {who}: where the ranks run is decided; leave that out.")


def placement(where: Where, identity: Identity, meeting: Meeting) -> Placement:
    """As a launcher has started us. Raises RequestError for what is not ours to decide."""
    refuse_elsewhere(where, f"under {identity.launcher}")
    # Ranks that a launcher started have an agent each; else each node has one, which starts its ranks.
    is_rank = identity.level == "rank"
    python = where.python or sys.executable
    here = place.choose(
        device=where.device,
        backend=where.backend,
        nproc_per_node=_ranks_of_a_node(where, identity, is_rank=is_rank),
        python=python,
        alone=is_rank and identity.local_world_size == identity.world_size,
        started=is_rank,
    )
    return Placement(
        nodes=meeting.agents,
        nproc_per_node=1 if is_rank else here.nproc_per_node,
        device=here.device,
        backend=here.backend,
        python=python,
        env=here.env,
        words=f"as {meeting.launcher} started them",
    )


def _ranks_of_a_node(where: Where, identity: Identity, *, is_rank: bool) -> int | None:
    """As the option or the environment says; None where neither does. Raises RequestError where they disagree."""
    asked, told = where.nproc_per_node, identity.local_world_size if is_rank else identity.nproc_per_node
    if asked is not None and told is not None and asked != told:
        raise RequestError(
            f"--nproc-per-node {asked}, but {identity.launcher} says {told} processes a node; leave the option out, or"
            " change what the launcher is told."
        )
    return told if asked is None else asked


def agent_environ(identity: Identity) -> dict[str, str]:
    """What the agent of one rank must know that a conductor cannot: its place among the ranks of its machine."""
    told = {"SEATRIAL_LOCAL_RANK": identity.local_rank, "SEATRIAL_LOCAL_WORLD_SIZE": identity.local_world_size}
    return {name: str(value) for name, value in told.items() if value is not None}


def agent_command(job: Processes, number: int, *, control: str, token: str, keep: str = "") -> Command:
    """The agent of one of the processes that a launcher started."""
    (command,) = local.render(replace(job, nodes=1), control=control, token=token, keep=keep)
    return replace(command, env={**command.env, "SEATRIAL_NODE_RANK": str(number)}, nodes=(number,))


def become_agent(job: Processes, meeting: Meeting) -> NoReturn:
    """This process is the agent from here on; it does not return."""
    command = agent_command(job, meeting.number, control=meeting.control, token=meeting.token)
    os.execve(command.argv[0], command.argv, {**os.environ, **command.env})


def meet(identity: Identity, environ: Mapping[str, str]) -> Meeting:
    """Where to meet. Raises RequestError when the environment does not say enough."""
    if identity.level == "rank":
        number, agents = identity.rank, identity.world_size
    else:
        number, agents = identity.node_rank, identity.nnodes
    if number is None or agents is None:
        raise RequestError(
            f"{identity.launcher} tells that this is node {number}, but not of how many; set SEATRIAL_NODE_RANK and"
            " SEATRIAL_NNODES, and MASTER_ADDR, in every process."
        )
    key = _key(identity, environ)
    secret = environ.get("SEATRIAL_TOKEN") or (_secret_of_machine() if _is_local(identity) else "")
    said = f"seatrial {os.getuid()} {key} {secret}"
    # What is not UTF-8 in an environment comes as lone surrogates.
    first = zlib.crc32(key.encode(errors="surrogatepass")) % _PORTS
    return Meeting(
        host=_host(identity, environ),
        ports=tuple(_FIRST_PORT + (first + offset) % _PORTS for offset in range(_TRIES)),
        token=hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest(),
        protected=bool(secret),
        launcher=identity.launcher,
        number=number,
        agents=agents,
    )


def _is_local(identity: Identity) -> bool:
    """All ranks are on this machine."""
    return identity.local_world_size is not None and identity.local_world_size == identity.world_size


def _secret_of_machine() -> str:
    """A random text that all processes of this user on this machine can read, and nobody else; made once.

    Empty where it cannot be kept. Raises RequestError when somebody else has put something in its place.
    """
    folder = Path(tempfile.gettempdir()) / f"seatrial-{os.getuid()}"
    path = folder / "secret"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        seen = folder.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
            raise RequestError(f"{folder} is not a folder of yours alone (mode 0700); remove it, or set TMPDIR.")
        if not path.exists():
            # Written whole under another name, then linked: whoever comes first makes it, and nobody reads half of it.
            descriptor, name = tempfile.mkstemp(dir=folder)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
            os.unlink(name)
        return path.read_text("ascii")
    except OSError:
        return ""


def _host(identity: Identity, environ: Mapping[str, str]) -> str:
    if identity.master_addr:
        return identity.master_addr
    if identity.launcher == "slurm":
        return _first_host(environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", "")))
    if _is_local(identity):
        return "127.0.0.1"
    raise RequestError(
        f"{identity.launcher} does not say where rank 0 is; pass MASTER_ADDR=THE-HOST-OF-RANK-0 to every process"
        " (mpirun -x MASTER_ADDR=..., or -genv MASTER_ADDR ...)."
    )


def _key(identity: Identity, environ: Mapping[str, str]) -> str:
    """What all processes of this job have in common and another job on the same machines has not."""
    names = {
        "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        "openmpi": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    }.get(identity.launcher, ())
    told = [environ[name] for name in names if name in environ]
    if identity.master_addr or identity.master_port is not None:
        told += [str(identity.master_addr), str(identity.master_port)]
    if not told:
        # hydra tells nothing in common; on one machine its ranks have one parent.
        told = ["parent", str(os.getppid())]
    return "|".join([identity.launcher, *told])


def _first_host(nodelist: str) -> str:
    """The first of ``n[0-3,7],m1``. Zeros in front are part of the name."""
    match = re.match(r"(?:[A-Za-z0-9._-]|\[[0-9]+[0-9,-]*\])+(?=,|$)", nodelist)
    host = re.sub(r"\[([0-9]+)[^]]*\]", r"\1", match[0]) if match else ""
    if not 0 < len(host) < 254:
        raise RequestError(f"SLURM_STEP_NODELIST={nodelist[:40]!a}: the first host cannot be read; set MASTER_ADDR.")
    return host
