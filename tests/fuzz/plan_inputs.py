"""Plan files as nobody should write them."""

from __future__ import annotations

from importlib import resources

from hypothesis import strategies as st

from seatrial.checks import registry
from seatrial.plan.plan_file import LEVELS

_LEVEL_TEXTS = [
    resources.files("seatrial.plan").joinpath(f"levels/{name}.json").read_text("utf-8").encode() for name in LEVELS
]
_CHECKS = registry.names()
KEYS = sorted(
    {"level", "deadline_s", "checks", *_CHECKS}
    | {f"{name}.{field}" for name in _CHECKS for field in registry.load(name).params.__dataclass_fields__}
)
_TOKENS = [
    *(b"[", b"]", b"[[", b"]]", b"{", b"}", b"=", b"==", b",", b".", b'"', b'"""', b"'''", b"#", b"\n", b"\r", b"\r\n"),
    *(b"inf", b"-inf", b"nan", b"true", b"-", b"+", b"_", b"0x", b"0b1", b"1e999", b"1e308", b"-1", b"0", b"0.0"),
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1b[2J", b"\xe2\x80\xae", b"\\u0000", b"\\U0010ffff", b"\\"),
    *(b"1979-05-27T07:32:00Z", b"07:32:00", b"9223372036854775808", b"9" * 5_000, b'level = "quick"\n'),
]
_SCALARS = st.one_of(
    st.sampled_from(["0", "-0", "1", "-1", "0.0", "1e-320", "1e308", "1e999", "-1e999", "inf", "-inf", "nan", "+nan"]),
    st.sampled_from(["9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 400]),
    st.sampled_from(["true", "false", "1979-05-27", "07:32:00", "1979-05-27T07:32:00-07:00", "{}", "[]", "[[]]"]),
    st.sampled_from(['""', "'quick'", '"digits"', '"fp32"', '"synthetic-1x8x8"', '"synthetic-99999x99999x99999"']),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(max_size=12).map(lambda text: f'"{text}"'),
    st.text(max_size=4).map(lambda text: f"'''{text}'''"),
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda table: f"{{{', '.join(f'{key} = {value}' for key, value in table.items())}}}"
        )
    ),
    max_leaves=6,
)
_LINES = st.one_of(
    st.tuples(st.sampled_from(KEYS), VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    st.sampled_from([f"[{name}]" for name in _CHECKS]),
    st.tuples(st.text(min_size=1, max_size=8), VALUES).map(lambda pair: f'"{pair[0]}" = {pair[1]}'),
    st.lists(st.sampled_from([*_CHECKS, "nothing", ""]), max_size=5).map(lambda names: f"checks = {names}"),
)
_WRITTEN = st.tuples(
    st.sampled_from(["", 'level = "quick"\n', 'level = "smoke"\n', 'deadline_s = 60\nchecks = ["compute"]\n']),
    st.lists(_LINES, max_size=6),
).map(lambda parts: (parts[0] + "\n".join(parts[1])).encode("utf-8", "surrogatepass"))
_DEEP = st.tuples(
    st.sampled_from(
        [
            (b"x = ", b"[", b"]"),
            (b"x = ", b"{a=", b"}"),
            (b"", b"a.", b"a = 1"),
            (b"level = ", b"[", b"]"),
            (b"[compute]\n", b"a.", b"a = 1"),
            (b"[", b"a.", b"a]"),
            (b"level.", b"a.", b"a = 1"),
            (b"deadline_s.", b"a.", b"a = 1"),
            (b'level="quick"\nchecks.', b"a.", b"a = 1"),
            (b'level="quick"\n[compute]\ncpu_size.', b"a.", b"a = 1"),
        ]
    ),
    st.sampled_from([1, 50, 400, 2_000, 20_000]),
).map(
    lambda parts: (
        parts[0][0] + parts[0][1] * parts[1] + (parts[0][2] if len(parts[0][2]) > 1 else parts[0][2] * parts[1])
    )
)
_LONG = st.tuples(
    st.sampled_from(
        [b"a", b"#", b"\n", b" ", b"[x]\n", b"x=1\n", b'"', b"'", b"1", b"\\", b"[", b"\xc3\xa9", b"a.", b"''"]
    ),
    st.sampled_from([100, 10_000, 1 << 20]),
    st.sampled_from([b"", b'level = "quick"\n', b'level = "quick"\nx = ', b"x = '", b'x = "']),
).map(lambda parts: parts[2] + parts[0] * (parts[1] // len(parts[0])))


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """A level of ours, with pieces cut out, put in, doubled and exchanged."""
    text = bytearray(draw(st.sampled_from(_LEVEL_TEXTS)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 3, 12, 60])))
        piece = draw(
            st.one_of(
                st.sampled_from(_TOKENS),
                st.binary(max_size=6),
                VALUES.map(lambda value: value.encode("utf-8", "surrogatepass")),
                st.just(bytes(text[max(0, start - 20) : start])),
            )
        )
        text[start:end] = piece
    return bytes(text)


PLAN_FILES = st.one_of(
    _mutated(),
    _WRITTEN,
    _WRITTEN,
    st.lists(st.sampled_from(_TOKENS) | st.binary(max_size=4), max_size=12).map(b"".join),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
)
"""What comes in numbers."""
LARGE_PLAN_FILES = _DEEP | _LONG
"""Deep or long values: some of these cost tens of milliseconds."""
