"""The pods of a run that has not started: which ones wait and for what, and which ones do not exist yet. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.targets.kubernetes.warnings_of_run import CreationWarnings, warning_said


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPods:
    """The pods of a run while they start one by one."""

    pods: tuple[PodStatus, ...]
    """All pods that exist, whatever their state."""
    nodes: int
    """Number of pods that hold ranks."""
    under_mpi: bool
    """Whether a launcher pod follows once the sshd of every node answers."""
    warnings: CreationWarnings = field(default_factory=CreationWarnings)
    """Warnings of the cluster about objects of the run that are no pods."""
    pod_warnings: Mapping[str, str] = field(default_factory=dict)
    """The newest warning about each pod, by its name."""
    suspended: bool = False
    """Whether the workload is suspended."""

    @property
    def wanted(self) -> int:
        return self.nodes + self.under_mpi

    @property
    def missing(self) -> int:
        """Number of pods that do not exist."""
        return self.wanted - len(self.pods)

    @property
    def waiting(self) -> list[PodStatus]:
        return [pod for pod in self.pods if pod.state == "waiting"]

    @property
    def running(self) -> list[PodStatus]:
        """The running pods that hold ranks; the launcher is not among them."""
        return [pod for pod in self.pods if pod.state == "running" and not pod.is_launcher]

    @property
    def unready(self) -> list[PodStatus]:
        """Under MPI, the pods whose sshd does not answer; empty while anything but the launcher is missing."""
        running = self.running
        if not self.under_mpi or len(running) < self.nodes or len(self.pods) > len(running):
            return []
        return [pod for pod in running if not pod.ready]

    @property
    def final_refusal(self) -> str:
        """The warning that pods of the run will never be admitted; empty if there is none."""
        return self.warnings.final if self.missing > 0 else ""

    def _why(self, pod: PodStatus) -> str:
        """Return why a pod waits. Its state does not say why there is no sandbox or no volume, but its warning does."""
        warning = "" if pod.hopeless or not pod.node else self.pod_warnings.get(pod.name, "")
        return pod.waits_for + (f"; {warning}" if warning else "")

    def reason(self) -> str:
        """Return what the run waits for, as a sentence without its full stop."""
        return self._reason(warning_said)

    def _reason(self, said: Callable[[str], str]) -> str:
        """``said``: how the sentence shows a warning."""
        if waiting := self.waiting:
            hopeless = [pod for pod in waiting if pod.hopeless]
            warned = [pod for pod in waiting if pod.name in self.pod_warnings]
            why = self._why((hopeless or warned or waiting)[0])
            if self.warnings.newest and self.missing > 0:
                why = f"{why}; {said(self.warnings.newest)}"
            return f"{len(waiting) + max(self.missing, 0)} of {self.wanted} pods wait: {why}"
        if self.warnings.newest:
            return f"{self.missing} of {self.wanted} pods cannot be created: {said(self.warnings.newest)}"
        if self.suspended:
            return (
                f"{self.missing} of {self.wanted} pods are not created: the workload is suspended, because a queue"
                " (such as Kueue) has not admitted it yet or somebody has suspended it"
            )
        if unready := self.unready:
            return why_no_launcher(unready[0])
        return f"{self.missing} of {self.wanted} pods are not created yet"

    def kind_of_reason(self) -> str:
        """Return the reason without what changes while the same wait goes on: counts, names of pods, the two reasons
        between which a failed pull alternates."""
        image = re.sub(r"(its image \S+ cannot be pulled).*", r"\1", self._reason(str))
        return re.sub(r'[0-9]+|"[^"]*"', "", image)

    def left_out(self, reason: str) -> tuple[str, ...]:
        """Return each pod that a run of fewer nodes leaves out, with its reason.

        ``reason``: the last one that was printed; it is given for pods that do not exist.
        """
        missing = self.nodes - sum(not pod.is_launcher for pod in self.pods)
        return (
            *(f"{pod.name}: {pod.waits_for}" for pod in self.waiting),
            *(f"pod {number + 1} that was not created: {reason}" for number in range(missing)),
        )


def why_no_launcher(pod: PodStatus) -> str:
    """Return that the operator of MPI waits for a pod that is not ready, as a sentence without its full stop."""
    return (
        f"the launcher is not created because {pod.label} is not ready: its sshd does not answer on port 2222; check"
        " that the image has /usr/sbin/sshd"
    )
