"""Reading a plan as a table: a built-in level, or a file written by a person, in TOML or (``*.json``) JSON."""

from __future__ import annotations

import json
import pkgutil
from typing import Any

from seatrial.errors import RequestError
from seatrial.files import open_to_read
from seatrial.plan.values import did_you_mean, shortened
from seatrial.util.text import printable
from seatrial.util.toml_text import parse_toml

LEVELS = ("smoke", "quick", "standard", "acceptance", "burn-in")
"""The built-in levels, the shortest first."""
DEFAULT_LEVEL = "quick"
"""The plan of a trial for which none is named."""

_MAX_BYTES = 1 << 20
"""Plans have some hundred lines; a larger file was named by mistake."""


def is_level(name: str) -> bool:
    """Return whether the name is a built-in level. A file of that name is given as ``./quick``."""
    return name in LEVELS


def read_level(name: str) -> dict[str, Any]:
    """Return the table of a built-in level, without the sentence that describes it."""
    # pkgutil asks the loader, so that the file is found inside a zip too.
    content = pkgutil.get_data(__package__, f"levels/{name}.json")
    assert content is not None
    table: dict[str, Any] = json.loads(content)
    del table["description"]
    like = table.pop("like", None)
    return {**read_level(like), **table} if like else table


def read_file(path: str) -> dict[str, Any]:
    """Return the table of a plan file. Raises RequestError unless it is a readable plan that is not empty."""
    name = printable(path)
    if path.endswith((".yaml", ".yml")):
        raise RequestError(
            f'plan {name}: plans are TOML, or JSON in a file *.json, not YAML; begin with level = "{DEFAULT_LEVEL}".'
        )
    text = _decode(_read_bytes(path, name), name)
    document = (
        _json(text, name)
        if path.endswith(".json")
        else parse_toml(text, f"plan {name}", instead="name a level, or write the plan as JSON in a file *.json")
    )
    if not document:
        raise RequestError(f'plan {name} is empty; start with level = "{DEFAULT_LEVEL}".')
    return document


def _json(text: str, name: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            # As in TOML: of two limits it is not clear which one was meant.
            raise ValueError("a name occurs twice in one object")
        return table

    try:
        document = json.loads(text, object_pairs_hook=unique)
        # JSON can write lone surrogates, which can be neither printed nor sent.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else shortened(str(error))
        raise RequestError(f"plan {name} is not valid JSON: {reason}.") from error
    if not isinstance(document, dict):
        raise RequestError(f"plan {name} is not one JSON object with the tables of a plan in it.")
    return document


def _read_bytes(path: str, name: str) -> bytes:
    try:
        with open_to_read(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except IsADirectoryError:
        raise RequestError(f"plan {name} is a directory; name the TOML file in it.") from None
    except FileNotFoundError:
        hint = did_you_mean(name, LEVELS)
        raise RequestError(f"plan {name!r}: no level and no file has this name{hint}") from None
    except OSError as error:
        raise RequestError(f"plan {name} cannot be read: {error.strerror or error}.") from error
    except ValueError:
        raise RequestError(f"plan {name!r}: a file name cannot contain a NUL byte.") from None
    if len(content) > _MAX_BYTES:
        raise RequestError(f"plan {name} has more than {_MAX_BYTES} bytes; is it a plan?")
    return content


def _decode(content: bytes, name: str) -> str:
    if b"\0" in content:
        raise RequestError(f"plan {name} contains NUL bytes: it is not a text file.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise RequestError(f"plan {name} is not UTF-8 text: line {line} contains byte 0x{byte:02x}.") from None
