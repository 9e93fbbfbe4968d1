"""What agents send in one event, of any length: while the conductor looks at it, it hears no agent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from conductor.simulated_program import config as program_config

from seatrial.conductor.base import BaseConductor
from seatrial.conductor.config import TrialConfig
from seatrial.conductor.program_conductor import ProgramConductor
from seatrial.conductor.rank_status import dead
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.protocol.own_errors import is_of_device

ECC = "CUDA error: uncorrectable ECC error encountered"
CONNECTING = "bootstrap/begin world"


def trial(device: str = "cuda") -> TrialConductor:
    steps = (StepPlan(check="bootstrap", scope="bootstrap"),)
    config = TrialConfig(
        run="simulated",
        nodes=2,
        nproc_per_node=2,
        env={},
        steps=steps,
        deadline_s=600.0,
        device=device,
        backend="gloo",
        suspects=lambda check, events: (),
    )
    conductor = TrialConductor(config, 0.0)
    join(conductor)
    return conductor


def program() -> ProgramConductor:
    conductor = ProgramConductor(program_config(watched=False), 0.0)
    join(conductor)
    conductor.message(0, {"kind": "port", "gen": 0, "address": "10.0.0.1", "port": 1}, 0.2)
    return conductor


def join(conductor: BaseConductor) -> None:
    for node in (0, 1):
        conductor.join(node, 0.1, f"10.0.0.{node + 1}")


def say_exit(conductor: BaseConductor, last_lines: object) -> None:
    header = {"run": "simulated", "src": "node1", "seq": 0, "t": 1.0}
    event = {"kind": "exit", "gen": 0, "rank": 2, "code": -11, "ours": False, "phase": CONNECTING}
    conductor.message(1, {**header, **event, "last_lines": last_lines}, 1.0)


@pytest.mark.parametrize("conductor", [trial, program])
@pytest.mark.parametrize("last_lines", [[" "] * 300_000, [" " * 4_000_000] * 2, [ECC, "x" * 4_000_000]])
def test_the_last_output_of_one_rank_holds_up_no_conductor(conductor: Any, last_lines: list[str]) -> None:
    """Two million lines held that of a trial for 100 s, and the agents of honest nodes ended their ranks."""
    made, began = conductor(), time.process_time()
    say_exit(made, last_lines)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("conductor", [trial, lambda: trial("cpu"), program])
@pytest.mark.parametrize("last_lines", [" " * 100, {"0": "x"}, None, [["x"]], [7]])
def test_last_output_that_is_no_list_of_texts_is_refused(conductor: Any, last_lines: object) -> None:
    with pytest.raises(TypeError, match="last lines"):
        say_exit(conductor(), last_lines)


def suspects_itself(lines: Sequence[str], phase: str = CONNECTING) -> bool:
    return not dead(2, phase, -11, is_oom=False, num_hosts=2, device_lines=lines).may_come_from_others


def test_words_about_the_device_count_where_others_may_be_at_fault() -> None:
    assert suspects_itself([*["x"] * 39, ECC])
    assert not suspects_itself(["x"] * 40)


@pytest.mark.parametrize("lines", [[" "] * 1_000_000, [" " * 10_000_000], ["[a]: " * 2_000_000] * 40])
def test_words_about_a_device_are_found_in_no_time(lines: list[str]) -> None:
    began = time.process_time()
    assert not is_of_device(lines)
    assert is_of_device([*lines, ECC])
    assert time.process_time() - began < 0.5


def test_a_rank_that_starts_says_no_more_than_ranks_do() -> None:
    """A check reads its event each time that it is asked how it goes on."""
    header = {"run": "simulated", "src": "rank2.0", "seq": 0, "t": 1.0, "gen": 0, "rank": 2, "kind": "rank"}
    with pytest.raises(ValueError, match="values"):
        trial().message(1, {**header, "libraries": {str(number): "" for number in range(100_000)}}, 1.0)
