"""docs/protocol.md says what the types say, and the types are complete."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import get_args, is_typeddict

import pytest

from seatrial.protocol import commands, events

_TOOL = Path(__file__).parents[2] / "tools" / "write_protocol_page.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_protocol_page", _TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _types(module: ModuleType) -> set[type]:
    """The messages that a module defines."""
    return {cls for _, cls in inspect.getmembers(module, is_typeddict) if "kind" in cls.__annotations__}


def test_the_page_has_the_tables_of_the_types(tool: ModuleType) -> None:
    page = tool.PAGE.read_text()
    assert tool.page_with_tables(page) == page, "run tools/write_protocol_page.py"


def test_each_type_is_in_its_table() -> None:
    assert _types(commands) == {cls for types in commands.DIRECTIONS.values() for cls in types}
    assert _types(events) == set(get_args(events.Event))


def test_a_kind_means_one_thing_in_each_direction(tool: ModuleType) -> None:
    for types in [*commands.DIRECTIONS.values(), get_args(events.Event)]:
        kinds = [tool._kind(cls) for cls in types]
        assert len(set(kinds)) == len(kinds)


def test_every_field_has_a_meaning(tool: ModuleType) -> None:
    for cls in _types(commands) | _types(events):
        for name, (_, meaning) in tool._annotations(cls).items():
            assert name == "kind" or meaning.endswith("."), f"{cls.__name__}.{name}"
