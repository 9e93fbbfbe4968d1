"""More processes than a machine serves are refused before they are started."""

from __future__ import annotations

import pytest

from seatrial.errors import RequestError
from seatrial.probe import capacity


def test_more_processes_than_a_machine_serves_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "usable_cores", lambda: 2)
    monkeypatch.setattr(capacity, "memory_available", lambda: 64_000_000_000)
    capacity.refuse_too_many(32, "--nproc-per-node 32", of_torch=True)
    with pytest.raises(RequestError, match="33 processes on 2 cores; give at most 32, or --oversubscribe"):
        capacity.refuse_too_many(33, "--nproc-per-node 33", of_torch=False)
    monkeypatch.setattr(capacity, "memory_available", lambda: 2_000_000_000)
    with pytest.raises(RequestError, match=r"6 processes on 2\.0 GB of free memory; give at most 5"):
        capacity.refuse_too_many(6, "--nproc-per-node 6", of_torch=True)
    capacity.refuse_too_many(6, "--nproc-per-node 6", of_torch=False)
