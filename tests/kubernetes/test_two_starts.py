"""A training whose pods start twice: nothing of the first start is evidence for the second one.

PyTorchJobs and MPIJobs give the pods of both starts the same names.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from event_streams import RUN, Stream
from kubernetes.attempted import OBJECTS, WORKLOAD, Cluster, listed_in_turn, running, waiting
from kubernetes.kubectl_script_double import LOGS, log_of
from kubernetes.test_interrupted_pods import answers_of, ended
from kubernetes.test_log_reader import lines_of, stamped
from kubernetes.test_pod_failures import _MET, _lost, _own, _stamped
from kubernetes.test_run_log import Heard, training

from seatrial.conductor import event_allowance
from seatrial.errors import SeatrialError
from seatrial.targets.job import Processes
from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.attempt import Attempt
from seatrial.targets.kubernetes.run_log import RunLog
from seatrial.targets.kubernetes.run_progress import TooFewNodesError

_RESULT = "trained 100 of 100 steps: loss 0.1"
_PRINTED = (("0", [_RESULT, "digests of all ranks equal: abc"]), ("1", [_MET[3], _own(3)]))
"""By the pods of the first start, on other nodes."""


def _log(number: str, *lines: str, stays: bool = False) -> tuple[str, str]:
    return log_of(f"trial-1-{number}-x"), "; ".join([*map(_stamped, lines), *(["sleep 20"] if stays else [])])


def _second(pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], "uid": f"second-{pod['metadata']['name']}"}}


def _poll_to_the_end(attempt: Attempt) -> None:
    while not attempt.poll():
        pass


class _Run:
    """A run that starts again with the two pods that it has of three."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.events = folder / "run", list[dict[str, Any]]()
        self.folder.mkdir()
        run = {"kind": "run", "run": "run-1", "src": "conductor", "seq": 0, "t": 1.0, "job": {}}
        self.run_log = RunLog(run, self.folder, self.events.append, lambda message: None)

    def attempt(self, cluster: Cluster, job: Processes) -> Attempt:
        return Attempt(
            objects=AppliedObjects(cluster.kubectl, "job", OBJECTS),
            job=replace(job, detail=replace(job.detail, kubectl=cluster.kubectl)),
            limits=cluster.limits,
            run_log=self.run_log,
            folder=self.folder,
            signals=[],
            print_line=lambda line: None,
        )


def test_a_start_with_fewer_nodes_is_judged_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.5)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    run = _Run(tmp_path)
    logs = [_log(number, *lines, stays=True) for number, lines in _PRINTED]
    first = Cluster(folders[0], [running(0), running(1), waiting(2)], *logs, (LOGS, "sleep 20"), fewer_s=1.5)
    job = replace(training(), nodes=3, detail=replace(first.job.detail, min_hosts=2))
    attempt = run.attempt(first, job)
    try:
        with pytest.raises(TooFewNodesError):
            attempt.run()
    finally:
        assert attempt.cleanup(keep=False) == []
    both = {path.name: path.read_text() for path in run.folder.glob("trial-1-?-x.log")}
    assert both == {f"trial-1-{number}-x.log": "".join(f"{line}\n" for line in lines) for number, lines in _PRINTED}

    lists = [[_second(running(number)) for number in (0, 1)], [_second(ended(number, 1)) for number in (0, 1)]]
    again = [_log("0", _MET[0], _lost(0)), _log("1", _MET[3], _lost(3))]
    second = Cluster(folders[1], lists[-1], listed_in_turn(lists, folders[1]), *again, reason_s=0.3)
    fewer = replace(job, nodes=2, detail=replace(job.detail, min_hosts=None))
    run.run_log.restart(fewer)
    attempt = run.attempt(second, fewer)
    try:
        attempt.run()
    finally:
        assert attempt.cleanup(keep=False) == []
    run.run_log.close(fewer)
    assert not [event for event in run.events if event["kind"] == "result"]
    (outcome,) = [event for event in run.events if event["kind"] == "outcome"]
    assert outcome["text"] == (
        "the connection between pods trial-1-0-x on node gpu-0 and trial-1-1-x on node gpu-1 was lost; nothing shows"
        " which node is at fault"
    )
    # People still find what the first pods have printed.
    assert {path.name: path.read_text() for path in run.folder.glob("trial-1-?-x.1.log")} == {
        f"{name.removesuffix('.log')}.1.log": text for name, text in both.items()
    }


