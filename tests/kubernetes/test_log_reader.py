"""The log of the first pod: complete whatever breaks, each event once, and only events of its conductor."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from by_day import by_day
from kubernetes.kubectl_script_double import LOGS, scripted
from kubernetes.test_pods import pod

from seatrial.conductor import event_allowance
from seatrial.errors import SeatrialError
from seatrial.protocol.events import NoteEvent, Source
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import Decoder, encode
from seatrial.run.record import Recorder
from seatrial.targets.kubernetes import log_reader
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.log_copies import LogCopies
from seatrial.targets.kubernetes.log_reader import PodLog, PodLogs
from seatrial.targets.kubernetes.pods import PodStatus, pods_of

_TOKEN = "of-this-run"


def lines_of(number: int, message: dict[str, Any], token: str = _TOKEN) -> list[bytes]:
    proved = proof(token, "log", json.dumps(message), "", number)
    return encode({"number": number, "proof": proved, "message": message})


def stamped(lines: list[bytes]) -> bytes:
    """As ``--timestamps`` gives them, an instant each."""
    return b"".join(f"2026-01-01T00:00:00.{number + 1:09}Z ".encode() + line for number, line in enumerate(lines))


class Listener:
    """One that reads until the log is complete."""

    def __init__(self, tmp_path: Path, *cases: tuple[str, str]) -> None:
        (self.pod,) = pods_of({"items": [pod()]}, KINDS["job"])
        self.copies = LogCopies(tmp_path)
        self.texts: list[str] = []
        self.messages: list[dict[str, Any]] = []
        kubectl = Kubectl(program=scripted(tmp_path, *cases), namespace=None)
        self.log = PodLog(kubectl, self.pod, _TOKEN, self.copies, self.texts.extend)

    def all(self, *, ended: bool = True) -> list[dict[str, Any]]:
        until = time.monotonic() + 20
        try:
            while not self.log.complete:
                assert time.monotonic() < until
                self.messages += self.log.read(container_ended=ended)
                time.sleep(0.02)
        finally:
            self.close()
        return self.messages

    def close(self) -> None:
        self.log.close()
        finish(self.copies)


def finish(copies: LogCopies) -> None:
    assert [*copies.finish(lambda: False)] == []


def file_of(tmp_path: Path, name: str, content: bytes) -> str:
    (tmp_path / name).write_bytes(content)
    return str(tmp_path / name)


EVENTS: list[dict[str, Any]] = [{"kind": "note", "seq": number, "text": f"event {number}"} for number in range(4)]


def test_messages_come_in_order_and_the_rest_is_text(tmp_path: Path) -> None:
    long = {"kind": "note", "seq": 4, "text": "x" * 20_000}
    lines = [b"loading\n", *(line for event in EVENTS for line in lines_of(event["seq"], event)), b"done\n"]
    log = file_of(tmp_path, "log", stamped([*lines, *lines_of(4, long)]))
    listener = Listener(tmp_path, (LOGS, f"cat {log}"))
    assert listener.all() == [*EVENTS, long]
    assert listener.texts == ["loading", "done"]
    assert (tmp_path / f"{listener.pod.name}.log").read_text() == "loading\ndone\n"
    assert listener.log.lost == 0


def test_a_broken_stream_resumes_without_loss(tmp_path: Path) -> None:
    lines = [line for event in EVENTS for line in lines_of(event["seq"], event)]
    lines.insert(1, b"a text\n")
    whole = stamped(lines)
    first = file_of(tmp_path, "first", whole[: whole.index(b"\n", whole.index(b"event 1")) - 30])
    rest = file_of(tmp_path, "rest", whole)
    again = ("*sinceTime=2026-01-01T00%3A00%3A00Z*", f"cat {rest}")
    listener = Listener(tmp_path, again, ("*", f"cat {first}; exit 1"))
    assert listener.all() == EVENTS
    assert listener.texts == ["a text"]
    assert listener.log.lost == 0


def at_times(*lines: tuple[float, str]) -> bytes:
    return b"".join(f"2026-01-01T00:00:{second:012.9f}Z {line}\n".encode() for second, line in lines)


_STEPS_BACK = (*((10.5, "a"), (11.5, "b")), *((8.5, "c"), (8.5, "c"), (8.5, "d"), (9.5, "e")))


def test_a_clock_that_steps_back_hides_no_line(tmp_path: Path) -> None:
    listener = Listener(tmp_path, (LOGS, f"cat {file_of(tmp_path, 'log', at_times(*_STEPS_BACK))}"))
    assert listener.all() == []
    assert listener.texts == ["a", "b", "c", "c", "d", "e"]


@pytest.mark.parametrize("known", by_day([3, 4, 5], 1))
def test_a_stream_that_breaks_where_a_clock_steps_back_resumes(known: int, tmp_path: Path) -> None:
    """The server sends each line from the second of the last known one on."""
    since = int(_STEPS_BACK[known - 1][0])
    begin = file_of(tmp_path, "begin", at_times(*_STEPS_BACK[:known]))
    rest = [line for line in _STEPS_BACK if line[0] >= since]
    again = file_of(tmp_path, "again", at_times(*rest))
    first = ("*", f"cat {begin}; exit 1")
    listener = Listener(tmp_path, ("*sinceTime=*", f"cat {again}"), first)
    assert listener.all() == []
    assert listener.texts == ["a", "b", "c", "c", "d", "e"]
    _, second, *_ = (tmp_path / "calls").read_text().splitlines()
    assert f"sinceTime=2026-01-01T00%3A00%3A{since:02}Z" in second


@pytest.mark.parametrize("at", ["01-01T00:00:00+99:99", "01-01T00:00:00+24:00", "02-30T00:00:00Z", "01-01T00:00:60Z"])
def test_a_time_that_kubectl_refuses_is_text(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a break kubectl was called with it, and refused it for ever."""
    once, bad = tmp_path / "once", f"2026-{at} a"
    log = file_of(tmp_path, "log", b"2026-01-01T00:00:00.5+05:30 b\n")
    first = f"if ! [ -e {once} ]; then touch {once}; echo {bad}; exit 1; fi"
    monkeypatch.setattr(log_reader, "_RETRY_S", 0.1)
    listener = Listener(tmp_path, (f"*sinceTime={quote(f'2026-{at}')}*", "exit 1"), ("*", f"{first}; cat {log}"))
    listener.all()
    assert listener.texts == [bad, "b"]


