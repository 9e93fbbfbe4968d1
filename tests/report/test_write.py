"""Writing: whole files, in the folder of the run, never over those of another run."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from event_streams import RUN, SCENES, healthy, lines_of
from fake_checks import fake_load
from hostile_files import HOSTILE, assert_unharmed

import seatrial
from seatrial import files
from seatrial.errors import RequestError
from seatrial.judge.conclude import conclude
from seatrial.report import formats, write
from seatrial.report.console import lines
from seatrial.report.recorded_events import RECORD
from seatrial.report.show import wrong_request
from seatrial.report.write import write_again, write_reports, write_somewhere

TOY = """
FILE = "report.md"

def text(conclusion):
    return f"# {conclusion.verdict.status}\\n"
"""


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_all_formats_and_the_latest(tmp_path: Path) -> None:
    conclusion = conclude(healthy().events, load=fake_load)
    written = write_reports(conclusion, tmp_path)
    assert files_in(tmp_path) == {*written.files.values(), written.latest}
    for name, report_format in formats.load().items():
        assert written.files[name] == tmp_path / RUN / report_format.file
        assert written.files[name].read_text("utf-8") == report_format.text(conclusion)
    assert written.latest.read_bytes() == written.document.read_bytes()
    assert json.loads(written.document.read_text())["acceptance"]["status"] == "PASS"
    assert written.best == written.files["html"]


def package_with(format_file: str, folder: Path, *, zipped: bool) -> Path:
    """Copy the whole package with one more file, and return the entry for PYTHONPATH."""
    copy = folder / "copy"
    shutil.copytree(Path(seatrial.__file__).parent, copy / "seatrial", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "seatrial" / "report" / "formats" / "markdown.py").write_text(format_file)
    return Path(shutil.make_archive(str(folder / "copy"), "zip", copy)) if zipped else copy


@pytest.mark.parametrize("zipped", by_day([False, True], 1), ids=["folder", "zip"])
@pytest.mark.parametrize("package", by_day([None, "json", "no_such_package"], 1, 2))
def test_a_new_format_is_one_new_file(tmp_path: Path, package: str | None, zipped: bool) -> None:
    needs = f"PACKAGE = {package!r}\n" if package else ""
    package_path = package_with(needs + TOY, tmp_path, zipped=zipped)
    assert zipfile.is_zipfile(package_path) == zipped
    (tmp_path / "all.events").write_bytes(b"".join(lines_of(SCENES["killed"]().events)))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "seatrial", "report", "all.events", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    others = {entry.file for entry in formats.load().values()}
    toy = tmp_path / "out" / RUN / "report.md"
    if package == "no_such_package":
        assert {path.name for path in toy.parent.iterdir()} == others
    else:
        assert {path.name for path in toy.parent.iterdir()} == {*others, toy.name}
        assert toy.read_text() == "# FAIL\n"


def test_without_its_package_a_format_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = formats.load()
    # With None in sys.modules Python raises ImportError.
    monkeypatch.setitem(sys.modules, "junitparser", None)
    assert everything.keys() - formats.load().keys() == {"junit"}


def test_no_two_formats_have_the_same_file() -> None:
    files = [entry.file for entry in formats.load().values()]
    assert len({*files, "cluster_test_report.json"}) == len(files) + 1


def test_formats_that_were_left_out_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_FORMATS", {"json": formats.load()["json"]})
    written = write_reports(conclude(healthy().events, load=fake_load), tmp_path)
    assert files_in(tmp_path) == {written.document, written.latest}
    assert (written.files, written.best) == ({"json": written.document}, written.document)
    assert f"report: {written.document}" in lines(conclude(healthy().events, load=fake_load), written.best)


def test_the_same_run_may_be_reported_again(tmp_path: Path) -> None:
    events = SCENES["killed"]().events
    write_reports(conclude(events[:-3], load=fake_load), tmp_path)
    written = write_reports(conclude(events, load=fake_load), tmp_path)
    assert json.loads(written.document.read_text())["missing"] == []


@contextlib.contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """Let this process write no file that is larger, as if the disk were full then."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


@pytest.mark.parametrize("has_interim", [True, False])
def test_a_disk_without_room_for_all_files_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_interim: bool
) -> None:
    """A report.json that says PASS was left there, where the run ended with 3 and its report was elsewhere."""
    events = healthy().events
    if has_interim:
        write_reports(conclude(events[:-3], load=fake_load), tmp_path)
    conclusion = conclude(events, load=fake_load)
    kept = {path: path.read_bytes() for path in files_in(tmp_path)}
    large = replace(formats.load()["html"], text=lambda conclusion: "x" * 200_000)
    monkeypatch.setattr(write, "_FORMATS", {**formats.load(), "html": large})
    with room_for(100_000), pytest.raises(RequestError, match="the report cannot be written there"):
        write_reports(conclusion, tmp_path)
    assert {path: path.read_bytes() for path in files_in(tmp_path)} == kept


def _make_folder(place: Path) -> None:
    place.unlink()
    place.mkdir()


