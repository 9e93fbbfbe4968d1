"""Commands that the pages show are commands that exist: those for newcomers, and those of the page on training."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import click
import pytest

from seatrial.cli.click_app import cli
from seatrial.cli.command import commands, options_of
from seatrial.environment.identity import identify
from seatrial.errors import SeatrialError
from seatrial.probe.torch_install import find_torch
from seatrial.request.training_request import resolve
from seatrial.targets import resources

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
_BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"# (?:runs|needs)\b")
_find_torch = functools.cache(find_torch)
_ASSIGNMENT = re.compile(r"[A-Z_]+=")


def commands_of(page: str) -> list[str]:
    """The commands of all blocks (``\\`` continues a line), and indented lines that begin with one."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.sub(r" *\\\n *", " ", "".join(block for kind, _, block in _heads(text) if kind == "sh"))
    commands = re.findall(r"^(?:[A-Z_]+=(?:'[^']*'|\S+) )*seatrial .*$", blocks, re.MULTILINE)
    return [*commands, *re.findall(r"^    (seatrial .*)$", text, re.MULTILINE)]


def runnable(page: str) -> list[str]:
    """Those of them for this machine."""
    return [line for line in commands_of(page) if " --on " not in line]


def parse(line: str) -> tuple[dict[str, str], click.Context]:
    """What stands before ``seatrial``, and the subcommand with its options as click reads them."""
    words = shlex.split(line, comments=True)
    environ = {}
    while _ASSIGNMENT.match(words[0]):
        name, _, environ[name] = words.pop(0).partition("=")
    assert words.pop(0) == "seatrial"
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command = found
    return environ, command.make_context(name, words)


def refusal(line: str) -> str | None:
    """Why it cannot be typed; a training is resolved as well, as ``--dry-run`` does."""
    try:
        environ, context = parse(line)
        if context.command.name == "train":
            values = {
                option.name: False if option.flag else option.default for option in options_of(commands()["train"])
            }
            resolve({**values, **context.params, "device": "cpu"}, identify(environ), environ, debug=False)
    except (AssertionError, SeatrialError, click.ClickException) as error:
        return f"{line}: {error}"
    return None


@pytest.fixture(autouse=True)
def _ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each training looks for torch by starting its Python: the same one for all lines, so one answer will do."""
    monkeypatch.setattr(resources, "find_torch", _find_torch)


@pytest.mark.parametrize("page", ["coming-from.md", "planted-faults.md", "training.md", "tutorial.md"])
def test_every_command_of_a_page_can_be_typed(page: str) -> None:
    lines = runnable(page)
    assert len(lines) >= {"coming-from.md": 20, "tutorial.md": 5}.get(page, 2)
    assert [message for message in map(refusal, lines) if message] == []


def blocks_without_mark(text: str) -> list[str]:
    """The first lines of blocks that say neither that they run nor what they need. A console also has the answer."""
    return [first for kind, first, _ in _heads(text) if kind == "sh" and not _MARK.match(first)]


def _heads(text: str) -> list[tuple[str, str, str]]:
    return [(block[1], block[2].partition("\n")[0], block[2]) for block in _BLOCK.finditer(text)]


def typed(text: str) -> list[str]:
    """The lines of all blocks that call seatrial itself, whatever they need, without a pipe behind them."""
    lines = []
    for kind, _, block in _heads(text):
        of_block = re.sub(r" *\\\n *", " ", block).splitlines()
        lines += of_block if kind == "sh" else [line[2:] for line in of_block if line.startswith("$ ")]
    calls = [re.split(r" [|>]| 2>|;", line.removeprefix("(umask 077; "))[0] for line in lines]
    return [line for line in calls if re.match(r"(?:[A-Z_]+=\S+ )*seatrial ", line)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_says_what_it_needs_and_has_commands_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert blocks_without_mark(text) == []
    wrong = []
    for line in typed(text):
        try:
            parse(line)
        except (AssertionError, SeatrialError, click.ClickException) as error:
            wrong.append(f"{line}: {error}")
    assert wrong == []


def test_a_block_without_a_mark_or_with_an_unknown_option_would_be_seen() -> None:
    assert blocks_without_mark("```sh\nls\n```\n```sh\n# needs root\nls\n```\n") == ["ls"]
    assert typed("```console\n$ seatrial run \\\n  --nope | tee x\nPASS\n```\n") == ["seatrial run --nope"]


@pytest.mark.parametrize(
    "line",
    [
        "seatrial train digits --no-such-option",
        "seatrial train nothing",
        "seatrial train digits --node-rank 1",
        "seatrial train digits 3 --epochs 3",
        "seatrial no-such-command",
        "torchrun seatrial train digits",
    ],
)
def test_a_command_that_does_not_exist_would_be_seen(line: str) -> None:
    assert refusal(line) is not None


def test_what_gives_trust_is_named_by_its_whole_path() -> None:
    """Pasted in a folder of others, a relative path lets in the key that somebody else has put there."""
    blocks = [block for page in PAGES for _, block in _BLOCK.findall(page.read_text(encoding="utf-8"))]
    words = [
        word for block in blocks for word in re.findall(r"[^\s\"'`(=]*(?:\.pub|known_hosts|authorized_keys)\b", block)
    ]
    assert words
    assert [word for word in words if not word.startswith(("/", "~/"))] == []


def test_pages_install_seatrial_with_hashes_or_versions() -> None:
    texts = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    # py-spy is for a script that hangs, and needs no version of ours.
    installs = re.findall(r"\bpip install (?!py-spy)(\S+)", texts.replace("pip install`", ""))
    assert installs
    assert set(installs) <= {"--require-hashes", "--no-deps", "-c"}
