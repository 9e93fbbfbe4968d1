"""The cluster lists the pods of a run, but not its Events: too many for one answer, or for the time of a proxy."""

from __future__ import annotations

from pathlib import Path

from event_streams import Stream
from fake_checks import fake_load
from kubernetes.attempted import Cluster, listed_in_turn, running
from kubernetes.kubectl_script_double import EVENTS
from kubernetes.test_interrupted_pods import answers_of, ended
from kubernetes.test_run_log import trial

from seatrial.judge.conclude import Conclusion, conclude

_FAILS = (EVENTS, "echo 'Unable to connect to the server: net/http: request canceled' >&2; exit 1")


def _found(folder: Path, lists: list[list[dict[str, object]]]) -> Conclusion:
    """Return the conclusion of a trial in which the conductor misses the agent of the second pod."""
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"node": 1, "how": "lost", "detail": "the control connection was closed"})
    stream.kill(0)
    stream.close(ranks=False, nodes=(0,))
    answers = _FAILS, listed_in_turn(lists, folder), *answers_of(stream, folder, None)
    cluster = Cluster(folder, lists[-1], *answers, ended_s=0.2, reason_s=0.2, no_answer_s=2.0)
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    return conclude(cluster.events, load=fake_load)


_ON_DEAD_NODE = {**running(1), "spec": {**running(1)["spec"], "nodeName": "gpu-1"}}


def test_a_lost_node_is_named_without_events(tmp_path: Path) -> None:
    found = _found(tmp_path, [[ended(0, 1), _ON_DEAD_NODE]])
    assert (found.verdict.status, found.verdict.exit_code) == ("FAIL", 1)
    assert [one.culprit.nodes for one in found.findings if one.severity == "fail"] == [("gpu-1",)]


def test_only_events_tell_how_a_pod_ended_that_is_gone(tmp_path: Path) -> None:
    """It may have been evicted, which its status had no time to say."""
    unexplained = ended(1, 137)
    unexplained["status"]["phase"] = "Running"
    found = _found(tmp_path, [[running(0), unexplained]] * 3 + [[ended(0, 1)]])
    assert not [one for one in found.findings if one.severity == "fail"]
    assert found.trial.interrupted is not None
    assert "and no list of Events has come since; kubectl says" in found.trial.interrupted