def test_a_new_event_ends_the_lines_that_are_known(tmp_path: Path) -> None:
    """The last known line has been rotated away, and the clock has stepped back since."""
    begin = file_of(tmp_path, "begin", at_times((30.5, "a"), (31.5, "b")))
    (event,) = lines_of(0, EVENTS[0])
    rest = file_of(tmp_path, "rest", at_times((9.1, event.decode().strip()), (9.2, "c")))
    once = tmp_path / "once"
    listener = Listener(
        tmp_path, (LOGS, f"if [ -e {once} ]; then cat {rest}; else touch {once}; cat {begin}; exit 1; fi")
    )
    assert listener.all() == EVENTS[:1]
    assert listener.texts == ["a", "b", "c"]


def test_a_kubectl_that_closes_its_output_and_stays_is_killed(tmp_path: Path) -> None:
    log = file_of(tmp_path, "log", stamped([line for event in EVENTS for line in lines_of(event["seq"], event)]))
    once = tmp_path / "once"
    stays = f"cat {log}; if ! [ -e {once} ]; then touch {once}; exec >&-; sleep 600; fi"
    assert Listener(tmp_path, (LOGS, stays)).all() == EVENTS


def test_a_stream_that_dies_without_a_word_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its container has ended, and the log can still be fetched."""
    monkeypatch.setattr(log_reader, "_SILENT_S", 0.5)
    whole = stamped([b"a text\n", *(line for event in EVENTS for line in lines_of(event["seq"], event))])
    part = file_of(tmp_path, "part", whole[: whole.index(b"\n", whole.index(b"event 1")) - 30])
    stalls = ("*follow=true*", f"cat {part}; exec sleep 600")
    listener = Listener(tmp_path, stalls, ("*", f"cat {file_of(tmp_path, 'whole', whole)}"))
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        listener.messages += listener.log.read(container_ended=False)
        time.sleep(0.02)
    # A container that runs may be silent for as long as it likes.
    assert listener.log.is_open
    assert listener.messages == EVENTS[:1]
    assert listener.all() == EVENTS
    assert listener.texts == ["a text"]
    assert listener.log.lost == 0


def test_a_last_line_that_its_writer_has_not_ended_is_copied(tmp_path: Path) -> None:
    log = file_of(tmp_path, "log", stamped([b"first\n", b"killed in the midd"]))
    listener = Listener(tmp_path, ("*", f"cat {log}"))
    assert listener.all() == []
    assert listener.texts == ["first", "killed in the midd"]
    assert (tmp_path / f"{listener.pod.name}.log").read_text() == "first\nkilled in the midd\n"


def test_missing_events_are_read_again_then_counted_as_lost(tmp_path: Path) -> None:
    """A server that forgets lines at a break has them still, or a log was rotated away: then they are lost."""
    lines = {event["seq"]: lines_of(event["seq"], event) for event in EVENTS}
    hole = file_of(tmp_path, "hole", stamped([*lines[0], *lines[2], *lines[3]]))
    whole = file_of(tmp_path, "whole", stamped([line for each in lines.values() for line in each]))
    once = tmp_path / "once"
    listener = Listener(tmp_path, ("*", f"if [ -e {once} ]; then cat {whole}; else touch {once}; cat {hole}; fi"))
    assert listener.all() == EVENTS
    assert listener.log.lost == 0

    other = tmp_path / "other"
    other.mkdir()
    listener = Listener(other, ("*", f"cat {hole}"))
    assert listener.all() == [EVENTS[0], *EVENTS[2:]]
    assert listener.log.lost == 1


def test_a_log_with_many_holes_is_read_again_once(tmp_path: Path) -> None:
    """Else each hole costs the whole log once more, and the run waits for it."""
    lines = [line for number in range(0, 400, 2) for line in lines_of(number, {**EVENTS[0], "seq": number})]
    listener = Listener(tmp_path, ("*", f"cat {file_of(tmp_path, 'log', stamped(lines))}"))
    assert [event["seq"] for event in listener.all()] == [*range(0, 400, 2)]
    assert listener.log.lost == 199
    # The stream with the first hole, the one that looks for it, and the one that shows that nothing follows.
    assert len((tmp_path / "calls").read_text().splitlines()) == 3


def test_a_hole_that_comes_after_a_search_is_searched_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream that had found the entry went on, and what it lacked later counted as lost at once."""
    monkeypatch.setattr(log_reader, "_QUIET_S", 0.1)
    lines = {event["seq"]: lines_of(event["seq"], event) for event in EVENTS}

    def shown(name: str, *numbers: int) -> str:
        return file_of(tmp_path, name, stamped([line for number in numbers for line in lines[number]]))

    turn, whole = tmp_path / "turn", shown("whole", *range(4))
    # The second one follows the log, in which something comes later.
    streams = (f"cat {shown('hole', 1)}", f"cat {shown('found', 0, 1)}; sleep 0.5; cat {shown('late', 3)}")
    cases = " ".join(f"{number}) {code};;" for number, code in enumerate(streams))
    code = f"n=$(cat {turn} 2>/dev/null || echo 0); echo $((n + 1)) > {turn}; case $n in {cases} *) cat {whole};; esac"
    listener = Listener(tmp_path, ("*", code))
    assert listener.all() == EVENTS
    assert listener.log.lost == 0


