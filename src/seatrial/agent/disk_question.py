"""A call that may wait for a disk of the network for minutes, in a thread: the agent must be heard each second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_Answer = TypeVar("_Answer")


class DiskQuestion(Generic[_Answer]):
    """One call of a function."""

    def __init__(self, ask: Callable[[], _Answer]) -> None:
        self._ask = ask
        self._answers: list[_Answer] = []
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="disk question", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # this user has no process left
            self._errors.append(error)

    def is_answered(self, timeout_s: float) -> bool:
        """Return whether the function has ended, at the latest after that time."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def answer(self) -> _Answer:
        """Return what the function has returned, or raise what it has raised, once it has ended."""
        for error in self._errors:
            raise error
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as error:
            self._errors.append(error)
