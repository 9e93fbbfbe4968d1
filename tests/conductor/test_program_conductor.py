"""The conductor of a program, under simulated agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config
from event_streams import event_of

from seatrial.conductor.origin import OriginError
from seatrial.conductor.program_conductor import ProgramConductor
from seatrial.protocol.events import Source

KILLED = Act(at_s=3.0, what="exit", code=-9)
COMPLAINS = [Act(at_s=2.95, what="error", cause="fabric"), Act(at_s=3.1, what="exit", code=1)]
WAITS = [Act(at_s=500.0, what="result"), Act(at_s=500.1, what="exit")]
AGENTS, WELL = "stopped by signal 15 (SIGTERM) to the agent of node", "all 4 ranks ended by themselves"
LAST = 'without a traceback; its last line: "its last"'


def ends_well_at(at_s: float) -> list[Act]:
    return [Act(at_s=at_s, what="result"), Act(at_s=at_s + 0.1, what="exit")]


def everybody(generation: int, *acts: Act) -> dict[tuple[int, int], list[Act]]:
    return {(generation, rank): list(acts) for rank in range(4)}


def test_ranks_get_their_places_and_a_good_program_ends_well() -> None:
    fleet = SimulatedProgram(config())
    outcome = fleet.run()
    assert (outcome["how"], outcome["code"], outcome["restarts"]) == ("ended", 0, 0)
    starts = {node: message for _, node, message in fleet.asked("start_program")}
    assert [starts[node]["places"] for node in (0, 1)] == [[[0, 0], [1, 1]], [[2, 0], [3, 1]]]
    assert [starts[node]["program"]["group_rank"] for node in (0, 1)] == [0, 1]
    program = starts[1]["program"]
    assert (program["world_size"], program["master_addr"], program["master_port"]) == (4, "10.0.0.1", 5000)
    assert fleet.recorded("generation") == [
        {"kind": "generation", "gen": 0, "ranks": [[0, 0, 0], [1, 0, 1], [2, 1, 0], [3, 1, 1]]}
    ]
    assert not fleet.asked("kill")


@pytest.mark.parametrize(("output", "shown"), [("all", [0, 1, 2, 3]), ("rank0", [0]), ("none", [])])
def test_the_ranks_whose_output_is_shown(output: Any, shown: list[int]) -> None:
    fleet = SimulatedProgram(config(output=output))
    fleet.run()
    assert fleet.asked("start_program")[0][2]["program"]["shown"] == shown


def test_an_early_good_exit_is_no_trouble() -> None:
    fleet = SimulatedProgram(config(watched=False), {(0, 2): [Act(at_s=0.1, what="exit")]})
    assert fleet.run()["how"] == "ended"


def test_the_killed_rank_is_named_and_not_the_first_to_complain() -> None:
    fleet = SimulatedProgram(config(), {(0, 0): COMPLAINS, (0, 1): WAITS, (0, 2): WAITS, (0, 3): [KILLED]})
    outcome = fleet.run()
    assert outcome["how"] == "failed"
    assert outcome["text"] == 'rank 3 on node n1 was killed by signal 9 (SIGKILL) in "step 7 forward"'
    assert [note[:44] for note in outcome["notes"]] == ["SIGKILL comes from the kernel when memory ru"]
    assert outcome["last_lines"] == ["its last"]
    (trouble,) = fleet.recorded("trouble")
    assert [entry["rank"] for entry in trouble["seen"]] == [3]
    assert [rank for rank, _ in trouble["waiting"]] == [1, 2]


def test_the_settings_of_a_script_reach_the_agents() -> None:
    fleet = SimulatedProgram(config(watched=False, argv=("python", "x.py"), args=("{rank}",), spawns=4))
    fleet.run()
    program = fleet.asked("start_program")[0][2]["program"]
    assert {name: program[name] for name in ("argv", "args", "spawns", "nnodes", "watched")} == {
        "argv": ["python", "x.py"],
        "args": ["{rank}"],
        "spawns": 4,
        "nnodes": 2,
        "watched": False,
    }


_CLOSED = "[rank0]: RuntimeError: [../pair.cc:534] Connection closed by peer [127.0.0.1]:1234"


def test_a_script_that_complains_of_others_is_a_witness() -> None:
    complains = Act(at_s=3.0, what="exit", code=1, last=(_CLOSED, "[rank0]:[W] a warning of the end"))
    fails = Act(at_s=9.0, what="exit", code=2, last=("ValueError: no more", "warning: NCCL group was not destroyed"))
    fleet = SimulatedProgram(config(watched=False), {**everybody(0, *WAITS), (0, 0): [complains], (0, 3): [fails]})
    outcome = fleet.run()
    assert outcome["text"] == 'rank 3 on node n1 failed with exit code 2 in "step 7 forward": ValueError: no more'
    assert outcome["last_lines"] == list(fails.last)


def test_an_abort_after_a_traceback_is_named_by_the_exception() -> None:
    """A thread of Gloo that still runs when Python ends: SIGABRT is not why it failed, and a witness stays one."""
    after = "terminate called without an active exception"
    raised = ("[rank3]: ValueError: bad batch", "its last words", after)
    witness = ("[rank0]: RuntimeError: Connection closed by peer", after)
    complains = [Act(at_s=3.0, what="exit", code=-6, last=witness)]

    def text_of(*last: str) -> str:
        acts = {**everybody(0, *WAITS), (0, 0): complains, (0, 3): [Act(at_s=3.6, what="exit", code=-6, last=last)]}
        return str(SimulatedProgram(config(watched=False), acts).run()["text"])

    assert (
        text_of(*raised)
        == 'rank 3 on node n1 was killed by signal 6 (SIGABRT) in "step 7 forward": ValueError: bad batch'
    )
    assert text_of(*raised[:1]).endswith(": ValueError: bad batch")
    # Without the mark of torch, which stands for an exception that nothing caught, it may have been raised long before.
    for last in (("ValueError: bad batch", "its last words"), ("a line of another kind", after)):
        assert text_of(*last) == 'rank 3 on node n1 was killed by signal 6 (SIGABRT) in "step 7 forward"'


def test_of_two_scripts_that_end_together_the_killed_one_is_named() -> None:
    ends = {(0, 0): [Act(at_s=3.0, what="exit", code=1)], (0, 1): WAITS, (0, 2): WAITS}
    fleet = SimulatedProgram(config(watched=False), {**ends, (0, 3): [Act(at_s=3.1, what="exit", code=-9)]})
    assert "rank 3 on node n1 was killed" in fleet.run()["text"]
    fleet = SimulatedProgram(config(watched=False), {**ends, (0, 3): [Act(at_s=3.6, what="exit", code=-11)]})
    assert fleet.run()["text"] == f'rank 0 on node n0 failed with exit code 1 in "step 7 forward" {LAST}'


def test_the_abort_of_a_watchdog_is_no_cause() -> None:
    ends = {(0, 0): [Act(at_s=3.0, what="exit", code=-6)], (0, 1): [Act(at_s=3.1, what="exit", code=3)]}
    fleet = SimulatedProgram(
        config(watched=False), {**ends, (0, 2): WAITS, (0, 3): [Act(at_s=3.2, what="exit", code=-9)]}
    )
    assert "rank 3" in fleet.run()["text"]


def test_witnesses_wait_for_a_node_that_may_be_lost() -> None:
    script = {**everybody(0, *WAITS), (0, 0): COMPLAINS}
    fleet = SimulatedProgram(config(), script)
    outcome = fleet.run()
    assert "connection between ranks lost" in outcome["text"]
    assert fleet.asked("terminate")[0][0] > 15
    fleet = SimulatedProgram(config(), script, at_s=[(3.0, lambda fleet: fleet.mute(1))])
    assert fleet.run()["text"].startswith("node 1 (n1) was lost: its agent sent nothing")


def test_restarts_use_another_port_until_it_ends_well() -> None:
    script = {**everybody(0, *WAITS), (0, 1): [KILLED], **everybody(1, *WAITS), (1, 2): [KILLED]}
    fleet = SimulatedProgram(config(max_restarts=3), script)
    outcome = fleet.run()
    assert (outcome["how"], outcome["code"], outcome["restarts"], outcome["gen"]) == ("ended", 0, 2, 2)
    ports = [message["program"]["master_port"] for _, node, message in fleet.asked("start_program") if node == 1]
    assert ports == [5000, 5001, 5002]
    notes = [note["text"] for note in fleet.recorded("note")]
    assert notes[0].startswith("rank 1 on node n0 was killed by signal 9 (SIGKILL)")
    assert notes[0].endswith("all ranks restart (restart 1 of at most 3)")


def test_a_generation_is_killed_before_the_next_starts() -> None:
    script = {**everybody(0, *WAITS), (0, 1): [KILLED]}
    fleet = SimulatedProgram(config(max_restarts=1), script, heeds_sigterm_after_s=None)
    assert fleet.run()["how"] == "ended"
    (asked_at, _, _), (killed_at, _, _) = fleet.asked("terminate")[0], fleet.asked("kill")[0]
    assert killed_at - asked_at >= 5.0
    assert fleet.asked("start_program")[-1][0] > killed_at


def test_restarts_are_counted() -> None:
    script = {**everybody(0, *WAITS), **everybody(1, *WAITS), (0, 1): [KILLED], (1, 1): [KILLED]}
    outcome = SimulatedProgram(config(max_restarts=1), script).run()
    assert (outcome["how"], outcome["restarts"]) == ("failed", 1)


def test_a_wrong_request_is_reported_and_never_restarted() -> None:
    refused = [Act(at_s=3.2, what="error", cause="request"), Act(at_s=3.3, what="exit", code=2)]
    script = {**everybody(0, *COMPLAINS), (0, 1): refused}
    outcome = SimulatedProgram(config(max_restarts=3), script).run()
    assert (outcome["how"], outcome["restarts"]) == ("refused", 0)
    assert outcome["text"] == 'rank 1 on node n0 says that the request is wrong: "request trouble"'


def test_a_bad_result_is_no_failure() -> None:
    missed = [Act(at_s=3.0, what="result", code=1), Act(at_s=3.1, what="exit", code=1)]
    outcome = SimulatedProgram(config(max_restarts=3), everybody(0, *missed)).run()
    assert (outcome["how"], outcome["code"], outcome["restarts"]) == ("ended", 1, 0)


def test_a_rank_with_another_code_than_all_others_is_told() -> None:
    missed = [Act(at_s=3.0, what="result", code=7), Act(at_s=3.1, what="exit", code=7)]
    fleet = SimulatedProgram(config(), {(0, 2): missed})
    assert fleet.run()["code"] == 7
    (note,) = fleet.recorded("note")
    assert note["text"] == (
        "the exit codes of the ranks differ: ranks 0, 1, 3 with 0, rank 2 with 7; the largest one counts"
    )


def test_a_rank_that_runs_on_after_the_results_is_named() -> None:
    stays = [Act(at_s=3.0, what="result"), Act(at_s=500.0, what="exit")]
    outcome = SimulatedProgram(config(), {**everybody(0, *ends_well_at(3.0)), (0, 3): stays}).run()
    assert (
        outcome["text"] == 'rank 3 on node n1 was still running 60 s after all ranks had finished in "step 7 forward"'
    )


_FIRST_OF_THREE = {(0, rank): [Act(at_s=200.0, what="result"), Act(at_s=200.1, what="exit")] for rank in range(3)}


def test_one_host_that_says_early_that_it_has_finished_ends_nothing() -> None:
    early = [Act(at_s=3.0, what="result"), Act(at_s=200.1, what="exit")]
    outcome = SimulatedProgram(config(nodes=3, nproc_per_node=1), {**_FIRST_OF_THREE, (0, 2): early}).run()
    assert (outcome["how"], outcome["code"]) == ("ended", 0)


def test_two_hosts_that_never_finish_are_waited_for_while_they_work() -> None:
    stops = [Act(at_s=100.0, what="disk", phase="save"), *WAITS]
    script = {(0, 0): stops, (0, 1): stops, (0, 2): [Act(at_s=3.0, what="result"), Act(at_s=3.1, what="exit")]}
    fleet = SimulatedProgram(config(nodes=3, nproc_per_node=1), script)
    outcome = fleet.run()
    assert outcome["text"].startswith("rank 2 had finished, ranks 0, 1 had not 60 s later, in phase save: ")
    assert fleet.recorded("trouble")[0]["seen"] == []
    assert fleet.asked("terminate")[0][0] == pytest.approx(161.0, abs=2.0)


def test_of_two_hosts_nobody_is_named_that_has_not_finished() -> None:
    outcome = SimulatedProgram(config(nproc_per_node=1), {(0, 0): WAITS, (0, 1): ends_well_at(3.0)}).run()
    assert outcome["how"] == "failed"
    assert outcome["text"].startswith('rank 1 had finished, rank 0 had not 60 s later, in phase "step 7 forward": ')


def test_the_60_s_begin_with_the_second_of_three_hosts() -> None:
    script = {(0, 0): ends_well_at(3.0), (0, 1): ends_well_at(53.0), (0, 2): WAITS}
    fleet = SimulatedProgram(config(nodes=3, nproc_per_node=1), script)
    assert fleet.run()["text"].startswith(
        'ranks 0, 1 had finished, rank 2 had not 60 s later, in phase "step 7 forward": '
    )
    assert fleet.asked("terminate")[0][0] > 113.0


def test_a_frozen_rank_ends_the_generation_while_others_wait() -> None:
    frozen = [Act(at_s=3.0, what="stop"), *WAITS]
    fleet = SimulatedProgram(config(max_restarts=1), {**everybody(0, *WAITS), (0, 1): frozen})
    assert fleet.run()["how"] == "ended"
    (trouble,) = fleet.recorded("trouble")
    assert [(entry["rank"], entry["how"]) for entry in trouble["seen"]] == [(1, "frozen")]
    assert "rank 1 on node n0 made no progress for 15 s" in fleet.recorded("note")[0]["text"]


def test_if_all_are_stopped_they_may_go_on() -> None:
    acts = [Act(at_s=3.0, what="stop"), Act(at_s=60.0, what="move"), *ends_well_at(61.0)]
    fleet = SimulatedProgram(config(), everybody(0, *acts))
    assert fleet.run()["how"] == "ended"
    assert len(fleet.recorded("note")) == 4


def test_a_stopped_script_is_noted_once() -> None:
    acts = [Act(at_s=3.0, what="stop"), Act(at_s=60.0, what="move"), Act(at_s=61.0, what="exit")]
    fleet = SimulatedProgram(config(watched=False), {(0, 1): acts})
    assert fleet.run()["how"] == "ended"
    assert [note["text"] for note in fleet.recorded("note")] == [
        "rank 1 on node n0 has been stopped (state T) for 15 s"
    ]


def test_a_lost_node_is_named_and_prevents_a_restart() -> None:
    fleet = SimulatedProgram(config(max_restarts=3), everybody(0, *WAITS), at_s=[(5.0, lambda fleet: fleet.lose(1))])
    outcome = fleet.run()
    assert (outcome["how"], outcome["restarts"]) == ("failed", 0)
    assert outcome["text"] == "node 1 (n1) was lost: the control connection was closed"
    fleet = SimulatedProgram(config(), everybody(0, *WAITS), at_s=[(5.0, lambda fleet: fleet.mute(0))])
    assert fleet.run()["text"].startswith("node 0 (n0) was lost: its agent sent nothing for 15 s")


def test_an_exit_code_of_0_without_a_result_is_a_failure() -> None:
    outcome = SimulatedProgram(
        config(), {**everybody(0, *ends_well_at(3.0)), (0, 2): [Act(at_s=3.0, what="exit")]}
    ).run()
    assert outcome["how"] == "failed"
    assert outcome["text"].startswith("rank 2 on node n1 ended with exit code 0 before it had told a result")


def test_nodes_that_are_lost_together_are_named_together() -> None:
    fleet = SimulatedProgram(config(), everybody(0, *WAITS), at_s=[(5.0, lose_both)])
    assert fleet.run()["text"] == "node 0 (n0), node 1 (n1) were lost: the control connection was closed"


def lose_both(fleet: SimulatedProgram) -> None:
    fleet.lose(0)
    fleet.lose(1)


@pytest.mark.parametrize("first", ["loss", "signal"])
def test_a_lost_node_is_named_although_the_launcher_ends_the_others(first: str) -> None:
    """mpirun sends SIGTERM to all agents once it has lost a host."""
    at_s = [(5.0 if first == "signal" else 5.5, signal_to_node_0), (5.3, lambda fleet: fleet.lose(1))]
    outcome = SimulatedProgram(config(), everybody(0, *WAITS), at_s=at_s).run()
    assert (outcome["how"], outcome["text"]) == ("failed", "node 1 (n1) was lost: the control connection was closed")


def signal_to_node_0(fleet: SimulatedProgram) -> None:
    fleet.say(0, {"kind": "signal", "number": 15})


def test_a_signal_to_all_agents_is_an_interruption() -> None:
    at_s = [
        (5.0, signal_to_node_0),
        (5.1, lambda fleet: fleet.say(1, {"kind": "signal", "number": 15})),
        (5.2, lose_both),
    ]
    assert SimulatedProgram(config(), everybody(0, *WAITS), at_s=at_s).run()["how"] == "interrupted"


TERMINATED = Act(at_s=3.0, what="exit", code=-15)


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("all_ranks", [True, False])
def test_a_job_that_is_canceled_blames_no_rank_that_heard_of_it_first(*, watched: bool, all_ranks: bool) -> None:
    """scancel sends SIGTERM to ranks and agents alike."""
    script = everybody(0, TERMINATED) if all_ranks else {**everybody(0, *WAITS), (0, 3): [TERMINATED]}
    at_s = [(4.1, signal_to_node_0)]  # the program was started after 0.6 s
    outcome = SimulatedProgram(config(watched=watched), script, at_s=at_s).run()
    assert outcome["how"] == "interrupted"
    ends = "all 4 ranks" if all_ranks else "ranks 0, 1, 2 ended by themselves; rank 3 on node n1"
    assert outcome["text"] == f"{AGENTS} 0; {ends} ended at SIGTERM without handling it"


def test_a_rank_that_alone_was_terminated_is_named() -> None:
    outcome = SimulatedProgram(config(), {**everybody(0, *WAITS), (0, 3): [TERMINATED]}).run()
    assert outcome["text"] == 'rank 3 on node n1 was killed by signal 15 (SIGTERM) in "step 7 forward"'
    script = {**everybody(0, TERMINATED), (0, 3): [KILLED]}
    outcome = SimulatedProgram(config(), script, at_s=[(4.1, signal_to_node_0)]).run()
    assert outcome["how"] == "failed"
    assert outcome["text"].startswith("rank 3 on node n1 was killed by signal 9 (SIGKILL)")


def test_a_late_interrupt_hides_no_failure() -> None:
    script = {**everybody(0, *WAITS), (0, 1): [KILLED]}
    at_s = [(5.5, SimulatedProgram.interrupt)]
    assert SimulatedProgram(config(), script, heeds_sigterm_after_s=3.0, at_s=at_s).run()["how"] == "failed"
    outcome = SimulatedProgram(config(max_restarts=1), script, heeds_sigterm_after_s=3.0, at_s=at_s).run()
    assert outcome["how"] == "interrupted"


def test_a_node_that_never_joins_is_named() -> None:
    fleet = SimulatedProgram(config(), joins=[0])
    outcome = fleet.run()
    assert outcome["how"] == "absent"
    assert outcome["text"] == "node 1 was lost: its agent did not join within 60 s"
    assert not fleet.asked("start_program")


def test_an_interrupt_gives_thirty_seconds() -> None:
    fleet = SimulatedProgram(config(max_restarts=3), everybody(0, *WAITS), at_s=[(5.0, SimulatedProgram.interrupt)])
    outcome = fleet.run()
    assert (outcome["how"], outcome["text"], outcome["restarts"]) == ("interrupted", f"stopped by SIGINT; {WELL}", 0)
    assert fleet.recorded("interrupted") == [{"kind": "interrupted", "by": "SIGINT"}]
    assert fleet.now < 10
    fleet = SimulatedProgram(
        config(), everybody(0, *WAITS), at_s=[(5.0, SimulatedProgram.interrupt)], heeds_sigterm_after_s=None
    )
    assert fleet.run()["text"] == "stopped by SIGINT; all 4 ranks were ended after 30 s"
    assert fleet.asked("kill")[0][0] == pytest.approx(35.0, abs=0.3)


def test_the_end_of_a_stopped_run_says_which_ranks_may_not_have_saved() -> None:
    """Rank 0 saves and exits with 0, SIGTERM ends rank 1, which ignores nothing, and rank 3 goes on."""
    script = everybody(0, *WAITS) | {
        (0, 0): [Act(at_s=6.0, what="exit", code=0)],
        (0, 1): [Act(at_s=6.1, what="exit", code=-15)],
        (0, 2): [Act(at_s=6.2, what="exit", code=1)],
    }
    at_s = [(5.0, SimulatedProgram.interrupt), (9.0, SimulatedProgram.interrupt)]
    fleet = SimulatedProgram(config(watched=False), script, at_s=at_s, heeds_sigterm_after_s=None)
    assert fleet.run()["text"] == (
        "stopped by SIGINT; ranks 0, 2 ended by themselves (exit codes 0, 1); rank 1 on node n0 ended at SIGTERM"
        " without handling it; rank 3 on node n1 was ended after 4.0 s"
    )


def test_a_rank_whose_end_was_not_heard_is_said() -> None:
    at_s = [(5.0, SimulatedProgram.interrupt), (5.1, lambda fleet: fleet.lose(1))]
    text = SimulatedProgram(config(watched=False), everybody(0, *WAITS), at_s=at_s).run()["text"]
    assert text == "stopped by SIGINT; ranks 0, 1 ended by themselves; ranks 2, 3 sent no news of an end"


def test_a_second_interrupt_leaves_no_grace() -> None:
    twice = [(5.0, SimulatedProgram.interrupt), (6.0, SimulatedProgram.interrupt)]
    fleet = SimulatedProgram(config(), everybody(0, *WAITS), at_s=twice, heeds_sigterm_after_s=None)
    assert fleet.run()["how"] == "interrupted"
    assert fleet.asked("kill")[0][0] == pytest.approx(6.0, abs=0.01)


def job_canceled(fleet: SimulatedProgram) -> None:
    """The driver's news of a job of Slurm, in the words of ``targets/slurm/driver.py``."""
    fleet.signal("Slurm job 17: CANCELLED")