def test_unproved_events_are_text(tmp_path: Path) -> None:
    forged = {"kind": "step_end", "seq": 0, "outcome": "done"}
    lines = [
        *lines_of(0, forged, token="another"),
        *encode(forged),
        *encode({"number": 0, "proof": "", "message": forged}),
        *encode({"number": "0", "message": [1]}),
        # What was said once is not taken again under another number.
        *lines_of(0, EVENTS[0]),
        *encode({"number": 1, "proof": proof(_TOKEN, "log", json.dumps(EVENTS[0]), "", 0), "message": EVENTS[0]}),
        b"[rank 0] " + lines_of(1, forged)[0],
    ]
    listener = Listener(tmp_path, ("*", f"cat {file_of(tmp_path, 'log', stamped(lines))}"))
    assert listener.all() == EVENTS[:1]
    assert listener.log.lost == 0


def test_a_log_that_ends_before_its_container_is_not_complete(tmp_path: Path) -> None:
    log = file_of(tmp_path, "log", stamped(lines_of(0, EVENTS[0])))
    listener = Listener(tmp_path, ("*", f"cat {log}"))
    until = time.monotonic() + 10
    while not listener.messages and time.monotonic() < until:
        listener.messages += listener.log.read(container_ended=False)
        time.sleep(0.02)
    for _ in range(20):
        assert not list(listener.log.read(container_ended=False))
        time.sleep(0.02)
    assert not listener.log.complete
    assert listener.all() == EVENTS[:1]


