"""The tables that travel with us: levels, limits, device specs. TOML in the source, JSON in the bundle."""

from __future__ import annotations

import json
import pkgutil
from typing import Any

__all__ = ["load_table"]


def load_table(name: str) -> dict[str, Any]:
    """The table of that name in this folder: ``specs``, ``levels/quick``. The JSON is taken where there is one.

    A bundle holds JSON only, because ranks may run Python 3.10, which has no TOML reader. Raises FileNotFoundError
    when there is no such table.
    """
    table: dict[str, Any]
    data = _read(f"{name}.json")
    if data is not None:
        table = json.loads(data)
        return table
    data = _read(f"{name}.toml")
    if data is None:
        raise FileNotFoundError(f"there is no table {name} in seatrial.plan")
    import tomllib

    table = tomllib.loads(data.decode())
    return table


def _read(path: str) -> bytes | None:
    try:
        return pkgutil.get_data("seatrial.plan", path)
    except OSError:
        return None