@pytest.mark.parametrize("own_at_s", [4.9, 5.1])
@pytest.mark.parametrize("news", [signal_to_node_0, job_canceled])
def test_one_signal_to_each_process_of_a_job_keeps_the_grace(
    own_at_s: float, news: Callable[[SimulatedProgram], None]
) -> None:
    at_s = [(own_at_s, SimulatedProgram.interrupt), (5.0, news), (5.2, news)]
    fleet = SimulatedProgram(config(stop_grace_s=20.0), everybody(0, *WAITS), at_s=at_s, heeds_sigterm_after_s=None)
    assert fleet.run()["how"] == "interrupted"
    (terminated_at, *_), *_ = fleet.asked("terminate")
    assert fleet.asked("kill")[0][0] == pytest.approx(terminated_at + 20.0, abs=0.3)


def test_a_second_signal_after_the_news_of_an_agent_ends_the_grace() -> None:
    at_s = [(5.0, signal_to_node_0), (6.0, SimulatedProgram.interrupt), (7.0, SimulatedProgram.interrupt)]
    fleet = SimulatedProgram(config(), everybody(0, *WAITS), at_s=at_s, heeds_sigterm_after_s=None)
    assert fleet.run()["how"] == "interrupted"
    assert fleet.asked("kill")[0][0] == pytest.approx(7.0, abs=0.01)


