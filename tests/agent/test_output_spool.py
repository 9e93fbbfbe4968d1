"""The output of ranks on its way to the conductor."""

from __future__ import annotations

import base64
import itertools
import os
import random
import tempfile
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from seatrial.agent import output_spool
from seatrial.agent.output_spool import OutputSpool, OutputSpools
from seatrial.protocol.commands import PIECE_BYTES, RankLog


@pytest.fixture
def spools() -> Iterator[OutputSpools]:
    made = OutputSpools(in_pod=False)
    yield made
    for _ in made.rest(time.monotonic()):
        pass


def _joined(pieces: list[RankLog]) -> tuple[bytes, int]:
    """Return the output, with a zero for each byte that is missing, and how many are."""
    output, missing = b"", 0
    for piece in pieces:
        missing += piece["at"] - len(output)
        output = output.ljust(piece["at"], b"\0") + zlib.decompress(base64.b64decode(piece["data"]))
    return output, missing


def _all_of(spool: OutputSpool) -> list[RankLog]:
    spool.close()
    pieces = []
    while not spool.over:
        pieces.append(spool.take())
    assert [piece["last"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    return pieces


def _text(num_bytes: int) -> bytes:
    return b"".join(b"%07d\n" % number for number in range(num_bytes // 8 + 1))[:num_bytes]


@pytest.mark.parametrize("num_bytes", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 40 * PIECE_BYTES])
def test_all_of_it_arrives_whenever_it_is_taken(
    num_bytes: int, monkeypatch: pytest.MonkeyPatch, spools: OutputSpools
) -> None:
    monkeypatch.setattr(output_spool, "_REUSE_BYTES", 3 * PIECE_BYTES)
    text, pieces = _text(num_bytes), []
    spool = spools.open(2, 1)
    for number, start in enumerate(range(0, num_bytes, 10_000)):
        spool.write(text[start : start + 10_000])
        if number % 3:
            pieces.append(spool.take())
    pieces += _all_of(spool)
    assert _joined(pieces) == (text, 0)
    assert {(piece["rank"], piece["gen"]) for piece in pieces} == {(2, 1)}
    assert spool.on_disk <= 3 * PIECE_BYTES + 10_000


def test_beyond_the_disk_the_beginning_and_the_end_are_kept(
    monkeypatch: pytest.MonkeyPatch, spools: OutputSpools
) -> None:
    monkeypatch.setattr(output_spool, "_DISK_BYTES", 5 * PIECE_BYTES)
    text = _text(20 * PIECE_BYTES)
    spool = spools.open(0, 0)
    for start in range(0, len(text), 4096):
        spool.write(text[start : start + 4096])
    output, missing = _joined(_all_of(spool))
    assert len(output) == len(text)
    assert output[: 5 * PIECE_BYTES] == text[: 5 * PIECE_BYTES]
    assert output[-(1 << 18) :] == text[-(1 << 18) :]
    assert missing == len(text) - 5 * PIECE_BYTES - (1 << 18)


def test_after_a_gap_the_disk_is_used_again(monkeypatch: pytest.MonkeyPatch, spools: OutputSpools) -> None:
    monkeypatch.setattr(output_spool, "_DISK_BYTES", PIECE_BYTES)
    spool, pieces = spools.open(0, 0), []
    spool.write(b"a" * PIECE_BYTES)
    spool.write(b"b" * 10)
    while spool.unsent_bytes:
        pieces.append(spool.take())
    spool.write(b"c" * PIECE_BYTES)
    assert spool.on_disk == PIECE_BYTES
    assert _joined(pieces + _all_of(spool)) == (b"a" * PIECE_BYTES + b"b" * 10 + b"c" * PIECE_BYTES, 0)


def test_without_a_disk_the_end_is_kept(monkeypatch: pytest.MonkeyPatch, spools: OutputSpools) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    text = _text(9 * PIECE_BYTES)
    spool = spools.open(0, 0)
    for start in range(0, len(text), 1000):
        spool.write(text[start : start + 1000])
    output, missing = _joined(_all_of(spool))
    assert (output[missing:], missing) == (text[-(1 << 18) :], len(text) - (1 << 18))


def test_without_time_the_end_is_sent(spools: OutputSpools) -> None:
    text = _text(20 * PIECE_BYTES)
    for rank in (0, 1):
        spools.open(rank, 0).write(text)
    pieces = list(spools.rest(time.monotonic()))
    for rank in (0, 1):
        output, missing = _joined([piece for piece in pieces if piece["rank"] == rank])
        assert (output[missing:], missing) == (text[-(1 << 18) :], len(text) - (1 << 18))


def test_little_output_waits_for_more_and_much_does_not(spools: OutputSpools) -> None:
    small, large = spools.open(0, 0), spools.open(1, 0)
    small.write(b"x")
    large.write(b"x" * PIECE_BYTES)
    assert [piece["rank"] for piece in spools.pieces(lambda: True)] == [1]
    assert list(spools.pieces(lambda: False)) == []
    small.close()
    assert [piece["rank"] for piece in spools.pieces(lambda: True)] == [0]


def test_in_pods_the_rate_is_that_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    spools = OutputSpools(in_pod=True)
    spools.share(4)
    spool = spools.open(0, 0)
    # It cannot be compressed.
    spool.write(random.Random(1).randbytes(100 * PIECE_BYTES))
    sent = 0
    for _ in range(10):
        now[0] += 1.0
        sent += sum(len(piece["data"]) for piece in spools.pieces(lambda: True))
    spool.free()
    assert sent == pytest.approx(10 * (1 << 20) / 4, rel=0.05)


def test_the_output_of_a_generation_follows_that_of_the_one_before() -> None:
    spools = OutputSpools(in_pod=False)
    for generation in range(2):
        for rank in range(2):
            spool = spools.open(rank, generation)
            spool.write(os.urandom(3 * PIECE_BYTES))
            spool.close()
    pieces = [*itertools.islice(spools.pieces(lambda: True), 7), *spools.rest(time.monotonic() + 60.0)]
    for rank in range(2):
        generations = [piece["gen"] for piece in pieces if piece["rank"] == rank]
        assert generations == sorted(generations)
        assert len(generations) >= 6
    assert {piece["rank"] for piece in pieces[:2]} == {0, 1}, "ranks take turns"
