"""Reports of a training's rank: events and progress for its agent, or lines for a person where there is no agent."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from seatrial.evidence.statistics import median
from seatrial.protocol.commands import TrainingProgress
from seatrial.protocol.events import Cause, EndEvent, EpochEvent, ErrorEvent, Event, RankEvent, ResultEvent, Source
from seatrial.protocol.phase_page import PhaseWriter
from seatrial.protocol.wire import encode
from seatrial.rank.device import Device
from seatrial.rank.faults import parse_fault, strike
from seatrial.training.progress_lines import progress_words, result_lines, resumed_words
from seatrial.util.streams import print_text, write_line
from seatrial.worker.train_log import EpochLog
from seatrial.worker.train_spec import TrainSpec

if TYPE_CHECKING:
    from seatrial.training.progress import EpochStats, Start

_AGENT_INTERVAL_S = 0.5
"""Seconds between two progress messages to an agent."""
_PERSON_INTERVAL_S = 5.0
"""Seconds between two progress lines on standard error."""


class TrainReporter:
    """The reports of one rank; the trainer's ``Callbacks``."""

    def __init__(self, spec: TrainSpec, rank: int, world_size: int, should_stop: Callable[[], bool]) -> None:
        """``should_stop``: whether a signal asked this rank to stop; the caller handles signals."""
        self.rank = rank
        self.phase = ""
        """The current phase."""
        self.should_stop = should_stop
        self.start: Start | None = None
        self.last_epoch: EpochStats | None = None
        self.loss: float | None = None
        """Mean loss of the last global batch or epoch that was reported."""
        self._spec = spec
        self._world_size = world_size
        self._event_fd = int(os.environ.get("SEATRIAL_EVENT_FD", "-1"))
        self.has_agent = self._event_fd >= 0
        """Whether an agent of ours started this rank and reads its events."""
        self.generation = int(os.environ.get("SEATRIAL_GENERATION", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        self._source = Source(os.environ.get("SEATRIAL_RUN", ""), f"rank{rank}.{self.generation}")
        self._phases = PhaseWriter(int(os.environ["SEATRIAL_PHASE_FD"])) if self.has_agent else None
        self._faults = [parse_fault(text) for text in spec.planted] if self.generation == 0 else []
        self._log: EpochLog | None = None
        self._reported_at = time.monotonic()
        self._reported_step = self._step = 0
        self.after_step: Callable[[], None] | None = None
        """Called after each step; the profiler's."""

    # Callbacks of the trainer

    def enter(self, phase: str) -> None:
        """Publish the next phase, and strike if a fault is planted there."""
        self.phase = phase
        if self._phases is not None:
            self._phases.write(phase)
        if self._faults:
            strike(self._faults, self.rank, "train", phase)

    def on_start(self, start: Start) -> None:
        """Open the log. Raises RequestError when it cannot be written."""
        self.start = start
        self._reported_step = self._step = start.step
        self._reported_at = time.monotonic()
        if self.rank == 0 and self._spec.log is not None:
            continued = start.step > 0 or self.generation > 0
            self._log = EpochLog(self._spec.log, self._spec.checkpoint_dir, continued=continued)
        if self.rank == 0 and start.resumed_from:
            self.print_status(f"{resumed_words(start.resumed_from, start.step)}; {start.num_steps} steps in all")

    def on_step(self, step: int) -> None:
        if self.after_step is not None:
            self.after_step()

    def on_losses(self, step: int, loss: float) -> None:
        self.loss, self._step = loss, step + 1
        if self.rank == 0:
            now = time.monotonic()
            if now - self._reported_at >= (_AGENT_INTERVAL_S if self.has_agent else _PERSON_INTERVAL_S):
                self._report_progress(now)

    def on_epoch(self, stats: EpochStats) -> None:
        self.last_epoch, self.loss = stats, stats.loss
        if self.rank != 0:
            return
        summary = self._epoch_summary(stats)
        if self._log is not None:
            try:
                self._log.add(stats.epoch, stats.step, summary)
            except OSError as error:  # a training may have run for days: do not end it for its log
                self.print_status(f"--log {self._spec.log} lacks epoch {stats.epoch} ({error.strerror or error})")
        if self.has_agent:
            self._emit(
                EpochEvent(
                    kind="epoch",
                    gen=self.generation,
                    rank=self.rank,
                    epoch=stats.epoch,
                    step=stats.step,
                    loss=summary["loss"],
                    accuracy=summary["accuracy"],
                    samples_per_s=summary["samples_per_s"],
                    seconds=summary["seconds"],
                    step_times_s=summary["step_times_s"],
                )
            )

    def _epoch_summary(self, stats: EpochStats) -> dict[str, Any]:
        """Return loss, accuracy, samples/s and, for each part of a step, min, median and max seconds over the ranks."""
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
            "accuracy": stats.counts.accuracy,
            "samples_per_s": round(stats.samples_per_s, 1),
            "seconds": round(stats.seconds, 3),
            "step_times_s": {name: {key: round(value, 6) for key, value in row.items()} for name, row in parts.items()},
        }

    def _report_progress(self, now: float) -> None:
        assert self.start is not None
        start, steps = self.start, self._step - self._reported_step
        step_s = (now - self._reported_at) / max(steps, 1)
        self._reported_at, self._reported_step = now, self._step
        batch = self._spec.recipe.global_batch_size
        progress = TrainingProgress(
            kind="progress",
            gen=self.generation,
            rank=self.rank,
            step=self._step,
            num_steps=start.num_steps,
            epoch=max(self._step - 1, 0) // max(start.steps_per_epoch, 1),
            num_epochs=-(-start.num_steps // max(start.steps_per_epoch, 1)),
            loss=self.loss,
            accuracy=self.last_epoch.counts.accuracy if self.last_epoch is not None else None,
            samples_per_s=batch / step_s if steps else None,
            left_s=(start.num_steps - self._step) * step_s,
        )
        if self.has_agent:
            self._send(progress)
        else:
            self.print_status(progress_words(progress))

    # Start, failure and end of the rank

    def ready(self, device: Device, backend: str, local_rank: int, threads: int) -> None:
        """Report that this rank has its device and its group."""
        import torch

        device_words = f"{device.type} ({device.name})" if device.type == "cpu" else f"{device.torch} ({device.name})"
        self.print_of_rank(
            f"on {platform.node()}: {device_words}, {backend}, local rank {local_rank}, process {os.getpid()}"
        )
        if self.has_agent:
            self._emit(
                RankEvent(
                    kind="rank",
                    gen=self.generation,
                    rank=self.rank,
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
            )

    def error(self, error: BaseException, cause: Cause, message: str) -> None:
        """Report to the agent that this rank failed."""
        if self.has_agent:
            self._emit(
                ErrorEvent(
                    kind="error",
                    gen=self.generation,
                    step=-1,
                    rank=self.rank,
                    cause=cause,
                    type=type(error).__name__,
                    message=message[:2000],
                    stack="".join(traceback.format_exception(error))[-6000:],
                    phase=self.phase,
                )
            )

    def result(self, code: int, result: dict[str, Any]) -> None:
        """Report the end of the training; ``result`` as ``result_lines`` takes it. Rank 0 prints it for people."""
        lines, nonfinite = result_lines(result) if self.rank == 0 else [], result["nonfinite"]
        if self.has_agent:
            digest = result["digest"]
            event = ResultEvent(
                kind="result", gen=self.generation, rank=self.rank, code=code, digest=digest, lines=lines
            )
            if nonfinite is not None:
                event["nonfinite"] = nonfinite["own"]
            self._emit(event)
            self._emit(EndEvent(kind="end"))
        else:
            if nonfinite is not None and nonfinite["own"]:
                self.print_status(
                    f"rank {self.rank} of {self._world_size} reports NaN or Inf in its own {nonfinite['what']}"
                )
            # One write call, as for each line of a rank.
            print_text(sys.stdout, "".join(f"{line}\n" for line in lines))
            sys.stdout.flush()
        if self._log is not None:
            self._log.close()

    def print_status(self, text: str) -> None:
        """Print a line for people on standard error. With an agent, it also reaches the files of the run."""
        write_line(f"seatrial: {text}")

    def print_of_rank(self, text: str) -> None:
        """Print that this rank has met the others, or how it failed, for the log of a node (pod_failures.py).

        That is searched for lines that begin so, and somebody else may have written half of one there.
        """
        line = f"seatrial: rank {self.rank} of {self._world_size} {text}"
        write_line(line if self.has_agent else f"\n{line}")

    def _emit(self, event: Event) -> None:
        self._send(self._source.event(event))

    def _send(self, message: Mapping[str, object]) -> None:
        for line in encode(message):
            os.write(self._event_fd, line)
