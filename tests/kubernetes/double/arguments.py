"""Arguments of a call, as the double of kubectl parses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SHORT = {
    "-n": "namespace",
    "-f": "filename",
    "-o": "output",
    "-l": "selector",
    "-c": "container",
    "-A": "all-namespaces",
    "-p": "patch",
}
_WITH_VALUE = {
    "cascade",
    "container",
    "context",
    "dry-run",
    "field-manager",
    "field-selector",
    "filename",
    "for",
    "grace-period",
    "kubeconfig",
    "namespace",
    "output",
    "patch",
    "raw",
    "request-timeout",
    "selector",
    "subresource",
    "since-time",
    "tail",
    "timeout",
    "type",
    "wait",
}
_ALONE = {
    "all-containers",
    "all-namespaces",
    "dry-run",
    "follow",
    "force",
    "ignore-errors",
    "ignore-not-found",
    "quiet",
    "server-side",
    "timestamps",
    "wait",
}


class RefusedError(Exception):
    """What kubectl would say on standard error; its exit code is 1 then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """A verb, what it is about, and options by their long names."""

    verb: str
    words: tuple[str, ...]
    options: dict[str, str]

    def one(self, name: str) -> str | None:
        return self.options.get(name)

    def flag(self, name: str) -> bool:
        return self.options.get(name, "false") == "true"

    def labels(self) -> dict[str, str]:
        """Of ``-l``: equality only."""
        return dict(_pairs(self.options.get("selector", "")))

    def fields(self) -> list[tuple[str, str]]:
        """Of ``--field-selector``: path and value."""
        return list(_pairs(self.options.get("field-selector", "")))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        name, sign, value = part.replace("==", "=").partition("=")
        if not sign:
            raise RefusedError(f"error: the double of kubectl knows selectors of the form NAME=VALUE only: {part}")
        yield name, value


def parse(words: Sequence[str]) -> Arguments:
    """Raises RefusedError for an option that the double does not know: a test must not rely on it."""
    found: list[str] = []
    options: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            found += left
            break
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
        elif word in _SHORT:
            name, sign, value = _SHORT[word], "", ""
        elif word.startswith("-") and word != "-":
            raise RefusedError(f"error: unknown shorthand flag: {word}")
        else:
            found.append(word)
            continue
        if name not in _WITH_VALUE | _ALONE:
            raise RefusedError(f"error: unknown flag: --{name} (the double of kubectl does not know it)")
        if not sign and name in _ALONE:
            value = "true"
        elif not sign:
            if not left:
                raise RefusedError(f"error: flag needs an argument: --{name}")
            value = left.pop(0)
        options[name] = value
    if not found:
        raise RefusedError("error: no command")
    return Arguments(verb=found[0], words=tuple(found[1:]), options=options)
