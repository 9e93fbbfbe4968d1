"""``seatrial data fetch`` as a person types it."""

from __future__ import annotations

import hashlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from training.failing_server import FailingServer

CONTENT = bytes(range(256)) * 1_000


@pytest.fixture
def server() -> Iterator[FailingServer]:
    with FailingServer(files={"a.gz": CONTENT}) as server:
        yield server


def seatrial(*arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seatrial", "data", *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environ or {})}, capture_output=True, text=True, timeout=50, check=False
    )


# The command itself, on a published set small enough for a test.
_WITH_A_SMALL_SET = """
import sys
from seatrial.cli.click_app import main
from seatrial.training.data.datasets import DATASETS, DataSet, Download
url, sha256 = sys.argv[1:3]
download = Download(name="a.gz", size_bytes=256_000, sha256=sha256)
DATASETS["small"] = DataSet(name="small", downloads=(download,), mirrors=(url,))
sys.argv[1:] = ["data", "fetch", "small", *sys.argv[3:]]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


def with_a_small_set(server: FailingServer, *arguments: str) -> list[str]:
    return [sys.executable, "-c", _WITH_A_SMALL_SET, server.url, hashlib.sha256(CONTENT).hexdigest(), *arguments]


def test_a_download_prints_its_folder(server: FailingServer, tmp_path: Path) -> None:
    command = with_a_small_set(server, "--data", str(tmp_path / "\x1b[2J"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (0, f"small: a.gz in {tmp_path}/\\x1b[2J/small\n"), done.stderr
    assert (tmp_path / "\x1b[2J" / "small" / "a.gz").read_bytes() == CONTENT
    assert "256000 of 256000 bytes" in done.stderr
    again = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert again.stdout == done.stdout
    assert "exists, and is correct" in again.stderr
    assert len(server.requests) == 1


def test_a_terminal_gets_a_bar(server: FailingServer, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        command = with_a_small_set(server, "--data", str(tmp_path))
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        environ.pop("NO_COLOR", None)
        subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environ, timeout=50, check=True)
        shown = os.read(ours, 100_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "256.0/256.0 kB" in shown
    assert "━" in shown


def test_a_terminal_that_is_closed_interrupts_a_download(tmp_path: Path) -> None:
    """The bar cannot be cleared there: that was "a bug in seatrial", exit code 3."""
    with FailingServer(files={"a.gz": CONTENT}, faults=["stalled"]) as silent:
        ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        environ.pop("NO_COLOR", None)
        process = subprocess.Popen(
            with_a_small_set(silent, "--data", str(tmp_path)), stdout=subprocess.PIPE, stderr=theirs, env=environ
        )
        os.close(theirs)
        shown = b""
        while b"a.gz" not in shown:
            shown += os.read(ours, 100_000)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=50)
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fetch"], "Missing argument 'NAME'"),
        (
            ["fetch", "minst"],
            "no data set 'minst' can be downloaded; did you mean 'mnist'? Known: mnist, fashion-mnist, cifar10.",
        ),
        (["fetch", "mnist", "--mirror", "ftp://host"], "--mirror 'ftp://host': expected http"),
        (["fetch", "mnist", "--data", "a-file"], "a-file"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "a-file").touch()
    done = seatrial(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failed_download_is_one_sentence_and_code_3(server: FailingServer, tmp_path: Path) -> None:
    environ = {"SEATRIAL_DATA": str(tmp_path / "cache")}
    done = seatrial("fetch", "mnist", "--mirror", f"{server.url}here", cwd=tmp_path, environ=environ)
    assert done.returncode == 3
    *_, last = done.stderr.splitlines()
    assert last.startswith("Error: train-images-idx3-ubyte.gz could not be fetched: ")
    assert f"{server.url}here/ answers with HTTP 404" in last
    assert str(tmp_path / "cache" / "mnist") in last
    assert "Traceback" not in done.stderr
    assert len(server.requests) == 1


def test_a_workload_without_files_needs_no_fetch(tmp_path: Path) -> None:
    assert seatrial("fetch", "digits", cwd=tmp_path).stdout == "digits needs no files.\n"
