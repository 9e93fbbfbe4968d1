"""The placeholders in the arguments of a script."""

from __future__ import annotations

import pytest

from seatrial.environment.placeholders import fill_placeholders

_ENVIRON = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}


@pytest.mark.parametrize(
    ("argument", "filled"),
    [
        ("--rank={rank}", "--rank=3"),
        ("{local_rank}/{nproc_per_node}", "1/2"),
        ("{{rank}}", "{rank}"),
        ("{master_addr}", "10.0.0.1"),
        ("{Rank} {} {ranks} {rank", "{Rank} {} {ranks} {rank"),
        ('{"a": 3}', '{"a": 3}'),
    ],
)
def test_known_placeholders_are_filled_and_nothing_else(argument: str, filled: str) -> None:
    assert fill_placeholders([argument], _ENVIRON, 0) == [filled]


def test_a_script_that_spawns_its_processes_gets_their_number() -> None:
    assert fill_placeholders(["{nproc_per_node}"], _ENVIRON, 8) == ["8"]


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(KeyError, match="MASTER_PORT"):
        fill_placeholders(["{master_port}"], _ENVIRON, 0)
