"""The command as a person types it: one sentence and a code for what is wrong, a traceback only when asked for."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from by_day import by_day

_FINDS_TORCH = """
import sys
from seatrial.cli.click_app import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""

_STARTS_NO_THREAD = """
import threading
from seatrial.cli.click_app import main

def start(thread):
    raise RuntimeError("can't start new thread")

threading.Thread.start = start
main()
"""


def _seatrial(*arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seatrial", *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environ or {})}, capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    by_day(
        [
            (["rum"], "no such command 'rum'. Did you mean 'run'?"),
            (["xyz"], "no such command 'xyz'. Commands: run,"),
            (["run", "--nonsense"], "no such option --nonsense."),
            (["run", "quik"], "quik"),
            (["run", "--nproc-per-node", "0"], "--nproc-per-node 0: expected a number from 1, or auto, gpu or cpu"),
            (["run", "--nproc-per-node", "two"], "--nproc-per-node two: expected a number from 1, or auto, gpu or cpu"),
            (["run", "--device", "gpu"], "--device gpu: expected one of auto, cuda (NVIDIA), rocm (AMD), cpu"),
            (["run", "--on", "moon"], "--on moon: no such target; there is local"),
            (["run", "--backend", "nccl", "--device", "cpu"], "--backend nccl: NCCL moves data between GPUs only"),
            (["run", "--python", "/nonexistent/python"], "--python /nonexistent/python: it does not run"),
            (["run", "--deadline", "0", "--device", "cpu"], "--deadline 0: expected more than 0 seconds"),
            (
                ["run", "--deadline", "nan", "--device", "cpu"],
                "--deadline nan: expected a time such as 90 (seconds), 90s, 5m or 2h",
            ),
            (["run", "--only", "nothing", "--device", "cpu"], "nothing"),
            (["run", "--skip", "", "--only", "compute,compote", "--device", "cpu"], "compote"),
            (
                ["run", "--batch-size", "100000", "--nproc-per-node", "3", "--device", "cpu"],
                "3 ranks, batch_size 100000 (from --batch-size).",
            ),
        ],
        *(0, 2, 4, 9, 14),
    ),
)
def test_a_wrong_request_is_one_sentence_and_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = _seatrial(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


@pytest.mark.parametrize(
    "arguments",
    [["run", "smoke"], ["run", "--on", "ssh", "--hosts", "a", "--dry-run"], ["train"], ["launch", "/x.py"]],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_working_folder_that_was_removed_is_a_wrong_request(tmp_path: Path, arguments: list[str]) -> None:
    """MKL of torch does not load without one: a healthy machine failed by name."""
    folder = tmp_path / "removed"
    folder.mkdir()
    command, *rest = arguments
    line = shlex.join([sys.executable, "-m", "seatrial", command, "--out", str(tmp_path / "out"), *rest])
    shell = ["sh", "-c", f"rmdir {shlex.quote(str(folder))} && exec {line}"]
    done = subprocess.run(shell, cwd=folder, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: the working folder was removed, or its file system is gone (No such file or directory); change to"
        " another folder, or with cd to this one again.\n"
    )
    assert not (tmp_path / "out").exists()


_CLOSED = """
import os, sys
from seatrial.cli.run_command import _refuse_without_folder
from seatrial.errors import RequestError
os.chdir(sys.argv[1])
os.chmod(sys.argv[1], 0o700 if os.geteuid() == 0 else 0)
if os.geteuid() == 0:
    os.seteuid(1234)
try:
    _refuse_without_folder()
except RequestError as error:
    print(error)
"""


def test_a_working_folder_that_is_closed_was_not_removed(tmp_path: Path) -> None:
    """As after `sudo -u` in a home of mode 0700."""
    done = subprocess.run(
        [sys.executable, "-c", _CLOSED, str(tmp_path)], capture_output=True, text=True, timeout=50, check=True
    )
    tmp_path.chmod(0o700)
    assert done.stdout == (
        "this user may not enter the working folder, in which ranks are started; change to another folder.\n"
    )


@pytest.mark.skipif(
    Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists(), reason="this machine has accelerators"
)
@pytest.mark.parametrize("device", ["cuda", "rocm"])
def test_a_device_that_is_not_here_is_refused(tmp_path: Path, device: str) -> None:
    done = _seatrial("run", "--device", device, cwd=tmp_path)
    assert done.returncode == 2
    assert f"--device {device}: " in done.stderr


def test_ctrl_c_while_the_command_is_still_imported_is_no_traceback(tmp_path: Path) -> None:
    code = """
import runpy, sys
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "seatrial.cli.command":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
runpy.run_module("seatrial", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (130, "\nseatrial: interrupted.\n")


@pytest.mark.parametrize("command", ["run", "train", "launch"])
def test_help_lists_options_only_and_the_rest_in_the_usage_line(tmp_path: Path, command: str) -> None:
    done = _seatrial(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    options = done.stdout.partition("Options:")[2].partition("Targets:")[0]
    rows = [line for line in options.splitlines() if line.startswith("  ")]
    assert rows
    assert {line[2] for line in rows} <= {"-", " "}, "every row is a flag, or goes on with its words"


def test_an_unwritable_report_folder_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = _seatrial("run", "smoke", "--device", "cpu", "--out", "file/reports", cwd=tmp_path)
    assert done.returncode == 2
    assert "--out file/reports: reports cannot be written there" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        ("burn@compute:0", "'burn@compute:0'"),
        # Agents carry out this check, and a fault strikes in a rank.
        ("hang@network:1", "'hang@network:1' (SEATRIAL_PLANT) would never strike"),
    ],
)
def test_a_fault_that_is_none_is_refused(tmp_path: Path, fault: str, answer: str) -> None:
    words = ("run", "--device", "cpu", "--nodes", "2", "--nproc-per-node", "1")
    done = _seatrial(*words, cwd=tmp_path, environ={"SEATRIAL_PLANT": fault})
    assert done.returncode == 2
    assert answer in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--debug", "run", "--on", "moon"],
        ["run", "--debug", "--on", "moon"],
        ["run", "--on", "moon", "--debug"],
    ],
)
def test_debug_may_be_anywhere(tmp_path: Path, arguments: list[str]) -> None:
    done = _seatrial(*arguments, cwd=tmp_path)
    assert "Traceback" in done.stderr
    assert "RequestError: --on moon" in done.stderr
    assert done.returncode == 2, "1 would say that a cluster failed"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["run", "--help"], ["--version"]])
def test_help_and_version_are_no_failure(tmp_path: Path, arguments: list[str]) -> None:
    done = _seatrial(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_a_dry_run_prints_the_command_and_nothing_else(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        _FINDS_TORCH,
        "run",
        "smoke",
        "--device",
        "cpu",
        "--nproc-per-node",
        "3",
        "--dry-run",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True)
    assert done.stderr == "False\n", "torch was loaded, or something was said"
    words = shlex.split(done.stdout)
    assert done.stdout.count("\n") == 1
    assert words[0] == "env"
    assert words[-3:] == [sys.executable, "-m", "seatrial.agent.agent_main"]
    assert "SEATRIAL_CONTROL=127.0.0.1:PORT" in words
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_rank_prints_the_agent_that_it_becomes(tmp_path: Path) -> None:
    place = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "5", "MASTER_ADDR": "m"}
    place |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    done = _seatrial("run", "smoke", "--device", "cpu", "--dry-run", cwd=tmp_path, environ=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"SEATRIAL_NODE_RANK=3", "SEATRIAL_LOCAL_RANK=1", "SEATRIAL_KEEP="} <= set(shlex.split(done.stdout))


def test_the_help_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys; from seatrial.cli.click_app import main\n"
    code += "try: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True
    )
    loaded = set(done.stderr.split())
    assert "seatrial.cli" in loaded
    assert (
        loaded & {"torch", "rich", "jinja2", "yaml", "junitparser", "seatrial.targets.registry", "seatrial.conductor"}
        == set()
    )


def test_a_closed_pipe_is_not_a_verdict(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "seatrial", "plan", "show"]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=50, check=False
    )
    os.close(write)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    by_day([["run", "smoke", "--device", "cpu"], ["train", "digits", "--device", "cpu"], ["launch", "a.py"]], 0, 2),
    ids=lambda arguments: arguments[0],
)
def test_a_host_without_a_further_thread_is_no_bug(tmp_path: Path, arguments: list[str]) -> None:
    """Any user of the host can take all of them while the command starts."""
    (tmp_path / "a.py").touch()
    command = [sys.executable, "-c", _STARTS_NO_THREAD, arguments[0], "--nproc-per-node", "1", *arguments[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 3, done.stderr
    *_, said = done.stderr.splitlines()
    assert said.startswith("Error: the host gave no further thread or process; none is left there, or a limit"), said
    assert "(can't start new thread); look there at what runs (ps -eLf)" in said
