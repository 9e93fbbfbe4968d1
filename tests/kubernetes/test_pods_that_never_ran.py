"""A run that came to its end without some of its pods: another pod has the same token, and may report as them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from event_streams import Stream, healthy
from fake_checks import fake_load
from kubernetes.attempted import WORKLOAD, Cluster, running, waiting
from kubernetes.kubectl_script_double import LOGS, log_of
from kubernetes.test_log_reader import lines_of, stamped
from kubernetes.test_run_log import trial

from seatrial.judge.conclude import conclude


def ended(number: int, code: int) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": "seatrial", "state": state}]}
    return {**running(number), "status": status}


@pytest.mark.parametrize(
    ("other", "ended_s", "named"),
    [
        ([running(1)], 0.5, ""),
        # Never listed while the run was on, by an API server that did not answer.
        ([ended(1, 0)], 20.0, ""),
        ([waiting(1, spec__nodeName="gpu-1")], 0.5, "pod trial-1-1-x on node gpu-1 (node 1)"),
        ([], 0.5, "no pod (node 1)"),
    ],
)
def test_a_pass_takes_each_pod(other: list[dict[str, Any]], ended_s: float, named: str, tmp_path: Path) -> None:
    events = [{**event, "run": "run-1"} for event in healthy().events]
    lines = [line for number, event in enumerate(events) for line in lines_of(number, event, WORKLOAD.token)]
    (tmp_path / "first").write_bytes(stamped(lines))
    its_log = (log_of("trial-1-0-x"), f"cat {tmp_path}/first")
    cluster = Cluster(tmp_path, [ended(0, 0), *other], its_log, (LOGS, "exit 0"), ended_s=ended_s)
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    found = conclude(cluster.events, load=fake_load)
    assert found.verdict.status == ("INCONCLUSIVE" if named else "PASS")
    said = [reason for reason in found.verdict.reasons if "another pod may have reported in their place" in reason]
    assert [named in reason for reason in said] == [True] * bool(named)
    assert [event["untrusted"] for event in cluster.events if "untrusted" in event] == [[1]] * bool(named)


@pytest.mark.parametrize("evicted", [False, True])
def test_a_pod_that_never_ran_is_not_blamed(evicted: bool, tmp_path: Path) -> None:
    """Pod 2 reports a broken device in the place of pod 1, which waits, and may have its own pod evicted then."""
    stream = Stream(3, nodes=3)
    stream.begin("compute")
    stream.measure("compute", 0)
    stream.done(0)
    stream.error(1, "device", "CUDA error: uncorrectable ECC error", "compute/matmul")
    stream.trouble({"rank": 1, "how": "error", "detail": "device"})
    if evicted:
        stream.trouble({"node": 2, "how": "lost", "detail": "the control connection was closed"})
    stream.kill(0, *() if evicted else (1, 2))
    stream.close(ranks=False, nodes=(0, 1) if evicted else (0, 1, 2))
    events = [{**event, "run": "run-1"} for event in stream.events]
    lines = [line for number, event in enumerate(events) for line in lines_of(number, event, WORKLOAD.token)]
    (tmp_path / "first").write_bytes(stamped(lines))
    gone = {**ended(2, 137)["status"], "reason": "Evicted", "message": "low on ephemeral-storage"}
    other = {**running(2), "status": gone} if evicted else running(2)
    its_log = (log_of("trial-1-0-x"), f"cat {tmp_path}/first")
    pods = [ended(0, 1), waiting(1, spec__nodeName="gpu-1"), other]
    cluster = Cluster(tmp_path, pods, its_log, (LOGS, "exit 0"), ended_s=0.5)
    attempt = cluster.attempt_at(replace(cluster.job, nodes=3))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    found = conclude(cluster.events, load=fake_load)
    assert found.verdict.status == "INCONCLUSIVE"
    assert {finding.culprit.kind for finding in found.findings} == {"none"}
    assert [event["untrusted"] for event in cluster.events if "untrusted" in event] == [[1]]
    assert not [event for event in cluster.events if "cordon" in str(event)]


_COMPONENT = "app.kubernetes.io/component"


@pytest.mark.parametrize(("said", "passes"), [(("gpu-0", "gpu-1"), True), (("gpu-0", "gpu-0"), False)])
def test_a_pass_takes_the_ranks_of_mpi_on_each_pod(said: tuple[str, str], passes: bool, tmp_path: Path) -> None:
    """A host file that somebody has changed names one pod twice, and the other one holds no rank."""
    events = [{**event, "run": "run-1"} for event in healthy(nodes=2, hostnames=said).events]
    lines = [line for number, event in enumerate(events) for line in lines_of(number, event, WORKLOAD.token)]
    (tmp_path / "first").write_bytes(stamped(lines))
    launcher = ended(7, 0)
    launcher["metadata"]["labels"] = {_COMPONENT: "launcher"}
    pods = [{**running(node), "spec": {**running(node)["spec"], "nodeName": f"gpu-{node}"}} for node in range(2)]
    its_log = (log_of("trial-1-7-x"), f"cat {tmp_path}/first")
    cluster = Cluster(tmp_path, [launcher, *pods], its_log, (LOGS, "exit 0"))
    attempt = cluster.attempt_at(replace(cluster.job, detail=replace(cluster.job.detail, under_mpi=True)))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    found = conclude(cluster.events, load=fake_load)
    assert found.verdict.status == ("PASS" if passes else "INCONCLUSIVE")
    words = 'ranks were not where the pods of this run are (2 on node "gpu-0")'
    assert [words in reason for reason in found.verdict.reasons] == [True] * (not passes)
    assert [event["untrusted"] for event in cluster.events if "untrusted" in event] == [[0, 1]] * (not passes)


@pytest.mark.parametrize(
    ("spread", "node", "passes"), [("required", 1, True), ("required", 0, False), ("none", 0, True)]
)
def test_a_pass_takes_a_node_for_each_pod_where_that_was_asked(
    spread: Literal["required", "none"], node: int, passes: bool, tmp_path: Path
) -> None:
    events = [{**event, "run": "run-1"} for event in healthy().events]
    lines = [line for number, event in enumerate(events) for line in lines_of(number, event, WORKLOAD.token)]
    (tmp_path / "first").write_bytes(stamped(lines))
    pods = [ended(0, 0), running(1)]
    for pod, its_node in zip(pods, (0, node), strict=True):
        pod["spec"] = {**pod["spec"], "nodeName": f"gpu-{its_node}"}
    its_log = (log_of("trial-1-0-x"), f"cat {tmp_path}/first")
    cluster = Cluster(tmp_path, pods, its_log, (LOGS, "exit 0"), ended_s=0.5)
    placed = replace(cluster.job.detail, workload=replace(WORKLOAD, spread=spread))
    attempt = cluster.attempt_at(replace(cluster.job, detail=placed))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    found = conclude(cluster.events, load=fake_load)
    assert found.verdict.status == ("PASS" if passes else "INCONCLUSIVE")
    assert [
        reason for reason in found.verdict.reasons if "(--spread required), but gpu-0 had several" in reason
    ] or passes
