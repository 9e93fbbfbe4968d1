"""Source without comments and docstrings: the same program, on the same lines."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import typing
from collections.abc import Iterator

import pytest

from seatrial.launch.bundle import package_files
from seatrial.launch.strip import stripped

SOURCES = {str(path): content.decode() for path, content in package_files().items() if path.suffix == ".py"}


def statements(source: str) -> list[str]:
    """The program: what stands in which line, without what does nothing and what takes its place."""
    tree = program(source)
    fields = {id(field) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for field in node.body}
    return [
        f"{node.lineno}: {ast.dump(untyped(node, fields)) if not isinstance(node, Blocks) else type(node).__name__}"
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not is_text(node) and not isinstance(node, ast.Pass) and not is_list(node)
    ]


def program(source: str) -> ast.Module:
    """Without imports that only a type checker makes, and those of types, of which names may be gone."""
    tree = ast.parse(source, feature_version=(3, 10))
    tree.body = [node for node in tree.body if not is_for_types(node)]
    return tree


def is_for_types(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module in ("typing", "collections.abc")
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def unbound(source: str) -> set[str]:
    """Names of types that are read and not imported."""
    typed = {*typing.__all__, *collections.abc.__all__} - {*dir(builtins)}
    tree = ast.parse(source)
    bound = {
        name.asname or name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names
    }
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return {name.id for name in names} & typed - bound


def untyped(node: ast.stmt, fields: set[int]) -> ast.stmt:
    """A variable that is given a value and a type, without the type; a field of a class as it is."""
    if isinstance(node, ast.AnnAssign) and node.value is not None and id(node) not in fields:
        return ast.Assign(targets=[node.target], value=node.value)
    return node


def is_list(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets) == "__all__"  # type: ignore[arg-type]


Blocks = (
    ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.If
    | ast.For
    | ast.While
    | ast.With
    | ast.Try
    | ast.Match
)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def heads(source: str) -> Iterator[str]:
    """Of blocks what is not in them: names, arguments without their types, decorators, conditions."""
    tree = program(source)
    postponed = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree) if postponed else ():
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    for node in ast.walk(tree):
        if isinstance(node, Blocks):
            for field, value in ast.iter_fields(node):
                if field not in ("body", "orelse", "finalbody", "handlers", "cases"):
                    values = value if isinstance(value, list) else [value]
                    yield f"{field} {[ast.dump(one) if isinstance(one, ast.AST) else one for one in values]}"


@pytest.mark.parametrize("path", SOURCES)
def test_all_that_travels_stays_the_same_program_on_the_same_lines(path: str) -> None:
    before, after = SOURCES[path], stripped(SOURCES[path])
    assert statements(after) == statements(before)
    assert list(heads(after)) == list(heads(before))
    assert after.count("\n") == before.count("\n")
    assert unbound(after) == set()


def test_comments_and_texts_are_gone() -> None:
    source = '''"""About
it."""

# why
NAME = "# kept"  # gone
"""About
NAME."""


class Empty(Exception):
    """Only a text."""


class Twice:
    """One."""

    """Two."""


def function(x):
    """About."""  # gone, too
    # and this
    return f"{x} # kept" + """
  kept%s
"""  # gone
'''
    spaces = "   "  # at the end of a line of a text
    assert (
        stripped(source.replace("%s", spaces))
        == '''



NAME="# kept"




class Empty(Exception):
    pass


class Twice:
    pass




def function(x):


    return f"{x} # kept"+"""
  kept%s
"""
'''.replace("%s", spaces)
    )


@pytest.mark.parametrize(
    "source",
    ['f"{print(1)}"\n', '"a".strip()\n', '"a";b=1\n', 'x=("a",\n"b")\n', '"a" "b"\n', "if x:\n    'a';y=1\n"],
)
def test_a_text_that_is_part_of_something_stays(source: str) -> None:
    assert stripped(source) == source


def test_what_is_no_line_to_python_is_none_here() -> None:
    source = 'a = "\x0c\u2028" # x\nb = 1 # ü\n'
    assert stripped(source) == 'a="\x0c\u2028"\nb=1\n'


def test_spaces_go_where_they_part_nothing() -> None:
    source = """if not -x in (a,
        # why
        "b c",  f'{a  +  b!r:>{n + 1}}  {{') and 1:
    y = -1 if not [3] else f"{x = }" + f'''
    {  d["e"] } ''' + \\
        "f"
    return {** k, 'l' : m [1 : -1]}
"""
    assert (
        stripped(source)
        == """if not-x in(a,

"b c",f'{a  +  b!r:>{n + 1}}  {{')and 1:
    y=-1 if not[3]else f"{x = }"+f'''
    {  d["e"] } '''+ \\
        "f"
    return{**k,'l':m[1:-1]}
"""
    )


def test_types_go_where_annotations_are_postponed() -> None:
    """A module that does not postpone them may show them to somebody, as a hook of DistributedDataParallel does."""
    source = """__all__ = ["go",
  "kept"]
PORTS: dict[int, str] = {}

class Kept:
    field: int = 3
    other: str

def go(here: "a: b->c" = 1, *more: int, **rest: dict[
    str, int
]) -> list[
    int
]:  # why
    told: int = here
    self.it: list[int] = []
    long: dict[
        str, int
    ] = {}
    later: int
    return told

def kept(here: (int)) -> (
    int
):
    return here
"""
    postponed = "from __future__ import annotations\n" + source
    assert stripped(source).count(":int") == source.count(": int")
    assert stripped(postponed).split("\n") == [
        "from __future__ import annotations",
        "",
        "",
        "PORTS={}",
        "",
        "class Kept:",
        "    field:int=3",
        "    other:str",
        "",
        "def go(here=1,*more,**rest",
        "",
        ")->list[",
        "int",
        "]:",
        "    told=here",
        "    self.it=[]",
        "    long:dict[",
        "str,int",
        "]={}",
        "    later:int",
        "    return told",
        "",
        "def kept(here:(int))->(",
        "int",
        "):",
        "    return here",
        "",
    ]
    compile(stripped(postponed), "x", "exec")


def test_imports_for_types_go_and_others_stay() -> None:
    source = "if TYPE_CHECKING:\n    from a import B\n\n    from c import D\nif other:\n    import e\n"
    postponed = "from __future__ import annotations\n"
    assert stripped(postponed + source) == postponed + "\n\n\n\nif other:\n    import e\n"
    assert "from a import B" in stripped(source), "types that are not postponed may be read"


def test_types_that_nothing_is_left_of_are_not_imported() -> None:
    source = """from __future__ import annotations
from collections.abc import (
    Callable,
    Iterator,
)
from typing import Any, cast
from typing import Literal

class Kept:
    field: Iterator[int]

def go(here: Any, there: Callable[[], Literal[1]]) -> Any:
    return cast(int, here)
"""
    assert stripped(source).splitlines() == [
        *("from __future__ import annotations", "from collections.abc import Iterator", "", "", ""),
        *("from typing import cast", "", "", "class Kept:", "    field:Iterator[int]", ""),
        *("def go(here,there):", "    return cast(int,here)"),
    ]
