"""``seatrial bundle``: small, the same bytes everywhere, complete, and written whole or not at all."""

from __future__ import annotations

import ast
import bz2
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner

import seatrial
from seatrial.cli.bundle import bundle
from seatrial.errors import RequestError
from seatrial.launch.bundle import contents, write_bundle
from seatrial.plan.source import LEVELS
from seatrial.plan.tables import load_table

LARGEST_BYTES = 180_000
"""A ConfigMap with it then passes a plain ``kubectl apply``, which keeps a copy in an annotation of at most 256 KiB."""

BUILD = """
import sys
from pathlib import Path
from seatrial.launch.bundle import write_bundle
write_bundle(Path(sys.argv[1]))
"""


def test_it_is_small_enough(pyz: Path) -> None:
    size_bytes = pyz.stat().st_size
    rooms: defaultdict[str, bytes] = defaultdict(bytes)
    for path, content in contents().items():
        rooms[path.partition("/")[0]] += content
    alone = {room: len(bz2.compress(content)) for room, content in rooms.items()}
    table = "\n".join(
        f"{room:12} {len(rooms[room]):8,} bytes, {alone[room]:7,} compressed by itself"
        for room in sorted(alone, key=lambda room: -alone[room])
    )
    assert size_bytes <= LARGEST_BYTES, f"{size_bytes:,} bytes, at most {LARGEST_BYTES:,}; by room:\n{table}"


@pytest.mark.slow
def test_two_clones_build_the_same_bytes(pyz: Path, tmp_path: Path) -> None:
    clone = tmp_path / "another place" / "seatrial"
    shutil.copytree(Path(seatrial.__file__).parent, clone, ignore=shutil.ignore_patterns("__pycache__"))
    for number, path in enumerate(sorted(clone.rglob("*"))):
        os.utime(path, (number, number))
        path.chmod(0o700 if number % 2 else 0o755)
    (clone / "plan" / "__pycache__").mkdir()
    (clone / "plan" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (clone / ".hidden").touch()
    lines = clone / "errors.py"
    lines.write_bytes(lines.read_bytes().replace(b"\n", b"\r\n"))
    assert built_by(sys.executable, clone.parent, tmp_path) == pyz.read_bytes()


def other_pythons() -> list[Path]:
    """Of other versions, on the PATH or beside this one; they need no other package to build it."""
    names = [f"python3.{minor}" for minor in range(11, 16) if minor != sys.version_info.minor]
    beside = Path(sys.base_prefix).parent
    found = [Path(path) for name in names if (path := shutil.which(name))]
    return found + [python for name in names for python in sorted(beside.glob(f"*/bin/{name}"))]


def runs(python: Path) -> bool:
    return subprocess.run([python, "-c", "import bz2, tomllib"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_another_python_builds_the_same_bytes(pyz: Path, tmp_path: Path) -> None:
    python = next(filter(runs, other_pythons()), None)
    if python is None:
        pytest.skip("there is no other Python >= 3.11 here")
    assert built_by(str(python), Path(seatrial.__file__).parents[1], tmp_path) == pyz.read_bytes()


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
        told = b"".join(archive.read(name) for name in archive.namelist()) + b"".join(contents().values())
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert not any(entry.extra or entry.comment for entry in archive.infolist())
    assert str(Path.home()).encode() + b"/" not in told
    assert str(Path(seatrial.__file__).parents[2]).encode() not in told


def test_it_is_executable_and_begins_as_a_script(pyz: Path) -> None:
    assert stat.S_IMODE(pyz.stat().st_mode) == 0o755
    assert pyz.read_bytes().startswith(b"#!/usr/bin/env python3\nPK\x03\x04")


def test_any_python_can_read_its_first_lines(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        ast.parse(archive.read("__main__.py"), feature_version=(3, 4))


def test_levels_and_specs_travel_as_json() -> None:
    files = contents()
    assert not any(path.endswith(".toml") for path in files)
    for name in [*(f"levels/{level}" for level in LEVELS), "specs"]:
        assert ast.literal_eval(files[f"plan/{name}.json"].decode()) == load_table(name)


def test_a_file_that_is_there_is_replaced_and_a_link_leads_to_it(tmp_path: Path) -> None:
    file, link = tmp_path / "x.pyz", tmp_path / "link"
    file.write_text("before")
    link.symlink_to(file)
    with file.open() as before:
        made, more = write_bundle(link)
        assert before.read() == "before", "who runs the old one still has it"
    assert link.is_symlink()
    content = file.read_bytes()
    assert (made.size_bytes, made.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    beside = tmp_path / "x.pyz.more"
    assert (made.file, more.file) == (link, beside), "what judges links is looked for beside what the link leads to"
    assert (more.size_bytes, more.sha256) == (beside.stat().st_size, hashlib.sha256(beside.read_bytes()).hexdigest())
    assert sorted(tmp_path.iterdir()) == [link, file, beside]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/x.pyz", "there is no folder"),
        ("file/x.pyz", "there is no folder"),
        ("folder", "is there and is no file"),
        (os.devnull, "is there and is no file"),
        ("/proc/x.pyz", "it cannot be written"),
        ("n" * 300, "it cannot be written"),
        ("a\0b", "it cannot be written"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, name: str, words: str) -> None:
    if name.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("no /proc")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(RequestError, match=words):
        write_bundle(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_where_what_lies_beside_it_cannot_be_written_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "x.pyz.more").mkdir()
    with pytest.raises(RequestError, match="it cannot be written"):
        write_bundle(tmp_path / "x.pyz")
    assert [path.name for path in tmp_path.rglob("*")] == ["x.pyz.more"]


def test_the_command_tells_size_and_digest(tmp_path: Path) -> None:
    result = CliRunner().invoke(bundle, [str(tmp_path / "x.pyz")], catch_exceptions=False)
    lines = []
    for file in (tmp_path / "x.pyz", tmp_path / "x.pyz.more"):
        content = file.read_bytes()
        lines.append(f"{file}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")
    assert result.output.splitlines() == lines


WHOLE = "from seatrial.probe import own_code; print(own_code.is_whole())"


def is_whole(pyz: Path) -> bool:
    environ = {**os.environ, "PYTHONPATH": str(pyz)}
    command = [sys.executable, "-c", WHOLE]
    done = subprocess.run(command, env=environ, cwd=pyz.parent, capture_output=True, text=True, timeout=50, check=True)
    return done.stdout == "True\n"


def test_what_judges_links_is_taken_from_beside_it_if_it_was_written_with_it(pyz: Path, tmp_path: Path) -> None:
    own, link = tmp_path / "own.pyz", tmp_path / "link.pyz"
    own.write_bytes(pyz.read_bytes())
    link.symlink_to(own)
    assert (is_whole(own), is_whole(link)) == (False, False)
    more = Path(f"{pyz}.more").read_bytes()
    beside = tmp_path / "own.pyz.more"
    for content, taken in ((more, True), (more[:-1], False), (b"print('not ours')", False), (b"", False)):
        beside.write_bytes(content)
        assert (is_whole(own), is_whole(link)) == (taken, taken)


def test_it_can_be_read_by_a_person(pyz: Path) -> None:
    told = "import inspect, seatrial.errors as it; print(inspect.getsource(it))"
    environ = {**os.environ, "PYTHONPATH": str(pyz)}
    text = subprocess.run([sys.executable, "-c", told], env=environ, capture_output=True, timeout=50, check=True).stdout
    assert b"\nclass RequestError(SeatrialError):\n" in text
