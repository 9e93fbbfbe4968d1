"""The bundle, as a person types it: sentences and codes as of the command."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from by_day import by_day

from seatrial import __version__
from seatrial.cli.command import commands

# As a Python that is too old would say of itself.
OLD = "import runpy, sys; sys.version_info = ({}, 0); runpy.run_path(sys.argv[1], run_name='__main__')"


def typed(
    pyz: Path, *arguments: str, cwd: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": "", **(environ or {})}
    return subprocess.run(
        [sys.executable, str(pyz), *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    by_day(
        [
            (["rum"], "no such command 'rum'. Did you mean 'run'?"),
            (["--nonsense"], "no such option --nonsense here"),
            (["report"], "the following arguments are required: PATH...; see seatrial.pyz report --help."),
            (["plan"], "no such command 'plan'. Did you mean 'plan show'?"),
            (["plan", "shaw"], "no such command 'plan shaw'. Did you mean 'plan show'?"),
            (["run", "--nonsense"], "no such option --nonsense; see seatrial.pyz run --help."),
            (["run", "--nproc-per-node", "two"], "--nproc-per-node two: expected a number from 1, or auto, gpu or cpu"),
            (["run", "--device", "gpu"], "--device gpu: expected one of auto, cuda (NVIDIA), rocm (AMD), cpu"),
            (["run", "quik"], "did you mean quick"),
            (["run", "--on", "moon"], "--on moon: no such target"),
            (["run", "--python", "/nonexistent/python"], "--python /nonexistent/python: it does not run"),
            (["run", "smoke", "--device", "cpu", "--out", "/dev/null/reports"], "reports cannot be written there"),
        ],
        *(0, 2, 6, 10, 11),
    ),
)
def test_a_wrong_request_is_one_sentence_and_code_2(
    pyz: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = typed(pyz, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["run", "--help"], ["--version"]])
def test_help_and_version_are_no_failure(pyz: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = typed(pyz, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    words = __version__ if arguments == ["--version"] else commands()["run"].summary
    assert (words if arguments[:1] != ["run"] else "--nproc-per-node") in done.stdout


def test_debug_shows_lines_of_the_source(pyz: Path, tmp_path: Path) -> None:
    done = typed(pyz, "run", "--on", "moon", "--debug", cwd=tmp_path)
    assert done.returncode == 2
    assert "RequestError: --on moon" in done.stderr
    source = (Path(__file__).parents[2] / "src" / "seatrial" / "cli" / "commands" / "run.py").read_text().splitlines()
    number = next(number for number, line in enumerate(source, start=1) if "request = request_of(" in line)
    assert f'{pyz}/seatrial/cli/commands/run.py", line {number}, in run\n    request = request_of(' in done.stderr


@pytest.mark.parametrize("version", ["3, 9", "2, 7"])
def test_an_old_python_is_refused(pyz: Path, version: str) -> None:
    command = [sys.executable, "-c", OLD.format(version), str(pyz), "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"Error: {sys.executable} is Python {version.replace(', ', '.')}, and seatrial needs Python 3.10 or newer;"
        " start the file with a newer one.\n"
    )


def test_a_python_without_zlib(pyz: Path) -> None:
    code = "import runpy, sys; sys.modules['zlib'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", code, str(pyz), "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"Error: {sys.executable} was built without zlib")


def test_a_python_without_torch_is_refused(pyz: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], timeout=50, check=True)
    done = typed(pyz, "run", "--python", str(tmp_path / "bare" / "bin" / "python"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: torch is not installed for ")
    assert done.stderr.count("\n") == 1


def test_a_python_that_has_torch_and_nothing_of_ours_will_do(pyz: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], timeout=50, check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    (tmp_path / "stub" / "torch").mkdir(parents=True)
    (tmp_path / "stub" / "torch" / "__init__.py").touch()
    (tmp_path / "stub" / "torch" / "version.py").write_text("__version__ = '2.4.0a0+abc'\n")
    request = ["run", "smoke", "--device", "cpu", "--python", python, "--dry-run"]
    done = typed(pyz, *request, cwd=tmp_path, environ={"PYTHONPATH": str(tmp_path / "stub")})
    assert (done.returncode, done.stderr) == (0, "")
    assert python in shlex.split(done.stdout)


def test_an_old_torch_is_refused(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "old" / "torch").mkdir(parents=True)
    (tmp_path / "old" / "torch" / "__init__.py").touch()
    (tmp_path / "old" / "torch" / "version.py").write_text("__version__ = '2.3.1'\n")
    done = typed(pyz, "run", cwd=tmp_path, environ={"PYTHONPATH": str(tmp_path / "old")})
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: torch 2.3.1 of {sys.executable} is too old: seatrial needs 2.4 or newer")


def test_a_dry_run_shows_how_the_agent_finds_the_file(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pyz)
    done = typed(
        Path("link"), "run", "smoke", "--device", "cpu", "--dry-run", cwd=tmp_path, environ={"PYTHONPATH": "/mine"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    words = shlex.split(done.stdout)
    assert f"PYTHONPATH={tmp_path / 'link'}:/mine" in words
    assert "PYTHONSAFEPATH=seatrial" in words
    assert words[-3:] == [sys.executable, "-m", "seatrial.agent.agent_main"]


def test_a_path_that_python_would_cut_is_refused(pyz: Path, tmp_path: Path) -> None:
    shutil.copy(pyz, tmp_path / "a:b.pyz")
    done = typed(tmp_path / "a:b.pyz", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "this path contains ':'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_not_a_fail(pyz: Path, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, pyz, "--help"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=50, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (3, "")
