"""Ranks that another launcher has started: torchrun, mpirun, srun, a Kubernetes operator.

Each process becomes the agent of its rank or node, and the first one conducts as well. The processes share nothing but
their environment, so each of them derives the same address, list of ports and job key from it. A secret keeps strangers
out (``job_secret.py``).
"""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from seatrial.environment.identity import Identity
from seatrial.errors import RequestError
from seatrial.probe.address_search import address_of_this_node
from seatrial.probe.names import resolve
from seatrial.probe.torch_install import interpreter
from seatrial.protocol.munge import agent_token
from seatrial.run.job_secret import find_job_secret
from seatrial.targets import local_target, resources
from seatrial.targets.hidden_values import refuse_secrets_in_clear
from seatrial.targets.option import is_given
from seatrial.targets.registry import TARGETS
from seatrial.targets.target import Placement, TargetRequest
from seatrial.util.job_signals import JOINING
from seatrial.util.streams import print_status

if TYPE_CHECKING:
    from seatrial.targets.command import Command
    from seatrial.targets.job import Processes

_UNPROTECTED = (
    "seatrial: this job has no secret (--unprotected): any user of these machines, and anybody on the network between"
    " them, can speak as each of its nodes, and give the verdict."
)
_REAL_LAUNCHERS = ("torchrun", "openmpi", "hydra")
"""Launchers that set their variables for a single rank too; those of others may be left over in a shell."""
_OF_HOSTS = (*_REAL_LAUNCHERS, "slurm")
"""Launchers whose hosts have their names before they start ranks there; a pod of others may get its name later."""

_FIRST_PORT = 20_000
_NUM_PORTS = 12_000
"""Below the ephemeral ports of Linux, which begin at 32,768."""
_NUM_CANDIDATES = 8
_RESOLVE_S = 5.0
"""A resolver that needs longer may still answer: it is not waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the processes of one job connect to one another, and the place of this process among them."""

    host: str
    """Host of the first agent, which conducts."""
    ports: tuple[int, ...]
    """Candidates in the order to try them: another job on the same machines may use the first."""
    token: str
    """Empty where munge passes the token that the first process makes."""
    name: str = ""
    """Then a digest that names this job; it is no secret."""
    protected: bool
    """Whether the token contains a secret; otherwise it only distinguishes jobs."""
    launcher: str
    """Name of the launcher, as in ``Identity``."""
    number: int
    """Index of the agent that this process is, from 0."""
    agents: int
    """Number of agents: of ranks, or of nodes where each node has one agent."""
    is_of_nodes: bool = False
    """Whether each node has one agent."""
    machines: int | None = None
    """Number of machines, where each rank has an agent and the launcher says on how many: mpirun does not."""

    @property
    def agent_token(self) -> str:
        """Return the value of SEATRIAL_TOKEN of each agent, the one of this process included."""
        return self.token or agent_token(self.name)

    @property
    def control(self) -> str:
        """Return the value of SEATRIAL_CONTROL: host:port, or host:port,port,..."""
        return f"{self.host}:{','.join(str(port) for port in self.ports)}"


def is_one_of_many(identity: Identity) -> bool:
    """Return whether a launcher started others together with this process; rank 0 of 1 may be a user's shell."""
    if identity.level == "rank":
        return identity.world_size != 1
    return identity.level == "node" and identity.nnodes != 1


def is_rank(identity: Identity) -> bool:
    """Return whether this process becomes a rank of a program."""
    return identity.level == "rank" and (is_one_of_many(identity) or identity.launcher in _REAL_LAUNCHERS)


