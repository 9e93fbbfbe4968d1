"""The bundle: the same bytes everywhere, complete, readable, and written whole or not at all."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hostile_files import HOSTILE, assert_unharmed

import seatrial
from seatrial.bundle import write_bundle
from seatrial.cli.click_app import cli
from seatrial.errors import RequestError

PACKAGE = Path(seatrial.__file__).parent
BUILD = """
import sys
from pathlib import Path
from seatrial.bundle import write_bundle
write_bundle(Path(sys.argv[1]))
"""


def test_it_holds_the_package_as_it_is_in_the_source(pyz: Path) -> None:
    wanted = {
        f"seatrial/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(pyz) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    del found["__main__.py"]
    assert found == wanted


def test_two_clones_build_the_same_bytes(pyz: Path, tmp_path: Path) -> None:
    clone = tmp_path / "another place" / "seatrial"
    shutil.copytree(PACKAGE, clone, ignore=shutil.ignore_patterns("__pycache__"))
    for number, path in enumerate(sorted(clone.rglob("*"))):
        os.utime(path, (number, number))
        path.chmod(0o700 if number % 2 else 0o755)
    (clone / "plan" / "__pycache__").mkdir()
    (clone / "plan" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (clone / ".hidden").touch()
    assert built_by(sys.executable, clone.parent, tmp_path) == pyz.read_bytes()


def other_pythons() -> list[Path]:
    """Return Pythons of other versions, on the PATH or near this one; they build a bundle without other packages."""
    names = [f"python3.{minor}" for minor in range(10, 16) if minor != sys.version_info.minor]
    installed = Path(sys.base_prefix).parent
    found = [Path(path) for name in names if (path := shutil.which(name))]
    return found + [python for name in names for python in sorted(installed.glob(f"*/bin/{name}"))]


def has_the_same_zlib(python: Path) -> bool:
    code = "import zlib; print(zlib.ZLIB_RUNTIME_VERSION)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == zlib.ZLIB_RUNTIME_VERSION


def test_another_python_with_the_same_zlib_builds_the_same_bytes(pyz: Path, tmp_path: Path) -> None:
    python = next(filter(has_the_same_zlib, other_pythons()), None)
    if python is None:
        pytest.skip(f"there is no other Python >= 3.10 with zlib {zlib.ZLIB_RUNTIME_VERSION} here")
    assert built_by(str(python), PACKAGE.parent, tmp_path) == pyz.read_bytes()


def test_a_bundle_writes_itself(pyz: Path, tmp_path: Path) -> None:
    assert built_by(sys.executable, pyz, tmp_path) == pyz.read_bytes()


def built_by(python: str, source: Path, tmp_path: Path) -> bytes:
    environ = {
        **os.environ,
        "PYTHONPATH": str(source),
        "PYTHONHASHSEED": "7",
        "TZ": "Asia/Tokyo",
        "PYTHONSAFEPATH": "1",
    }
    subprocess.run([python, "-c", BUILD, tmp_path / "x.pyz"], env=environ, timeout=50, check=True)
    return (tmp_path / "x.pyz").read_bytes()


def test_nothing_of_this_machine_is_in_it(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert not any(entry.extra or entry.comment for entry in archive.infolist())
        assert archive.comment == f"zlib {zlib.ZLIB_RUNTIME_VERSION}".encode()
    assert str(Path.home()).encode() + b"/" not in content
    assert str(PACKAGE.parents[1]).encode() not in content


@pytest.mark.parametrize("page", ["environments", "kubernetes", "launching"])
def test_pages_say_how_large_it_is(page: str, pyz: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / f"{page}.md").read_text()
    said = re.findall(r"about ([0-9.]+) MB[,)]", text)
    assert said
    assert all(abs(float(number) - pyz.stat().st_size / 1e6) < 0.15 for number in said), said


def test_it_is_executable_and_begins_as_a_script(pyz: Path) -> None:
    assert stat.S_IMODE(pyz.stat().st_mode) == 0o755
    assert pyz.read_bytes().startswith(b"#!/usr/bin/env python3\nPK\x03\x04")


def test_any_python_can_read_its_first_lines(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        entry = archive.getinfo("__main__.py")
        assert entry.compress_type == zipfile.ZIP_STORED
        ast.parse(archive.read(entry), feature_version=(3, 4))


def test_an_existing_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "x.pyz"
    file.write_text("before")
    with file.open() as before:
        written = write_bundle(file)
        assert before.read() == "before", "a process that runs the old file keeps it"
    content = file.read_bytes()
    assert (written.file, written.size_bytes, written.sha256) == (
        file,
        len(content),
        hashlib.sha256(content).hexdigest(),
    )
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_another_user_put_there_is_refused(tmp_path: Path, kind: str) -> None:
    plant, words = HOSTILE[kind]
    file = tmp_path / "folder" / "x.pyz"
    file.parent.mkdir()
    plant(file)
    before = file.lstat()
    with pytest.raises(RequestError, match=f"cannot be written .x.pyz is {words}"):
        write_bundle(file)
    assert_unharmed(file)
    assert (file.lstat().st_ino, list(file.parent.iterdir())) == (before.st_ino, [file])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "x.pyz"
    file.write_text("theirs")
    os.chown(file, 65534, 65534)
    with pytest.raises(RequestError, match="a file of user 65534"):
        write_bundle(file)
    assert file.read_text() == "theirs"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/x.pyz", "there is no folder"),
        ("file/x.pyz", "there is no folder"),
        ("folder", "is a folder and no regular file"),
        (os.devnull, "is a device and no regular file"),
        ("/proc/x.pyz", "cannot be written"),
        ("n" * 300, "cannot be written"),
        ("a\0b", "cannot be written"),
    ],
)
def test_an_unwritable_path_is_one_sentence(tmp_path: Path, name: str, words: str) -> None:
    if name.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("no /proc")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(RequestError, match=words):
        write_bundle(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_the_command_prints_size_and_digest(tmp_path: Path) -> None:
    file = tmp_path / "x.pyz"
    result = CliRunner().invoke(cli, ["bundle", str(file)], catch_exceptions=False)
    content = file.read_bytes()
    assert result.output == f"{file}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}\n"
