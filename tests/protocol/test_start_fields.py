"""An agent starts processes by nothing but values that an honest conductor sends."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from seatrial.protocol.job_digest import digest_of_start
from seatrial.protocol.start_fields import MOST_PLACES, fault_of_command

_TRUST: dict[str, list[Any]] = {"owners": [], "mounters": [], "open_places": []}
_PROGRAM: dict[str, Any] = {
    "argv": ["sh", "-c"],
    "args": ["train --at {master_addr}:{master_port} --rank {rank}"],
    "spawns": 0,
    "nnodes": 2,
    "cwd": "/work",
    "script": "",
    "cwd_trust": _TRUST,
    "script_trust": _TRUST,
    "watched": False,
    "shown": [0],
    "world_size": 4,
    "master_addr": "fe80::1%eth0",
    "master_port": 29_500,
    "group_rank": 1,
    "max_restarts": 3,
}
_STARTS: dict[str, dict[str, Any]] = {
    "start_program": {"run": "20261127-010203-ab12", "gen": 0, "places": [[2, 0], [3, 1]], "program": _PROGRAM},
    "start_workers": {
        "run": "llm.v1",
        "gen": 2,
        "ranks": [[0, 0], [2, 3]],
        "places": [[2, 0], [3, 1]],
        "device": "cuda",
        "backend": "auto",
        "interface": "bond+1.80@x",
    },
    "node_step": {"gen": 0, "step": 0, "check": "network", "device": "cpu", "backend": "gloo", "watches": False},
}
_TEXT = "1; touch /tmp/owned"


def _start(kind: str) -> Any:
    return copy.deepcopy({"kind": kind, "env": {"A": "b"}, **_STARTS[kind]})


def _fault(start: Any) -> str:
    return fault_of_command(start, digest_of_start(start), ranks_run=False)


@pytest.mark.parametrize("kind", _STARTS)
def test_what_ours_send_is_sound(kind: str) -> None:
    start = _start(kind)
    assert _fault(start) == ""


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("start_workers", "run"),
        ("start_workers", "gen"),
        ("start_workers", "places.0.0"),
        ("start_workers", "places.1.1"),
        ("start_workers", "places.1"),
        ("start_workers", "places"),
        ("start_workers", "ranks"),
        ("start_workers", "ranks.0"),
        ("start_workers", "ranks.1.1"),
        ("start_workers", "device"),
        ("start_workers", "backend"),
        ("start_workers", "interface"),
        ("node_step", "gen"),
        ("node_step", "step"),
        *[("node_step", name) for name in ("device", "backend", "watches")],
        ("start_program", "run"),
        ("start_program", "places.0.0"),
        *[("start_program", f"program.{name}") for name in ("spawns", "nnodes", "world_size", "group_rank")],
        *[("start_program", f"program.{name}") for name in ("max_restarts", "shown", "shown.0", "watched")],
        *[("start_program", f"program.{name}") for name in ("master_addr", "master_port")],
    ],
)
@pytest.mark.parametrize("value", [_TEXT, "--option=x y", None, True, -1, 1.0, [_TEXT], {"1": 1}], ids=repr)
def test_no_other_value_gets_into_a_rank(kind: str, path: str, value: object) -> None:
    start = _start(kind)
    *way, last = (int(name) if name.isdecimal() else name for name in path.split("."))
    holder = start
    for name in way:
        holder = holder[name]
    holder[last] = value
    is_sound = last in ("watched", "watches") and value is True
    assert (_fault(start) == "") == is_sound


@pytest.mark.parametrize(("name", "value"), [("argv", []), ("argv", {}), ("argv", ""), ("args", {}), ("args", "")])
def test_an_empty_command_is_no_trial(name: str, value: object) -> None:
    start = _start("start_program")
    start["program"][name] = value
    assert _fault(start).endswith(f"({name})")


@pytest.mark.parametrize("address", ["", "-x", "a b", "$(id)", "a;b", "a\n", "a/b", "x" * 256, "ä"], ids=repr)
def test_an_address_is_nothing_else(address: str) -> None:
    start = _start("start_program")
    start["program"]["master_addr"] = address
    assert _fault(start).endswith("(master_addr)")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("places", [[2, 0], [2, 1]]),
        ("places", [[2, 0], [3, 0]]),
        ("places", [[n, n] for n in range(MOST_PLACES + 1)]),
        ("ranks", [[0, 1]]),
        ("ranks", [[3, 2]]),
        ("ranks", [[2, 3], [2, 3]]),
        ("ranks", [[0, 1 << 20]]),
        ("ranks", [[2, 3, 4]]),
        ("interface", "a b"),
        ("interface", "x" * 16),
        ("interface", "-x"),
        ("device", "tpu"),
        ("backend", "ucc"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_ranks_are_started_where_they_can_be(name: str, value: object) -> None:
    start = _start("start_workers")
    start[name] = value
    assert _fault(start).endswith(f"({name})")


def test_a_program_starts_no_more_processes_than_a_node_has() -> None:
    start = _start("start_program")
    start["program"]["spawns"] = MOST_PLACES + 1
    assert _fault(start).endswith("(spawns)")


@pytest.mark.parametrize("kind", _STARTS)
def test_no_ranks_are_started_beside_others(kind: str) -> None:
    start = _start(kind)
    fault = fault_of_command(start, digest_of_start(start), ranks_run=True)
    assert fault == ("" if kind == "node_step" else "was asked to start ranks while others run")


@pytest.mark.parametrize("kind", ["start_workers", "node_step"])
def test_a_fault_that_nobody_has_typed_is_not_planted(kind: str) -> None:
    start = _start(kind)
    job = digest_of_start(start)
    start["env"] = {**start["env"], "SEATRIAL_PLANT": "agent-stop@compute:2"}
    assert fault_of_command(start, job, ranks_run=False).startswith("was asked to start what its own command line does")


@pytest.mark.parametrize("missing", ["run", "gen", "places", "program"])
def test_a_missing_field_is_told(missing: str) -> None:
    start = _start("start_program")
    job = digest_of_start(start)
    del start[missing]
    assert f"({missing!r})" in fault_of_command(start, job, ranks_run=False)
