"""The process of one rank of a training, however it was started: ``python -m seatrial.worker.train SPEC-JSON``.

Who it is stands in the environment, as torch's ``env://`` reads it (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE):
our agents and torchrun set it, ``seatrial train`` does where another launcher has words of its own, and with
``--spawn`` this process starts the ranks of its node itself. Exit codes: 0, 1 (no good result, or it died), 2 (the
request is wrong), 130 (stopped on request, at a step boundary).
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import platform
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from seatrial.errors import RequestError, SeatrialError
from seatrial.probe.cpu import usable_cores
from seatrial.probe.own_code import heed_sigterm
from seatrial.worker.digests import difference
from seatrial.worker.meet import form_world
from seatrial.worker.mpi_end import leave
from seatrial.worker.train_report import Report
from seatrial.worker.train_spec import TrainSpec

__all__ = ["INTERRUPTED", "Place", "hush_numpy", "main", "run_rank"]

INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which rank this is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def from_environ(cls) -> Place:
        """Raises RequestError when the environment does not say it."""
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


def main() -> None:
    """Train as one rank, or start the ranks of this node."""
    heed_sigterm()
    try:
        spec = TrainSpec.from_json(sys.argv[1])
        if spec.spawn is not None:
            from seatrial.worker.train_spawn import spawn

            code = spawn(spec)
        else:
            code = run_rank(spec, Place.from_environ())
    except SeatrialError as error:
        print(f"Error: {error}", file=sys.stderr)
        code = error.exit_code
    leave(code)


def run_rank(spec: TrainSpec, place: Place) -> int:
    """Train as this rank; returns the exit code. Every failure is told, none is raised."""
    # A rank that has not met the others yet has nothing to save, and ends at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    stopped_by: list[int] = []
    report = Report(spec, place.rank, place.world_size, lambda: bool(stopped_by))
    if report.by_agent:
        faulthandler.register(signal.SIGUSR1, file=int(os.environ["SEATRIAL_STACK_FD"]), all_threads=True)
    report.enter("start-up/import torch")
    hush_numpy()
    try:
        return _train(spec, place, report, stopped_by)
    except Exception as error:
        return _told(error, spec, place, report)
    finally:
        if place.rank == 0 and spec.init.startswith("file://"):
            # Left behind, it would make the ranks of the next run meet those of this one.
            Path(spec.init.removeprefix("file://")).unlink(missing_ok=True)


def hush_numpy() -> None:
    """We need no NumPy, so torch's complaint that there is none must not stand among the rank's words."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")


def _train(spec: TrainSpec, place: Place, report: Report, stopped_by: list[int]) -> int:
    import torch
    import torch.distributed as dist

    from seatrial.training.checkpoint import CheckpointStore
    from seatrial.training.trainer import train
    from seatrial.worker.device import open_device
    from seatrial.worker.groups import close_world

    report.enter("start-up/open device")
    device = open_device(spec.device, _local_device(spec, place), _threads(place.local_world_size))
    backend = device.backend if spec.backend == "auto" else spec.backend
    report.enter("start-up/meet the others")
    _meet(spec, place, backend, device)
    # Only now: a rank that waits for the others in C++ would not hear it, and has nothing to save.
    _hear_signals(stopped_by)
    threads = _threads(max(place.local_world_size, _ranks_here(place.world_size, device)))
    torch.set_num_threads(threads)
    report.ready(device, backend, place.local_rank, threads)
    assert dist.group.WORLD is not None
    report.enter("load data")
    store = CheckpointStore(spec.checkpoint_dir) if spec.checkpoint_dir is not None else None
    profile = _start_profile(spec, place, report, device)
    outcome = train(
        spec.recipe,
        device=device.torch,
        group=dist.group.WORLD,
        phase=report.enter,
        data_dir=Path(spec.data_dir) if spec.data_dir is not None else None,
        store=store,
        save_every=spec.save_every,
        resume=spec.resume,
        # Only our agents never start a request again that was refused, so only there the folder is known to be ours.
        restarted=report.by_agent and report.generation > 0,
        watch=report,
        target_accuracy=spec.target_accuracy,
    )
    if profile is not None:
        profile.stop()
    report.enter("compare digests")
    written = profile is not None and profile.is_written
    told = _result(spec, place, report, outcome, written, _digests(outcome.digest, place, device))
    code = _code(told)
    report.enter("end")
    close_world()
    report.result(code, told)
    return code


def _start_profile(spec: TrainSpec, place: Place, report: Report, device: Any) -> Any:
    """Of rank 0, where one is asked for."""
    if spec.profile is None or place.rank != 0:
        return None
    from seatrial.training.profile import StepProfile

    profile = StepProfile(Path(spec.profile), device.torch)
    report.after_step = profile.step
    return profile