@pytest.mark.parametrize("then", ["exec sleep 600", "printf 'x\\n'; exit 1"])
def test_a_line_that_is_too_long_is_cut_before_its_end(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have none. The next stream brings it again, and what comes after it."""
    monkeypatch.setattr(log_reader, "_MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr(log_reader, "_RETRY_S", 0.1)
    long = f"2026-01-01T00:00:00.000000001Z {'x' * 3_000}"
    begin, whole = file_of(tmp_path, "begin", long.encode()), file_of(tmp_path, "whole", f"{long}\n".encode())
    after = file_of(tmp_path, "after", at_times((1.5, "after")))
    first = ("*follow=true*", f"cat {begin}; {then}")
    listener = Listener(tmp_path, first, ("*", f"cat {whole} {after}"))
    until = time.monotonic() + 20
    while not listener.texts:
        assert time.monotonic() < until
        list(listener.log.read(container_ended=False))
    monkeypatch.setattr(log_reader, "_SILENT_S", 0.1)
    listener.all()
    cut = f"{long[:1_000].partition(' ')[2]} (seatrial: this line is cut here, after 1000 bytes)"
    assert listener.texts == [cut, "after"]
    assert (tmp_path / f"{listener.pod.name}.log").read_text() == f"{cut}\nafter\n"


def test_a_copy_keeps_what_the_kubelet_has_rotated_away(tmp_path: Path) -> None:
    """The stream breaks, and who asks again gets the newest file of the log only."""
    (ended,) = pods_of({"items": [pod(status__phase="Failed")]}, KINDS["job"])
    lines = [f"line {number}\n".encode() for number in range(6)]
    begin, rest = stamped(lines)[: len(stamped(lines[:4]))], stamped(lines)[len(stamped(lines[:2])) :]
    once = tmp_path / "once"
    first, again = file_of(tmp_path, "first", begin), file_of(tmp_path, "again", rest)
    code = f"if [ -e {once} ]; then cat {again}; else touch {once}; cat {first}; exit 1; fi"
    logs = _logs(tmp_path, ("*", code))
    logs.close([ended])
    assert (tmp_path / f"{ended.name}.log").read_bytes() == b"".join(lines)


def test_the_copy_of_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_MAX_COPY_BYTES", 1_000)
    (ended,) = pods_of({"items": [pod(status__phase="Succeeded")]}, KINDS["job"])
    log = file_of(tmp_path, "log", stamped([b"x" * 99 + b"\n"] * 50))
    _logs(tmp_path, ("*", f"cat {log}")).close([ended])
    copy = (tmp_path / f"{ended.name}.log").read_bytes()
    assert copy == (b"x" * 99 + b"\n") * 10 + b"seatrial: the copy of this log ends here, after 1000 bytes\n"


@pytest.mark.parametrize("then", ["sleep 600", "exit 0"])
def test_a_flood_is_read_piece_by_piece(then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that writes faster than we read must not keep us from the other pods, nor from a signal."""
    monkeypatch.setattr(log_reader, "_MAX_READ_BYTES", 4_096)
    written = tmp_path / "written"
    log = file_of(tmp_path, "log", stamped([f"{number:099}\n".encode() for number in range(400)]))
    listener = Listener(tmp_path, (LOGS, f"cat {log}; touch {written}; {then}"))
    until = time.monotonic() + 20
    try:
        while not written.exists():
            assert time.monotonic() < until
            if not listener.log.is_open:
                list(listener.log.read(container_ended=True))
            time.sleep(0.02)
        for _ in range(8):
            before = len(listener.texts)
            list(listener.log.read(container_ended=True))
            # The whole log lies in the pipe by now.
            assert 0 < len(listener.texts) - before <= 4_096 // 99
            assert not listener.log.complete
        if then == "exit 0":
            listener.all()
            assert listener.texts == [f"{number:099}" for number in range(400)]
    finally:
        listener.close()


def test_a_first_pod_sends_no_more_events_than_all_agents_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_allowance, "BURST_BYTES", 10_000)
    events: list[dict[str, Any]] = [{"kind": "note", "seq": number, "text": "x" * 1_000} for number in range(50)]
    outputs: list[dict[str, Any]] = [{"kind": "output", "lines": ["x" * 1_000]} for _ in range(50)]
    for messages, is_kept in ((outputs, False), (events, True)):
        lines = [line for number, message in enumerate(messages) for line in lines_of(number, message)]
        log = file_of(tmp_path, "log", stamped(lines))
        listener = Listener(tmp_path, (LOGS, f"cat {log}"))
        if is_kept:
            with pytest.raises(SeatrialError, match=f"{listener.pod.label} has sent more events than all nodes"):
                listener.all()
            assert len(listener.messages) < 10
        else:
            assert listener.all() == messages


