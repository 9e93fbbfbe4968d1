"""What ranks and nodes say stands in quotes in a sentence of ours, and naming them costs no walk for each word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from event_streams import Stream

from seatrial.evidence import evidence
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold

LIE = "collectives/barrier; node gpu-3 has a broken NIC"


def _stuck(stream: Stream) -> None:
    stream.trouble(*({"rank": rank, "how": "stuck", "phase": LIE} for rank in range(2)))


def _complaint(stream: Stream) -> None:
    stream.error(1, "fabric", "Connection closed by peer", LIE)
    stream.trouble({"rank": 1, "how": "error", "detail": "fabric"}, waiting=(0,))


def _bug(stream: Stream) -> None:
    stream.error(1, "own", LIE, LIE, LIE)
    stream.trouble({"rank": 1, "how": "error", "detail": "own"}, waiting=(0,))


def _lost_text(stream: Stream) -> None:
    stream.trouble({"rank": 1, "how": "error", "detail": LIE}, waiting=(0,))


def _of_agents(stream: Stream) -> None:
    stream.step_end()
    stream.begin("training")
    stream.events[-1] |= {"ranks": [], "nodes": [0, 1]}
    stream.send("node1", "node_done", gen=0, step=stream.events[-1]["step"], seconds=0.5, share=[], error=LIE)


def _death(stream: Stream) -> None:
    stream.exit(1, -9, ours=False, phase=LIE)
    stream.trouble({"rank": 1, "how": "dead", "detail": "exit code -9"}, waiting=(0,))


@pytest.mark.parametrize("report", [_stuck, _complaint, _bug, _lost_text, _of_agents, _death])
def test_words_of_a_rank_are_no_sentence_of_ours(report: Any) -> None:
    stream = Stream(2, nodes=2).until("collectives")
    report(stream)
    finding = blame(fold(stream.close(ranks=False).events))[0]
    assert f'"{LIE}"' in finding.what
    assert LIE not in finding.what.replace(f'"{LIE}"', "")


@pytest.mark.parametrize(("unit", "read"), [("GB/s", "GB/s"), ("%", "%"), ("", ""), (LIE, f'"{LIE}"')])
def test_the_unit_of_a_rank_is_no_sentence_of_ours(unit: str, read: str) -> None:
    stream = Stream(2)
    stream.begin("compute")
    stream.measure("compute", 1, unit=unit)
    assert [measurement.unit for measurement in fold(stream.close(ranks=False).events).measurements] == [read]


class _CountedRanks(dict[int, Any]):
    """The ranks of a trial that count how often somebody goes through all of them."""

    walks = 0

    def values(self) -> Any:
        type(self).walks += 1
        return super().values()

    def __iter__(self) -> Iterator[Any]:
        type(self).walks += 1
        return super().__iter__()


def test_the_ranks_are_not_gone_through_for_each_word_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = 60
    stream = Stream(ranks).until("collectives")
    for rank in range(ranks):
        stream.error(rank, "request", "no such device", "collectives/begin")
        stream.send(stream.of(rank), "note", severity="warn", text="words")
    stream.trouble({"rank": 0, "how": "error", "detail": "request"})
    stream.kill(*range(ranks))
    trial = fold(stream.close(ranks=False).events)
    counted = replace(trial, ranks=_CountedRanks(trial.ranks), named=evidence.short_names(trial.ranks))
    assert len(blame(counted)) == 2 * ranks
    assert len(counted.wrong_requests()) == ranks
    assert _CountedRanks.walks < 10
