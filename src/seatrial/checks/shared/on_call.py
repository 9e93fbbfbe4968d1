"""A function of a module that is imported when it is first called: a rank needs no judge, help needs neither."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OnCall:
    """``OnCall("seatrial.checks.links.judge", "judge")`` is called as that function is. Raises what the call raises."""

    module: str
    name: str

    def function(self) -> Callable[..., Any]:
        """Return the function. Raises ImportError or AttributeError where the module does not have it."""
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return function

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.function()(*arguments)
