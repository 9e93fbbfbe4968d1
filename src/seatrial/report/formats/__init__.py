"""The formats of the report: each module of this folder is one, also inside a zip.

A format has ``FILE``, the name of its file in the folder of a run, and ``text``, which returns the content of that file
for a Conclusion. A format that needs a package beyond the standard library names it in ``PACKAGE`` and imports it
inside ``text``; where that package cannot be imported, the format is left out.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from seatrial.judge.conclude import Conclusion
from seatrial.report.packages import is_importable


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format that can be written."""

    file: str
    """The name of its file in the folder of a run."""
    text: Callable[[Conclusion], str]


def load() -> dict[str, Format]:
    """Return the formats that can be written, by the names of their modules."""
    formats = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{name}")
        package = getattr(module, "PACKAGE", None)
        if package is None or is_importable(package):
            formats[name] = Format(file=module.FILE, text=module.text)
    return formats
