"""Event files of others: as many bytes as we said, whatever the files claim to have."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_streams import healthy, lines_of

from seatrial.errors import RequestError
from seatrial.protocol.wire import Decoder
from seatrial.report import recorded_events
from seatrial.report.recorded_events import read_events


def test_a_file_that_claims_to_be_empty_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Path("/proc/self/maps")
    assert endless.stat().st_size == 0
    monkeypatch.setattr(recorded_events, "_MAX_BYTES", 1_000)
    with pytest.raises(RequestError, match=r"/proc/self/maps: more than .* in total"):
        read_events([endless])


def cost_of(line: bytes) -> int:
    decoder = Decoder()
    decoder.line(line)
    return max(len(line), decoder.kept_bytes)


def test_the_bound_is_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"".join(lines_of(healthy().events))
    for name in ("a.events", "b.events"):
        (tmp_path / name).write_bytes(text)
    cost = sum(cost_of(line) for line in lines_of(healthy().events))
    assert len(text) < cost < 4 * len(text)
    monkeypatch.setattr(recorded_events, "_MAX_BYTES", 2 * cost)
    messages, damaged = read_events([tmp_path])
    assert (len(messages), damaged) == (2 * len(healthy().events), 0)
    monkeypatch.setattr(recorded_events, "_MAX_BYTES", 2 * cost - 1)
    with pytest.raises(RequestError, match="in total"):
        read_events([tmp_path])


def test_links_in_a_folder_are_not_read(tmp_path: Path) -> None:
    """To those with the right to read it /proc/kmsg is a regular file that never ends."""
    folder = tmp_path / "sent"
    folder.mkdir()
    (folder / "a.events").symlink_to("/proc/kmsg")
    with pytest.raises(RequestError, match="no event file in this folder"):
        read_events([folder])
    (folder / "b.events").write_bytes(b"".join(lines_of(healthy().events)))
    assert len(read_events([folder])[0]) == len(healthy().events)
    (tmp_path / "link").symlink_to(folder)
    assert read_events([tmp_path / "link"]) == read_events([folder])
