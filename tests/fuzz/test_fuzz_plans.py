"""Any plan file: ``seatrial run FILE`` ends in a sound plan or in one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from fuzz.harness import Target, assert_sentence, count, explore
from fuzz.plan_inputs import KEYS, LARGE_PLAN_FILES, PLAN_FILES
from hypothesis import strategies as st

from seatrial.checks import registry
from seatrial.conductor.steps import of_plan
from seatrial.errors import RequestError
from seatrial.plan.model import Plan
from seatrial.plan.plan_reader import read_plan
from seatrial.protocol.wire import encode

_CHECKS = {name: registry.load(name) for name in registry.names()}
_SCHEMAS = {name: check.params for name, check in _CHECKS.items()}
_SCOPES = {name: check.scope for name, check in _CHECKS.items()}


def plans(folder: Path, *, large: bool = False) -> Target[bytes]:
    """Plan files, each written to the folder and read from there."""
    path = folder / "hostile.toml"

    def check(content: bytes) -> None:
        path.write_bytes(content)
        count("plans")
        try:
            plan = read_plan(str(path), schemas=_SCHEMAS, scopes=_SCOPES)
        except RequestError as error:
            message = str(error)
            assert_sentence(message.replace(str(path), "FILE"))
            assert str(path) in message or any(key in message for key in KEYS)
        else:
            _assert_sound(plan)

    return Target(name="plans", inputs=LARGE_PLAN_FILES if large else PLAN_FILES, check=check)


def _assert_sound(plan: Plan) -> None:
    """Assert what all other packages rely on in a plan."""
    assert plan.checks
    assert not set(plan.checks) & set(plan.not_asked)
    assert math.isfinite(plan.deadline_s.value)
    assert plan.deadline_s.value > 0
    for name in plan.checks:
        params = plan.params(name, _SCHEMAS[name])
        if (rules := _CHECKS[name].rules) is not None:
            assert all(rule.requirement for rule in rules(params))
    for step in of_plan(plan, _CHECKS.__getitem__):
        assert math.isfinite(step.timeout_s)
        assert step.timeout_s > 0, f"{step.check}.timeout_s"
    document = plan.to_json()
    json.dumps(document, allow_nan=False)
    assert encode({"kind": "run", "plan": document})
    assert Plan.from_json(json.loads(json.dumps(document))).to_json() == document


def test_some_plan_files_end_in_a_plan_or_in_a_sentence(tmp_path: Path) -> None:
    explore(plans(tmp_path), 150)


def test_deep_and_long_plan_files_end_in_a_sentence(tmp_path: Path) -> None:
    explore(plans(tmp_path, large=True), 15)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_plan_files_end_in_a_plan_or_in_a_sentence(tmp_path: Path) -> None:
    explore(plans(tmp_path), 11_000)
    explore(plans(tmp_path, large=True), 300)


_NAMES = st.one_of(
    st.text(max_size=20), st.sampled_from(["/dev/zero", "/dev/null", "/proc/self/mem", "/", "\0", "-", ".", "\ud800"])
)


def _check_name(name: str) -> None:
    count("plans")
    try:
        read_plan(name, schemas=_SCHEMAS, scopes=_SCOPES)
    except RequestError as error:
        assert_sentence(str(error))


def test_any_name_of_a_plan_is_a_level_or_ends_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    explore(Target(name="plans", inputs=_NAMES, check=_check_name), 60)


@pytest.mark.fuzz
def test_many_names_of_plans_end_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    explore(Target(name="plans", inputs=_NAMES, check=_check_name), 1_000)