def _mount(place: Path) -> None:
    """Mount a file over another one, as a container gets single files."""
    if subprocess.run(["mount", "--bind", "/dev/null", place], capture_output=True, check=False).returncode:
        pytest.skip("no mounts here")


@pytest.mark.parametrize("file", ["report.html", "junit.xml"])
@pytest.mark.parametrize("take", [_make_folder, pytest.param(_mount, marks=pytest.mark.root)])
def test_a_file_without_a_place_keeps_the_old_report(tmp_path: Path, take: Callable[[Path], None], file: str) -> None:
    """`report --out` has no other folder for the new one, and nothing was wrong with the old one."""
    events = healthy().events
    written = write_reports(conclude(events[:-3], load=fake_load), tmp_path)
    take(written.folder / file)
    kept = {path: path.read_bytes() for path in files_in(tmp_path)}
    try:
        with pytest.raises(RequestError, match=rf"the report cannot be written there \({file} is a folder or a mount"):
            write_reports(conclude(events, load=fake_load), tmp_path)
        assert {path: path.read_bytes() for path in files_in(tmp_path)} == kept
    finally:
        subprocess.run(["umount", "-l", written.folder / file], capture_output=True, check=False)


def test_no_part_of_a_report_stays_where_a_file_loses_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = healthy().events
    written = write_reports(conclude(events[:-3], load=fake_load), tmp_path)

    def looked_at(*place: Any) -> Iterator[tuple[str, os.stat_result]]:
        yield from list(files.statuses_in(*place))
        _make_folder(written.best)

    monkeypatch.setattr(write, "statuses_in", looked_at)
    with pytest.raises(RequestError, match="the report cannot be written there"):
        write_reports(conclude(events, load=fake_load), tmp_path)
    assert not written.document.exists()
    assert json.loads(written.latest.read_text())["missing"]


def test_a_report_that_is_not_true_any_more_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = healthy().events
    whole, cut = (conclude(told, load=fake_load) for told in (events, events[:-3]))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    written, why = write_somewhere(whole, tmp_path / "out", "full.")
    assert written is not None, why
    assert write_again(cut, written) == written
    for path in (written.document, written.latest):
        assert path.read_text() == formats.load()["json"].text(cut)
    with room_for(100):
        assert write_again(whole, written) is None
    assert files_in(written.folder.parent) == set()
    shutil.rmtree(written.folder.parent)


def test_all_of_a_report_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    """It would take thirty times its size in memory."""
    conclusion = conclude(healthy().events, load=fake_load)
    written = write_reports(conclusion, tmp_path)
    os.truncate(written.document, 8 << 30)  # sparse
    assert write_reports(conclusion, tmp_path).document.stat().st_size < 1 << 20
    written.document.write_text("[" + "[]," * (1 << 23))
    tracemalloc.start()
    with pytest.raises(RequestError, match="another trial"):
        write_reports(conclusion, tmp_path)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 4 << 20


@pytest.mark.parametrize("content", ['{"test_timestamp": "2020-01-01 00:00:00"}', "not JSON", "[]"])
def test_another_trial_is_not_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "report.json").write_text(content)
    with pytest.raises(RequestError, match="another trial"):
        write_reports(conclude(healthy().events, load=fake_load), tmp_path)
    assert (tmp_path / RUN / "report.json").read_text() == content
    assert not (tmp_path / "cluster_test_report.json").exists()


@pytest.mark.parametrize("run", ["../evil", "/evil", ".", "a/b", "x\n", "-rf", "é", "cluster_test_report.json"])
def test_a_run_cannot_choose_its_folder(tmp_path: Path, run: str) -> None:
    with pytest.raises(RequestError, match="cannot be the name of a folder"):
        write_reports(conclude(healthy(run=run).events, load=fake_load), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["report.html", "junit.xml"])
def test_events_of_others_do_not_choose_what_is_replaced(tmp_path: Path, name: str) -> None:
    """The run id is text of the events: it may be the name of any folder of the user."""
    users = tmp_path / RUN / name
    users.parent.mkdir()
    users.write_text("of the user")
    with pytest.raises(RequestError, match=f"{name} lies there without a report.json of this trial"):
        write_reports(conclude(healthy().events, load=fake_load), tmp_path)
    assert users.read_text() == "of the user"


def test_a_wrong_request_is_reported_as_one() -> None:
    refusal = wrong_request(conclude(SCENES["refused"]().events, load=fake_load))
    # The words of the rank, and not a sentence of the controller.
    assert refusal == 'rank 1 says that the request is wrong: "--device cuda: torch finds no usable device"'
    for scene in ("healthy", "killed", "own", "interrupted"):
        assert wrong_request(conclude(SCENES[scene]().events, load=fake_load)) is None