def test_no_line_of_another_pod_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One split message of 8 MB took the controller five seconds, in which no pod and no signal was heard."""
    monkeypatch.setattr(Decoder, "line", lambda decoder, line: pytest.fail("a line was decoded"))
    (ended,) = pods_of({"items": [pod(status__phase="Succeeded")]}, KINDS["job"])
    log = file_of(tmp_path, "log", stamped([b"before\n", *lines_of(0, EVENTS[0]), b"after\n"]))
    _logs(tmp_path, ("*", f"cat {log}")).close([ended])
    assert (tmp_path / f"{ended.name}.log").read_text() == "before\nafter\n"


def test_logs_that_were_read_keep_no_file_open(tmp_path: Path) -> None:
    """A run of 1,000 pods would reach the limit of open files, and kubectl could no longer be started."""
    items = [pod(name=f"run-{number}", status__phase="Succeeded") for number in range(40)]
    pods = list(pods_of({"items": items}, KINDS["job"]))
    before = len(os.listdir("/proc/self/fd"))
    logs = _logs(tmp_path, ("*", "echo 2026-01-01T00:00:00.1Z done"))
    logs.take_pods(pods)
    until = time.monotonic() + 20
    while len(list(tmp_path.glob("*.log"))) < len(pods) or len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < until
        logs.poll()
        time.sleep(0.02)
    logs.close(pods)


@pytest.mark.parametrize("name", ["run-{}", "run"], ids=["new names", "the same name"])
def test_pods_that_leave_the_list_leave_no_stream_open(name: str, tmp_path: Path) -> None:
    """Each start of a training has new pods. The last words of one that is gone can be fetched nowhere else."""
    said = tmp_path / "said"
    logs = _logs(tmp_path, ("*", f"echo 2026-01-01T00:00:00.1Z its last words; touch {said}; exec sleep 600"))
    before, children = len(os.listdir("/proc/self/fd")), _children()
    pods = [_running(name.format(start), f"u{start}") for start in range(3)]
    for running in pods:
        said.unlink(missing_ok=True)
        logs.take_pods([running])
        logs.poll()
        _await(said.exists)
        assert _children() - children
    logs.take_pods([])
    assert _children() == children
    _await(lambda: len(os.listdir("/proc/self/fd")) <= before)
    logs.close([])
    copies = list(tmp_path.glob("*.log"))
    assert [copy.read_text() for copy in copies] == ["its last words\n"] * len(pods)


def test_a_pod_that_is_listed_again_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_RETRY_S", 0.1)
    said = tmp_path / "said"
    logs = _logs(tmp_path, ("*", f"echo 2026-01-01T00:00:00.1Z a; [ -e {said} ] && echo 2026-01-01T00:00:00.2Z b"))
    logs.take_pods([_running("run-0", "u")])
    logs.poll()
    logs.take_pods([])
    said.touch()
    assert logs.read_to_end([_ended()], 20.0) == set()
    assert (tmp_path / "run-0.log").read_text() == "a\nb\n"


def _running(name: str, uid: str) -> PodStatus:
    return replace(_ended(name, uid), state="running", exit_code=None, end="")


def _children() -> set[str]:
    """Processes of this one that nobody has waited for."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


class _Logs(PodLogs):
    """All copies are written when a call is over."""

    def read_to_end(
        self, pods: Sequence[PodStatus], limit_s: float, keep_waiting: Callable[[], bool] = lambda: True
    ) -> set[str]:
        try:
            return super().read_to_end(pods, limit_s, keep_waiting)
        finally:
            finish(self._copies)

    def close(self, pods: Sequence[PodStatus]) -> None:
        super().close(pods)
        finish(self._copies)


def _logs(folder: Path, *cases: tuple[str, str]) -> PodLogs:
    return _Logs(Kubectl(program=scripted(folder, *cases), namespace=None), LogCopies(folder))


def _ended(name: str = "run-0", uid: str = "u") -> PodStatus:
    (made,) = pods_of({"items": [pod(name, status__phase="Failed", metadata__uid=uid)]}, KINDS["job"])
    return made


