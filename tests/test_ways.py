"""The way to a path is that of the kernel: ``..`` and links of procfs, too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seatrial import start
from seatrial.start import open_named_folder, way_to

_WAITS = "import os, sys; sys.argv[1:] and os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"


@contextmanager
def _process(cwd: Path, *root: str) -> Iterator[int]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _WAITS, *root], cwd=cwd, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def _is_at(path: str | Path, folder: Path | os.stat_result) -> bool:
    fd = open_named_folder(path)
    try:
        return os.path.samestat(os.fstat(fd), folder if isinstance(folder, os.stat_result) else folder.stat())
    finally:
        os.close(fd)


@pytest.mark.parametrize("start", [".", "here"])
def test_a_way_up_has_the_names_of_the_folders_above(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether root is trusted in a container of a user depends on what lies above."""
    (here := tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(here if start == "." else tmp_path)
    assert [name for name, *_ in way_to("../there", start)] == [str(here), str(tmp_path), str(tmp_path / "there")]


def test_a_folder_of_a_process_whose_name_is_gone(tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    with _process(gone) as pid:
        status = gone.stat()
        gone.rename(tmp_path / "moved")
        gone.mkdir()
        (tmp_path / "moved").rmdir()
        assert _is_at(f"/proc/{pid}/cwd", status)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may call chroot")
def test_a_folder_below_the_root_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (link := tmp_path / "link").symlink_to("/proc/self/cwd")
    with _process(tmp_path, str(tmp_path)) as pid:
        assert _is_at(f"/proc/{pid}/root/tmp", tmp_path / "tmp")
        assert _is_at(f"/proc/{pid}/cwd/tmp", tmp_path / "tmp")
        assert _is_at(f"/proc/{pid}/root", tmp_path)
    assert _is_at(link, Path.cwd())


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders in a container of a user, none of whose folders above them is open."""
    monkeypatch.setattr(start, "_has_own_numbers", lambda: True)
    real = os.fstat

    def closed(fd: int) -> os.stat_result:
        status = list(real(fd))
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(f"{tmp_path}/"):
            status[0] = int(status[0]) & ~0o022
        return os.stat_result(status)

    monkeypatch.setattr(os, "fstat", closed)
    for name, mode in (("sticky", 0o1777), ("group", 0o2775), ("shut", 0o755)):
        tmp_path.joinpath(name, "a", "b").mkdir(parents=True)
        (tmp_path / name).chmod(mode)
        (tmp_path / name / "up").symlink_to("../shut/a")
        (tmp_path / name / "far").symlink_to(tmp_path / "sticky" / "a")
    return tmp_path


def _is_open_above(name: str, tree: Path) -> bool:
    return any(tree in folder.parents and folder.stat().st_mode & 0o022 for folder in Path(name).parents)


@pytest.mark.parametrize("begin", ["/", ".", "sticky", "sticky/a", "shut/a", "group/a/b", "here"])
@pytest.mark.parametrize(
    "path",
    [
        *("sticky/a/b", "shut/a/b", "group/a", "sticky/a/../../shut/a/b", "shut/a/../../group/a/../a", "shut/far/b"),
        *("sticky/up/b", "sticky/up/../a/b", "group/up/../../sticky/a", "group/far/../../shut/a"),
    ],
)
def test_what_is_open_above_each_name(begin: str, path: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked by descriptors, and is what the names say while nobody has renamed or mounted anything."""
    if begin == "here":
        monkeypatch.chdir(tree / "sticky")
        path = f"/proc/self/cwd/../{path}"
    else:
        monkeypatch.chdir(tree)
        path = os.path.join(tree if begin == "/" else os.path.relpath(tree, tree / begin), path)
    steps = [(name, is_below) for name, *_, is_below in way_to(path, "/" if begin == "here" else begin)]
    asked = [step for step in steps if not step[0].startswith("/proc")]
    assert asked == [(name, _is_open_above(name, tree)) for name, _ in asked]
    assert len(asked) > 2


def test_a_folder_that_is_moved_below_an_open_one_on_the_way(tree: Path) -> None:
    """The names are those of before."""
    found = {}
    for name, *_, is_below in way_to("a/b/..", str(tree / "shut")):
        found[name] = is_below
        if name.endswith("b"):
            (tree / "shut" / "a").rename(tree / "sticky" / "c")
    assert found == {str(tree / "shut"): False, str(tree / "shut/a"): True, str(tree / "shut/a/b"): False}


_ASKS = """
import codecs, os
codecs.lookup("ascii")  # It lies where the other user may not read.
from seatrial.start import open_named_folder, trusted_users, way_to
os.setgroups([]); os.setgid(12345); os.setuid(12345)
os.close(open_named_folder("out"))
print(*(sorted(trusted_users(is_below_open)) for *_, is_below_open in way_to("out", ".")))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_working_folder_below_a_closed_one(tmp_path: Path) -> None:
    """Who can make folders above is unknown then: in a container of a user, root's number there is nobody's."""
    (closed := tmp_path / "closed").mkdir(mode=0o700)
    (out := closed / "here" / "out").mkdir(parents=True)
    os.chown(out, 12345, 12345)
    for names_are_own in (True, False):
        program = f"from seatrial import start\nstart._has_own_numbers = lambda: {names_are_own}\n{_ASKS}"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=out.parent, capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stdout) == (0, "[0, 12345] [0, 12345]\n"), done.stderr
