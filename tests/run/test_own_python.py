"""``--python`` with a name, typed in a folder where a neighbor has put programs: PATH decides, without that folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29511",
}
_RUN = ("run", "smoke", "--device", "cpu", "--dry-run")
_TRAIN = ("train", "synthetic-1x8x8", "--device", "cpu", "--dry-run")


def _seatrial(
    words: tuple[str, ...], environ: dict[str, str], folder: Path, *path: str
) -> subprocess.CompletedProcess[str]:
    """Run a command where programs of a neighbor lie, with ``path`` as its PATH."""
    for name in ("python3", "tool"):
        (folder / name).write_text("#!/bin/sh\necho code of a neighbor\n")
        (folder / name).chmod(0o755)
    (folder / "script.py").write_text("print('the script')\n")
    environ = {**os.environ, **environ, "PATH": ":".join(path), "XDG_RUNTIME_DIR": "", "TMPDIR": str(folder)}
    argv = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-E", "-m", "seatrial", *words]
    return subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "tool").write_text("#!/bin/sh\necho the program\n")
    for program in folder.iterdir():
        program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("words", "environ"),
    [(_RUN, {}), (_RUN, _TORCHRUN), (_TRAIN, {}), (_TRAIN, _TORCHRUN), ((*_TRAIN, "--spawn"), {})],
    ids=["run", "run under torchrun", "train", "train under torchrun", "train --spawn"],
)
def test_agents_and_ranks_get_the_path_that_was_looked_at(
    words: tuple[str, ...], environ: dict[str, str], programs: Path, tmp_path: Path
) -> None:
    done = _seatrial((*words, "--python", "python3"), environ, tmp_path, "", ".", str(programs))
    assert done.returncode == 0, done.stderr
    assert f" {programs}/python3 " in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [(("script.py",), "the script"), (("--no-python", "tool"), "the program")],
    ids=["python", "tool"],
)
def test_a_rank_of_torchrun_becomes_no_program_of_the_working_folder(
    words: tuple[str, ...], said: str, programs: Path, tmp_path: Path
) -> None:
    done = _seatrial(("launch", "--python", "python3", *words), _TORCHRUN, tmp_path, "", ".", str(programs))
    assert done.stdout == f"{said}\n", done.stderr


@pytest.mark.parametrize("words", [("run", "smoke"), ("train", "synthetic-1x8x8"), ("launch", "script.py")])
def test_a_program_of_the_working_folder_alone_is_none(words: tuple[str, ...], tmp_path: Path) -> None:
    command, *rest = words
    done = _seatrial((command, "--device", "cpu", "--python", "python3", *rest), {}, tmp_path, "", ".")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: --python python3: no such program in PATH; name a Python interpreter, or give its path.\n"
    )
