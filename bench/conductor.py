"""How the conductor grows with the fleet: time for a message and memory, at 64, 512 and 4,096 agents.

A simulated trial (healthy until a rank dies in the fourth step, then a second generation) is recorded once for each
size. The conductor is pure, so the same calls are then made on a new one with nothing else beside it: what is timed and
counted is the conductor alone, not the simulation, the sockets or the JSON.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

from harness import alternately, ratios, write_result

# The simulation belongs to the tests; this file must not be taken for their folder of the same name.
sys.path.remove(str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import Planted

from seatrial.conductor.config import State, TrialConfig
from seatrial.conductor.trial_conductor import TrialConductor

_AGENTS = (64, 512, 4096)
_ROUNDS = 5
_EPOCH_S = 1_000.0


class _Recorded:
    """A conductor that notes every call."""

    def __init__(self, conductor: TrialConductor) -> None:
        self._machine = conductor
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def state(self) -> State:
        return self._machine.state

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._machine, name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            return method(*arguments)

        return call


def main() -> None:
    """Measure all sizes in turn and write ``results/conductor.json``."""
    recorded = {agents: _record(agents) for agents in _AGENTS}
    times = alternately(
        {str(agents): partial(_seconds_per_message, *recording) for agents, recording in recorded.items()}, _ROUNDS
    )
    per_message = ratios({name: [value * 1e6 for value in values] for name, values in times.items()})
    measurements: dict[str, Any] = {}
    for agents, (config, calls) in recorded.items():
        peak_bytes = _peak_bytes(config, calls)
        measurements[str(agents)] = {
            "messages": sum(name == "message" for name, _ in calls),
            "us_per_message": per_message[str(agents)],
            "messages_per_s": round(1e6 / per_message[str(agents)]["median"]),
            "peak_bytes": peak_bytes,
            "peak_bytes_per_agent": round(peak_bytes / agents),
        }
    path = write_result("conductor", "python bench/conductor.py", {"agents": measurements, "rounds": _ROUNDS})
    print(path.read_text())


def _record(agents: int) -> tuple[TrialConfig, list[tuple[str, tuple[Any, ...]]]]:
    fleet = SimulatedFleet(nodes=agents, planted=(Planted(kind="dead", rank=agents // 2, at=3),))
    recorder = _Recorded(fleet.conductor)
    fleet.conductor = recorder  # type: ignore[assignment]
    fleet.run()
    return fleet.config, recorder.calls


def _replay(config: TrialConfig, calls: list[tuple[str, tuple[Any, ...]]]) -> float:
    """Seconds in all calls; the messages to the agents are dropped as soon as they are made."""
    conductor = TrialConductor(config, _EPOCH_S)
    started = time.perf_counter()
    for name, arguments in calls:
        getattr(conductor, name)(*arguments)
    seconds = time.perf_counter() - started
    assert conductor.state is State.OVER
    return seconds


def _seconds_per_message(config: TrialConfig, calls: list[tuple[str, tuple[Any, ...]]]) -> float:
    return _replay(config, calls) / sum(name == "message" for name, _ in calls)


def _peak_bytes(config: TrialConfig, calls: list[tuple[str, tuple[Any, ...]]]) -> int:
    tracemalloc.start()
    _replay(config, calls)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


if __name__ == "__main__":
    main()
