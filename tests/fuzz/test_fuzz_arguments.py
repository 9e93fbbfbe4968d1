"""Any arguments of ``seatrial run``: the command it would execute, or one sentence; no traceback, and no start."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from fuzz.harness import Target, assert_sentence, count, explore
from hypothesis import strategies as st

from seatrial.cli import argparse_app
from seatrial.cli.click_app import main
from seatrial.plan.plan_file import LEVELS
from seatrial.probe.torch_install import find_torch

Entry = Callable[[], None]
"""Reads sys.argv and ends with SystemExit: the command, or that of a bundle."""

ENTRIES: dict[str, Entry] = {"seatrial": main, "seatrial.pyz": argparse_app.main}

_NUMBERS = st.sampled_from(
    ["0", "1", "2", "3", "-1", "64", "513", "1e3", "nan", "inf", "-inf", "1_0", " 1", "٣", "", "0x10", "9" * 400, "1.5"]
)
_CHECKS = st.sampled_from(
    [
        "compute",
        "training",
        "bootstrap",
        "collectives",
        "compute,training",
        ",",
        "",
        "compote",
        "training,",
        " compute ",
    ]
)
_TEXTS = st.one_of(
    # No argument of a process has a NUL byte.
    st.text(max_size=8).map(lambda text: text.replace("\0", "")),
    st.sampled_from(
        ["\x1b[2J", "a\nb", "\x1b[1m\n", "\udcff", "'; rm -rf x", "$(x)", "-", "--", "-h5", "=", "a" * 300, "<b>"]
    ),
)
_OPTIONS: dict[str, st.SearchStrategy[str]] = {
    "--only": _CHECKS | _TEXTS,
    "--skip": _CHECKS | _TEXTS,
    "--workload": st.sampled_from(["digits", "mnist", "synthetic-1x8x8", "synthetic-9x99999x9", "synthetic-0x0x0"])
    | _TEXTS,
    "--model": st.just("convnet") | _TEXTS,
    "--epochs": _NUMBERS,
    "--batch-size": _NUMBERS,
    "--deadline": _NUMBERS,
    "--on": st.sampled_from(["local", "moon"]) | _TEXTS,
    "--nproc-per-node": _NUMBERS,
    "--device": st.sampled_from(["auto", "cpu", "cuda", "rocm", "gpu"]) | _TEXTS,
    "--backend": st.sampled_from(["auto", "gloo", "nccl", "mpi"]) | _TEXTS,
    "--python": st.sampled_from(["/nonexistent", "/", "/dev/null", "/etc/passwd"]),
    "--out": st.sampled_from(["reports", "/dev/null/x", "/nonexistent/x"]) | _TEXTS,
    "--json": st.nothing(),
    "--validation-only": st.nothing(),
}
_FLAGS = ("--json", "--validation-only")
_PLANS = st.sampled_from([*LEVELS, "quik", "missing.toml", "plan.toml", "wrong.toml", ".", "/dev/zero", "./quick"])


@st.composite
def _arguments(draw: st.DrawFn) -> list[str]:
    found = draw(st.lists(_PLANS | _PLANS | _TEXTS, max_size=1))
    for name in draw(st.lists(st.sampled_from(sorted(_OPTIONS)), max_size=4)):
        if name in _FLAGS:
            found.append(name)
        else:
            value = draw(_OPTIONS[name])
            found += draw(st.sampled_from([[name, value], [name, value], [f"{name}={value}"], [name]]))
    found += draw(
        st.lists(st.sampled_from(["--nonsense", "-x", "--", "--only", "--dev", "-h", "--version"]), max_size=1)
    )
    # It cannot be taken back, wherever the rest leads.
    return ["run", "--dry-run", *found]


def arguments(entry: Entry) -> Target[list[str]]:
    """The arguments of that entry, for processes that are to start nothing."""

    def check(words: list[str]) -> None:
        count("arguments")
        code, out, err = typed(entry, words)
        assert code in (0, 2), (code, err)
        assert "Traceback" not in out + err
        assert "bug in seatrial" not in err, err
        assert all(char.isprintable() or char == "\n" for char in out + err), repr(out + err)
        if code == 0:
            assert out
        else:
            assert not out
            (*usage, message) = err.rstrip("\n").split("\n")
            assert_sentence(message.removeprefix("Error: "))
            assert message.startswith("Error: ")
            assert not usage or usage[0].startswith("Usage: "), usage

    return Target(name="arguments", inputs=_arguments(), check=check)


def typed(entry: Entry, words: list[str]) -> tuple[int, str, str]:
    out, err = _Stream(), _Stream()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["seatrial", *words])
        with pytest.raises(SystemExit) as ended:
            entry()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out.text(), err.text()


class _Stream(io.TextIOWrapper):
    """A standard stream as a process has one."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)

    def text(self) -> str:
        raw = self.buffer.getvalue()  # type: ignore[attr-defined]  # a BytesIO
        return str(raw.decode())


@contextlib.contextmanager
def nothing_is_started(folder: Path) -> Iterator[None]:
    """In that folder with two plans, and every way to a real start closed."""

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("a dry run started something")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("seatrial.run.run_trial.run_trial", refuse)
        # The same interpreter says the same each time.
        patch.setattr("seatrial.targets.resources.find_torch", functools.cache(find_torch))
        patch.setattr("seatrial.run.external_launcher.become_agent", refuse)
        (folder / "plan.toml").write_text('level = "smoke"\ntraining.epochs = 1\n')
        (folder / "wrong.toml").write_text('level = "smoke"\ntraining.epochs = "\x1b"\n')
        yield
    assert {path.name for path in folder.iterdir()} == {"plan.toml", "wrong.toml"}, "a dry run wrote something"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> Iterator[None]:
    with nothing_is_started(tmp_path):
        yield


@pytest.mark.parametrize("name", ENTRIES)
def test_some_arguments_end_in_a_command_or_a_sentence(name: str) -> None:
    explore(arguments(ENTRIES[name]), 40)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ENTRIES)
def test_many_arguments_end_in_a_command_or_a_sentence(name: str) -> None:
    explore(arguments(ENTRIES[name]), 1_200)


def test_a_dry_run_of_a_right_request_is_not_refused() -> None:
    code, out, err = typed(main, ["run", "--dry-run", "smoke", "--device", "cpu"])
    assert (code, err) == (0, "")
    assert "SEATRIAL_NODE_RANK=0" in out
    assert click.__name__ == "click"
