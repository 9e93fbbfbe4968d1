"""Which models can be trained, by name. A model is built, and torch imported, when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from seatrial.errors import RequestError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "find_model"]

Builder = Callable[[tuple[int, int, int], int], "nn.Module"]


def find_model(name: str) -> Builder:
    """The function that builds the model of that name from (channels, height, width) and the number of classes.

    Raises RequestError for an unknown name, with the nearest one that exists.
    """
    if name in MODELS:
        return MODELS[name]
    nearest = get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
    raise RequestError(f"unknown model {name!r}; did you mean {nearest!r}? Known: {', '.join(MODELS)}.")


def _convnet(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    from seatrial.training.models.convnet import ConvNet

    return ConvNet(shape, num_classes)


MODELS: dict[str, Builder] = {"convnet": _convnet}
