"""Ranks of a training that wait in the kernel (state D), as for a server of files that a neighbor keeps from answering.

No list of phases says where a rank reads or writes files: a log, a checkpoint, a profile and, in each phase, a library.
"""

from __future__ import annotations

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

ENDS = (Act(at_s=500.0, what="result"), Act(at_s=500.1, what="exit"))
HAD_BEEN = "waiting in the kernel (state D) for a file system or a device, rank 0 on node n0 had been in evaluate for"


def simulated(acts: dict[int, list[Act]], *, watched: bool = True, others: tuple[Act, ...] = ENDS) -> SimulatedProgram:
    """Four ranks on two nodes; those without acts end well after 500 s."""
    script = {(0, rank): [*acts.get(rank, ()), *others] for rank in range(4)}
    return SimulatedProgram(config(watched=watched), script)


@pytest.mark.parametrize(
    "phase", ["look for a checkpoint", "evaluate", "wrap model", "resume", "step 8 optimizer", "save step 9", "end", ""]
)
def test_a_slow_disk_is_no_frozen_rank_in_any_phase(phase: str) -> None:
    fleet = simulated({0: [Act(at_s=3.0, what="disk", phase=phase), Act(at_s=90.0, what="move", number=4)]})
    assert fleet.run()["how"] == "ended"
    assert fleet.recorded("trouble") == []


def test_a_wait_in_the_kernel_is_said_once_and_accuses_nobody() -> None:
    slow = [Act(at_s=3.0, what="disk", phase="evaluate"), Act(at_s=60.0, what="move", number=4)]
    again = [Act(at_s=90.0, what="disk", phase="save step 9", number=5), Act(at_s=150.0, what="move", number=6)]
    fleet = simulated({0: [*slow, *again]})
    fleet.run()
    (note,) = fleet.recorded("note")
    assert (note["severity"], note["text"]) == ("info", f"{HAD_BEEN} 15 s")


def test_a_script_in_the_kernel_is_not_noted() -> None:
    fleet = simulated({0: [Act(at_s=3.0, what="disk")]}, watched=False, others=(Act(at_s=90.0, what="exit"),))
    fleet.run()
    assert fleet.recorded("note") == []


def test_who_gives_up_waiting_for_a_disk_names_nobody() -> None:
    """After --timeout the others complain, and the outcome says what rank 0 waits for."""
    gives_up = [Act(at_s=300.0, what="error", cause="fabric"), Act(at_s=300.1, what="exit", code=1)]
    fleet = simulated({0: [Act(at_s=3.0, what="disk", phase="evaluate")], 2: gives_up})
    outcome = fleet.run()
    assert outcome["text"].startswith("connection between ranks lost; rank 2 on node n1 failed with exit code 1 and r")
    (note,) = outcome["notes"]
    assert note.startswith(f"{HAD_BEEN} 3")
    (trouble,) = fleet.recorded("trouble")
    assert [(entry["rank"], entry["how"]) for entry in trouble["seen"]] == [(2, "error")]


def test_who_is_not_ready_for_its_disk_has_that_said() -> None:
    stays = Act(at_s=0.0, what="never ready", phase="start-up/import torch")
    fleet = simulated({0: [stays, Act(at_s=3.0, what="disk", phase=stays.phase)]})
    (note,) = fleet.run()["notes"]
    assert 'a device, rank 0 on node n0 had been in "start-up/import torch" for 1' in note


def test_a_stopped_rank_is_named_beside_one_that_waits_for_a_disk() -> None:
    fleet = simulated({0: [Act(at_s=3.0, what="disk", phase="evaluate")], 1: [Act(at_s=9.0, what="stop")]})
    outcome = fleet.run()
    assert outcome["text"].startswith("rank 1 on node n0 made no progress for 15 s")
    assert [note[: len(HAD_BEEN)] for note in outcome["notes"]] == [HAD_BEEN]


def test_a_job_that_is_suspended_while_a_rank_waits_for_a_disk_goes_on() -> None:
    """Its rank 0 gets the signal once the disk answers."""
    suspended = [Act(at_s=9.0, what="stop"), Act(at_s=60.0, what="move")]
    waits = [Act(at_s=8.0, what="disk", phase="evaluate"), Act(at_s=60.0, what="move")]
    fleet = simulated({0: waits, 1: suspended, 2: suspended, 3: suspended})
    assert fleet.run()["how"] == "ended"
