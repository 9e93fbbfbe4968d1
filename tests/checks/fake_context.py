"""A test double of the context of a rank: it keeps in lists what a check reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from seatrial.evidence.measurement import Better, Fact, Measurement
from seatrial.rank.context import Context
from seatrial.rank.device import Device

CPU = Device(type="cpu", vendor="cpu", index=0, name="a CPU", backend="gloo", memory_bytes=1, libraries="torch")


@dataclass(kw_only=True)
class FakeContext(Context):
    """A context without a worker and a conductor around it."""

    check: str
    device: Device = CPU
    rank: int = 0
    local_rank: int = 0
    local_world_size: int = 1
    clock: tuple[float, float] | None = None
    node_rank: int = 0
    node: str = "here"
    address: str = "127.0.0.1"
    group_rank: int = 0
    world_size: int = 1
    ranks: tuple[int, ...] = (0,)
    backend: str = "gloo"
    phase_page: Any = None
    emit: Any = None
    group: Any = None
    store: Any = None
    stage: str = "measure"
    timeout_s: float = 60.0
    given: dict[str, Any] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)

    def measurement(self, name: str, value: float, unit: str, better: Better | None = None, **keys: Any) -> None:
        keys |= {"rank": self.rank, "stage": self.stage, "node": self.node}
        self.measurements.append(
            Measurement(check=self.check, name=name, value=value, unit=unit, better=better, **keys)
        )

    def fact(self, name: str, value: Any) -> None:
        self.facts.append(Fact(check=self.check, name=name, value=value, rank=self.rank, stage=self.stage))

    def phase(self, label: str) -> None:
        self.phases.append(label)

    def share(self, name: str, value: Any) -> None:
        self.given[name] = value
