"""The states and reasons of Slurm in plain words."""

from __future__ import annotations

import pytest

from seatrial.targets.slurm.reasons import JobState, describe_end, last_error, parse_state, pending_reason


def state(line: str) -> JobState:
    job = parse_state(line)
    assert job is not None
    return job


def test_a_line_of_squeue_is_parsed() -> None:
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
def test_a_job_waits_runs_or_is_over(line: str, waiting: bool, running: bool) -> None:
    assert (state(line).waiting, state(line).running) == (waiting, running)


@pytest.mark.parametrize("line", ["", "JOBID|x", "slurm_load_jobs error: Invalid job id specified", "a|b|c", "|||"])
def test_other_lines_hold_no_state(line: str) -> None:
    assert parse_state(line) is None


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "nodes are not free yet (Resources)"),
        ("Priority", "jobs of higher priority are ahead of it (Priority)"),
        ("AssocGrpGRES", "the account has reached its limit (AssocGrpGRES)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n3",
            "nodes that it needs are down, drained or reserved (ReqNodeNotAvail, UnavailableNodes:n3)",
        ),
        (
            "QOSMaxJobsPerUserLimit",
            "the user has reached the limit of the quality of service (QOSMaxJobsPerUserLimit)",
        ),
        ("SomethingNew", "SomethingNew"),
        ("None", "Slurm has not scheduled it yet"),
    ],
)
def test_reasons_are_in_words_and_as_slurm_writes_them(reason: str, words: str) -> None:
    assert pending_reason(state(f"PENDING|{reason}|")) == words


@pytest.mark.parametrize(
    ("line", "never_starts"),
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
def test_some_reasons_never_end(line: str, never_starts: bool) -> None:
    assert state(line).never_starts == never_starts


def test_ends_are_in_words() -> None:
    assert describe_end(state("TIMEOUT|TimeLimit|n0")) == "it reached its time limit; raise it with --time (TIMEOUT)"
    assert describe_end(state("CANCELLED by 1000|None|n0")) == "it was cancelled (CANCELLED)"
    assert describe_end(state("NEWLY_INVENTED|None|n0")) == "NEWLY_INVENTED"


@pytest.mark.parametrize(
    ("output", "error"),
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
def test_the_last_error_is_found_in_the_output(output: str, error: str) -> None:
    assert last_error(output) == error
