"""What the first pod sends while other pods are waited for: it is handed on later, in bounded memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from event_streams import RUN
from kubernetes.test_run_log import Heard


@pytest.mark.parametrize(
    ("lines", "messages"),
    by_day([(["x"], 100_000), (["x" * 500_000], 60), ([""] * 50_000, 200), ([[]] * 50_000, 200)], 1, 2),
    ids=["many", "long", "many lines", "many objects"],
)
def test_output_that_is_kept_back_takes_bounded_memory(lines: list[Any], messages: int, tmp_path: Path) -> None:
    """No rank prints before all pods run, but one that lies may do so without end."""
    heard = Heard(tmp_path, None)
    heard.run_log.defer()
    for _ in range(messages):
        heard.run_log.take({"kind": "output", "gen": 0, "rank": 1, "lines": lines, "left_out": 0})
    heard.run_log.take({"kind": "end", "run": RUN, "src": "conductor", "seq": 9, "t": 1.0})
    assert heard.run_log._deferred is not None
    # The objects of a message take many times the memory of its text.
    *output, _ = heard.run_log._deferred._kept
    assert {type(kept) for kept in output} == {str}
    assert sum(map(sys.getsizeof, output)) < 24 << 20
    heard.run_log.release()
    assert 20 < len(heard.messages) < messages
    assert heard.messages[0]["lines"] == lines
    assert heard.run_log.over
