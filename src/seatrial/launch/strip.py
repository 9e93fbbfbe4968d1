"""Python source without what nothing needs that runs it: comments, docstrings, ``__all__``, types of functions and
variables, imports for types, spaces. On the same lines.

By places in the text, not by ``ast.unparse``: what that writes differs from Python to Python.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from itertools import pairwise
from tokenize import TokenInfo

__all__ = ["stripped"]

_BLANK = (tokenize.COMMENT, tokenize.NL)
_FSTRING_START, _FSTRING_END = (getattr(tokenize, f"FSTRING_{name}", -1) for name in ("START", "END"))


def stripped(source: str) -> str:
    """The source with blank lines for comments and for statements that are only a text.

    Where such a statement is all that a block has, ``pass`` takes its place. Types go where nobody reads them while the
    program runs: in modules that postpone annotations, and not in classes, where they make the fields of dataclasses.
    ``__all__`` is for readers, and for an ``import *``, which nothing of ours does.
    """
    source = _untyped(source)
    # Not splitlines, which ends a line at a form feed, too.
    lines = list(io.StringIO(source))
    tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    # From the end, so that what stands before stays where it is.
    for token, text in reversed(_cuts(tokens)):
        _cut(lines, token, text)
    return _dense("".join(lines))


def _dense(source: str) -> str:
    """Without the spaces beside operators, and without indentation within brackets."""
    lines = list(io.StringIO(source))
    tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    # From Python 3.12 on what an f-string calculates is told in tokens, too; it stays as it is everywhere.
    inside, depth = 0, 0
    gaps = []
    for before, after in pairwise(tokens):
        inside += (before.type == _FSTRING_START) - (before.type == _FSTRING_END)
        if not inside and before.type == tokenize.OP:
            depth += (before.string in "([{") - (before.string in ")]}")
        line, end = after.start
        if not inside and before.end[0] == line and tokenize.OP in (before.type, after.type):
            gaps.append((line, before.end[1], end))
        elif not inside and depth and before.type == tokenize.NL and after.type != tokenize.NL:
            gaps.append((line, 0, end))
    for line, start, end in reversed(gaps):
        text = lines[line - 1]
        lines[line - 1] = text[:start] + text[start:end].strip(" ") + text[end:]
    return "".join(lines)


def _untyped(source: str) -> str:
    tree = ast.parse(source)
    if not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body):
        return source
    text = source.encode()
    starts = [0]
    for line in io.BytesIO(text):
        starts.append(starts[-1] + len(line))
    for begin, end in sorted(_types(tree, text, starts), reverse=True):
        text = text[:begin] + b"\n" * text.count(b"\n", begin, end) + text[end:]
    return _without_unused(text.decode())


def _without_unused(source: str) -> str:
    """Without names of types that nothing is left of. Such an import has no effect of its own."""
    lines, tree = list(io.StringIO(source)), ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in ("typing", "collections.abc"):
            assert node.end_lineno is not None
            names = ", ".join(name.name for name in node.names if name.name in used)
            told = f"from {node.module} import {names}\n" if names else "\n"
            lines[node.lineno - 1 : node.end_lineno] = [told, *["\n"] * (node.end_lineno - node.lineno)]
    return "".join(lines)


def _types(tree: ast.Module, text: bytes, starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where in the text types stand, from the colon or the arrow on, and the whole of ``__all__`` and TYPE_CHECKING."""

    def cut(begin: int, annotation: ast.expr) -> Iterator[tuple[int, int]]:
        # A bracket around a type is none of the type's: then it stays.
        if b"(" not in text[begin : _begin(annotation, starts)]:
            yield begin, _end(annotation, starts)

    fields = {id(field) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for field in node.body}
    for node in ast.walk(tree):
        if node in tree.body and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            assert not node.orelse
            yield _begin(node, starts), _end(node, starts)
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            yield _begin(node, starts), _end(node, starts)
        elif isinstance(node, ast.AnnAssign) and node.value is not None and id(node) not in fields:
            # Over several lines it is its own brackets that keep them together.
            one_line = node.lineno == node.annotation.end_lineno
            yield from cut(_end(node.target, starts), node.annotation) if one_line else ()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        told = node.args
        for argument in (*told.posonlyargs, *told.args, *told.kwonlyargs, told.vararg, told.kwarg):
            if argument is not None and argument.annotation is not None:
                yield from cut(_begin(argument, starts) + len(argument.arg.encode()), argument.annotation)
        # On several lines it is its own brackets that keep them together.
        if node.returns is not None and node.returns.lineno == node.returns.end_lineno:
            yield from cut(text.rindex(b"->", 0, _begin(node.returns, starts)), node.returns)


def _begin(node: ast.expr | ast.arg | ast.stmt, starts: Sequence[int]) -> int:
    return starts[node.lineno - 1] + node.col_offset


def _end(node: ast.expr | ast.stmt, starts: Sequence[int]) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.end_lineno - 1] + node.end_col_offset


def _cuts(tokens: Sequence[TokenInfo]) -> list[tuple[TokenInfo, str]]:
    """Tokens to be taken out, and what is put in their place."""
    cuts = []
    told = [token for token in tokens if token.type not in _BLANK]
    texts = {id(told[index]): _replacement(told, index) for index in _texts(told)}
    for token in tokens:
        if token.type == tokenize.COMMENT:
            cuts.append((token, ""))
        elif id(token) in texts:
            cuts.append((token, texts[id(token)]))
    return cuts


def _texts(told: Sequence[TokenInfo]) -> list[int]:
    """Where a statement is one text and nothing else."""
    begins = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return [
        index
        for index, token in enumerate(told)
        if token.type == tokenize.STRING
        # Python 3.12 has tokens of their own for these; they calculate something.
        and "f" not in token.string[: token.string.index(token.string[-1])].lower()
        and (index == 0 or told[index - 1].type in begins)
        and told[index + 1].type == tokenize.NEWLINE
    ]


def _replacement(told: Sequence[TokenInfo], index: int) -> str:
    """Empty, but where the block would be left without a statement."""
    is_first = index > 0 and told[index - 1].type == tokenize.INDENT
    return "pass" if is_first and told[index + 2].type in (tokenize.DEDENT, tokenize.STRING) else ""


def _cut(lines: list[str], token: TokenInfo, text: str) -> None:
    (first, start), (last, end) = token.start, token.end
    before, after = lines[first - 1][:start], lines[last - 1][end:]
    # What stood on its last line goes to its first: nothing does but the end of the line, and a comment that is gone.
    lines[first - 1 : last] = [f"{before}{text}{after}".rstrip() + "\n", *["\n"] * (last - first)]
