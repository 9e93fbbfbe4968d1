"""One rank of a training, from the import of torch to its exit code."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import platform
import signal
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.environment.library_settings import library_settings
from seatrial.environment.mps import mps_settings
from seatrial.errors import RequestError, SeatrialError
from seatrial.probe.cpu import usable_cores
from seatrial.protocol.connecting import TRAINING_MEETS
from seatrial.protocol.own_errors import in_one_line, lacks_processes
from seatrial.rank.device import Device, open_device
from seatrial.rank.groups import close_world
from seatrial.rank.meeting import among_others
from seatrial.training.data.dataset_files import default_folder
from seatrial.util.job_signals import STOPPING, collector, unless_ignored
from seatrial.util.streams import write_line
from seatrial.util.text import printable
from seatrial.worker.compiled_code import keep_compiled_code_private, keep_no_compiled_code
from seatrial.worker.digests import difference, voters
from seatrial.worker.failures import cause_of
from seatrial.worker.rendezvous import form_world, meeting_place
from seatrial.worker.train_report import TrainReporter
from seatrial.worker.train_spec import TrainSpec

if TYPE_CHECKING:
    import torch.distributed as dist

    from seatrial.training.outcome import Outcome
    from seatrial.training.profile import StepProfile

INTERRUPTED = 130
"""Exit code of a training that was stopped on request and saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """The numbers of this rank, among all ranks and on its node."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """Ranks on this node."""

    @classmethod
    def from_environ(cls) -> RankIdentity:
        """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; without the last two, this rank is alone on its node.

        Raises RequestError when RANK or WORLD_SIZE is missing, or a value is no number.
        """
        try:
            rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            return cls(
                rank=rank,
                world_size=world_size,
                local_rank=int(os.environ.get("LOCAL_RANK", "0")),
                local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            )
        except (KeyError, ValueError) as error:
            raise RequestError(
                f"the environment does not say which rank this is ({error}); start it with seatrial train."
            ) from error


class _RendezvousError(SeatrialError):
    """The ranks could not form a group. Its ``__cause__`` is the error of torch."""


def run_rank(spec: TrainSpec, identity: RankIdentity) -> int:
    """Train as this rank and return the exit code. Every failure is reported; none is raised."""
    # Before the rendezvous a rank has nothing to save, so Ctrl-C ends it at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    stop_signals: list[int] = []
    reporter = TrainReporter(spec, identity.rank, identity.world_size, lambda: bool(stop_signals))
    if reporter.has_agent:
        faulthandler.register(signal.SIGUSR1, file=int(os.environ["SEATRIAL_STACK_FD"]), all_threads=True)
    reporter.enter("start-up/import torch")
    suppress_numpy_warning()
    with contextlib.ExitStack() as ending:
        try:
            init = ending.enter_context(meeting_place(spec.init, removes=identity.rank == 0))
            return _train(spec, identity, reporter, stop_signals, init)
        except Exception as error:
            return _report_error(error, spec, identity, reporter)


def suppress_numpy_warning() -> None:
    """Suppress torch's warning that NumPy is missing: seatrial needs no NumPy, and the warning looks like a failure."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")


