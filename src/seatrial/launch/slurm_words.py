"""What Slurm says of a job, in words: why it waits, how it ended, and what its programs complain of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ACCOUNTED", "ASKED", "JobState", "complaint", "ended_by", "read_state", "waits_for"]

ASKED = "%T|%r|%N"
"""The format that ``squeue --format`` is asked for: state, reason, nodes."""
ACCOUNTED = "State,Reason,NodeList"
"""The same for ``sacct --format``."""

_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD"})
_RUNNING = frozenset({"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"})
# Slurm starts a job for none of these unless somebody changes the job or the limit.
_NEVER = (
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
    "AccountNotAllowed": "its account may not use this partition; name another with --account or --partition",
    "AssocGrp.*": "its account has as much running as it may",
    "AssocMax.*PerJob": "it asks for more than a job of its account may have; ask for less or name another --account",
    "AssocMax.*": "its account has as many jobs as it may",
    "BadConstraints": "no node can ever fulfil what it asks for; see --constraint, --gres and --nodes",
    "BeginTime": "its time to begin has not come",
    "Dependency": "it depends on another job",
    "DependencyNeverSatisfied": "it depends on a job that failed",
    "InvalidAccount": "its account does not exist; name one with --account",
    "InvalidQOS": "its quality of service does not exist; name another",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; scontrol release lets it go on",
    "JobLaunchFailure": "it could not be launched on its nodes",
    "Licenses": "it waits for a licence",
    "None": "Slurm has not looked at it yet",
    "Nodes required for job are DOWN.*|ReqNodeNotAvail.*": "nodes that it needs are down, drained or reserved",
    "PartitionConfig": "the partition is too small for it or does not allow it; see --nodes and --partition",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs; name another with --partition",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows; see --nodes",
    "PartitionTimeLimit": "it asks for more time than the partition allows; see --time",
    "Priority": "others are before it",
    "Prolog": "the nodes are being prepared",
    "QOSGrp.*": "its quality of service has as much running as it may",
    "QOSMax.*PerJob(Limit)?": "it asks for more than its quality of service allows; ask for less",
    "QOSMax.*": "its user has as much running as the quality of service allows",
    "QOSMin.*": "it asks for less than its quality of service takes",
    "QOSNotAllowed": "its quality of service is not for this account or partition",
    "QOSTimeLimit": "its quality of service has used up its time; see --time",
    "Reservation": "it waits for its reservation",
    "Resources": "nodes are not free yet",
}
"""Reason -> words; the first that fits a reason as a whole counts. Others are told as Slurm tells them."""

_ENDS: Mapping[str, str] = {
    "BOOT_FAIL": "a node could not be started",
    "CANCELLED": "it was cancelled",
    "COMPLETED": "it ended",
    "DEADLINE": "its deadline has passed",
    "FAILED": "it failed",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "PREEMPTED": "a job of higher priority took its place",
    "REVOKED": "another cluster has taken it",
    "SPECIAL_EXIT": "it is held after a failure",
    "STOPPED": "it was stopped",
    "SUSPENDED": "it was suspended",
    "TIMEOUT": "its time is over; give it more with --time",
}

# sbatch: error: ..., slurm_load_jobs error: ..., and what is said of words on a command line: srun: unrecognized option
_COMPLAINT = re.compile(r"\w+(?:(?:: (?:error|fatal)| error):|:(?= (?:\w+ )?option ['-])) (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One look at a job."""

    state: str
    reason: str
    nodes: str
    """As Slurm writes them: ``n[0-3]``; empty while it waits."""

    @property
    def waiting(self) -> bool:
        return self.state in _WAITING

    @property
    def running(self) -> bool:
        return self.state in _RUNNING

    @property
    def never(self) -> bool:
        """It waits for what will not come by itself."""
        return self.waiting and any(re.fullmatch(reason, self.reason) for reason in _NEVER)


def read_state(line: str) -> JobState | None:
    """Out of a line of ASKED or ACCOUNTED; None when it is no such line."""
    fields = line.strip().split("|")
    # CANCELLED by 1000, as sacct says it.
    state = fields[0].partition(" ")[0]
    if len(fields) != 3 or not re.fullmatch("[A-Z_]+", state):
        return None
    return JobState(state=state, reason=fields[1], nodes=fields[2])


def waits_for(job: JobState) -> str:
    """Why it has not started, in words, with Slurm's own."""
    words = next((words for reason, words in _REASONS.items() if re.fullmatch(reason, job.reason)), "")
    return f"{words} ({job.reason})" if words else job.reason


def ended_by(job: JobState) -> str:
    """How it ended, in words, with Slurm's own."""
    return f"{_ENDS[job.state]} ({job.state})" if job.state in _ENDS else job.state


def complaint(output: str) -> str:
    """The last thing that sbatch, squeue or srun complained of, without its own name; empty when it did not."""
    lines = (_COMPLAINT.match(line.strip()) for line in output.splitlines())
    told = [line[1] for line in lines if line]
    return re.sub(r"^Batch job submission failed: ", "", told[-1]) if told else ""
