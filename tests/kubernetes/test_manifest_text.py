"""Strings stay strings in every YAML reader."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from seatrial.targets.kubernetes.manifest import yaml_text
from seatrial.targets.kubernetes.manifest.yaml_text import to_yaml

_MISREAD = [
    "8",
    "on",
    "No",
    "y",
    "1e3",
    "0x1F",
    "0o7",
    "1_000",
    "12:30:45",
    "2026-11-21",
    ".inf",
    "~",
    "null",
    "",
    "=",
    "<<",
]


@pytest.mark.parametrize("text", _MISREAD)
def test_ambiguous_text_is_quoted(text: str) -> None:
    assert to_yaml([{"value": text}]) == f'---\nvalue: "{text}"\n'


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcXY01./-", min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abc01", min_size=1), _JSON, max_size=4))
def test_what_is_read_is_what_was_written(thing: dict[str, Any]) -> None:
    assert list(yaml.safe_load_all(to_yaml([thing, thing]))) == [thing, thing]


def test_the_slow_writer_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.workloads import CASES, case

    fast = {name: to_yaml(case(name)) for name in CASES}

    class Slow(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Slow.yaml_representers = yaml_text._Dumper.yaml_representers
    monkeypatch.setattr(yaml_text, "_Dumper", Slow)
    assert {name: to_yaml(case(name)) for name in CASES} == fast