def _train(spec: TrainSpec, identity: RankIdentity, reporter: TrainReporter, stop_signals: list[int], init: str) -> int:
    # Of a user without a home it is among the temporary files, and those of this rank have another place then.
    data_dir = Path(spec.data_dir) if spec.data_dir is not None else default_folder(os.environ)
    if spec.recipe.compile:
        keep_compiled_code_private()
    else:
        keep_no_compiled_code()
    os.environ.update(mps_settings(os.environ) | library_settings(os.environ))
    import torch
    import torch.distributed as dist

    from seatrial.training.checkpoint import CheckpointFolder
    from seatrial.training.resume import Checkpointing
    from seatrial.training.trainer import train

    reporter.enter("start-up/open device")
    device = open_device(spec.device, _device_index(spec, identity), _threads(identity.local_world_size))
    backend = device.backend if spec.backend == "auto" else spec.backend
    reporter.enter(TRAINING_MEETS)
    # Groups of torch read it for as long as they exist, and do not keep it.
    store = _rendezvous(spec, identity, backend, device, init)
    # Only now: a rank that waits in C++ for the others would not run a Python handler, and has nothing to save.
    _catch_stop_signals(stop_signals)
    machines = _machines(identity.world_size, device)
    threads = _threads(max(identity.local_world_size, machines.count(machines[identity.rank])))
    torch.set_num_threads(threads)
    reporter.ready(device, backend, identity.local_rank, threads)
    assert dist.group.WORLD is not None
    reporter.enter("load data")
    checkpoints = None
    if spec.checkpoint_dir is not None:
        checkpoints = Checkpointing(
            store=CheckpointFolder(spec.checkpoint_dir),
            save_every=spec.save_every,
            resume=spec.resume,
            # Our agents never restart a request that was refused, so only after their restarts is the folder known to
            # belong to this training.
            restarted=reporter.has_agent and reporter.generation > 0,
        )
    profile = _start_profile(spec, identity, reporter, device)
    outcome = train(
        spec.recipe,
        spec.recipe.data(data_dir),
        device=device.torch,
        group=dist.group.WORLD,
        phase=reporter.enter,
        checkpoints=checkpoints,
        callbacks=reporter,
        target_accuracy=spec.target_accuracy,
    )
    if profile is not None:
        profile.stop()
    reporter.enter("compare digests")
    profile_written = profile is not None and profile.is_written
    digests = _gather_digests(outcome.digest, identity, device)
    different = difference(digests, voters(machines, identity.local_world_size))
    result = _result(spec, identity, reporter, outcome, profile_written, different)
    code = _exit_code(result)
    reporter.enter("end")
    close_world()
    del store
    reporter.result(code, result)
    return code


def _start_profile(
    spec: TrainSpec, identity: RankIdentity, reporter: TrainReporter, device: Device
) -> StepProfile | None:
    """Return the running profiler of rank 0, if the user asked for a profile."""
    if spec.profile is None or identity.rank != 0:
        return None
    from seatrial.training.profile import StepProfile

    profile = StepProfile(Path(spec.profile), device.torch)
    reporter.after_step = profile.step
    return profile


