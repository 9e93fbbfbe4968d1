"""The operators' own schemas, made strict: what they would drop in silence fails here.

They are not part of this project; where they are is told by SEATRIAL_TEST_CRDS, or they lie beside the project.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

_BESIDE = Path(__file__).parents[3] / "shared" / "crds"


def find_schemas() -> Path | None:
    """Their folder; None where there is none."""
    folder = Path(os.environ.get("SEATRIAL_TEST_CRDS", _BESIDE))
    return folder if folder.is_dir() else None


def _schema_folder() -> Path:
    """Skips the test where there is none."""
    folder = find_schemas()
    if folder is None:
        pytest.skip(f"the operators' schemas are not there: {_BESIDE} (SEATRIAL_TEST_CRDS names another folder)")
    return folder


def problems(thing: dict[str, Any]) -> list[str]:
    """What the schema of its kind finds wrong with an object, unknown fields included."""
    validator = _validators(_schema_folder()).get((thing["apiVersion"], thing["kind"]))
    assert validator is not None, f"no schema of {thing['apiVersion']} {thing['kind']}"
    return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(thing)]


@cache
def _validators(folder: Path) -> dict[tuple[str, str], Draft202012Validator]:
    found = {}
    for path in folder.glob("*.yaml"):
        crd = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        spec = crd["spec"]
        for version in spec["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = Draft202012Validator(schema)
    return found


def _strict(node: Any) -> Any:
    """Unknown fields are refused, and what may be a number or a string is both."""
    if isinstance(node, list):
        return [_strict(part) for part in node]
    if not isinstance(node, dict):
        return node
    made = {key: _strict(value) for key, value in node.items() if key not in ("description", "default", "format")}
    if node.get("x-kubernetes-int-or-string"):
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        made.pop("type", None)
    has_fields = isinstance(node.get("properties"), dict) and node.get("type") == "object"
    if has_fields and not node.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made
