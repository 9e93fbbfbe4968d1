"""The entries of a ``trouble`` event: a message holds them all, whatever ranks have written."""

from __future__ import annotations

import pytest

from seatrial.conductor.hang_detector import HangDetector
from seatrial.conductor.rank_status import Suspicion
from seatrial.protocol.wire import encode


@pytest.mark.parametrize("num_ranks", [1_200, 20_000])
def test_texts_of_many_hostile_ranks_do_not_fill_a_message(num_ranks: int) -> None:
    """A character outside of Unicode's first plane takes 12 bytes of JSON."""
    detector, text = HangDetector(dict.fromkeys(range(num_ranks), "h"), 60.0, 0.0), "\U0001f600" * 300
    detector.suspicions = [Suspicion(how="dead", rank=rank, phase=text, detail=text) for rank in range(num_ranks)]
    event = detector.trouble_payload(0, 1)
    assert encode(event)
    assert [entry["rank"] for entry in event["seen"]] == list(range(num_ranks))


@pytest.mark.parametrize("num_ranks", [1_200, 20_000])
def test_honest_texts_stay_whole(num_ranks: int) -> None:
    detector = HangDetector(dict.fromkeys(range(num_ranks), "h"), 60.0, 0.0)
    detector.suspicions = [
        Suspicion(how="absent", rank=rank, phase="all_reduce 4096 B", detail="no progress") for rank in range(num_ranks)
    ]
    assert detector.trouble_payload(0, 1)["seen"] == [suspicion.to_json() for suspicion in detector.suspicions]
