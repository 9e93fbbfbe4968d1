"""Whatever ends a run in pods: who is to blame, who is not, and the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from event_streams import RUN, Stream, healthy, interrupted, node_lost
from fake_checks import fake_load
from kubernetes.test_pods_seen import of_state, pod

from seatrial.conductor.conclude import Conclusion, conclude
from seatrial.kubernetes.pods import PodSeen, pods_of
from seatrial.launch.job import Job, ProgramJob
from seatrial.launch.kubectl import Kubectl
from seatrial.launch.kubernetes import Pods
from seatrial.launch.kubernetes_told import Told

_PLACE: dict[str, Any] = {
    "run": RUN,
    "target": "job",
    "nodes": 2,
    "nproc_per_node": 1,
    "device": "cpu",
    "backend": "gloo",
    "python": "python3",
    "env": {},
}


class Heard:
    """What became of the events of a run, and of what else its first pod printed."""

    def __init__(self, folder: Path, stream: Stream | None, **place: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.detail: Any = None
        run = {"kind": "run", "run": RUN, "src": "conductor", "seq": 0, "t": 1.0, "job": {"world_size": 2, **place}}
        self.told = Told(run, folder, self.events.append, self.messages.append)
        for event in stream.events if stream else ():
            self.told.take(event)

    def concluded(self, job: Any) -> Conclusion:
        self.told.close(job)
        return conclude(self.events, load=fake_load)

    def outcome(self, job: Any) -> dict[str, Any]:
        self.told.close(job)
        (found,) = [event for event in self.events if event["kind"] == "outcome"]
        return found


def trial(**place: Any) -> Job:
    detail = Pods(
        workload=None,  # type: ignore[arg-type]  # not asked here
        kubectl=Kubectl(program="/usr/bin/oc", namespace="ml"),
        under_mpi=False,
        min_hosts=None,
        queue_timeout_s=1.0,
        keep=False,
    )
    return Job(**{**_PLACE, **place}, plan=Stream().plan, detail=detail)


def training() -> ProgramJob:
    told: dict[str, Any] = {"argv": (), "watched": True, "output": "all", "max_restarts": 0, "stop_grace_s": 1.0}
    return ProgramJob(**_PLACE, **told, cwd="/")


def test_events_are_handed_on_and_the_place_is_what_was_asked_for(tmp_path: Path) -> None:
    stream = healthy()
    heard = Heard(tmp_path, stream, target="job")
    found = heard.concluded(trial())
    assert found.verdict.exit_code == 0
    assert heard.events[0]["job"] == {"world_size": 2, "target": "job"}
    assert heard.events[1:] == stream.events[1:]


def test_hosts_that_were_left_out_make_it_partial(tmp_path: Path) -> None:
    job = trial(absent=("gpu-3: it is cordoned",))
    heard = Heard(tmp_path, None)
    heard.told.restart(job)
    for event in healthy().events:
        heard.told.take(event)
    found = heard.concluded(job)
    assert found.verdict.status == "PASS"
    assert any("gpu-3" in words for words in found.verdict.partial)
    assert any("gpu-3: it is cordoned" in finding.what for finding in found.findings)


def test_what_was_told_before_it_began_anew_is_forgotten(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.told.hold_back()
    for event in Stream(2, nodes=2).events[:3]:
        heard.told.take(event)
    assert heard.events == []
    heard.told.restart(trial())
    for event in healthy().events:
        heard.told.take(event)
    assert heard.concluded(trial()).verdict.status == "PASS"

    other = Heard(tmp_path, None)
    other.told.hold_back()
    for event in healthy().events:
        other.told.take(event)
    other.told.settle()
    assert other.concluded(trial()).verdict.status == "PASS"


def test_the_node_of_a_culprit_is_to_be_cordoned(tmp_path: Path) -> None:
    found = Heard(tmp_path, node_lost("lost")).concluded(trial())
    assert found.verdict.exit_code == 1
    assert "to keep work off gpu-1: oc -n ml cordon gpu-1" in [finding.what for finding in found.findings]


def test_a_node_whose_pod_was_evicted_is_not_blamed(tmp_path: Path) -> None:
    heard = Heard(tmp_path, node_lost("lost"))
    heard.told.stopped("the cluster: pod t-1 on node gpu-1 was evicted", heard.told.lost_at(1, any_node=False))
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("INCONCLUSIVE", 130)
    assert found.trial.interrupted == "the cluster: pod t-1 on node gpu-1 was evicted"
    assert all(finding.severity != "fail" for finding in found.findings)


def test_what_was_found_before_somebody_else_was_evicted_stands(tmp_path: Path) -> None:
    heard = Heard(tmp_path, node_lost("lost"))
    assert heard.told.lost_at(0, any_node=False) is None
    assert heard.told.lost_at(7, any_node=True) == heard.told.lost_at(1, any_node=False)
    heard.told.stopped("the cluster: pod t-0 was evicted")
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 130)


def test_pods_that_are_ended_since_one_had_failed_interrupt_nothing(tmp_path: Path) -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"node": 1, "how": "lost"})
    stream.say("conductor", "interrupted", by="SIGTERM")
    stream.kill(0)
    heard = Heard(tmp_path, stream.close(ranks=False, nodes=(0,)))
    heard.told.excuse("pod t-1 ended with exit code 137")
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 1)
    assert any("as pod t-1 ended with exit code 137" in finding.what for finding in found.findings)


def test_an_interruption_without_an_excuse_is_one(tmp_path: Path) -> None:
    found = Heard(tmp_path, interrupted()).concluded(trial())
    assert (found.verdict.exit_code, found.trial.interrupted) == (130, "SIGINT")


def test_a_run_that_never_spoke_is_told_from_here(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.told.stopped("SIGINT")
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("INCONCLUSIVE", 130)
    assert json.loads(json.dumps(heard.events))[0]["kind"] == "interrupted"


def ended_pod(number: int, code: int) -> PodSeen:
    made = of_state({"terminated": {"exitCode": code, "reason": "Error"}}, status__phase="Failed")
    return replace(made, name=f"t-{number}", number=number)


def test_a_training_without_a_conductor_is_judged_by_the_pods(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.told.text(["rank 0 of 2 on a: cpu", "trained 4 of 4 steps: loss 0.1", "digests of all ranks equal: abc"])
    heard.told.ended([ended_pod(0, 0), ended_pod(1, 0)], under_mpi=False)
    found = heard.outcome(training())
    assert (found["how"], found["code"]) == ("ended", 0)
    assert [message["lines"] for message in heard.messages] == [["rank 0 of 2 on a: cpu"]]
    (result,) = [event for event in heard.events if event["kind"] == "result"]
    assert result["lines"] == ["trained 4 of 4 steps: loss 0.1", "digests of all ranks equal: abc"]


def test_one_pod_that_failed_fails_a_training(tmp_path: Path) -> None:
    (tmp_path / "t-1.log").write_text("first\nlast\n")
    heard = Heard(tmp_path, None)
    heard.told.ended([ended_pod(0, 0), ended_pod(1, 1)], under_mpi=False)
    found = heard.outcome(training())
    assert (found["how"], found["last_lines"]) == ("failed", ["first", "last"])
    assert "pod t-1 on node gpu-1 ended with exit code 1" in found["text"]


def test_a_pod_that_only_misses_the_others_is_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "t-0.log").write_text("RuntimeError: [gloo] Connection closed by peer\n")
    (tmp_path / "t-1.log").write_text("no space left\n")
    heard = Heard(tmp_path, None)
    heard.told.ended([ended_pod(0, 1), ended_pod(1, 1)], under_mpi=False)
    assert "pod t-1 on" in heard.outcome(training())["text"]
    killed = Heard(tmp_path, None)
    killed.told.ended([ended_pod(1, 1), ended_pod(2, 137)], under_mpi=False)
    assert "pod t-2 on" in killed.outcome(training())["text"]
    told_to_end = Heard(tmp_path, None)
    told_to_end.told.ended([replace(ended_pod(2, 137), deleted=True), ended_pod(1, 1)], under_mpi=False)
    assert "pod t-1 on" in told_to_end.outcome(training())["text"]


def test_a_pod_that_has_not_ended_is_no_success(tmp_path: Path) -> None:
    (running,) = pods_of({"items": [pod(status__phase="Running")]})
    heard = Heard(tmp_path, None)
    heard.told.ended([ended_pod(0, 0), running], under_mpi=False)
    assert heard.outcome(training())["how"] == "failed"


def test_a_wrong_request_is_told_as_the_rank_told_it(tmp_path: Path) -> None:
    (tmp_path / "t-1.log").write_text("Error: digits has no column 65\n")
    heard = Heard(tmp_path, None)
    heard.told.ended([ended_pod(0, 1), ended_pod(1, 2)], under_mpi=False)
    found = heard.outcome(training())
    assert (found["how"], found["text"]) == ("refused", "digits has no column 65")


def test_a_training_that_was_stopped_says_so(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.told.stopped("SIGINT")
    assert heard.outcome(training())["how"] == "interrupted"
