"""The state of a Slurm job in plain words: why it waits, how it ended, and the errors that its commands printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SQUEUE_FORMAT = "%T|%r|%N"
"""For ``squeue --format``: state, reason, nodes."""
SACCT_FORMAT = "State,Reason,NodeList"
"""The same fields for ``sacct --format``."""

_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD"})
_RUNNING = frozenset({"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"})
# A job with one of these reasons starts only after somebody changes the job or the limit.
_NEVER_START = (
    "AccountNotAllowed",
    "AssocMax.*PerJob",
    "BadConstraints",
    "DependencyNeverSatisfied",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionConfig",
    "PartitionInactive",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "QOSMax.*PerJob(Limit)?",
    "QOSNotAllowed",
    "QOSTimeLimit",
    "QOSMin.*",
)
_REASONS: Mapping[str, str] = {
    "AccountNotAllowed": "the account may not use this partition; name another with --account or --partition",
    "AssocGrp.*": "the account has reached its limit",
    "AssocMax.*PerJob": "it requests more than the account allows for one job; request less or name another --account",
    "AssocMax.*": "the account has reached its limit of jobs",
    "BadConstraints": "no node can satisfy the request; see --constraint, --gres and --nodes",
    "BeginTime": "its start time has not come",
    "Dependency": "it depends on another job",
    "DependencyNeverSatisfied": "it depends on a job that failed",
    "InvalidAccount": "the account does not exist; name one with --account",
    "InvalidQOS": "the quality of service does not exist; name another",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "the user holds it; scontrol release lets it continue",
    "JobLaunchFailure": "Slurm could not launch it on its nodes",
    "Licenses": "it waits for a license",
    "None": "Slurm has not scheduled it yet",
    "Nodes required for job are DOWN.*|ReqNodeNotAvail.*": "nodes that it needs are down, drained or reserved",
    "PartitionConfig": "the partition is too small for it or does not allow it; see --nodes and --partition",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition accepts no jobs; name another with --partition",
    "PartitionNodeLimit": "it requests more nodes than the partition allows; see --nodes",
    "PartitionTimeLimit": "it requests more time than the partition allows; see --time",
    "Priority": "jobs of higher priority are ahead of it",
    "Prolog": "the nodes are being prepared",
    "QOSGrp.*": "the quality of service has reached its limit",
    "QOSMax.*PerJob(Limit)?": "it requests more than the quality of service allows for one job; request less",
    "QOSMax.*": "the user has reached the limit of the quality of service",
    "QOSMin.*": "it requests less than the minimum of the quality of service",
    "QOSNotAllowed": "the account or partition may not use the quality of service",
    "QOSTimeLimit": "the quality of service has used up its time; see --time",
    "Reservation": "it waits for its reservation",
    "Resources": "nodes are not free yet",
}
"""Pattern of a whole reason -> words; the first match counts. Any other reason is shown as Slurm writes it."""

_ENDS: Mapping[str, str] = {
    "BOOT_FAIL": "a node failed to boot",
    "CANCELLED": "it was cancelled",
    "COMPLETED": "it ended",
    "DEADLINE": "its deadline has passed",
    "FAILED": "it failed",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "PREEMPTED": "a job of higher priority preempted it",
    "REVOKED": "another cluster started it",
    "SPECIAL_EXIT": "it is held after a failure",
    "STOPPED": "it was stopped",
    "SUSPENDED": "it was suspended",
    "TIMEOUT": "it reached its time limit; raise it with --time",
}

# sbatch: error: ..., slurm_load_jobs error: ..., and errors of a command line: srun: unrecognized option '...'
_ERROR = re.compile(r"\w+(?:(?:: (?:error|fatal)| error):|:(?= (?:\w+ )?option ['-])) (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job at one moment."""

    state: str
    reason: str
    nodes: str
    """Slurm's list of nodes, such as ``n[0-3]``; empty while the job waits."""

    @property
    def waiting(self) -> bool:
        return self.state in _WAITING

    @property
    def running(self) -> bool:
        return self.state in _RUNNING

    @property
    def never_starts(self) -> bool:
        """Whether the job waits for something that waiting does not bring."""
        return self.waiting and any(re.fullmatch(reason, self.reason) for reason in _NEVER_START)


def parse_state(line: str) -> JobState | None:
    """Return the state in a line of SQUEUE_FORMAT or SACCT_FORMAT; None for any other line."""
    fields = line.strip().split("|")
    # sacct writes "CANCELLED by 1000".
    state = fields[0].partition(" ")[0]
    if len(fields) != 3 or not re.fullmatch("[A-Z_]+", state):
        return None
    return JobState(state=state, reason=fields[1], nodes=fields[2])


def pending_reason(job: JobState) -> str:
    """Return why the job has not started, in words, followed by Slurm's reason if it gives one."""
    words = next((words for reason, words in _REASONS.items() if re.fullmatch(reason, job.reason)), "")
    has_reason = job.reason != "None"
    return f"{words} ({job.reason})" if words and has_reason else words or job.reason


def describe_end(job: JobState) -> str:
    """Return how the job ended, in words, followed by Slurm's state."""
    return f"{_ENDS[job.state]} ({job.state})" if job.state in _ENDS else job.state


def last_error(output: str) -> str:
    """Return the last error that sbatch, squeue or srun printed, without the program's name; empty without one."""
    matches = (_ERROR.match(line.strip()) for line in output.splitlines())
    errors = [match[1] for match in matches if match]
    return re.sub(r"^Batch job submission failed: ", "", errors[-1]) if errors else ""
