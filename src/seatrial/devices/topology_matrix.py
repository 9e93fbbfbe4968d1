"""The matrix of ``nvidia-smi topo -m``: how each pair of devices is connected."""

from __future__ import annotations

import re

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"GPU(\d{1,3})")
_CONNECTION = re.compile(r"NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|PSB")


def parse(text: str) -> dict[str, str]:
    """Return ``NodeState.topology``: ``0-1`` -> ``NV18``. Cells in other words are left out."""
    columns: list[str] | None = None
    found = dict[str, str]()
    for line in _COLOR.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if columns is None:
            if "GPU0" in cells and not cells[0]:
                columns = cells
            continue
        row = _DEVICE.fullmatch(cells[0])
        for name, cell in zip(columns, cells, strict=False) if row else ():
            column = _DEVICE.fullmatch(name)
            if row and column and int(row[1]) < int(column[1]) and _CONNECTION.fullmatch(cell):
                found[f"{row[1]}-{column[1]}"] = cell
    return found
