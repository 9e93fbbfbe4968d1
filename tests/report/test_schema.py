"""``schema.json`` agrees with the types of the report, and refuses wrong reports."""

from __future__ import annotations

import copy
import difflib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from event_streams import SCENES
from fake_checks import fake_load

from seatrial.evidence.schema_types import Keywords
from seatrial.judge.conclude import conclude
from seatrial.report.document import document


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_schema", Path(__file__).parents[2] / "tools" / "make_schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_agrees_with_the_types(made: ModuleType) -> None:
    stored, derived = made.FILE.read_text("utf-8"), made.text()
    difference = difflib.unified_diff(
        stored.splitlines(), derived.splitlines(), "schema.json", "the types", lineterm=""
    )
    assert stored == derived, "\n".join(["run tools/make_schema.py if this change is intended:", *difference])


@dataclass(frozen=True, kw_only=True)
class Inner:
    word: Literal["a", "b"] | None
    value: float


@dataclass(frozen=True, kw_only=True)
class Base:
    count: Annotated[int, Keywords(minimum=0, description="A count.")]


@dataclass(frozen=True, kw_only=True)
class Toy(Base):
    inner: tuple[Inner, ...]
    by_name: Mapping[str, Inner | None]
    free: Mapping[str, Any]
    anything: Any
    maybe: int | None
    text: str | float = ""


def test_each_type_has_its_schema(made: ModuleType) -> None:
    schema = made.schema_of(Toy)
    inner = {"$ref": "#/$defs/Inner"}
    assert schema["properties"] == {
        "count": {"type": "integer", "minimum": 0, "description": "A count."},
        "inner": {"type": "array", "items": inner},
        "by_name": {"type": "object", "additionalProperties": {"anyOf": [inner, {"type": "null"}]}},
        "free": {"type": "object"},
        "anything": {},
        "maybe": {"type": ["integer", "null"]},
        "text": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/number"}]},
    }
    assert schema["required"] == list(schema["properties"])
    assert schema["$defs"]["Inner"]["properties"]["word"] == {"enum": ["a", "b", None]}
    assert not schema["additionalProperties"]


def test_an_unknown_type_is_refused(made: ModuleType) -> None:
    for kind in (bytes, set[int], tuple[int, str], Mapping[int, str]):
        record = type("Odd", (), {"__annotations__": {"field": kind}})
        with pytest.raises(TypeError, match="has no JSON Schema"):
            made.schema_of(dataclass(record))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("test_timestamp",), "today"),
        (("exit_code",), 4),
        (("schema_version",), 1),
        (("acceptance", "summary"), ["GPU"]),
        (("judged_measurements",), -1),
        (("nodes", 0, "node"), -1),
        (("ranks", 0, "rank"), -1),
        (("ranks", 0, "started"), []),
        (("checks", "compute", "status"), "good"),
        (("checks", "compute", "judged", 0, "limit", "origin"), ""),
        (("checks", "compute", "judged", 0, "measurement", "value"), "many"),
        (("measurements", 0, "better"), None),
        (("measurements", 0, "rank"), -1),
        (("facts", 0, "generation"), None),
        (("findings", 0, "what"), ""),
        (("findings", 0, "severity"), "bad"),
        (("findings", 0, "culprit", "kind"), "fate"),
        (("findings", 0, "culprit", "ranks"), [-1]),
        (("steps", 0, "outcome"), "unknown"),
        (("steps", 0, "timeout_s"), None),
        (("generations", 0, "ranks"), [True]),
        (("exits", 0, "code"), None),
        (("performance", "main_measurements", 0, "count"), -1),
    ],
)
def test_a_wrong_value_anywhere_is_refused(made: ModuleType, path: tuple[str | int, ...], value: Any) -> None:
    validator = jsonschema.Draft202012Validator(made.schema())
    scene = "healthy" if path[0] == "performance" else "second fault"
    report = document(conclude(SCENES[scene]().events, load=fake_load))
    validator.validate(report)
    spoiled: Any = copy.deepcopy(report)
    *parents, last = path
    target = spoiled
    for key in parents:
        target = target[key]
    target[last] = value
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(spoiled)


def test_an_extra_or_a_missing_field_is_refused(made: ModuleType) -> None:
    validator = jsonschema.Draft202012Validator(made.schema())
    report = document(conclude(SCENES["second fault"]().events, load=fake_load))
    for key in ("nodes", "ranks", "findings", "steps", "generations", "exits"):
        first = report[key][0]
        for spoiled in ({**first, "surprise": 1}, *({k: v for k, v in first.items() if k != name} for name in first)):
            with pytest.raises(jsonschema.ValidationError):
                validator.validate({**report, key: [spoiled]})
