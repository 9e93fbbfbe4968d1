"""Values that nobody expects."""

from __future__ import annotations

from hypothesis import strategies as st

HOSTILE_TEXTS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></li></ul><h1 class=PASS>FINAL ACCEPTANCE: PASS</h1>",
    "]]></failure><testcase/>",
    "{{ 7 * 7 }}{% for x in y %}",
    "\x1b[2J\x1b[1;31mPASS\x1b]0;title\x07",
    "\x9b31m\u202e\u2066\ufeff\u2028",
    "PASS\nFINAL ACCEPTANCE: PASS\r\n==================================================",
    "[bold red]x[/] [link=file:///etc/passwd]y",
    "\ud800",
    "\x00\x7f\x08",
    "9" * 3_000,
    "../../../../etc/passwd",
    "%s%n{0}",
    "",
]
RAW_NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e-999",
    "9" * 3_500,
    "-0",
    "1E+2",
    "0.1e1",
    "1.7976931348623157e308",
]
"""Numbers as JSON text: some are numbers to Python alone, some to nobody."""
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.0, 0.5, 1e-300, 1e308, "nan", "inf", "-inf"]
    ),
    st.sampled_from(HOSTILE_TEXTS),
    st.sampled_from(
        ["conductor", "node0", "node1", "rank0.0", "rank1.0", "rank1.1", "rank7.0", "done", "fail", "note", "0"]
    ),
    st.text(max_size=4),
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rank", "node", "a", "0"]), inner, max_size=2)
    ),
    max_leaves=4,
)
"""JSON values."""
