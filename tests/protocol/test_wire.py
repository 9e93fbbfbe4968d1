"""The line format: what was written comes back, and nothing else does."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from typing import Any

import pytest
from by_day import by_day
from hypothesis import given
from hypothesis import strategies as st

from seatrial.protocol import wire
from seatrial.protocol.wire import MAX_LINE_BYTES, PREFIX, Decoder, encode

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
# A part of a split message is the wire's own word.
messages = st.dictionaries(st.text().filter(lambda key: key != "part"), values, max_size=6)
garbage = st.binary(max_size=60).map(lambda text: text.replace(b"\n", b"").replace(b"@", b""))


@given(st.lists(messages, max_size=5), garbage)
def test_messages_come_back(sent: list[dict[str, Any]], before: bytes) -> None:
    decoder = Decoder()
    text = b"".join(before + line for message in sent for line in encode(message))
    assert list(decoder.lines(text)) == sent
    assert decoder.damaged == 0


@given(messages, st.integers(min_value=4_000, max_value=30_000), st.randoms(use_true_random=False))
def test_large_messages_are_split_and_merged_in_any_order(message: dict[str, Any], length: int, random: Any) -> None:
    sent = {**message, "text": '"\\' * (length // 2)}
    lines = encode(sent)
    assert len(lines) > 1
    assert all(len(line) <= MAX_LINE_BYTES and line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    random.shuffle(lines)
    assert list(Decoder().lines(b"".join(lines))) == [sent]


@given(messages, st.data())
def test_a_changed_line_is_never_another_message(message: dict[str, Any], data: st.DataObject) -> None:
    (line, *more) = encode(message)
    at = data.draw(st.integers(min_value=0, max_value=len(line) - 2))
    changed = line[:at] + bytes([data.draw(st.integers(0, 255))]) + line[at + 1 :]
    decoder = Decoder()
    came = list(decoder.lines(changed + b"".join(more)))
    assert came in ([], [message])


@given(messages, st.data())
def test_a_cut_line_is_damaged_or_nothing(message: dict[str, Any], data: st.DataObject) -> None:
    line = encode(message)[0]
    cut = line[: data.draw(st.integers(min_value=0, max_value=len(line) - 2))]
    decoder = Decoder()
    assert decoder.line(cut) is None
    assert decoder.damaged == (1 if cut.startswith(b"@seatrial1 ") else 0)


@pytest.mark.parametrize("text", ["\ud800", "é"])
def test_a_part_that_is_no_piece_of_json_is_damage(text: str) -> None:
    body = json.dumps({"part": [0, 1, "x"], "text": text}).encode()
    decoder = Decoder()
    assert decoder.line(PREFIX + f"{zlib.crc32(body):08x} ".encode() + body) is None
    assert decoder.damaged == 1


def test_a_message_that_is_longer_than_any_of_ours_is_damage() -> None:
    text = '{"x":"' + "x" * 3_000 + '"}'
    key = f"{zlib.crc32(text.encode()):08x}{len(text)}"
    decoder = Decoder()
    lines = [
        encode({"part": [number, 2, key], "text": piece}) for number, piece in enumerate((text[:2_500], text[2_500:]))
    ]
    assert list(decoder.lines(b"".join(line for one in lines for line in one))) == []
    assert decoder.damaged == 1


def test_a_line_longer_than_any_of_ours_is_not_decoded() -> None:
    body = b'{"x":[' + b"[]," * 2_000_000 + b"[]]}"
    line = PREFIX + f"{zlib.crc32(body):08x} ".encode() + body
    decoder = Decoder()
    tracemalloc.start()
    try:
        assert decoder.line(b"rank 0: " + line) is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (decoder.damaged, peak_bytes < 4 * len(line)) == (1, True)


def test_a_long_text_before_a_message_and_its_carriage_return_stay() -> None:
    message = {"x": "y" * (MAX_LINE_BYTES - len(encode({"x": ""})[0]))}
    (line,) = encode(message)
    assert len(line) == MAX_LINE_BYTES
    assert Decoder().line(b"#" * 100_000 + line[:-1] + b"\r\n") == message


def test_a_split_message_that_is_refused_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is too deep takes seconds to decode."""
    asked: list[int] = []
    decoded: list[str] = []
    real = wire._loads

    def refuse(kept_bytes: int) -> bool:
        asked.append(kept_bytes)
        return False

    def keep(body: str) -> dict[str, Any] | None:
        decoded.append(body)
        return real(body)

    monkeypatch.setattr(wire, "_loads", keep)
    decoder = Decoder(refuse)
    assert list(decoder.lines(b"".join(encode({"x": [[]] * 2_000})))) == []
    assert (len(asked), decoder.damaged) == (1, 1)
    assert asked[0] == decoder.kept_bytes > 2_000 * 16
    assert max(map(len, decoded)) < 4_000


def test_a_split_message_that_is_too_deep_is_damage() -> None:
    decoder = Decoder()
    assert list(decoder.lines(b"".join(encode({"x": ["y" * 9_000, json.loads("[" * 80 + "]" * 80)]})))) == []
    assert decoder.damaged == 1


@given(st.binary(max_size=300))
def test_any_bytes_are_accepted(text: bytes) -> None:
    assert list(Decoder().lines(b"@seatrial1 " + text)) == []


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"value": number})


@pytest.mark.parametrize("value", by_day([[], {}, [0], 1000, "a", {"a": 1}], 0, 3, 5), ids=repr)
def test_small_values_count_as_what_it_costs_to_keep_them(value: Any) -> None:
    """Else a node could fill the memory of the controller within its allowance."""
    text, decoder = b"".join(encode({"x": [value] * 200_000})), Decoder()
    tracemalloc.start()
    try:
        kept = list(decoder.lines(text))
        memory_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(kept) == 1
    assert memory_bytes / 5 < decoder.kept_bytes < 10 * memory_bytes
