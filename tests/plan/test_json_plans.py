"""Plans as JSON, for a Python without a TOML reader: the same rules, and nothing beyond TOML."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial.checks import registry
from seatrial.errors import RequestError
from seatrial.plan.model import Plan
from seatrial.plan.plan_reader import read_plan


def read(path: Path, text: str) -> Plan:
    path.write_text(text, encoding="utf-8")
    return read_plan(str(path), schemas=registry.schemas(), scopes=registry.scopes())


def test_json_and_toml_are_equal(tmp_path: Path) -> None:
    toml = 'level = "smoke"\ndeadline_s = 77\n[bootstrap]\nmax_form_s = 12.5\n'
    table = {"level": "smoke", "deadline_s": 77, "bootstrap": {"max_form_s": 12.5}}
    one = read(tmp_path / "plan.json", json.dumps(table)).to_json()
    other = read(tmp_path / "plan.toml", toml).to_json()
    assert json.dumps(one).replace("plan.json", "plan.toml") == json.dumps(other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not valid JSON"),
        ("{}", "is empty"),
        ("[]", "is not one JSON object"),
        ("null", "is not one JSON object"),
        ('{"level": "smoke",}', "is not valid JSON"),
        ('{"level": "smoke", "level": "quick"}', "a name occurs twice in one object"),
        ('{"level": "smoke", "bootstrap": {"max_form_s": 1, "max_form_s": 2}}', "a name occurs twice in one object"),
        ('{"level": "smoke", "bootstrap": {"max_form_s": NaN}}', "bootstrap.max_form_s"),
        ('{"level": "smoke", "deadline_s": null}', "deadline_s"),
        ('{"level": "smoke", "checks": null}', "checks"),
        ('{"level": "smoke", "bootstrap": null}', "bootstrap"),
        ('{"level": "\\ud800"}', "is not valid JSON"),
        ('{"level": ' + "9" * 5000 + "}", "is not valid JSON"),
        ('{"a": ' + "[" * 100_000, "nested too deep"),
    ],
    ids=lambda text: text[:60],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(tmp_path / "plan.json", text)
    assert words in str(caught.value)
    assert "plan.json" in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["max_form_s", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["checks", "deadline_s", "bootstrap", "training", "x"]), VALUES, max_size=3))
def test_any_object_ends_in_a_plan_or_a_request_error(tmp_path: Path, table: dict[str, Any]) -> None:
    with contextlib.suppress(RequestError):
        plan = read(tmp_path / "plan.json", json.dumps({"level": "smoke", **table}))
        json.dumps(plan.to_json(), allow_nan=False).encode()


def test_without_a_toml_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(
        RequestError,
        match=r"TOML needs Python 3\.11 or newer, or the package tomli; name a level",
    ):
        read(tmp_path / "plan.toml", 'level = "smoke"\n')
