"""The connections of one node to many, on loopback, in a process of its own as in a trial."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

from checks import network_caller
from checks.network_caller import NUM_NODES, PARAMS, UNREADABLE

from seatrial.checks.network.endpoint import reach
from seatrial.checks.network.pairs import numbers_of
from seatrial.checks.network.schedule import within

EVERYBODY = (1 << NUM_NODES) - 1


def reported(closed_role: str) -> dict[str, Any]:
    words = [sys.executable, network_caller.__file__, closed_role]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_node_stops_after_failures_of_one_kind() -> None:
    report = reported("data")
    (failure,) = report["failed"]
    failed, untried = within(EVERYBODY, failure["nodes"]), within(EVERYBODY, report["untried"])
    assert (failure["role"], failure["how"]) == ("data", "refused")
    assert PARAMS.max_failures <= failed.bit_count() < PARAMS.max_failures + PARAMS.at_once
    assert sorted([0, *numbers_of(failed), *numbers_of(untried)]) == list(range(NUM_NODES))


def test_own_names_that_lead_nowhere_leave_time_for_addresses() -> None:
    report = reported("name")
    (failure,) = report["failed"]
    assert report["untried"] == []
    assert failure["role"] == "name"
    num_failed = within(EVERYBODY, failure["nodes"]).bit_count()
    assert PARAMS.max_failures <= num_failed < PARAMS.max_failures + PARAMS.at_once


def test_a_node_that_shares_nonsense_is_not_tried_and_hurts_no_other() -> None:
    report = reported("none")
    assert report["failed"] == []
    assert report["untried"] == [[1, len(UNREADABLE)]]


def test_an_interface_of_another_node_is_no_route() -> None:
    reached = asyncio.run(reach("fe80::1%nosuch", 5, bytes(16), 2.0))
    assert reached.failure == "no route"