def _threads(local_world_size: int) -> int:
    """Own share of the cores, unless the user says otherwise; torchrun says 1 by itself."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdecimal() and int(said) > 0 and not (said == "1" and "TORCHELASTIC_RUN_ID" in os.environ):
        return int(said)
    return max(1, usable_cores() // local_world_size)


def _local_device(spec: TrainSpec, place: Place) -> int:
    """Which device. Gloo lets ranks share one; NCCL does not, so there it is an error that ``open_device`` words."""
    import torch

    if spec.device == "cpu" or spec.backend != "gloo":
        return place.local_rank
    return place.local_rank % max(torch.cuda.device_count(), 1)


def _meet(spec: TrainSpec, place: Place, backend: str, device: Any) -> None:
    try:
        form_world(
            spec.init,
            rank=place.rank,
            world_size=place.world_size,
            backend=backend,
            device=device,
            timeout_s=spec.timeout_s,
        )
    except (RuntimeError, ValueError, OSError) as error:
        where = spec.init
        if where == "env://":
            where = f"{os.environ.get('MASTER_ADDR', 'MASTER_ADDR?')}:{os.environ.get('MASTER_PORT', 'MASTER_PORT?')}"
        hint = " A file that an earlier run has left behind must be removed first." if where.startswith("file:") else ""
        raise _NotMetError(
            f"rank {place.rank} of {place.world_size} could not meet the others at {where} with {backend}:"
            f" {_first_line(error)}{hint}"
        ) from error


class _NotMetError(SeatrialError):
    """The ranks did not come together."""


def _hear_signals(stopped_by: list[int]) -> None:
    def on_signal(number: int, frame: FrameType | None) -> None:
        stopped_by.append(number)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


def _gather(mine: bytes, world_size: int, device: Any) -> list[bytes]:
    """These bytes of all ranks, equally many of each: nothing of Python's own travels between ranks."""
    import torch
    import torch.distributed as dist

    where = device.torch if dist.get_backend() == "nccl" else torch.device("cpu")
    own = torch.tensor(list(mine), dtype=torch.uint8, device=where)
    all_of_them = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(all_of_them, own)
    return [bytes(one.tolist()) for one in all_of_them]


def _ranks_here(world_size: int, device: Any) -> int:
    """How many ranks share this machine, or this container of it, whoever started them: they share its cores.

    With too many threads they slow each other down, several hundredfold with OpenMP's.
    """
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    machine = hashlib.sha256(f"{platform.node()} {namespace}".encode()).digest()
    return _gather(machine, world_size, device).count(machine)


def _digests(digest: str, place: Place, device: Any) -> list[str]:
    return [one.hex() for one in _gather(bytes.fromhex(digest), place.world_size, device)]


def _result(
    spec: TrainSpec, place: Place, report: Report, outcome: Any, profile_written: bool, digests: list[str]
) -> dict[str, Any]:
    """What ``train_words.result_lines`` tells."""
    nonfinite = outcome.nonfinite
    start = report.start
    evaluated = outcome.num_evaluated > 0
    accuracy = outcome.num_correct / outcome.num_evaluated if evaluated else None
    target = spec.target_accuracy
    notes = list(start.notes) if start is not None else []
    if spec.profile is not None and not profile_written:
        notes.append(f"no profile: it shows the steps from the 6th on, and {len(outcome.losses)} were trained.")
    return {
        "world_size": place.world_size,
        "step": outcome.step,
        "num_steps": start.num_steps if start is not None else 0,
        "first_step": start.step if start is not None else 0,
        "loss": report.loss if nonfinite is None else None,
        "accuracy": accuracy,
        "num_correct": outcome.num_correct,
        "num_evaluated": outcome.num_evaluated,
        "samples_per_s": outcome.samples_per_s,
        "digest": outcome.digest,
        "difference": difference(digests),
        "nonfinite": None if nonfinite is None else {"what": nonfinite.what, "ranks": list(nonfinite.group_ranks)},
        "stopped": outcome.interrupted,
        "missed": target if target is not None and (accuracy is None or accuracy < target) else None,
        "resumed_from": start.resumed_from if start is not None else None,
        "notes": notes,
        "checkpoint": None if outcome.checkpoint is None else str(outcome.checkpoint),
        "log": spec.log,
        "profile": spec.profile if profile_written else None,
    }


def _code(told: dict[str, Any]) -> int:
    if told["nonfinite"] is not None or told["difference"]:
        return 1
    if told["stopped"]:
        return INTERRUPTED
    return 1 if told["missed"] is not None else 0


def _told(error: Exception, spec: TrainSpec, place: Place, report: Report) -> int:
    from seatrial.worker.failures import cause_of

    cause = cause_of(error)
    if isinstance(error, SeatrialError) and cause != "request" and (place.rank or isinstance(error, _NotMetError)):
        cause = "fabric"  # a witness: rank 0 says itself what it could not do, and who did not come is not known here
    message = str(error) if isinstance(error, SeatrialError) else f"{type(error).__name__}: {_first_line(error)}"
    report.error(error, cause, message)
    if spec.debug:
        traceback.print_exc()
    # Of a wrong request all ranks say the same.
    if cause != "request":
        report.say(f"rank {place.rank} of {place.world_size} failed in {report.phase}: {message}")
    elif place.local_rank == 0 and not report.by_agent:
        print(f"Error: {message}", file=sys.stderr)
    return RequestError.exit_code if cause == "request" else 1


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]


if __name__ == "__main__":
    main()
