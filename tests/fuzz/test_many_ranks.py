"""A folder of somebody else may have any number of ranks, each with other words: its judgment takes bounded time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from checks.test_facts_lack_fields import _SCENES as ONE_OF_EACH_FACT
from checks.test_storage_judge import fleet as storage_fleet
from event_streams import Stream
from fake_checks import a_plan, fake_load
from fuzz.harness import watched
from report.check_scenes import trial_of

from seatrial.checks.diagnostics.history import histories
from seatrial.judge.conclude import conclude
from seatrial.plan.model import Plan
from seatrial.protocol.events import Source

_NUM = 24_000
_NO_KERNEL = "no kernel image is available for execution on the device"


def _stream(ranks_of_node: int) -> Stream:
    stream = Stream()
    stream.events[0]["job"] |= {"nodes": _NUM // ranks_of_node, "world_size": _NUM}
    begin = next(event for event in stream.events if event["kind"] == "generation")
    begin["ranks"] = [[rank, rank // ranks_of_node, rank % ranks_of_node] for rank in range(_NUM)]
    return stream


def _late_after_a_restart() -> Stream:
    stream = _stream(1)
    stream.send("conductor", "generation", gen=1, ranks=[[rank, rank, 0] for rank in range(_NUM)], places_of_nodes={})
    stream.send(
        "conductor", "step", gen=1, step=1, check="compute", stage="measure", timeout_s=60.0, ranks=[*range(_NUM)]
    )
    seen = [{"how": "late", "rank": rank, "phase": f"compute/{rank}"} for rank in range(_NUM)]
    stream.send("conductor", "trouble", gen=1, step=1, seen=seen, waiting=[])
    return stream


def _lost_beside_waiting() -> Stream:
    stream = _stream(1)
    for node in range(2, _NUM // 2):
        stream.send(f"node{node}", "node", node=node, hostname=f"gpu-{node}", address="10.0.0.9", pid=1, cores=1)
    stream.send("conductor", "step", gen=0, step=0, check="training", stage="measure", timeout_s=60.0, ranks=[0])
    seen = [{"how": "lost", "node": node} for node in range(_NUM // 2)]
    stream.send(
        "conductor", "trouble", gen=0, step=0, seen=seen, waiting=[[rank, "x"] for rank in range(_NUM // 2, _NUM)]
    )
    return stream


def _kept_from_devices(ranks_of_node: int) -> Stream:
    stream = _stream(ranks_of_node)
    stream.send(
        "conductor", "step", gen=0, step=0, check="compute", stage="measure", timeout_s=60.0, ranks=[*range(_NUM)]
    )
    for rank in range(_NUM):
        source = Source(stream.run, f"rank{rank}.0")
        if rank < _NUM // 2:
            words = {"cause": "setup", "type": "E", "message": _NO_KERNEL, "stack": "", "phase": f"compute/p{rank}"}
            stream.events.append(source.event({"kind": "error", "gen": 0, "step": 0, "rank": rank, **words}))  # type: ignore[arg-type]
        else:
            done = {"kind": "done", "gen": 0, "step": 0, "rank": rank, "seconds": 1.0, "share": {}}
            stream.events.append(source.event(done))  # type: ignore[arg-type]
    stream.send("conductor", "trouble", gen=0, step=0, seen=[{"how": "error", "rank": 0}], waiting=[])
    return stream


@pytest.mark.parametrize(
    "make",
    [_late_after_a_restart, _lost_beside_waiting, lambda: _kept_from_devices(1), lambda: _kept_from_devices(_NUM)],
    ids=["late after a restart", "lost beside waiting", "kept from devices", "kept from devices of one node"],
)
def test_many_ranks_are_judged_in_bounded_time(make: Callable[[], Stream]) -> None:
    stream = make()
    with watched(make):
        conclusion = conclude(stream.events, load=fake_load)
    assert conclusion.verdict.status != "PASS"


def test_lines_about_ranks_that_wait_stand_in_few_findings() -> None:
    """Each of 40,000 findings had six of thousands of characters: 2 MB became reports of 3.6 GB."""
    num = 400
    stream = Stream(num).until("training")
    seen = [{"how": "frozen", "rank": rank, "phase": "training/step 1"} for rank in range(6, num)]
    stream.trouble(*seen)
    trouble = next(event for event in stream.events if event["kind"] == "trouble")
    trouble["waiting"] = [[rank, "training/" + "x" * 5_000] for rank in range(6)]
    findings = conclude(stream.events, load=fake_load).findings
    assert len(findings) > 300
    assert sum(len(line) for finding in findings for line in finding.evidence) < 200_000


def test_few_findings_list_all_ranks_of_a_node() -> None:
    """Each rank of one node has read something else back than it wrote, and each finding listed all of them."""
    num = 300
    evidence = storage_fleet([[1.0] * num], own=(0,))
    wrong = tuple(replace(each, value=1) if each.name == "wrong_bytes" else each for each in evidence.measurements)
    settings = {"folder": "/ckpt", "shared": "no"}
    stream = trial_of("storage", replace(evidence, measurements=wrong), num, ("gpu-0",), **settings)
    findings = [each for each in conclude(stream.events).findings if each.check == "storage"]
    assert len(findings) >= num
    assert {each.culprit.name for each in findings} == {"node gpu-0"}
    assert len(findings[0].culprit.ranks) == num
    assert sum(len(each.culprit.ranks) for each in findings) < 70 * num


def test_a_machine_has_no_more_agents_than_devices() -> None:
    """Each agent of one name is compared with all ranks of that name."""
    (fact, *_), num = ONE_OF_EACH_FACT["diagnostics"]().evidence.facts, 200
    facts = tuple(replace(fact, node_rank=node) for node in range(num))
    found, unread = histories(facts, {}, dict.fromkeys(range(num), "gpu-0"))
    assert found
    assert len(unread) == num - 128


def test_the_origin_of_a_setting_is_a_short_text() -> None:
    """It stands beside each measurement that the limit judges."""
    document = a_plan(("memory",)).to_json()
    document["settings"] = {"memory": {"min_copy_gbps": [19.0, "plan " + "x" * 1_000_000]}}
    assert len(Plan.from_json(document).named("user memory.min_copy_gbps")) < 2_000