def test_the_result_is_that_of_the_newest_first_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node can delete a pod, and the operator makes another one of the same name elsewhere."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.3)

    def list_from_now_on(*pods: dict[str, Any]) -> None:
        (tmp_path / "pods").write_text(json.dumps({"items": pods}))

    once = tmp_path / "once"
    says = f"if [ -e {once} ]; then {_stamped('nothing')}; else touch {once}; {_stamped(_RESULT)}; sleep 20; fi"
    cluster = Cluster(tmp_path, [running(0), running(1)], (log_of("trial-1-0-x"), says), (LOGS, ""))
    attempt = cluster.attempt_at(replace(training(), detail=cluster.job.detail))
    attempt.submit()
    while not cluster.run_log.has_result:
        assert not attempt.poll()
    list_from_now_on(_second(running(0)), running(1))
    while cluster.run_log.has_result:
        assert not attempt.poll()
    list_from_now_on(_second(ended(0, 0)), ended(1, 0))
    _poll_to_the_end(attempt)
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert (outcome["how"], "printed no result" in outcome["text"]) == ("failed", True)
    assert (tmp_path / "trial-1-0-x.1.log").read_text() == f"{_RESULT}\n"


def test_pods_that_are_made_again_have_no_further_allowance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of all of them stay in the memory of the controller."""
    monkeypatch.setattr(event_allowance, "BURST_BYTES", 4_000)
    monkeypatch.setattr(event_allowance, "BYTES_PER_S", 0)
    notes: list[dict[str, Any]] = [{"kind": "note", "run": "run-1", "src": "node1", "t": 1.0, "text": "x" * 1_000}] * 6
    numbered = [{**note, "seq": number} for number, note in enumerate(notes)]
    lines = [line for event in numbered for line in lines_of(event["seq"], event, WORKLOAD.token)]
    (tmp_path / "sent-by-pod").write_bytes(stamped(lines))
    says = f"cat {tmp_path}/sent-by-pod; sleep 20"
    cluster = Cluster(tmp_path, [running(0), running(1)], (log_of("trial-1-0-x"), says), (LOGS, "sleep 20"))
    attempt = cluster.attempt()
    attempt.submit()
    try:
        while len(cluster.events) < len(notes):
            assert not attempt.poll()
        (tmp_path / "pods").write_text(json.dumps({"items": [_second(running(0)), running(1)]}))
        with pytest.raises(SeatrialError, match="has sent more events than all nodes of this run together may"):
            _poll_to_the_end(attempt)
    finally:
        assert attempt.cleanup(keep=False) == []
    assert len(cluster.events) < 2 * len(notes)


def _conducted(how: str, code: int, *results: str) -> list[dict[str, Any]]:
    """Return the events of a conductor whose training ended so."""
    stream = Stream(2)
    for text in results:
        stream.send("rank0.0", "result", gen=0, rank=0, lines=[text])
    if how == "failed":
        stream.trouble({"rank": 1, "how": "dead", "detail": "exit code 1"})
    stream.send("conductor", "outcome", gen=0, restarts=0, how=how, text=how, last_lines=[], code=code)
    stream.send("conductor", "end")
    return stream.events


@pytest.mark.parametrize("is_last", [False, True])
def test_the_only_pod_that_starts_again_is_judged_by_its_last_start(is_last: bool, tmp_path: Path) -> None:
    """Its conductor counts its events from 0 again, and has come to its end before."""
    heard = Heard(tmp_path, None)
    run_log = heard.run_log
    run_log.may_start_again = True
    for event in _conducted("failed", 1, "of the first start"):
        run_log.take(event)
    assert (run_log.started, run_log.over, run_log.has_outcome) == (True, True, True)
    if not is_last:
        run_log.restart()
        assert (run_log.started, run_log.over, run_log.has_outcome) == (False, False, False)
        for event in _conducted("ended", 0, "of the second start"):
            run_log.take(event)
    run_log.close(training())
    said = {event["kind"]: event for event in heard.events if event["kind"] in ("outcome", "result", "trouble")}
    assert len(said) == len([event for event in heard.events if event["kind"] in said])
    assert said["outcome"]["how"] == ("failed" if is_last else "ended")
    assert said["result"]["lines"] == ["of the first start" if is_last else "of the second start"]
    assert ("trouble" in said) == is_last


def test_what_was_kept_back_of_a_start_goes_with_it(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.defer()
    for event in _conducted("failed", 1):
        heard.run_log.take(event)
    heard.run_log.restart()
    heard.run_log.release()
    assert heard.events == []


def test_a_run_whose_events_were_handed_on_starts_with_no_fewer_nodes(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    assert not heard.run_log.has_events
    heard.run_log.take({"kind": "note", "run": RUN, "src": "node1", "seq": 0, "t": 1.0, "severity": "info", "text": ""})
    assert heard.run_log.has_events


def test_the_pods_of_a_training_send_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no conductor, so the events are those of a host that lies."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.3)
    stream = Stream(2, nodes=2)
    stream.events = _conducted("ended", 0, "a false result")
    cluster = Cluster(tmp_path, [ended(0, 1), ended(1, 1)], *answers_of(stream, tmp_path, None), reason_s=0.2)
    job = replace(training(), detail=cluster.job.detail)
    attempt = cluster.attempt_at(job)
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(job)
    assert [event["how"] for event in cluster.events if event["kind"] == "outcome"] == ["failed"]
    assert {event["src"] for event in cluster.events} <= {"conductor", "controller"}
    assert not [event for event in cluster.events if event["kind"] == "result"]
