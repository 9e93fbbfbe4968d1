"""The language of the project: words that carry no meaning as names, and sentences that a reader must translate.

The lists come from a review by independent readers; each entry says what to write instead.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "seatrial"
FOLDERS = [PACKAGE, *sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

BANNED_NAMES = {
    "told": "it was the name of anything; name the thing: payload, lines, values",
    "tell": "print_status, report, send",
    "who": "rank, node, suspect, reader",
    "stands": "is",
    "beside": "name the relation: host_activity, neighbor",
    "hearsay": "origin",
    "vigil": "hang_detector",
    "voice": "event_channel",
    "silence": "lost_nodes",
    "unseen": "say what is not there",
    "joined": "rendezvous, external_launcher",
    "hold": "run, keep, limit",
    "look": "read, poll, build",
}
"""As a whole name or as a part between underscores, where our own code defines it."""

_HEAD = "a clause needs a head: 'the rank that ...'"
BANNED_PROSE = {
    r"\b(is|are|was|were|be|been|being|isn't|wasn't) told\b": "say who reports what: 'the agent reports ...'",
    r"\b(is|are|was|were) to be had\b": "is available",
    r"\bso many\b": "give the number, or write 'many'",
    r"\bof (its|their|our|his|her|one's) own\b": "'a separate ...', or drop it",
    r"(?<![\w-])(to|of|by|for|from|with|than|but|because) (who|whoever|whose)\b": _HEAD,
    r"(?:^|(?<=[.!;:] ))(Who|Whoever|Whose|Whosoever)\b(?![^.!;]*\?)": _HEAD,
    r"(?:^|(?<=[.!] ))(What|Whatever) (?!to do\b)(?![^.!]*\?)[^.!]*\b(is|are|was|were|has|have|had|can|may)\b": _HEAD,
}
"""Patterns in comments, docstrings, messages and pages, with what to write instead."""

FIRST_LINE = re.compile(r"(Who|Whose|Whom|Whoever|Whatever|Of|As|Those|That|Beside)\b")
"""A docstring begins with a command ("Return ...") or a noun phrase."""


def _id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _sources(folder: Path) -> list[Path]:
    """Return the files of a package; of the outermost package only those directly in it."""
    paths = sorted(folder.glob("*.py") if folder == PACKAGE else folder.rglob("*.py"))
    assert paths
    return paths


def _defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _parts(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that are statements by themselves: docstrings of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def _sentences(source: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Comments joined over lines, and strings with at least three words, each with its line."""
    number, words = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if words and token.start[0] == number + 1:
                words, number = f"{words} {token.string.lstrip('# ')}", token.start[0]
                continue
            if words:
                yield number, words
            number, words = token.start[0], token.string.lstrip("# ")
    if words:
        yield number, words
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "X"
                for part in node.values
            )
            yield node.lineno, text
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
            yield node.lineno, " ".join(node.value.split())


def _faults(text: str) -> Iterator[str]:
    for pattern, instead in BANNED_PROSE.items():
        if found := re.search(pattern, text):
            yield f"{found[0]!r} in {text[max(0, found.start() - 30) : found.end() + 40]!r}: {instead}"


@pytest.mark.parametrize("folder", FOLDERS, ids=_id)
def test_names(folder: Path) -> None:
    faults = []
    for path in _sources(folder):
        names = [(0, part) for part in path.relative_to(ROOT / "src").with_suffix("").parts]
        names += list(_defined(ast.parse(path.read_text())))
        faults += [
            f"{_id(path)}: line {line}: {name}: {BANNED_NAMES[part]}"
            for line, name in names
            for part in _parts(name)
            if part in BANNED_NAMES
        ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("folder", FOLDERS, ids=_id)
def test_prose_of_the_source(folder: Path) -> None:
    faults = []
    for path in _sources(folder):
        source = path.read_text()
        tree = ast.parse(source)
        faults += [
            f"{_id(path)}: line {doc.lineno}: {doc.value.splitlines()[0]!r}: begin with a command or a noun phrase"
            for doc in _docstrings(tree)
            if isinstance(doc.value, str) and FIRST_LINE.match(doc.value.strip())
        ]
        faults += [
            f"{_id(path)}: line {line}: {fault}" for line, text in _sentences(source, tree) for fault in _faults(text)
        ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", PAGES, ids=_id)
def test_prose_of_the_pages(path: Path) -> None:
    lines = path.read_text().splitlines()
    faults = [f"line {number}: {fault}" for number, text in enumerate(lines, start=1) for fault in _faults(text)]
    # A table, a link or a command cannot always be wrapped.
    faults += [
        f"line {number}: {len(text)} columns, at most 120"
        for number, text in enumerate(lines, start=1)
        if len(text) > 120 and not re.match(r"\s*(\||\$|https?:|\[)", text)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "what is told by nobody is told",
        "Who was asked and has not finished.",
        "a message to who asked",
        "so many calls",
        "a file of its own",
        "What is heard of it is its log.",
    ],
)
def test_the_patterns_find_what_they_are_for(text: str) -> None:
    assert list(_faults(text))


@pytest.mark.parametrize(
    "text",
    [
        "Return the rank that stopped.",
        "who is at fault?",
        "What to do next.",
        "the user who typed it",
        "its own folder",
    ],
)
def test_the_patterns_leave_plain_sentences_alone(text: str) -> None:
    assert not list(_faults(text))


def test_test_names_are_short() -> None:
    """Fewer than 70 characters: the case, not a sentence."""
    pattern = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
    paths = sorted((ROOT / "tests").rglob("*.py"))
    names = [(_id(path), name) for path in paths for name in pattern.findall(path.read_text())]
    assert len(names) > 1_000
    assert [f"{path}: {name}" for path, name in names if len(name) >= 70] == []