@pytest.mark.parametrize("at_s", [0.1, 0.55, 0.605])
def test_an_interrupt_before_the_start_ends_at_once(at_s: float) -> None:
    fleet = SimulatedProgram(config(), at_s=[(at_s, SimulatedProgram.interrupt)])
    assert fleet.run()["how"] == "interrupted"
    assert not fleet.asked("start_program")


def test_a_signal_to_an_agent_stops_all_ranks_in_order() -> None:
    signal = [(5.0, lambda fleet: fleet.say(1, {"kind": "signal", "number": 15}))]
    fleet = SimulatedProgram(config(), everybody(0, *WAITS), at_s=signal)
    assert fleet.run()["text"].startswith(f"{AGENTS} 1")
    assert {node for _, node, _ in fleet.asked("terminate")} == {0, 1}


def test_a_good_end_before_the_interrupt_stays_good() -> None:
    good = [Act(at_s=3.0, what="result"), Act(at_s=3.3, what="exit")]
    fleet = SimulatedProgram(
        config(), everybody(0, *good), at_s=[(3.9, SimulatedProgram.interrupt)], heeds_sigterm_after_s=None
    )
    assert fleet.run()["how"] == "ended"


def test_a_pause_of_the_controller_blames_nobody() -> None:
    fleet = SimulatedProgram(config(), everybody(0, *WAITS))
    fleet.go_on_until(10.0)
    fleet.conductor.paused(100.0)
    fleet.conductor.tick(fleet.now + 100, fleet.now + 100)
    assert not fleet.conductor.tick(fleet.now + 100.1, fleet.now + 100.1).events


