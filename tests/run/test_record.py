"""The folder of a run and the file of its events."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from foreign_lines import nested
from hostile_files import HOSTILE, assert_unharmed
from slow_disk import SlowDisk

from seatrial.errors import RequestError
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import Decoder, encode
from seatrial.run import record
from seatrial.run.record import Recorder, new_folder


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    runs = [new_folder(tmp_path / "deep" / "reports") for _ in range(20)]
    assert len({run for run, _ in runs}) == 20
    assert all(folder.is_dir() and folder.name == run for run, folder in runs)
    assert [path for _, folder in runs for path in folder.iterdir()] == []


@pytest.mark.parametrize("out", ["file", "file/reports", "dangling"])
def test_a_place_that_takes_no_reports_is_refused_with_its_option(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(RequestError, match=f"--out {tmp_path / out}: reports cannot be written there"):
        new_folder(tmp_path / out)


def test_every_event_is_in_memory_and_in_the_file(tmp_path: Path) -> None:
    recorder = Recorder("x", tmp_path)
    events = [{"kind": "note", "text": "y" * size} for size in (1, 10, 10_000)]
    for event in events:
        recorder(event)
        assert recorder._disk.finish(time.monotonic() + 20)
        assert list(Decoder().lines(recorder.path.read_bytes())) == recorder.events, "kept at once, not at the end"
    recorder.close()
    assert recorder.events == events


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_noted_once(tmp_path: Path) -> None:
    recorder = Recorder("x", tmp_path)
    assert recorder._disk.finish(time.monotonic() + 20)
    assert recorder._file.opened is not None
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), recorder._file.opened.fileno())
    events = [{"kind": "note", "number": number} for number in range(3)]
    for event in events:
        recorder(event)
        recorder._disk.finish(time.monotonic() + 20)
    recorder.close()
    assert [event for event in recorder.events if "number" in event] == events
    told = [event for event in recorder.events if event.get("severity") == "error"]
    assert len(told) == 1
    assert os.strerror(28) in told[0]["text"]


def test_a_disk_that_answers_nothing_holds_up_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    recorder = Recorder("x", tmp_path)
    disk.freeze()
    began = time.monotonic()
    for number in range(3):
        recorder({"kind": "note", "number": number})
    recorder.note("seen meanwhile")
    assert time.monotonic() - began < 5
    disk.thaw()
    recorder.close()
    assert list(Decoder().lines(recorder.path.read_bytes())) == recorder.events
    assert len(recorder.events) == 5


def test_a_disk_that_never_answers_leaves_no_whole_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_LAST_WRITE_S", 0.3)
    disk = SlowDisk(monkeypatch)
    recorder = Recorder("x", tmp_path)
    disk.freeze()
    recorder({"kind": "run"})
    recorder.close()
    (told,) = (event["text"] for event in recorder.events if event.get("severity") == "error")
    assert "(the disk has not answered for " in told
    recorder.note("said after the end")
    disk.thaw()
    assert recorder._disk.end(time.monotonic() + 20)
    assert list(Decoder().lines(recorder.path.read_bytes())) == recorder.events


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_planted_file_of_events_is_one_sentence(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    HOSTILE[kind][0](folder / "controller.events")
    with pytest.raises(RequestError, match=f"controller.events is {HOSTILE[kind][1]}.*name another folder with --out"):
        Recorder("x", folder)
    assert_unharmed(folder / "controller.events")


def test_a_note_is_in_the_file_too_even_after_the_end(tmp_path: Path) -> None:
    recorder = Recorder("x", tmp_path)
    recorder({"kind": "run"})
    recorder.note("lines were cut")
    recorder.close()
    recorder.note("the report cannot be written")
    assert [event.get("text") for event in recorder.events] == [
        None,
        "lines were cut",
        None,
        "the report cannot be written",
        None,
    ]
    assert list(Decoder().lines(recorder.path.read_bytes())) == recorder.events


def test_a_note_after_a_cut_line_can_be_read(tmp_path: Path) -> None:
    recorder = Recorder("x", tmp_path)
    recorder.path.write_bytes(encode({"kind": "measurements"})[0][:-9])
    recorder.note("the disk is full")
    recorder.close()
    assert list(Decoder().lines(recorder.path.read_bytes())) == recorder.events


def test_a_message_that_nobody_could_read_takes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The controller would take the gap for lines that the first pod has lost."""
    monkeypatch.setenv("SEATRIAL_LIVE", "x")
    recorder = Recorder("x", tmp_path)
    for message in ({"text": "y"}, {"text": "y" * (9 << 20)}, {"text": "y", "x": nested(63)}):
        # In a file it is not so deep as in the log, in which another one holds it.
        with contextlib.suppress(ValueError):
            recorder({"kind": "note", **message})
    recorder.send({"kind": "note", "text": "yy"})
    recorder.close()
    # Who judges the file and who judges the log see the same.
    assert [event["text"] for event in recorder.events] == ["y"]
    assert list(Decoder().lines(recorder.path.read_bytes())) == recorder.events
    sent = list(Decoder().lines(capfdbinary.readouterr().out))
    assert [(line["number"], len(line["message"]["text"])) for line in sent] == [(0, 1), (1, 2)]


def test_the_token_that_proves_its_lines_cannot_be_read_in_proc(tmp_path: Path) -> None:
    """Ranks on the same host run as the same user."""
    code = (
        "import os, sys; from pathlib import Path; from seatrial.run.record import Recorder\n"
        "recorder = Recorder('x', Path(sys.argv[1])); recorder.send({'kind': 'note'})\n"
        "print('SEATRIAL_TOKEN' in os.environ, b'a-token-of-a-run' in open('/proc/self/environ', 'rb').read())"
    )
    environ = {**os.environ, "SEATRIAL_LIVE": "x", "SEATRIAL_TOKEN": "a-token-of-a-run"}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=environ, capture_output=True, text=True, timeout=50, check=True
    )
    line, told = done.stdout.splitlines()
    assert told == "False False"
    sent = Decoder().line(line.encode())
    assert sent is not None
    assert sent["proof"] == proof("a-token-of-a-run", "log", json.dumps({"kind": "note"}), "", 0)
