"""The text of objects, in which no reader takes a string for a number.

Apart from the rest, since PyYAML takes its time to be loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from seatrial.kubernetes.workload import Object

__all__ = ["to_yaml"]

# Readers differ in what they take for a number, a date or a truth value (YAML 1.1: `on`, `1e3`, `0o7`, `1_0`, `12:30`),
# so only what begins with a letter or / and is no such word stands without quotes.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/@-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """libyaml's where it is there: it writes the ConfigMap in a tenth of the time."""

    def ignore_aliases(self, data: Any) -> bool:
        """Two templates that are alike are written twice: `*id001` is not for people."""
        return True


def _string(dumper: Any, text: str) -> Any:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        style = None
    elif "\n" in text and re.fullmatch(r"(?:[!-~](?:[ -~]*[!-~])?\n)+", text):
        style = "|"
    else:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def to_yaml(objects: Sequence[Object]) -> str:
    """One document an object, each in lines of any length."""
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, width=1 << 30, explicit_start=True, allow_unicode=False
    )