def test_ranks_that_their_agents_ended_are_no_good_end() -> None:
    """As after the controller was stopped for longer than agents wait for it."""

    def end_all(fleet: SimulatedProgram) -> None:
        for agent in fleet.agents.values():
            for rank in agent.ranks.values():
                rank.signaled = True

    killed = [Act(at_s=5.0, what="exit", code=-9)]
    ended_before = [Act(at_s=2.0, what="exit")]
    acts = {(0, 0): ended_before, (0, 1): killed, (0, 2): ended_before, (0, 3): killed}
    outcome = SimulatedProgram(config(watched=False), acts, at_s=[(3.0, end_all)]).run()
    assert outcome["how"] == "failed"
    assert "its agent ended its ranks" in outcome["text"]


_SOURCE = {"run": "simulated", "src": "node1", "seq": 99, "t": 0.0}
_EXIT = {**_SOURCE, "kind": "exit", "gen": 0, "code": 1, "ours": False, "phase": "", "last_lines": []}


def test_a_signal_before_a_restart_explains_no_loss_after_it() -> None:
    fleet = SimulatedProgram(config(max_restarts=1), {(0, 3): [KILLED]})
    fleet.conductor._signaled.add(0)
    assert fleet.run()["restarts"] == 1
    assert fleet.conductor._signaled == set()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({**_EXIT, "rank": "2"}, KeyError),
        ({**_SOURCE, "kind": "exit", "gen": 0, "rank": 2}, KeyError),
        ({"kind": "status", "ranks": {"2": ["R", "x", 1, "", 0.0]}}, TypeError),
        ({"kind": "status", "ranks": {"2": ["R", 1.0, None, "", 0.0]}}, ValueError),
        ({**_SOURCE, "kind": "result", "gen": 0, "rank": 2, "code": "good"}, ValueError),
        ({**_SOURCE, "kind": "result", "gen": 0, "rank": 2, "code": 0}, KeyError),
        ({**_SOURCE, "kind": "result", "gen": 0, "rank": 2, "code": 0, "lines": 5}, TypeError),
        ({"kind": "signal"}, KeyError),
        *(({"kind": "signal", "number": number}, ValueError) for number in ("15", 1.5, True, None, 0, -15, 10**9)),
        ({**_EXIT, "rank": 0}, OriginError),
        ({**_SOURCE, "kind": "error", "gen": 0, "rank": 0, "cause": "own", "message": "of another node"}, OriginError),
        ({**_SOURCE, "kind": "error", "gen": 0, "rank": 2, "cause": "out of memory: x", "message": ""}, ValueError),
        ({"kind": "status", "ranks": {"0": ["T", 1.0, 1, "", 0.0]}}, OriginError),
        ({"kind": "end", "seq": 9, "run": "simulated", "src": "node0"}, OriginError),
    ],
)
def test_a_malformed_or_foreign_message_changes_nothing(message: dict[str, Any], error: type[Exception]) -> None:
    refused = []

    def say(fleet: SimulatedProgram) -> None:
        number = event_of(fleet.agents[1].source, "note")["seq"]  # also of one that is malformed
        with pytest.raises(error):
            fleet.say(1, {**message, "seq": number} if "seq" in message else message)
        refused.append(message)

    fleet = SimulatedProgram(config(), at_s=[(3.0, say)])
    assert fleet.run()["how"] == "ended"
    assert refused