def rank_environ(identity: Identity, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that this rank lacks for torch's ``env://``, without those that the launcher has set.

    Raises RequestError when the environment is incomplete, or names a master that has no address.
    """
    host = _host(identity, environ)
    if identity.launcher in _OF_HOSTS:
        _refuse_without_address(host, is_given=bool(identity.master_addr))
    variables = {
        "RANK": identity.rank,
        "WORLD_SIZE": identity.world_size,
        "LOCAL_RANK": identity.local_rank,
        "LOCAL_WORLD_SIZE": identity.local_world_size,
        "MASTER_ADDR": identity.master_addr or host,
        "MASTER_PORT": identity.master_port or _ports(_key(identity, environ))[0],
    }
    return {
        name: str(value) for name, value in variables.items() if value is not None and environ.get(name) != str(value)
    }


def refuse_target_options(target_request: TargetRequest, origin: str, *, but: Collection[str] = ()) -> None:
    """Raise RequestError for options that choose a target.

    Args:
        target_request: the request.
        origin: why none can be chosen: "under torchrun".
        but: names of options that are wanted nevertheless.
    """
    target = target_request.target
    own = [option for option in TARGETS[target].options if option.name not in but]
    options = [option for option in own if is_given(option, target_request.own[option.name])]
    given = [*([f"--on {target}"] if target != "local" else []), *(option.flags[0] for option in options)]
    if given:
        raise RequestError(f"{' '.join(given)} {origin}: it is decided where the ranks run; leave that out.")


def sends_in_clear(identity: Identity, rendezvous: Rendezvous) -> bool:
    """Return whether variables and arguments cross the network unencrypted."""
    return rendezvous.agents > 1 and not is_on_one_machine(identity)


def placement(target_request: TargetRequest, identity: Identity, rendezvous: Rendezvous) -> Placement:
    """Return the placement that the launcher has decided. Raises RequestError for options that contradict it."""
    refuse_target_options(target_request, f"under {identity.launcher}")
    if sends_in_clear(identity, rendezvous):
        refuse_secrets_in_clear(target_request.env, f"under {identity.launcher}")
    # Ranks that a launcher started have one agent each; otherwise each node has one, which starts its ranks.
    is_rank = identity.level == "rank"
    python = interpreter(target_request.python or sys.executable)
    here = resources.local_resources(
        device=target_request.device,
        backend=target_request.backend,
        nproc_per_node=_ranks_per_node(target_request, identity, is_rank=is_rank),
        processes_by=target_request.processes_by,
        python=python,
        on_one_node=is_rank and identity.local_world_size == identity.world_size,
        started=is_rank,
    )
    return Placement(
        nodes=rendezvous.agents,
        nproc_per_node=1 if is_rank else here.nproc_per_node,
        device=here.device,
        backend=here.backend,
        python=python,
        env=here.env,
        words=f"as {rendezvous.launcher} started them",
        ends_together=rendezvous.launcher == "hydra",
    )


def _ranks_per_node(target_request: TargetRequest, identity: Identity, *, is_rank: bool) -> int | None:
    """Return the number from the option or the environment, or None. Raises RequestError where the two disagree."""
    requested, started = (
        target_request.nproc_per_node,
        identity.local_world_size if is_rank else identity.nproc_per_node,
    )
    if requested is not None and started is not None and requested != started:
        raise RequestError(
            f"--nproc-per-node {requested}, but {identity.launcher} starts {started} processes on each node; leave"
            " the option out, or change that of the launcher."
        )
    return started if requested is None else requested


def agent_environ(identity: Identity) -> dict[str, str]:
    """Return the variables that only the agent of one rank knows: its place among the ranks of its machine."""
    variables = {"SEATRIAL_LOCAL_RANK": identity.local_rank, "SEATRIAL_LOCAL_WORLD_SIZE": identity.local_world_size}
    return {name: str(value) for name, value in variables.items() if value is not None}


def group_environ(identity: Identity) -> dict[str, str]:
    """Return the variables with the number of this rank's machine, where the launcher fills one after the other."""
    rank, world_size, here = identity.rank, identity.world_size, identity.local_world_size
    if rank is None or world_size is None or not here:
        return {}
    return {"SEATRIAL_GROUP_RANK": str(rank // here), "SEATRIAL_GROUP_WORLD_SIZE": str(world_size // here)}


def agent_command(job: Processes, number: int, *, control: str, token: str, keep: str = "") -> Command:
    """Return the command of the agent that replaces the process with this number.

    ``control``: host:port of the conductor; ``keep``: the folder of the run, empty where none is written.
    """
    (command,) = local_target.render(replace(job, nodes=1), control=control, token=token, keep=keep)
    return replace(command, env={**command.env, "SEATRIAL_NODE_RANK": str(number)}, nodes=(number,))


def own_agent_command(job: Processes, rendezvous: Rendezvous, port: int, *, keep: str) -> Command:
    """Return the command of the agent of the process that conducts: it needs no name for its own machine."""
    control, token = f"127.0.0.1:{port}", rendezvous.agent_token
    command = agent_command(job, rendezvous.number, control=control, token=token, keep=keep)
    address = address_of_this_node(rendezvous.host, os.environ)
    return replace(command, env={**command.env, "SEATRIAL_ADDRESS": address})


def become_agent(job: Processes, rendezvous: Rendezvous) -> NoReturn:
    """Replace this process by its agent. Does not return."""
    warn_unprotected(rendezvous)
    command = agent_command(job, rendezvous.number, control=rendezvous.control, token=rendezvous.agent_token)
    # Process 1 of a pod would ignore a signal that arrives before the agent has its handlers; any other would end.
    signal.pthread_sigmask(signal.SIG_BLOCK, JOINING)
    os.execve(command.argv[0], command.argv, {**os.environ, **command.env})


def warn_unprotected(rendezvous: Rendezvous) -> None:
    """Print a warning before this process connects to a job without a secret."""
    if not rendezvous.protected:
        print_status(_UNPROTECTED)


def find_rendezvous(identity: Identity, environ: Mapping[str, str], *, unprotected: bool = False) -> Rendezvous:
    """Return the rendezvous that the environment implies.

    Raises RequestError when it is incomplete, or when there is no secret and ``unprotected`` is False.
    """
    import hashlib

    if identity.level == "rank":
        number, agents = identity.rank, identity.world_size
    else:
        number, agents = identity.node_rank, identity.nnodes
    if number is None or agents is None:
        raise RequestError(
            f"{identity.launcher} says that this is node {number}, but not of how many; set SEATRIAL_NODE_RANK and"
            " SEATRIAL_NNODES, MASTER_ADDR and MASTER_PORT, in every process."
        )
    host, key = _host(identity, environ), _key(identity, environ)
    secret = find_job_secret(
        identity.launcher, environ, on_one_machine=is_on_one_machine(identity), unprotected=unprotected
    )
    shared = f"seatrial {os.getuid()} {key} {secret.text}"
    # Bytes that are not UTF-8 are lone surrogates in os.environ.
    digest = hashlib.sha256(shared.encode(errors="surrogatepass")).hexdigest()
    return Rendezvous(
        host=host,
        ports=_ports(key),
        token="" if secret.munge else digest,
        name=digest if secret.munge else "",
        protected=secret.protected,
        launcher=identity.launcher,
        number=number,
        agents=agents,
        is_of_nodes=identity.level == "node",
        machines=identity.nnodes if identity.level == "rank" else None,
    )


def _ports(key: str) -> tuple[int, ...]:
    import zlib

    first = zlib.crc32(key.encode(errors="surrogatepass")) % _NUM_PORTS
    return tuple(_FIRST_PORT + (first + offset) % _NUM_PORTS for offset in range(_NUM_CANDIDATES))


def is_on_one_machine(identity: Identity) -> bool:
    """Return whether all ranks are on this machine."""
    return identity.local_world_size is not None and identity.local_world_size == identity.world_size


def _host(identity: Identity, environ: Mapping[str, str]) -> str:
    if identity.master_addr:
        return identity.master_addr
    if identity.launcher == "slurm":
        return _first_host(environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", "")))
    if is_on_one_machine(identity):
        return "127.0.0.1"
    raise RequestError(
        f"{identity.launcher} does not say where rank 0 is; pass MASTER_ADDR=THE-HOST-OF-RANK-0 to every process"
        " (mpirun -x MASTER_ADDR=..., or -genv MASTER_ADDR ... -genv MASTER_PORT ...)."
    )


def _key(identity: Identity, environ: Mapping[str, str]) -> str:
    """Return a text that all processes of this job share, and no other job on the same machines.

    Raises RequestError where nothing is such.
    """
    names = {
        "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        "openmpi": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    }.get(identity.launcher, ())
    parts = [environ[name] for name in names if name in environ]
    if not parts and identity.master_port is None:
        # hydra sets no common variable; on one machine its ranks have the same helper.
        starter = _starter() if identity.launcher in _REAL_LAUNCHERS and is_on_one_machine(identity) else 0
        if not starter:
            raise RequestError(
                f"nothing tells this job from another one of yours by {identity.launcher} at the same time; set"
                " MASTER_PORT to a number of this job alone, such as 29517, in every process (hydra: -genv MASTER_PORT"
                " 29517)."
            )
        parts = ["parent", str(starter)]
    if identity.master_addr or identity.master_port is not None:
        parts += [str(identity.master_addr), str(identity.master_port)]
    return "|".join([identity.launcher, *parts])


def _starter() -> int:
    """Return the process that started the ranks: hydra's helper, from which a shell may lead here, or the parent.

    0: it cannot be seen, as each rank has a separate process namespace, perhaps with an init.
    """
    pid = os.getppid()
    while pid > 1:
        try:
            name, _, fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        except OSError:
            break
        if name.endswith("(hydra_pmi_proxy"):
            return pid
        pid = int(fields.split()[1])
    return os.getppid() if os.getppid() > 1 else 0


def _refuse_without_address(host: str, *, is_given: bool) -> None:
    """Raise RequestError where the host of rank 0 has no address: torch would try for minutes.

    The name of a node in Slurm (NodeName) need not be a host name. ``is_given``: MASTER_ADDR is the name.
    """
    if resolve(host, _RESOLVE_S).addresses == ():
        here = f"has no address on {platform.node()}"
        if is_given:
            raise RequestError(
                f"MASTER_ADDR={host} {here}; set it to a name or an address of the node of rank 0 that all nodes know."
            )
        raise RequestError(
            f"{host}, the first host of SLURM_STEP_NODELIST, {here}; set MASTER_ADDR to a name or an address of that"
            " node."
        )


def _first_host(nodelist: str) -> str:
    """Return the first host of a node list such as ``n[0-3,7],m1``. Leading zeros are part of a name."""
    match = re.match(r"(?:[A-Za-z0-9._-]|\[[0-9]+[0-9,-]*\])+(?=,|$)", nodelist)
    host = re.sub(r"\[([0-9]+)[^]]*\]", r"\1", match[0]) if match else ""
    if not 0 < len(host) < 254:
        raise RequestError(f"SLURM_STEP_NODELIST={nodelist[:40]!a}: the first host cannot be read; set MASTER_ADDR.")
    return host
