"""HTML and SVG built from elements: every text and every attribute is escaped by construction."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from seatrial.util.text import printable

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_VOID = ("meta",)
_BLOCKS = frozenset(
    ("body", "div", "h1", "h2", "h3", "head", "html", "li", "meta", "p", "pre", "style", "table", "title", "tr", "ul")
)
"""Elements after which a line break changes nothing that a reader sees."""


@dataclass(frozen=True, slots=True)
class Markup:
    """Finished markup, the only type that is written unescaped. Make one directly from constants only."""

    text: str


Content: TypeAlias = Markup | str | int | float | Iterable["Content"] | None
"""The content of an element. A ``str`` is text, never markup; None is empty."""


def element(tag: str, /, *content: Content, **attributes: str | float | Iterable[str] | None) -> Markup:
    """Return ``<tag attribute="...">content</tag>``.

    In the name of an attribute ``_`` becomes ``-``, and one at its end is dropped (``class_``). An attribute whose
    value is None is left out; an iterable other than ``str`` becomes a list of words, such as the points of a line.
    Raises ValueError for an invalid name of a tag or an attribute.
    """
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    opened = " ".join([_name(tag), *(f'{_name(name)}="{_value(value)}"' for name, value in pairs)])
    closed = "" if tag in _VOID else f"{fragment(*content).text}</{tag}>"
    return Markup(f"<{opened}>{closed}" + ("\n" if tag in _BLOCKS else ""))


def fragment(*content: Content) -> Markup:
    """Return the contents one after another, without an element around them."""
    return Markup("".join(map(_text, content)))


def _text(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Markup):
        return content.text
    if isinstance(content, str):
        return _escaped(content)
    if isinstance(content, (int, float)):
        return str(content)
    return fragment(*content).text


def _value(value: str | float | Iterable[str]) -> str:
    if isinstance(value, (str, int, float)):
        return _escaped(str(value))
    return " ".join(map(_escaped, value))


def _escaped(text: str) -> str:
    # A control character is not markup, but it is not text either.
    return html.escape(printable(text))


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of an element or an attribute")
    return name
