"""Steps that agents carry out, in the record and in the verdict: their facts, and a node that could not."""

from __future__ import annotations

from typing import Any

import pytest
from event_streams import Stream
from fake_checks import a_plan, fake_load

from seatrial.evidence.measurement import Fact
from seatrial.judge.blame import blame
from seatrial.judge.conclude import conclude
from seatrial.judge.fold import fold
from seatrial.judge.trial import NodeFailure


def asked_twice() -> Stream:
    """Two steps of agents on two nodes; each node reports a fact in the second one."""
    stream = Stream(2, nodes=2, plan=a_plan(("compute", "training")))
    for stage in ("listen", "connect"):
        step = stream.begin("compute", stage)
        stream.events[-1] |= {"ranks": [], "nodes": [0, 1]}
        for node in (0, 1):
            if stage == "connect":
                told(stream, node, node_rank=node)
            stream.send(f"node{node}", "node_done", gen=0, step=step, seconds=0.5, share=[], error="")
        stream.step_end()
    return stream


def told(stream: Stream, node: int, **changed: Any) -> None:
    """Let a node report a fact."""
    fact = Fact(check="compute", name="place", value=[node], node_rank=node, stage="connect").to_json()
    stream.send(f"node{node}", "facts", gen=0, step=1, facts=[{**fact, **changed}])


def test_facts_of_nodes_are_kept() -> None:
    trial = fold(asked_twice().events)
    assert [(fact.node_rank, fact.rank, fact.value, fact.stage) for fact in trial.facts] == [
        (0, None, [0], "connect"),
        (1, None, [1], "connect"),
    ]
    assert [(step.number, step.nodes, step.nodes_done) for step in trial.steps] == [
        (0, (0, 1), (0, 1)),
        (1, (0, 1), (0, 1)),
    ]
    assert not any("damaged" in what for what in trial.missing)


@pytest.mark.parametrize("changed", [{"node_rank": 0}, {"rank": 1}, {"generation": 1}, {"check": ""}])
def test_a_node_reports_for_itself_only(changed: dict[str, Any]) -> None:
    stream = asked_twice()
    told(stream, 1, **changed)
    trial = fold(stream.events)
    assert len(trial.facts) == 2
    assert any("damaged" in what for what in trial.missing)


@pytest.mark.parametrize(
    ("error", "lack", "limit"),
    [
        ("RuntimeError: can't start new thread", "thread or process", "ulimit -u"),
        ("OSError: [Errno 24] Too many open files: '/proc/self/status'", "open file", "ulimit -n"),
    ],
)
def test_what_a_node_lacks_is_no_bug_and_names_nobody(error: str, lack: str, limit: str) -> None:
    stream = asked_twice()
    done = ("node1", "node_done", 1)
    stream.events = [event for event in stream.events if (event["src"], event["kind"], event.get("step")) != done]
    stream.send("node1", "node_done", gen=0, step=1, seconds=0.5, share=[], error=error)
    stream.check("training")
    conclusion = conclude(stream.close().events, load=fake_load)
    (finding,) = [finding for finding in conclusion.findings if error in finding.what]
    assert (finding.severity, finding.check, finding.culprit.kind) == ("error", "compute", "none")
    assert finding.what.startswith(f"the host gave no further {lack}; none is left there, or a limit")
    assert finding.what.endswith(f': "{error}"; seen on node gpu-1, in compute')
    assert finding.culprit.name != "seatrial itself, no part of the cluster"
    assert limit in finding.action
    assert conclusion.verdict.status == "INCONCLUSIVE"


