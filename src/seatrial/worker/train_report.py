"""What the ranks of a training tell: to their agent where one started them, else rank 0 to people."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from seatrial.probe.phase import PhaseWriter
from seatrial.verdict.events import Source
from seatrial.verdict.statistics import median
from seatrial.verdict.wire import encode
from seatrial.worker.inject import parse_fault, strike
from seatrial.worker.train_log import EpochLog
from seatrial.worker.train_spec import TrainSpec
from seatrial.worker.train_words import progress_words, result_lines, resumed_words

if TYPE_CHECKING:
    from seatrial.training.watch import EpochStats, Start

__all__ = ["Report"]

_TO_AGENT_S = 0.5
_TO_PEOPLE_S = 5.0


class Report:
    """One rank's report; the trainer's ``Watch``. ``should_stop`` is the caller's: signals are its business."""

    def __init__(self, spec: TrainSpec, rank: int, world_size: int, should_stop: Callable[[], bool]) -> None:
        self.rank = rank
        self.phase = ""
        self.should_stop = should_stop
        self.start: Start | None = None
        self.last: EpochStats | None = None
        """The last epoch that was told."""
        self.loss: float | None = None
        self._spec = spec
        self._world_size = world_size
        self._event_fd = int(os.environ.get("SEATRIAL_EVENT_FD", "-1"))
        self.by_agent = self._event_fd >= 0
        """An agent listens."""
        self.generation = int(os.environ.get("SEATRIAL_GENERATION", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        self._source = Source(os.environ.get("SEATRIAL_RUN", ""), f"rank{rank}.{self.generation}")
        self._phases = PhaseWriter(int(os.environ["SEATRIAL_PHASE_FD"])) if self.by_agent else None
        self._faults = [parse_fault(text) for text in spec.planted] if self.generation == 0 else []
        self._log: EpochLog | None = None
        self._told_at = time.monotonic()
        self._told_step = self._step = 0
        self.after_step: Callable[[], None] | None = None
        """Called after each step besides; of the profiler."""

    # The trainer's watch

    def enter(self, phase: str) -> None:
        """The next phase."""
        self.phase = phase
        if self._phases is not None:
            self._phases.write(phase)
        if self._faults:
            strike(self._faults, self.rank, "train", phase)

    def on_start(self, start: Start) -> None:
        """Raises RequestError when the log cannot be written."""
        self.start = start
        self._told_step = self._step = start.step
        self._told_at = time.monotonic()
        if self.rank == 0 and self._spec.log is not None:
            self._log = EpochLog(
                self._spec.log, self._spec.checkpoint_dir, goes_on=start.step > 0 or self.generation > 0
            )
        if self.rank == 0 and start.resumed_from:
            self.say(f"{resumed_words(start.resumed_from, start.step)}; {start.num_steps} steps in all")

    def on_step(self, step: int) -> None:
        if self.after_step is not None:
            self.after_step()

    def on_losses(self, step: int, loss: float) -> None:
        self.loss, self._step = loss, step + 1
        if self.rank == 0:
            now = time.monotonic()
            if now - self._told_at >= (_TO_AGENT_S if self.by_agent else _TO_PEOPLE_S):
                self._tell_progress(now)

    def on_epoch(self, stats: EpochStats) -> None:
        self.last, self.loss = stats, stats.loss
        if self.rank != 0:
            return
        told = self._epoch(stats)
        if self._log is not None:
            try:
                self._log.add(stats.epoch, stats.step, told)
            except OSError as error:  # days of training are worth more than their log
                self.say(f"--log {self._spec.log} lacks epoch {stats.epoch} ({error.strerror or error})")
        if self.by_agent:
            self._emit("epoch", epoch=stats.epoch, step=stats.step, **told)

    def _epoch(self, stats: EpochStats) -> dict[str, Any]:
        """Loss, accuracy, samples/s, and over the ranks least, median and most of each part of a step, in seconds."""
        rows = [asdict(times) for times in stats.rank_times]
        parts = {
            name: {
                "min": min(row[name] for row in rows),
                "median": median([row[name] for row in rows]),
                "max": max(row[name] for row in rows),
            }
            for name in (rows[0] if rows else {})
        }
        return {
            "loss": stats.loss,
            "accuracy": stats.accuracy,
            "samples_per_s": round(stats.samples_per_s, 1),
            "seconds": round(stats.seconds, 3),
            "step_times_s": {name: {key: round(value, 6) for key, value in row.items()} for name, row in parts.items()},
        }

    def _tell_progress(self, now: float) -> None:
        assert self.start is not None
        start, steps = self.start, self._step - self._told_step
        step_s = (now - self._told_at) / max(steps, 1)
        self._told_at, self._told_step = now, self._step
        batch = self._spec.recipe.global_batch_size
        told = {
            "step": self._step,
            "num_steps": start.num_steps,
            "epoch": max(self._step - 1, 0) // max(start.steps_per_epoch, 1),
            "num_epochs": -(-start.num_steps // max(start.steps_per_epoch, 1)),
            "loss": self.loss,
            "accuracy": self.last.accuracy if self.last is not None else None,
            "samples_per_s": batch / step_s if steps else None,
            "left_s": (start.num_steps - self._step) * step_s,
        }
        if self.by_agent:
            self._send({"kind": "progress", "gen": self.generation, "rank": self.rank, **told})
        else:
            self.say(progress_words(told))

    # Besides

    def ready(self, device: Any, backend: str, local_rank: int, threads: int) -> None:
        """This rank has its device and its group."""
        import torch

        where = f"rank {self.rank} of {self._world_size} on {platform.node()}"
        device_words = f"{device.type} ({device.name})" if device.type == "cpu" else f"{device.torch} ({device.name})"
        self.say(f"{where}: {device_words}, {backend}, local rank {local_rank}, process {os.getpid()}")
        if self.by_agent:
            self._emit(
                "rank",
                node=platform.node(),
                hostname=platform.node(),
                local_rank=local_rank,
                pid=os.getpid(),
                device=device.name,
                device_type=device.type,
                device_id=device.id,
                libraries=device.libraries,
                threads=threads,
                torch=torch.__version__,
                python=platform.python_version(),
                backend=backend,
            )

    def error(self, error: BaseException, cause: str, message: str) -> None:
        """This rank cannot go on."""
        if self.by_agent:
            what = {"cause": cause, "type": type(error).__name__, "message": message[:2000], "phase": self.phase}
            self._emit("error", step=-1, stack="".join(traceback.format_exception(error))[-6000:], **what)

    def result(self, code: int, told: dict[str, Any]) -> None:
        """How it ended, for this rank; ``told`` as ``result_lines`` takes it. Rank 0 tells people."""
        lines = result_lines(told) if self.rank == 0 else []
        if self.by_agent:
            self._emit("result", code=code, digest=told["digest"], lines=lines)
            self._emit("end")
        else:
            for line in lines:
                print(line, flush=True)
        if self._log is not None:
            self._log.close()

    def say(self, text: str) -> None:
        """A line for people, on standard error; all of it is in the files of the run where an agent listens."""
        # One write, since the ranks of a node may share a terminal.
        sys.stderr.write(f"seatrial: {text}\n")
        sys.stderr.flush()

    def _emit(self, kind: str, **payload: Any) -> None:
        self._send(self._source.event(kind, gen=self.generation, rank=self.rank, **payload))

    def _send(self, message: dict[str, Any]) -> None:
        for line in encode(message):
            os.write(self._event_fd, line)
