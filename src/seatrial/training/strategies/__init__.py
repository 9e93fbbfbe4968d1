"""How ranks share the work of a step, by name: one file a strategy. No torch is imported before one is asked for."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING

from seatrial.errors import RequestError

if TYPE_CHECKING:
    from seatrial.training.strategies.base import Build

__all__ = ["STRATEGIES", "find_strategy"]

STRATEGIES: dict[str, str] = {
    "ddp": "DistributedDataParallel: each rank holds the whole model, gradients are averaged",
    "dp": "DataParallel: one process drives all devices of its node",
    "fsdp": "fully_shard: parameters, gradients and optimizer state are spread over the ranks",
    "pipeline": "the model is cut into stages over two or more ranks, with DistributedDataParallel over the rest",
    "tensor": "layers are cut over two or more ranks, with fully_shard over the rest",
}
"""Name -> what it does. ``strategies/<name>.py`` has a function ``build`` as in ``strategies/base.py``."""


def find_strategy(name: str) -> Build:
    """The function ``build`` of the strategy of that name.

    Raises RequestError for an unknown name, with the nearest one that exists.
    """
    if name not in STRATEGIES:
        nearest = get_close_matches(name, STRATEGIES, n=1, cutoff=0.0)[0]
        raise RequestError(f"unknown strategy {name!r}; did you mean {nearest!r}? Known: {', '.join(STRATEGIES)}.")
    build: Build = importlib.import_module(f"{__name__}.{name}").build
    return build
