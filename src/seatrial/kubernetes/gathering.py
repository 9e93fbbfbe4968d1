"""Why a run in pods has not begun, in words: what the pods that are there wait for, and which are not made. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.kubernetes.pods import PodSeen

__all__ = ["Gathering"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """The pods of a run that come one by one."""

    pods: tuple[PodSeen, ...]
    nodes: int
    under_mpi: bool
    """A launcher comes after them, when each has an sshd that answers."""
    complaints: tuple[str, ...] = ()
    """Of the cluster's controllers."""

    @property
    def wanted(self) -> int:
        return self.nodes + self.under_mpi

    @property
    def missing(self) -> int:
        """Pods that are not made."""
        return self.wanted - len(self.pods)

    @property
    def waiting(self) -> list[PodSeen]:
        return [pod for pod in self.pods if pod.state == "waiting"]

    @property
    def running(self) -> list[PodSeen]:
        """Of the nodes only."""
        return [pod for pod in self.pods if pod.state == "running" and not pod.is_launcher]

    @property
    def unready(self) -> list[PodSeen]:
        """Under MPI: those without an sshd that answers, when nothing but the launcher is missing."""
        nodes = self.running
        if not self.under_mpi or len(nodes) < self.nodes or len(self.pods) > len(nodes):
            return []
        return [pod for pod in nodes if not pod.ready]

    def words(self) -> str:
        """What is waited for."""
        if waiting := self.waiting:
            why = next((pod.waits for pod in waiting if pod.hopeless), waiting[0].waits)
            if self.complaints and self.missing > 0:
                why = f"{why}; {self.complaints[-1]}"
            return f"{len(waiting) + max(self.missing, 0)} of {self.wanted} pods wait: {why}"
        if self.complaints:
            return f"{self.missing} of {self.wanted} pods are not made: {self.complaints[-1]}"
        if unready := self.unready:
            return (
                f"the launcher is not made, as {unready[0].label} is not ready: its sshd does not answer on port 2222;"
                " see that the image has /usr/sbin/sshd"
            )
        return f"{self.missing} of {self.wanted} pods are not made yet"

    def absent(self, told: str) -> tuple[str, ...]:
        """Each pod that a run of fewer does without; ``told``: what was said last of those that are not made."""
        missing = self.nodes - sum(not pod.is_launcher for pod in self.pods)
        return (
            *(f"{pod.name}: {pod.waits}" for pod in self.waiting),
            *(f"pod {number + 1} that was not made: {told}" for number in range(missing)),
        )
