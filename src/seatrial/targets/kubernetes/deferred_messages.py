"""Messages of a first pod that are kept back while the run may still start again with fewer nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_MOST_OUTPUT_BYTES = 16 << 20
"""No rank prints before all pods run, but the lists of the pods may show that later."""
_COST_BYTES = 200
"""What each message of output counts besides its text."""


class DeferredMessages:
    """Events, whose number and size ``EventAllowance`` bounds, and output of ranks, which is bounded here."""

    def __init__(self) -> None:
        self._kept: list[dict[str, Any] | str] = []
        """Output as JSON, which takes less memory than its objects."""
        self._output_bytes = 0

    def add(self, message: dict[str, Any]) -> None:
        """Keep a message, unless it is output and there is too much of that."""
        if "seq" in message:
            self._kept.append(message)
            return
        text = json.dumps(message)
        cost_bytes = len(text) + _COST_BYTES
        if self._output_bytes + cost_bytes <= _MOST_OUTPUT_BYTES:
            self._output_bytes += cost_bytes
            self._kept.append(text)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (json.loads(kept) if isinstance(kept, str) else kept for kept in self._kept)
