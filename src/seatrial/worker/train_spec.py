"""The specification of a training, as the ranks get it: one JSON argument. Importing this loads no torch."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from seatrial.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """With ``--spawn``: the process starts the ranks of its node itself."""

    nnodes: int
    node_rank: int
    nproc_per_node: int
    stop_grace_s: float = 30.0
    """Seconds from SIGTERM to SIGKILL, in which the ranks save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """One training; the same on all ranks except for ``spawn``."""

    recipe: Recipe
    device: str
    """``cpu``, ``cuda`` or ``rocm``."""
    backend: str = "auto"
    """``auto`` (NCCL on GPUs, Gloo on CPUs), ``gloo``, ``nccl`` or ``mpi``."""
    init: str = "env://"
    """Where the ranks rendezvous: ``env://``, ``tcp://HOST:PORT`` or ``file:///PATH``."""
    data_dir: str | None = None
    """Folder with the files of the workload; None: the default folder."""
    checkpoint_dir: str | None = None
    """Folder of the checkpoints; None: none are written."""
    save_every: int = 0
    """Epochs between checkpoints; 0: only at the end."""
    resume: str = "auto"
    """``auto``: from the newest checkpoint if there is one; ``never``; or the path of a checkpoint."""
    target_accuracy: float | None = None
    """Share of the test samples; training ends after the first epoch that reaches it."""
    log: str | None = None
    """File for one JSON line per epoch."""
    profile: str | None = None
    """File for a trace of steps 6 to 15 of rank 0."""
    timeout_s: float = 300.0
    """Seconds that the ranks wait for one another: in the rendezvous, and in each operation."""
    debug: bool = False
    """Whether to print tracebacks."""
    planted: tuple[str, ...] = ()
    """Planted faults, in the syntax of ``rank.faults``."""
    spawn: Spawn | None = None

    def to_json(self) -> str:
        """Return the argument."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values["recipe"] = self.recipe.to_json()
        values["spawn"] = None if self.spawn is None else asdict(self.spawn)
        return json.dumps(values, separators=(",", ":"), allow_nan=False)

    def seen_from(self, folder: str) -> TrainSpec:
        """Return the same with absolute paths. ``folder``: the one in which the relative ones begin."""

        def seen(path: str | None) -> str | None:
            return None if path is None else os.path.join(folder, path)

        return replace(
            self,
            data_dir=seen(self.data_dir),
            checkpoint_dir=seen(self.checkpoint_dir),
            resume=self.resume if self.resume in ("auto", "never") else os.path.join(folder, self.resume),
            log=seen(self.log),
            profile=seen(self.profile),
        )

    @classmethod
    def from_json(cls, text: str) -> TrainSpec:
        """Read what ``to_json`` returned. Raises RequestError, TypeError, KeyError or ValueError for anything else."""
        values: dict[str, Any] = json.loads(text)
        values["recipe"] = Recipe.from_json(values["recipe"])
        values["spawn"] = None if values["spawn"] is None else Spawn(**values["spawn"])
        values["planted"] = tuple(values["planted"])
        return cls(**values)