@pytest.mark.parametrize(
    "named",
    [
        {"address": "h" * 4_000_000},
        {"address": "a\0b"},
        {"address": ""},
        {"address": 7},
        {"port": 70_000},
        {"port": -1},
        {"port": True},
        {"port": "1"},
    ],
)
def test_a_port_that_is_none_reaches_no_other_node(named: dict[str, Any]) -> None:
    conductor = ProgramConductor(config(), 0.0)
    conductor.join(0, 0.0), conductor.join(1, 0.0)
    with pytest.raises(ValueError, match="node 0 names"):
        conductor.message(0, {"kind": "port", "gen": 0, "address": "10.0.0.1", "port": 1, **named}, 1.0)
    assert not conductor.message(1, {"kind": "status", "ranks": {}}, 1.0).send
    assert conductor.message(0, {"kind": "port", "gen": 0, "address": "fe80::1%eth0", "port": 1}, 1.0).send


def test_the_words_of_a_host_in_place_of_its_name_are_no_sentence_of_ours() -> None:
    name = "x: replace node n0, as its"

    def say(fleet: SimulatedProgram) -> None:
        fleet.say(1, event_of(fleet.agents[1].source, "node", node=1, hostname=name))

    fails = Act(at_s=3.0, what="exit", code=1)
    fleet = SimulatedProgram(config(watched=False), {(0, 3): [fails]}, at_s=[(0.605, say)])
    assert fleet.run()["text"].startswith(f'rank 3 on node "{name}" failed with exit code 1')


