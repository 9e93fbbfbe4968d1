"""The YAML text of objects, in which no reader mistakes a string for a number.

It is a separate file because PyYAML is slow to import.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from seatrial.targets.kubernetes.manifest.workload import Object

# Readers differ in what they accept as a number, a date or a truth value (YAML 1.1: `on`, `1e3`, `0o7`, `1_0`,
# `12:30`), so only text that begins with a letter or / and is none of these words is written without quotes.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/@-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """The dumper of libyaml where it is installed: it writes the ConfigMaps in a tenth of the time."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal templates twice instead of as `*id001`, which people cannot read."""
        return True


def _string(dumper: Any, text: str) -> Any:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        style = None
    elif "\n" in text and re.fullmatch(r"[!-~](?:[ -~]*[!-~])?\n(?:(?:[ -~]*[!-~])?\n)*", text):
        style = "|"
    else:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def to_yaml(objects: Sequence[Object]) -> str:
    """Return one YAML document for each object, without wrapping lines."""
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, width=1 << 30, explicit_start=True, allow_unicode=False
    )
