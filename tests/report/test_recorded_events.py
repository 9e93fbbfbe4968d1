"""Event files of others: as many bytes as we said, whatever the files claim to have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_streams import healthy, lines_of

from seatrial.errors import RequestError
from seatrial.protocol import wire
from seatrial.protocol.wire import Decoder, encode
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


def test_a_listed_file_that_became_a_link_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sent").mkdir()
    listed = tmp_path / "sent" / "a.events"
    target = tmp_path / "elsewhere"
    target.write_bytes(b"".join(lines_of(healthy().events)))
    listed.symlink_to(target)
    monkeypatch.setattr(recorded_events, "event_files", lambda folder: [listed])
    with pytest.raises(RequestError, match=r"a\.events: cannot be read \(Too many levels of symbolic links\)"):
        read_events([tmp_path / "sent"])
    assert len(read_events([listed])[0]) == len(healthy().events)


def test_a_split_message_counts_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.events"
    path.write_bytes(b"".join(encode({"kind": "run", "x": [[]] * 5_000})))
    monkeypatch.setattr(recorded_events, "_MAX_BYTES", 60_000)
    decoded: list[int] = []
    real = wire._loads

    def count(body: str) -> dict[str, Any] | None:
        decoded.append(len(body))
        return real(body)

    monkeypatch.setattr(wire, "_loads", count)
    with pytest.raises(RequestError, match=r"more than .* in total"):
        read_events([path])
    assert max(decoded) < 4_000
