"""What Slurm says, read and told in words."""

from __future__ import annotations

import pytest

from seatrial.launch.slurm_words import JobState, complaint, ended_by, read_state, waits_for


def state(line: str) -> JobState:
    job = read_state(line)
    assert job is not None
    return job


def test_a_line_of_squeue_is_read() -> None:
    assert state("RUNNING|None|n[0-1]\n") == JobState(state="RUNNING", reason="None", nodes="n[0-1]")


@pytest.mark.parametrize(
    ("line", "waiting", "running"),
    [
        ("PENDING|Resources|", True, False),
        ("CONFIGURING|None|n[0-1]", True, False),
        ("RUNNING|None|n0", False, True),
        ("COMPLETING|None|n0", False, True),
        ("COMPLETED|None|n0", False, False),
        ("CANCELLED by 1000|None|n0", False, False),
        ("NODE_FAIL|None|n0", False, False),
    ],
)
def test_every_state_waits_runs_or_is_over(line: str, waiting: bool, running: bool) -> None:
    assert (state(line).waiting, state(line).running) == (waiting, running)


@pytest.mark.parametrize("line", ["", "JOBID|x", "slurm_load_jobs error: Invalid job id specified", "a|b|c", "|||"])
def test_other_lines_are_no_state(line: str) -> None:
    assert read_state(line) is None


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "nodes are not free yet (Resources)"),
        ("Priority", "others are before it (Priority)"),
        ("AssocGrpGRES", "its account has as much running as it may (AssocGrpGRES)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n3",
            "nodes that it needs are down, drained or reserved (ReqNodeNotAvail, UnavailableNodes:n3)",
        ),
        (
            "QOSMaxJobsPerUserLimit",
            "its user has as much running as the quality of service allows (QOSMaxJobsPerUserLimit)",
        ),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_reasons_are_told_in_words_and_in_those_of_slurm(reason: str, words: str) -> None:
    assert waits_for(state(f"PENDING|{reason}|")) == words


@pytest.mark.parametrize(
    ("line", "never"),
    [
        ("PENDING|PartitionNodeLimit|", True),
        ("PENDING|PartitionConfig|", True),
        ("PENDING|QOSMaxNodePerJobLimit|", True),
        ("PENDING|QOSMaxNodePerUserLimit|", False),
        ("PENDING|Resources|", False),
        ("PENDING|JobHeldUser|", False),
        ("RUNNING|PartitionTimeLimit|n0", False),
    ],
)
def test_some_reasons_do_not_go_away_by_waiting(line: str, never: bool) -> None:
    assert state(line).never == never


def test_ends_are_told_in_words() -> None:
    assert ended_by(state("TIMEOUT|TimeLimit|n0")) == "its time is over; give it more with --time (TIMEOUT)"
    assert ended_by(state("CANCELLED by 1000|None|n0")) == "it was cancelled (CANCELLED)"
    assert ended_by(state("NEWLY_INVENTED|None|n0")) == "NEWLY_INVENTED"


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            "sbatch: error: invalid partition specified: nosuch\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
            "Invalid partition name specified",
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "Unable to contact slurm controller (connect failure)",
        ),
        ("slurm_load_jobs error: Invalid job id specified", "Invalid job id specified"),
        ("squeue: fatal: Unable to process configuration file\n", "Unable to process configuration file"),
        ("srun: error: Node failure on n1\nslurmstepd: what is this\n", "Node failure on n1"),
        ("Submitted batch job 6\n", ""),
    ],
)
def test_a_complaint_is_found_in_what_was_printed(output: str, told: str) -> None:
    assert complaint(output) == told