def test_a_report_without_events(tmp_path: Path) -> None:
    written = write_reports(conclude([]), tmp_path)
    assert json.loads(written.document.read_text())["acceptance"]["status"] == "INCONCLUSIVE"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        write_reports(conclude(healthy().events, load=fake_load), tmp_path / "file")


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "folder"])
def test_reports_replace_links_and_write_through_none(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    _recorded(out)
    HOSTILE[kind][0](out / "cluster_test_report.json")
    written = write_reports(conclude(healthy().events, load=fake_load), out)
    assert json.loads(written.latest.read_text())["acceptance"]["status"] == "PASS"
    assert not written.latest.is_symlink()
    assert_unharmed(out / "cluster_test_report.json")


@pytest.mark.parametrize("num_written", [1, 2], ids=["last", "interim and last"])
def test_an_exchanged_out_keeps_the_newest_report_of_another_run(tmp_path: Path, num_written: int) -> None:
    """Who can rename ``--out`` during a run puts a link there to where this user keeps the acceptance of a cluster."""
    conclusion, out, others = conclude(healthy().events, load=fake_load), tmp_path / "out", tmp_path / "others"
    for folder in (out, others):
        (folder / "before").mkdir(parents=True)
        (folder / "cluster_test_report.json").write_text("of another run")
    _recorded(out)
    out.rename(tmp_path / "moved")
    out.symlink_to(others)
    for _ in range(num_written):
        written = write_reports(conclusion, out)
    assert (others / "cluster_test_report.json").read_text() == "of another run"
    assert written.not_copied.startswith(f"{out}/cluster_test_report.json is no copy of this report: ")
    assert json.loads(written.document.read_text())["acceptance"]["status"] == "PASS"
    out.unlink()
    (tmp_path / "moved").rename(out)
    assert write_reports(conclusion, out).not_copied == ""
    assert json.loads((out / "cluster_test_report.json").read_text())["acceptance"]["status"] == "PASS"


def test_the_report_of_another_trial_in_an_exchanged_out_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out := tmp_path / "out").mkdir()
    (others := tmp_path / "others").mkdir()
    _recorded(others)
    (others / RUN / "report.json").write_text("of another trial")

    def exchanged(folder: Path) -> None:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(others)

    monkeypatch.setattr(write, "make_folders", exchanged)
    with pytest.raises(RequestError, match=f"{out}/{RUN}/report.json holds the report of another trial"):
        write_reports(conclude(healthy().events, load=fake_load), out)
    assert (others / RUN / "report.json").read_text() == "of another trial"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("sources", [None, ()])
@pytest.mark.parametrize("name", ["out", "above/out"])
def test_no_link_of_others_leads_to_a_newest_report_to_replace(
    name: str, sources: tuple[Path, ...] | None, tmp_path: Path
) -> None:
    """It lay there before the run, and leads to where the user keeps the acceptance of a cluster, closed to others."""
    conclusion, mine, out = conclude(healthy().events, load=fake_load), tmp_path / "mine", tmp_path / name
    (mine / "out").mkdir(parents=True)
    kept = (mine if name == "out" else mine / "out") / "cluster_test_report.json"
    kept.write_text("of another run")
    link = tmp_path / name.partition("/")[0]
    link.symlink_to(mine)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    _recorded(out)
    written = write_reports(conclusion, out, sources)
    assert kept.read_text() == "of another run"
    assert f"{link} is a link of user 12345, which may lead" in written.not_copied
    os.chown(link, 0, 0, follow_symlinks=False)
    assert write_reports(conclusion, out, [out / RUN]).not_copied == ""
    assert json.loads(kept.read_text())["acceptance"]["status"] == "PASS"


def _recorded(out: Path) -> None:
    """Have the run record its events below a folder, as each run does from its beginning on."""
    (out / RUN).mkdir()
    (out / RUN / RECORD).touch()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_newest_report_of_another_user_in_a_shared_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o1777)
    monkeypatch.chdir(out)  # others cannot enter the folders above it
    (out / "cluster_test_report.json").write_text("{}")
    os.chown(out / "cluster_test_report.json", 12345, 12345)
    os.seteuid(12346)
    try:
        _recorded(Path())
        written = write_reports(conclude(healthy().events, load=fake_load), Path())
    finally:
        os.seteuid(0)
    assert "(Operation not permitted), and what lies there is a regular file of user 12345." in written.not_copied
    assert json.loads(written.document.read_text())["acceptance"]["status"] == "PASS"
    assert written.latest.read_text() == "{}"


@pytest.mark.parametrize("kind", ["FIFO", "socket", "device", "loop", "folder", "link"])
def test_what_is_no_report_stops_nothing_and_is_kept(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "out" / RUN
    folder.mkdir(parents=True)
    HOSTILE[kind][0](folder / "report.json")
    with pytest.raises(RequestError, match="another trial"):
        write_reports(conclude(healthy().events, load=fake_load), tmp_path / "out")
    assert_unharmed(folder / "report.json")


def test_the_folder_of_a_run_that_became_a_link_gets_no_report(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RUN).symlink_to(tmp_path / "home")
    with pytest.raises(RequestError, match=rf"--out {tmp_path}/out: .* \({RUN} is a symbolic link and no folder"):
        write_reports(conclude(healthy().events, load=fake_load), tmp_path / "out")
    assert list((tmp_path / "home").iterdir()) == []