def test_the_log_of_a_pod_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    gone = 'Error from server (NotFound): pods "run-0" not found'
    began = time.monotonic()
    unread = _logs(tmp_path, ("*", f"echo '{gone}' >&2; exit 1")).read_to_end([_ended()], 20.0)
    assert (unread, time.monotonic() - began < 15) == ({"run-0"}, True)
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_a_server_that_does_not_answer_for_a_while_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_RETRY_S", 0.4)
    refused = "The connection to the server 10.0.0.1:6443 was refused; Error: daemon not found"
    calls, log = tmp_path / "calls", file_of(tmp_path, "log", stamped([b"the cause\n"]))
    code = f"if [ $(wc -l < {calls}) -lt 4 ]; then echo '{refused}' >&2; exit 1; fi; cat {log}"
    assert _logs(tmp_path, ("*", code)).read_to_end([_ended()], 30.0) == set()
    assert (tmp_path / "run-0.log").read_text() == "the cause\n"


def test_a_log_that_is_read_alone_shares_with_none(tmp_path: Path) -> None:
    """A log of 9 MiB, of a pod that was not followed, has to be read twice within the time for all."""
    line = f"2026-01-01T00:00:00.000000000Z {'x' * 170}\n"
    log = file_of(tmp_path, "log", line.encode() * ((9 << 20) // len(line)))
    logs, polls = _logs(tmp_path, ("*", f"cat {log}")), 0
    logs.take_pods([_ended()])
    until = time.monotonic() + 40
    while not logs._is_settled(_ended()):
        assert time.monotonic() < until
        logs.poll()
        polls += 1
        time.sleep(0.1)
    # With a share among 64 it would be 576; a busy machine has polls that find nothing new.
    assert polls < 250
    logs.close([])
    assert (tmp_path / "run-0.log").stat().st_size > 7 << 20


@pytest.mark.parametrize("before", by_day(["", "2026-01-01T00:00:00.5Z first\\n"], 1))
def test_what_a_kubelet_says_in_place_of_a_log_is_no_log(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = f'printf "{before}unable to retrieve container logs for containerd://0a1b"'
    logs = _logs(tmp_path, ("*", says))
    assert logs.read_to_end([_ended()], 2.0) == {"run-0"}
    monkeypatch.setattr(log_reader, "_FETCH_S", 0.0)
    logs.close([])
    assert "unable" not in (tmp_path / "run-0.log").read_text()


def test_logs_that_cannot_be_fetched_keep_no_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_MAX_STREAMS", 2)
    pods = [_ended(f"run-{number}", f"u{number}") for number in range(5)]
    log = file_of(tmp_path, "log", stamped([b"the cause\n"]))
    logs = _logs(tmp_path, ("*run-4*", f"cat {log}"), ("*", "sleep 0.2; exit 1"))
    assert logs.read_to_end(pods, 3.0) == {"run-0", "run-1", "run-2", "run-3"}
    logs.take_pods([])
    monkeypatch.setattr(log_reader, "_FETCH_S", 0.0)
    logs.close([])


def test_another_pod_with_the_name_of_an_earlier_one_has_its_own_log(tmp_path: Path) -> None:
    """Operators make such pods. What the first one said is not of the second."""
    once = tmp_path / "once"
    first, then = (file_of(tmp_path, name, stamped([name.encode() + b"\n"])) for name in ("first", "second"))
    logs = _logs(tmp_path, ("*", f"if [ -e {once} ]; then cat {then}; else cat {first}; fi"))
    assert logs.read_to_end([_ended(uid="a")], 20.0) == set()
    once.touch()
    assert logs.read_to_end([_ended(uid="b")], 20.0) == set()
    assert (tmp_path / "run-0.log").read_text() == "second\n"
    assert (tmp_path / "run-0.1.log").read_text() == "first\n"
    # For its name kubectl would read the log of the other one.
    assert logs.read_to_end([_ended(uid="c"), _ended(uid="b")], 20.0) == {"run-0"}


def test_events_of_a_recorder_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("SEATRIAL_LIVE", "run-1")
    monkeypatch.setenv("SEATRIAL_TOKEN", _TOKEN)
    recorder = Recorder("run-1", tmp_path)
    event = Source("run-1", "conductor").event(NoteEvent(kind="note", severity="info", text="grüße " * 2_000))
    recorder(event)
    recorder.send({"kind": "output", "rank": 0, "lines": ["a"], "left_out": 0})
    recorder.close()
    recorder.note("too late for the file")
    said = capfdbinary.readouterr().out
    listener = Listener(tmp_path, ("*", f"cat {file_of(tmp_path, 'log', stamped(said.splitlines(keepends=True)))}"))
    assert listener.all() == [
        event,
        {"kind": "output", "rank": 0, "lines": ["a"], "left_out": 0},
        *recorder.events[1:],
    ]
