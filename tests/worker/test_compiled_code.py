"""torch.compile loads code from folders that no other user can have made."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from seatrial import folders
from seatrial.environment.self_location import import_variables, module_argv
from seatrial.training.recipe import Recipe
from seatrial.worker import compiled_code, train_rank
from seatrial.worker.train_spec import TrainSpec

_NEIGHBOR = 12345
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files of all users."""
    (folder := tmp_path / "tmp").mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(folders, "TEMPORARY", ())
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(folder))
    for name in _CACHES:
        # Not ``delenv``: torch sets one of them when it is imported.
        monkeypatch.setenv(name, "")
    yield folder
    compiled_code.release_compiled_code()


def _spec(tmp_path: Path, **more: Any) -> TrainSpec:
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1, **more)
    return TrainSpec(recipe=recipe, device="cpu", init=f"file://{tmp_path}/meet")


def _begin(spec: TrainSpec, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Run a rank until it opens its device; return its environment."""
    seen: dict[str, str] = {}

    def look(*_: object) -> NoReturn:
        seen.update(os.environ)
        raise OSError("seen")

    monkeypatch.setattr(train_rank, "open_device", look)
    identity = train_rank.RankIdentity(rank=0, world_size=1, local_rank=0, local_world_size=1)
    assert train_rank.run_rank(spec, identity) != 0
    return seen


def test_what_is_compiled_lies_in_a_folder_of_the_user(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _begin(_spec(tmp.parent, compile=True), monkeypatch)
    own = tmp / folders.own_folder_name()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert (seen["TMPDIR"], tempfile.gettempdir()) == (str(own), str(own))
    assert [Path(seen[name]).parent for name in _CACHES] == [own, own]


def test_a_place_that_the_user_has_set_stays(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_CACHES[0], "/set")
    seen = _begin(_spec(tmp.parent, compile=True), monkeypatch)
    assert seen[_CACHES[0]] == "/set"
    assert seen["TMPDIR"] == str(tmp / folders.own_folder_name())


def test_a_rank_that_compiles_nothing_has_no_folder_for_it(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _begin(_spec(tmp.parent), monkeypatch)
    assert seen["TMPDIR"] == str(tmp)
    assert list(tmp.iterdir()) == []
    nowhere = seen[_CACHES[0]]
    with pytest.raises(OSError, match=r"No such file|denied"):
        (Path(nowhere) / "code").mkdir()
    monkeypatch.setenv(_CACHES[0], "/set")
    assert _begin(_spec(tmp.parent), monkeypatch)[_CACHES[0]] == "/set"


_IMPORT = """
from seatrial.worker.compiled_code import keep_no_compiled_code
keep_no_compiled_code()
import torch._dynamo.package
"""


def test_a_file_at_the_name_that_torch_takes_ends_no_rank(tmp: Path) -> None:
    """Strategies import torch._dynamo, which makes a folder of that name: each training ended there."""
    (theirs := tmp / "torchinductor_me").touch()
    environ = {**os.environ, **import_variables(os.environ), "LOGNAME": "me"}
    done = subprocess.run([sys.executable, "-c", _IMPORT], env=environ, capture_output=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp.iterdir()) == [theirs]


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_the_folder_of_a_neighbor_is_not_used(mode: int, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name refuses nobody: there is another one until the end of the rank."""
    (theirs := tmp / folders.own_folder_name()).mkdir()
    theirs.chmod(mode)
    os.chown(theirs, _NEIGHBOR, _NEIGHBOR)
    with pytest.raises(folders.NotPrivateError, match=f"of user {_NEIGHBOR}; remove it, or set TMPDIR"):
        folders.own_temporary_folder()
    own = Path(_begin(_spec(tmp.parent, compile=True), monkeypatch)["TMPDIR"])
    assert (own.parent, own.name == theirs.name) == (tmp, False)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    (own / "code").touch()
    compiled_code.release_compiled_code()
    assert list(tmp.iterdir()) == [theirs]
    monkeypatch.setattr(folders, "TEMPORARY", (str(other := tmp.parent / "other"),))
    other.mkdir()
    assert _begin(_spec(tmp.parent, compile=True), monkeypatch)["TMPDIR"].startswith(str(other))


_RANK = """
import os, sys
from seatrial import folders
from seatrial.worker import compiled_code, train_main

def run_rank(*_):
    compiled_code.keep_compiled_code_private()
    print(os.environ["TMPDIR"])
    open(os.environ["TMPDIR"] + "/code", "x").close()
    return 1

folders.TEMPORARY, train_main.run_rank = (), run_rank
train_main.main()
"""


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_rank_removes_a_folder_that_only_it_finds(mode: int, tmp: Path) -> None:
    """It ends without handlers of ``atexit``. That of the user stays for the next run."""
    (own := tmp / folders.own_folder_name()).mkdir()
    own.chmod(mode)
    argv = [sys.executable, "-c", _RANK, _spec(tmp.parent).to_json()]
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    used, is_own = Path(done.stdout.strip()), mode == 0o700
    assert (used.parent, used == own) == (tmp, is_own)
    assert sorted(tmp.rglob("*")) == [own, *([own / "code"] if is_own else [])]


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="needs systemd-tmpfiles")
def test_a_cleaner_leaves_the_folder_of_a_rank_that_runs(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user could make one of its name afterwards, and torch loads code from there when it compiles again."""
    own = Path(_begin(_spec(tmp.parent, compile=True), monkeypatch)["TMPDIR"])
    (own / "code").touch()
    (tmp / "old").mkdir()
    (tmp.parent / "clean.conf").write_text(f"d {tmp} 1777 - - 0\n")
    subprocess.run(["systemd-tmpfiles", "--clean", tmp.parent / "clean.conf"], timeout=50, check=True)
    assert sorted(tmp.rglob("*")) == [own, own / "code"]


def test_the_times_of_the_folder_are_set_again_and_again(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other cleaners look at the age of a folder, and at no lock."""
    monkeypatch.setattr(folders, "_RENEWED_S", 0.01)
    own = Path(_begin(_spec(tmp.parent, compile=True), monkeypatch)["TMPDIR"])
    for _ in range(2):
        os.utime(own, (1, 1))
        while own.stat().st_mtime == 1 or own.stat().st_atime == 1:
            time.sleep(0.01)


def test_a_folder_in_which_all_can_rename_is_refused(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A neighbor could put another one in the place of ours once it was looked at."""
    tmp.chmod(0o777)
    assert _begin(_spec(tmp.parent, compile=True), monkeypatch) == {}
    assert capfd.readouterr().err.startswith("Error: --compile: ")
    with pytest.raises(folders.NotPrivateError, match=f"other users can write to {tmp}"):
        folders.own_temporary_folder()


def test_a_pod_whose_folders_are_open_to_all_in_it_compiles(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emptyDir has mode 0777; the manifest sets both variables."""
    tmp.chmod(0o777)
    for name in _CACHES:
        monkeypatch.setenv(name, f"/home/seatrial/{name}")
    seen = _begin(_spec(tmp.parent, compile=True), monkeypatch)
    assert [seen[name] for name in ("TMPDIR", *_CACHES)] == [str(tmp), *(f"/home/seatrial/{name}" for name in _CACHES)]


def test_the_data_of_a_user_without_a_home_stay_where_they_were(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(train_rank, "default_folder", lambda environ: asked.append(environ["TMPDIR"]))
    _begin(_spec(tmp.parent, compile=True), monkeypatch)
    assert asked == [str(tmp)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torch_compiles_nowhere_else(tmp: Path) -> None:
    spec = _spec(tmp.parent, compile=True)
    environ = {**os.environ, **import_variables(os.environ), "RANK": "0", "WORLD_SIZE": "1"}
    argv = [*module_argv(sys.executable, "seatrial.worker.train_main"), spec.to_json()]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert [folder.name for folder in tmp.iterdir()] == [folders.own_folder_name()]
    assert list((tmp / folders.own_folder_name() / "torchinductor").iterdir())
