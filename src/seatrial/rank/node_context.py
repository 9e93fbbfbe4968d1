"""The context of a node: what the ``measure`` of a check of scope ``agents`` can read, and how it reports facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from seatrial.evidence.measurement import Fact
from seatrial.protocol.commands import NodeStep
from seatrial.protocol.events import Event, FactsEvent


class Watcher(Protocol):
    """What a check leaves behind that watches the node until the end of the trial."""

    def tick(self) -> None:
        """Do what is due; called each second."""

    def begin(self, check: str, stage: str) -> None:
        """Note that a later step of the trial begins."""

    def end(self) -> None:
        """Report the last state."""


@dataclass(slots=True, kw_only=True)
class NodeContext:
    """One node and the step that its agent carries out. The process and the context last for all stages of a check."""

    step: NodeStep
    """The conductor's command, and the agent's facts about the node."""
    emit: Callable[[Event], None]
    """Sends one event."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What a stage keeps for the stages after it, such as open sockets."""
    watcher: Watcher | None = None
    """Set by the ``measure`` of a check that watches."""
    shared: list[Any] = field(default_factory=list)
    """Values that this stage shares: the stages after it find them in ``given``, by the number of the node."""

    @property
    def node_rank(self) -> int:
        """Number of the node."""
        return self.step["node"]

    @property
    def is_first_on_machine(self) -> bool:
        """Whether no other agent of this job has this machine before it: there may be one for each rank."""
        return not self.step["local_rank"]

    @property
    def stage(self) -> str:
        """Stage of the check."""
        return self.step["stage"]

    @property
    def given(self) -> dict[str, Any]:
        """Values that the nodes shared in earlier stages."""
        return self.step["given"]

    def fact(self, name: str, value: Any) -> None:
        """Report an observation about this node; ``value`` is JSON."""
        fact = Fact(
            check=self.step["check"],
            name=name,
            value=value,
            node_rank=self.node_rank,
            generation=self.step["gen"],
            stage=self.stage,
        )
        self.emit(FactsEvent(kind="facts", gen=self.step["gen"], step=self.step["step"], facts=[fact.to_json()]))

    def share(self, *values: Any) -> None:
        """Give JSON values to all nodes in the stages that follow; together at most 1,000 bytes."""
        self.shared += values
