"""What a rank of a training is told: one JSON argument. Nothing here imports torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from seatrial.training.recipe import Recipe

__all__ = ["Spawn", "TrainSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """This process starts the ranks of its node itself."""

    nnodes: int
    node_rank: int
    nproc_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """One training, the same on all ranks but for ``spawn``."""

    recipe: Recipe
    device: str
    """``cpu``, ``cuda`` or ``rocm``."""
    backend: str = "auto"
    init: str = "env://"
    """``env://``, ``tcp://HOST:PORT`` or ``file:///PATH``: where the ranks meet."""
    data_dir: str | None = None
    checkpoint_dir: str | None = None
    save_every: int = 0
    """Epochs from one checkpoint to the next; 0: at the end only."""
    resume: str = "auto"
    """``auto``: from the newest checkpoint if there is one; ``never``; or the path of one."""
    target_accuracy: float | None = None
    log: str | None = None
    profile: str | None = None
    timeout_s: float = 300.0
    """How long the ranks wait for one another: for all to come, and in each operation."""
    debug: bool = False
    """Show tracebacks."""
    planted: tuple[str, ...] = ()
    """Faults, as ``worker.inject`` reads them."""
    spawn: Spawn | None = None

    def to_json(self) -> str:
        """The argument."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values["recipe"] = self.recipe.to_json()
        values["spawn"] = None if self.spawn is None else asdict(self.spawn)
        return json.dumps(values, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> TrainSpec:
        """Read it again. Raises RequestError, TypeError, KeyError or ValueError for what no ``to_json`` wrote."""
        values: dict[str, Any] = json.loads(text)
        values["recipe"] = Recipe.from_json(values["recipe"])
        values["spawn"] = None if values["spawn"] is None else Spawn(**values["spawn"])
        values["planted"] = tuple(values["planted"])
        return cls(**values)