def test_a_node_that_fails_in_our_code_is_no_fault_of_the_cluster() -> None:
    stream = asked_twice()
    done = ("node1", "node_done", 1)
    stream.events = [event for event in stream.events if (event["src"], event["kind"], event.get("step")) != done]
    error = "ValueError: no port\n" + "x" * 400
    stream.send("node1", "node_done", gen=0, step=1, seconds=0.5, share=[], error=error)
    stream.check("training")
    conclusion = conclude(stream.close().events, load=fake_load)
    assert conclusion.trial.node_failures == (NodeFailure(generation=0, step=1, node=1, error=error[:300]),)
    (finding,) = [finding for finding in conclusion.findings if "bug in seatrial" in finding.what]
    assert (finding.severity, finding.check, finding.culprit.kind) == ("error", "compute", "none")
    bug = 'bug in seatrial, not a fault of the cluster: "ValueError: no port"'
    assert finding.what == f"{bug}; seen on node gpu-1, in compute"
    assert finding.culprit.name == "seatrial itself, no part of the cluster"
    assert conclusion.verdict.status == "INCONCLUSIVE"


def test_a_node_ends_only_steps_that_it_was_asked_for() -> None:
    """Each end with an error is a finding, and a node may send millions."""
    stream = asked_twice()
    ranks_only = stream.begin("training")
    stream.step_end()
    for step in (ranks_only, 7, 8):
        stream.send("node1", "node_done", gen=0, step=step, seconds=0.5, share=[], error="ValueError: no port")
    trial = fold(stream.close().events)
    assert trial.node_failures == ()
    (missing,) = trial.missing
    assert "of a step that its source was not asked for, from node 1 (1)" in missing
    assert "of a step that was not begun, from node 1 (2)" in missing


def test_a_step_that_a_node_did_not_finish_is_inconclusive() -> None:
    stream = asked_twice()
    stream.begin("compute", "round")
    stream.events[-1] |= {"ranks": [], "nodes": [0, 1]}
    stream.step_end()
    stream.check("training")
    verdict = conclude(stream.close().events, load=fake_load).verdict
    assert verdict.checks["compute"] == "inconclusive"
    assert "not all nodes finished compute" in verdict.reasons


def test_a_note_of_an_agent_is_told_as_its_words() -> None:
    stream = Stream(2, nodes=2)
    stream.send("node1", "note", severity="error", text='gpu-0 is "broken"\n\x1b[2J; replace it' + 400 * "!" * 3)
    stream.send("rank0.0", "note", severity="warn", text="me too")
    told = [finding.what for finding in blame(fold(stream.events))]
    assert told[0].startswith("gpu-1 says: \"gpu-0 is 'broken'\\x0a\\x1b[2J; replace it!!")
    assert told[0].endswith('!!! ... (cut)"')
    assert told[1] == 'rank 0 on node gpu-0 says: "me too"'


def test_a_node_adds_a_bounded_number_of_findings() -> None:
    stream = Stream(2, nodes=2)
    stream.send(
        "conductor", "step", gen=0, step=0, check="network", stage="measure", timeout_s=60.0, ranks=[], nodes=[1]
    )
    for number in range(100):
        stream.send("node1", "note", severity="warn", text=f"number {number}")
        stream.send("node1", "node_done", gen=0, step=0, seconds=1.0, share=[], error=f"number {number}")
        stream.send("node1", "left", gen=0, rank=1, pid=number, state="D")
    trial = fold(stream.events)
    assert (len(trial.notes), len(trial.node_failures), len(trial.left)) == (16, 1, 1)
    damage = next(what for what in trial.missing if "damaged events" in what)
    assert "node_done: sent twice, from node 1 (99)" in damage
    assert "left: sent twice, from node 1 (99)" in damage


def test_texts_of_ranks_are_cut_where_they_are_read() -> None:
    stream = Stream()
    long = 50_000 * "x"
    stream.error(1, "own", long, long, kind=long)
    stream.exit(1, 1, ours=False, phase=long, last_lines=(long,) * 99)
    trial = fold(stream.events)
    (error,), (ending,) = trial.errors, trial.exits
    assert [len(text) for text in (error.message, error.type, error.phase, ending.phase)] == [2_000, 200, 300, 300]
    for event in stream.events:
        if event["kind"] == "rank":
            event |= {"device": long, "device_id": long}
    assert len(fold(stream.events).label(0)) < 400
    assert (len(ending.last_lines), {len(line) for line in ending.last_lines}) == (40, {2_000})