def test_what_one_agent_sends_fits_into_the_outcome() -> None:
    fails = Act(at_s=3.0, what="exit", code=1, phase="x" * 10**6, last=("y" * 10**6,) * 60)
    outcome = SimulatedProgram(config(watched=False), {(0, 3): [fails]}).run()
    assert outcome["how"] == "failed"
    assert len(outcome["last_lines"]) == 40
    assert len(json.dumps(outcome)) < 100_000


@pytest.mark.parametrize("watched", [True, False])
def test_a_result_while_ranks_are_ended_changes_no_deadline(watched: bool) -> None:
    """One host that says its rank is done has those of others killed in the middle of a save."""
    conductor = ProgramConductor(config(nodes=3, nproc_per_node=1, stop_grace_s=600.0, watched=watched), 0.0)
    for node in range(3):
        conductor.join(node, 0.0, f"10.0.0.{node + 1}")
    conductor.message(0, {"kind": "port", "gen": 0, "address": "10.0.0.1", "port": 5000}, 0.0)
    conductor.interrupt("SIGINT", 20.0)
    source = Source("simulated", "rank2.0", lambda: 0.0)
    conductor.message(2, event_of(source, "result", gen=0, rank=2, code=0, lines=[]), 21.0)
    saved_at = 20.0
    while saved_at < 619.0:
        saved_at += 1.0
        for node in range(3):
            conductor.message(node, {"kind": "status", "ranks": {str(node): ["R", saved_at, 5, "save", 0.0]}}, saved_at)
        assert [
            command["kind"] for _, command in conductor.tick(saved_at, saved_at).send if command["kind"] == "kill"
        ] == []
    assert "kill" in [command["kind"] for _, command in conductor.tick(620.5, 620.5).send]


