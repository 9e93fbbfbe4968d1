"""Event files of others: as many bytes as we said, whatever the files claim to have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_streams import RUN, Stream, healthy, lines_of, node_lost, second_generation
from fake_checks import fake_load
from foreign_lines import nested

from seatrial import files
from seatrial.errors import RequestError
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.protocol.wire import Decoder, encode
from seatrial.report import recorded_events
from seatrial.report.recorded_events import read_events


def test_a_file_that_claims_to_be_empty_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Path("/proc/self/maps")
    assert endless.stat().st_size == 0
    with pytest.raises(RequestError, match=r"maps is a file of the kernel \(proc\)"):
        read_events([endless])
    # That of a file server may claim it, too.
    monkeypatch.setattr(files, "file_system_of", lambda status: "")
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
    monkeypatch.setattr(recorded_events, "event_files", lambda folder, named_folder: [listed])
    with pytest.raises(RequestError, match=r"a\.events: cannot be read \(a\.events is a symbolic link"):
        read_events([tmp_path / "sent"])
    assert len(read_events([listed])[0]) == len(healthy().events)


def test_a_split_message_counts_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.events"
    path.write_bytes(b"".join(encode({"kind": "run", "x": [[]] * 5_000})))
    monkeypatch.setattr(recorded_events, "_MAX_BYTES", 60_000)
    decoded: list[int] = []
    real = Decoder._loads

    def count(decoder: Decoder, body: str) -> dict[str, Any] | None:
        decoded.append(len(body))
        return real(decoder, body)

    monkeypatch.setattr(Decoder, "_loads", count)
    with pytest.raises(RequestError, match=r"more than .* in total"):
        read_events([path])
    assert max(decoded) < 4_000


def judged(folder: Path) -> Conclusion:
    messages, damaged = read_events([folder])
    return conclude(messages, damaged=damaged, load=fake_load)


def write(path: Path, events: list[dict[str, Any]]) -> None:
    path.write_bytes(b"".join(lines_of(events)))


@pytest.mark.parametrize("src", ["controller", "conductor", "hosts", "recorder1", "node0", "rank0.0"])
def test_the_file_of_a_node_takes_back_nothing(src: str, tmp_path: Path) -> None:
    events = node_lost("lost").events
    write(tmp_path / "controller.events", events)
    blamed = judged(tmp_path).findings[0].culprit
    assert blamed.nodes
    head = {"run": RUN, "src": src, "seq": 90, "t": 9.0}
    note = {**head, "kind": "note", "severity": "error", "text": "node 1 is another one", "untrusted": [1]}
    write(tmp_path / "node1.events", [*(event for event in events if event["src"] == "node1"), note])
    later = judged(tmp_path)
    assert (later.verdict.status, later.findings[0].culprit) == ("FAIL", blamed)
    assert any("1 lines were cut or changed" in gap for gap in later.trial.missing)


def test_the_file_of_a_node_has_only_what_its_connection_could_bring(tmp_path: Path) -> None:
    events = healthy(2, nodes=2).events
    write(tmp_path / "controller.events", events)
    head = {"run": RUN, "src": "node1", "seq": 90, "t": 9.0}
    write(tmp_path / "node1.events", [{**head, "kind": "facts", "gen": 0, "step": 0, "facts": nested(40)}])
    messages, damaged = read_events([tmp_path])
    assert (len(messages), damaged) == (len(events), 1)


def test_the_file_of_a_node_replaces_no_events_of_others(tmp_path: Path) -> None:
    events = healthy(2, nodes=2).events
    lost = [event for event in events if event["src"] == "rank1.0"]
    write(tmp_path / "controller.events", [event for event in events if event not in lost])
    write(tmp_path / "node0.events", lost)
    assert judged(tmp_path).verdict.status == "INCONCLUSIVE"
    (tmp_path / "node0.events").rename(tmp_path / "node1.events")
    assert judged(tmp_path).verdict.status == "PASS"


def test_the_files_of_all_nodes_complete_the_record(tmp_path: Path) -> None:
    """Of all generations, as the agents keep them, and as copies with other names."""
    stream = second_generation()
    (nodes, *_) = (
        {row[0]: row[1] for row in event["ranks"]} for event in stream.events if event["kind"] == "generation"
    )

    def file_of(src: str) -> str:
        node = nodes[int(src[4:].partition(".")[0])] if src.startswith("rank") else src.removeprefix("node")
        return "controller" if src == "conductor" else f"node{node}"

    for name in {file_of(event["src"]) for event in stream.events}:
        write(tmp_path / f"{name}.events", [event for event in stream.events if file_of(event["src"]) == name])
    messages, damaged = read_events([tmp_path])
    assert (sorted(messages, key=str), damaged) == (sorted(stream.events, key=str), 0)
    for path in sorted(tmp_path.iterdir()):
        path.rename(tmp_path / f"copy of {path.name}")
    assert sorted(read_events([tmp_path])[0], key=str) == sorted(messages, key=str)


def test_files_of_nodes_without_the_controllers_are_read(tmp_path: Path) -> None:
    events = healthy(2, nodes=2).events
    of_node = [event for event in events if event["src"] in ("node1", "rank1.0")]
    write(tmp_path / "node1.events", of_node)
    assert read_events([tmp_path]) == (of_node, 0)


@pytest.mark.parametrize(("generation", "rank"), [(0, 1), (1, 3), (0, 9), (0, [2]), (None, 2)])
def test_the_file_of_a_node_is_about_its_own_ranks(generation: Any, rank: Any, tmp_path: Path) -> None:
    """Of four ranks on two nodes rank 3 is not in the second attempt."""
    events = second_generation().events
    write(tmp_path / "controller.events", events)
    head = {"run": RUN, "src": "node1", "seq": 90, "t": 9.0, "kind": "exit", "gen": 1, "rank": 2}
    ending = {"code": -9, "ours": False, "phase": "training", "last_lines": []}
    write(tmp_path / "node1.events", [{**head, **ending}])
    assert len(read_events([tmp_path])[0]) == len(events) + 1
    write(tmp_path / "node1.events", [{**head, **ending, "gen": generation, "rank": rank}])
    assert read_events([tmp_path]) == (events, 1)


def device_error() -> list[dict[str, Any]]:
    """A trial in which rank 1, on node 1, reports that its device failed."""
    stream = Stream(3, nodes=3).until("collectives")
    stream.error(1, "device", "CUDA error: uncorrectable ECC error", "collectives/x")
    stream.trouble({"rank": 1, "how": "error", "detail": "device"}, waiting=(0, 2))
    stream.kill(0, 1, 2)
    return stream.close(ranks=False).events


@pytest.mark.parametrize(
    ("sources", "changed"),
    [
        (("rank1.0",), {"t": 9.0}),
        (("node1", "rank1.0"), {"t": 9.0}),
        (("rank1.0",), {"cause": "fabric"}),
        (("node1",), {"run": "another", "kind": "run", "job": {}, "plan": {}}),
        (("node1", "rank1.0"), {"run": "another"}),
        (("rank1.0",), {"seq": "0"}),
    ],
)
def test_the_file_of_a_node_takes_back_nothing_of_its_own(
    sources: tuple[str, ...], changed: dict[str, Any], tmp_path: Path
) -> None:
    """The controller heard it over the connection of that node; two events of one number would both be dropped."""
    events = device_error()
    write(tmp_path / "controller.events", events)
    blamed = judged(tmp_path).findings[0].culprit
    assert blamed.ranks == (1,)
    own = [event for event in events if event["src"] in sources]
    write(tmp_path / "node1.events", [{**event, **changed} for event in own])
    later = judged(tmp_path)
    assert (later.verdict.status, later.findings[0].culprit) == ("FAIL", blamed)
    assert any(f"{len(own)} lines were cut or changed" in gap for gap in later.trial.missing)


def test_the_file_of_a_node_may_repeat_what_the_controller_has(tmp_path: Path) -> None:
    events = device_error()
    write(tmp_path / "controller.events", events)
    write(tmp_path / "node1.events", events)
    write(tmp_path / "copy.events", events)
    assert read_events([tmp_path]) == (events, 0)


def test_a_node_that_the_run_did_not_have_says_nothing(tmp_path: Path) -> None:
    events = healthy(2, nodes=2).events
    write(tmp_path / "controller.events", events)
    note = {"run": RUN, "src": "node7", "seq": 0, "t": 9.0, "kind": "note", "severity": "error", "text": "smoke"}
    write(tmp_path / "node7.events", [note])
    assert read_events([tmp_path]) == (events, 1)


@pytest.mark.parametrize("name", ["node01.events", "node1-2.events", "a.events", "controller.jsonl", "NODE1.events"])
def test_beside_the_controllers_record_no_other_name_counts_as_one(name: str, tmp_path: Path) -> None:
    """An agent chooses the names of what is fetched from its folder."""
    events = node_lost("lost").events
    folder, fetched = tmp_path / "run", tmp_path / "fetched"
    for made in (folder, fetched):
        made.mkdir()
    write(folder / "controller.events", events)
    blamed = judged(folder).findings[0].culprit
    seq = max(event["seq"] for event in events if event["src"] == "rank0.0") + 1
    said = {"cause": "device", "type": "E", "message": "CUDA error", "stack": "", "phase": "collectives/all_reduce"}
    head = {"run": RUN, "src": "rank0.0", "seq": seq, "t": events[-1]["t"], "gen": 0, "rank": 0, "step": 2}
    write(fetched / name, [{**head, "kind": "error", **said}])
    assert read_events([folder, fetched]) == (events, 1)
    (fetched / name).rename(folder / name)
    assert read_events([folder]) == (events, 1)
    assert judged(folder).findings[0].culprit == blamed
    messages, damaged = read_events([folder / "controller.events", folder / name])
    assert (len(messages), damaged) == (len(events) + 1, 0), "a person who names a file says that it counts"


def test_files_without_events_may_lie_in_the_folder_of_a_run(tmp_path: Path) -> None:
    events = healthy().events
    write(tmp_path / "controller.events", events)
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.5}\n')
    assert read_events([tmp_path]) == (events, 0)
