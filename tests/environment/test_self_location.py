"""How a process that we start finds our code, and nothing from the working folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import seatrial
from seatrial.environment import self_location
from seatrial.environment.self_location import import_variables, module_argv, without_import_variables


def test_an_installed_package_leaves_the_path_alone() -> None:
    assert self_location.BUNDLE_PATH is None
    assert import_variables({"PYTHONPATH": "/a"}) == {"PYTHONSAFEPATH": "seatrial"}
    assert self_location.command_line() == "seatrial"


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, "/x.pyz"), ({"PYTHONPATH": ""}, "/x.pyz"), ({"PYTHONPATH": "/a:/b"}, "/x.pyz:/a:/b")],
)
def test_the_file_that_travels_comes_first_in_the_path(before: dict[str, str], after: str) -> None:
    variables = import_variables(before, "/x.pyz")
    assert variables == {"PYTHONSAFEPATH": "seatrial", "PYTHONPATH": after}
    assert "PYTHONPATH" not in import_variables({**before, **variables}, "/x.pyz"), "once is enough"


@pytest.mark.parametrize(
    "before", [{}, {"PYTHONPATH": "/a:/b", "HOME": "/h"}, {"PYTHONSAFEPATH": "1"}, {"PYTHONPATH": "/y.pyz"}], ids=str
)
@pytest.mark.parametrize("bundle", [None, "/x.pyz"])
def test_a_program_of_the_user_sees_what_the_user_has_set(before: dict[str, str], bundle: str | None) -> None:
    with_ours = {**before, **import_variables(before, bundle)}
    assert with_ours["PYTHONSAFEPATH"], "or else the folder where the user stands would come first"
    assert without_import_variables(with_ours, bundle) == before


def test_each_python_of_ours_inherits_a_bundle_without_a_name() -> None:
    starts = re.compile(r"subprocess\.(?:Popen|run)\((?:.*\n){0,12}?.*\b(?:module_argv|import_variables)\(")
    texts = {path.stem: path.read_text() for path in Path(seatrial.__file__).parent.rglob("*.py")}
    found = {name for name, text in texts.items() if starts.search(text)}
    assert found >= {"rank_process", "node_process", "torch_install", "train_spawn"}
    assert {name for name in found if "BUNDLE_FDS" not in texts[name]} == set()


def test_our_own_interpreter_is_called_as_anybody_would(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module_argv(sys.executable, "json.tool") == (sys.executable, "-m", "json.tool")
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    assert module_argv(sys.executable, "json.tool")[1] == "-c"


@pytest.mark.parametrize("safe_path", ["", "1"])
def test_a_python_without_safe_path_does_not_look_into_the_working_folder(tmp_path: Path, safe_path: str) -> None:
    """An empty PYTHONSAFEPATH is how Python 3.10 behaves, which does not know it."""
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "runpy.py").write_text("raise SystemExit('the wrong one')")
    argv = module_argv("another python", "json.tool")[1:]
    done = subprocess.run(
        [sys.executable, *argv, "--compact"],
        cwd=tmp_path,
        env={"PYTHONSAFEPATH": safe_path},
        input='{"a": 1}',
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"a":1}\n', "")


@pytest.mark.root
def test_process_1_of_a_container_ends_at_sigterm() -> None:
    load = "from seatrial.environment.self_location import exit_on_sigterm"
    code = f"{load}; exit_on_sigterm(); print(1, flush=True); input()"
    enter = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code]
    environ = {**os.environ, "PYTHONPATH": str(Path(seatrial.__file__).parents[1])}
    with subprocess.Popen(enter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
