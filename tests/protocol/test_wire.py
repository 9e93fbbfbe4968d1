"""The line format: what was written comes back, and nothing else does."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from by_day import by_day
from foreign_lines import line_of, nested, parts_of
from hypothesis import given
from hypothesis import strategies as st

from seatrial.protocol import wire
from seatrial.protocol.wire import MAX_LINE_BYTES, Decoder, encode

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
    decoder = Decoder()
    assert decoder.line(line_of({"part": [0, 1, "x"], "text": text})) is None
    assert decoder.damaged == 1


def test_a_message_that_is_longer_than_any_of_ours_is_damage() -> None:
    text = '{"x":"' + "x" * 3_000 + '"}'
    decoder = Decoder()
    assert list(decoder.lines(parts_of(text, 2_500))) == []
    assert decoder.damaged == 1


def test_a_line_longer_than_any_of_ours_is_not_decoded() -> None:
    line = line_of('{"x":[' + "[]," * 2_000_000 + "[]]}")
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
    real = Decoder._loads

    def refuse(kept_bytes: int) -> bool:
        asked.append(kept_bytes)
        return False

    def keep(decoder: Decoder, body: str) -> dict[str, Any] | None:
        decoded.append(body)
        return real(decoder, body)

    monkeypatch.setattr(Decoder, "_loads", keep)
    decoder = Decoder(refuse)
    assert list(decoder.lines(b"".join(encode({"x": [[]] * 2_000})))) == []
    assert (len(asked), decoder.damaged) == (1, 1)
    assert asked[0] == decoder.kept_bytes > 2_000 * 16
    assert max(map(len, decoded)) < 4_000


def test_a_split_message_that_is_too_deep_is_damage() -> None:
    decoder = Decoder()
    assert list(decoder.lines(parts_of(json.dumps({"x": "y" * 9_000, "z": nested(80)}, separators=(",", ":"))))) == []
    assert decoder.damaged == 1


_OTHER_FORMS = {
    "a space": '{"x": 1}',
    "a key twice": '{"x":2,"x":1}',
    "a letter beyond ASCII": '{"x":"é"}',
    "a character that is escaped": '{"x":"\x7f"}',
    "a letter that is not escaped": '{"x":"\\u0061"}',
    "an exponent in place of zeros": '{"x":1e15}',
    "more digits": '{"x":1.50}',
    "minus zero": '{"x":-0}',
    "NaN": '{"x":NaN}',
    "more than a float": '{"x":1e999}',
    "digits without end": '{"x":' + "9" * 301 + "}",
    "no dictionary": "[1]",
}


@pytest.mark.parametrize("form", _OTHER_FORMS.values(), ids=_OTHER_FORMS)
def test_a_message_in_another_form_than_ours_is_damage(form: str) -> None:
    """Encoded again it would be larger, or another one: each reader after the first one would take it otherwise."""
    for text in (line_of(form), parts_of(form) if form.isascii() else b""):
        decoder = Decoder()
        assert list(decoder.lines(text)) == []
        assert decoder.damaged == (1 if text else 0)


def test_a_merged_message_that_would_be_a_part_in_one_line_is_damage() -> None:
    """A reader of the file in which it is kept would miss it."""
    decoder = Decoder()
    assert list(decoder.lines(parts_of('{"kind":"note","part":1}'))) == []
    assert decoder.damaged == 1


@pytest.mark.parametrize(("levels", "is_taken"), [(31, True), (32, False), (63, False)])
def test_a_message_of_an_agent_is_half_as_deep_as_one_of_ours(levels: int, is_taken: bool) -> None:
    message = {"x": nested(levels)}
    taken = list(Decoder(of_agent=True).lines(b"".join(encode(message))))
    assert taken == [message] * is_taken
    for held in taken:
        assert list(Decoder().lines(b"".join(encode({"y": {"z": held}})))) == [{"y": {"z": message}}]


@pytest.mark.parametrize(("parts", "is_taken"), [(4, True), (5, False)])
def test_a_message_of_an_agent_has_half_as_many_parts_as_one_of_ours(
    parts: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_MAX_PARTS", 8)
    lines = encode({"x": "y" * (wire._PART_CHARS * parts - 100)})
    decoder = Decoder(of_agent=True)
    taken = list(decoder.lines(b"".join(lines)))
    assert (len(lines), len(taken), decoder.damaged) == (parts, is_taken, 0 if is_taken else parts)
    for held in taken:
        assert list(Decoder().lines(b"".join(encode({"y": held})))) == [{"y": held}]


@given(messages)
def test_what_is_encoded_is_taken_and_nothing_deeper_is_encoded(message: dict[str, Any]) -> None:
    for levels in (63, 64):
        try:
            lines = encode({**message, "x": nested(levels)})
        except ValueError:
            assert levels == 64
        else:
            assert list(Decoder().lines(b"".join(lines))) == [{**message, "x": nested(levels)}]


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