def _threads(local_world_size: int) -> int:
    """Return this rank's share of the usable cores, or OMP_NUM_THREADS where the user set it.

    torchrun sets OMP_NUM_THREADS=1 by itself, so under torchrun a 1 does not count.
    """
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdecimal() and int(text) > 0 and not (text == "1" and "TORCHELASTIC_RUN_ID" in os.environ):
        return int(text)
    return max(1, usable_cores() // local_world_size)


def _device_index(spec: TrainSpec, identity: RankIdentity) -> int:
    """Return the index of the device. With Gloo, ranks may share one; with NCCL ``open_device`` refuses that."""
    import torch

    if spec.device == "cpu" or spec.backend != "gloo":
        return identity.local_rank
    return identity.local_rank % max(torch.cuda.device_count(), 1)


def _rendezvous(spec: TrainSpec, identity: RankIdentity, backend: str, device: Device, init: str) -> dist.Store:
    try:
        with among_others(identity):
            return form_world(
                init,
                rank=identity.rank,
                world_size=identity.world_size,
                backend=backend,
                device=device,
                timeout_s=spec.timeout_s,
            )
    except (IndexError, MemoryError, OSError, OverflowError, RuntimeError, ValueError) as error:
        address = spec.init
        if address == "env://":
            host, port = (os.environ.get(name, f"{name}?") for name in ("MASTER_ADDR", "MASTER_PORT"))
            address = f"{host}:{port}"
        hint = " If an earlier run left that file behind, remove it." if address.startswith("file:") else ""
        raise _RendezvousError(
            f"rank {identity.rank} of {identity.world_size} could not meet the other ranks at {address} with {backend}:"
            f" {_first_line(error)}{hint}"
        ) from error


def _catch_stop_signals(stop_signals: list[int]) -> None:
    handler = collector(stop_signals)
    for number in unless_ignored(STOPPING):
        signal.signal(number, handler)


def _gather(content: bytes, world_size: int, device: Device) -> list[bytes]:
    """Return the bytes of every rank, by rank; all ranks give the same number of bytes. Nothing is pickled."""
    import torch
    import torch.distributed as dist

    memory = device.torch if dist.get_backend() == "nccl" else torch.device("cpu")
    own = torch.tensor(list(content), dtype=torch.uint8, device=memory)
    parts = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(parts, own)
    return [bytes(part.tolist()) for part in parts]


def _machines(world_size: int, device: Device) -> list[str]:
    """Return the machine (or container) of each rank, by rank, whatever started them: ranks of one share its cores.

    With too many threads ranks slow one another down, with OpenMP several hundredfold.
    """
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    machine = hashlib.sha256(f"{platform.node()} {namespace}".encode()).digest()
    return [content.hex() for content in _gather(machine, world_size, device)]


def _gather_digests(digest: str, identity: RankIdentity, device: Device) -> list[str]:
    return [content.hex() for content in _gather(bytes.fromhex(digest), identity.world_size, device)]


def _result(
    spec: TrainSpec,
    identity: RankIdentity,
    reporter: TrainReporter,
    outcome: Outcome,
    profile_written: bool,
    different: str,
) -> dict[str, Any]:
    """Return the values that ``progress_lines.result_lines`` prints."""
    nonfinite = outcome.nonfinite
    start = reporter.start
    counts = outcome.counts
    accuracy = counts.accuracy if counts.num_evaluated else None
    target = spec.target_accuracy
    notes = list(start.notes) if start is not None else []
    if spec.profile is not None and not profile_written:
        notes.append(f"no profile was written: it needs a 6th step, and {len(outcome.losses)} were trained.")
    return {
        "world_size": identity.world_size,
        "step": outcome.step,
        "num_steps": start.num_steps if start is not None else 0,
        "first_step": start.step if start is not None else 0,
        "loss": reporter.loss if nonfinite is None else None,
        "accuracy": accuracy,
        "num_correct": counts.num_correct,
        "num_evaluated": counts.num_evaluated,
        "samples_per_s": outcome.samples_per_s,
        "digest": outcome.digest,
        "difference": different,
        "nonfinite": None
        if nonfinite is None
        else {"what": nonfinite.what, "own": identity.rank in nonfinite.group_ranks},
        "stopped": outcome.interrupted,
        "missed": target if target is not None and (accuracy is None or accuracy < target) else None,
        "resumed_from": start.resumed_from if start is not None else None,
        "notes": notes,
        # A neighbor may have moved the folder, to any name.
        "checkpoint": None if outcome.checkpoint is None else printable(str(outcome.checkpoint)),
        "log": spec.log,
        "profile": spec.profile if profile_written else None,
    }


def _exit_code(result: dict[str, Any]) -> int:
    if result["nonfinite"] is not None or result["difference"]:
        return 1
    if result["stopped"]:
        return INTERRUPTED
    return 1 if result["missed"] is not None else 0


def _report_error(error: Exception, spec: TrainSpec, identity: RankIdentity, reporter: TrainReporter) -> int:
    """Report the failure to the agent or the user and return the exit code."""
    cause = cause_of(error)
    if isinstance(error, _RendezvousError) and error.__cause__ is not None:
        # All other reasons, such as a name or a file, may be the work of others.
        own = cause_of(error.__cause__)
        is_alone = own in ("memory", "device", "setup", "request") or lacks_processes(str(error.__cause__))
        cause = own if is_alone else "fabric"
    message = str(error) if isinstance(error, SeatrialError) else f"{type(error).__name__}: {_first_line(error)}"
    reporter.error(error, cause, message)
    if spec.debug:
        traceback.print_exc()
    if cause != "request":
        how = "lost its peers" if cause == "fabric" else "failed"
        reporter.print_of_rank(f"{how} in {reporter.phase}: {message}")
    elif identity.local_rank == 0 and not reporter.has_agent:
        # All ranks find the same fault in an invalid request, so one of each node prints it.
        write_line(f"Error: {message}")
    return RequestError.exit_code if cause == "request" else 1


def _first_line(error: BaseException) -> str:
    return in_one_line(str(error).strip() or type(error).__name__)[:500]