def test_a_crash_while_ranks_meet_names_nobody() -> None:
    """A false value at the store causes it as well, and each rank can write there."""
    meets, peers = "start-up/meet the others", {(0, rank): COMPLAINS for rank in (1, 2, 3)}
    for code, name in ((-11, "11 (SIGSEGV)"), (-6, "6 (SIGABRT)"), (-7, "7 (SIGBUS)")):
        crash = [Act(at_s=2.9, what="exit", code=code, phase=meets)]
        said = SimulatedProgram(config(), {(0, 0): crash, **peers}).run()["text"]
        assert said == (
            f'rank 0 on node n0 was killed by signal {name} in "{meets}", while connecting to other hosts: what it'
            " runs, or what came from them, is at fault"
        )
        # On one host, or once they have met, or where its device failed, or another rank did.
        alone = SimulatedProgram(config(nodes=1, nproc_per_node=4), {(0, 0): crash, **peers}).run()["text"]
        assert alone == f'rank 0 on node n0 was killed by signal {name} in "{meets}"'
        later = [Act(at_s=2.9, what="exit", code=code)]
        assert SimulatedProgram(config(), {(0, 0): later, **peers}).run()["text"].endswith('in "step 7 forward"')
        broken = [Act(at_s=2.9, what="exit", code=code, phase=meets, last=("CUDA error: an illegal address",))]
        assert SimulatedProgram(config(), {(0, 0): broken, **peers}).run()["text"] == alone
        both = SimulatedProgram(config(), {(0, 0): crash, (0, 3): [KILLED]}).run()["text"]
        assert both.startswith("rank 3 on node n1 was killed")
