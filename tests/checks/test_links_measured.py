"""What ranks really measure in one round: pairs one after the other, and a group."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from checks.lone_context import CPU, LoneContext

from seatrial.worker import groups

_PART = {"fabric": "nodes", "pairs": [], "groups": [], "turns": 1, "at_once": 1, "repeats": 5, "tell_below_gbps": None}
_PARAMS = {"cpu_bytes": 65_536, "seconds": 0.05, "pair_timeout_s": 5.0}


def _measured(
    size: int, *parts: dict[str, Any], round_s: float = 60.0
) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Figures and facts of each rank, of a round that has so many seconds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked = json.dumps({"parts": [{**_PART, **part} for part in parts]})
    words = [str(size), str(port), asked, json.dumps(_PARAMS), str(round_s)]
    script = str(Path(__file__).with_name("links_rank.py"))
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen([sys.executable, script, str(rank), *words], stdout=subprocess.PIPE, text=True)
            )
            for rank in range(size)
        ]
        for process in running:
            stack.callback(process.kill)
        told = [process.communicate(timeout=50)[0] for process in running]
    return [tuple(json.loads(text.splitlines()[-1])) for text in told]


@pytest.mark.slow
def test_a_pair_and_a_group_on_two_fabrics() -> None:
    group = {"fabric": "others", "groups": [[0, 1, 2]], "tell_below_gbps": 1e9}
    told = _measured(3, {"pairs": [[0, 1], [2, 0]], "turns": 2}, group)
    rates = [(each["rank"], each["peer"]) for rank, _ in told for each in rank if each["name"] == "gbps"]
    every = {(a, b) for a in range(3) for b in range(3) if a != b}
    assert sorted(rates) == sorted([*every, (0, 1), (1, 0), (0, 2), (2, 0)])
    assert all(each["value"] > 0 for rank, _ in told for each in rank)
    late = {(each["rank"], each["peer"]) for rank, _ in told for each in rank if each["name"] == "latency_us"}
    assert late == {(0, 1), (2, 0)}
    assert [[each["rank"] for each in rank if each["name"] == "group_gbps"] for rank, _ in told] == [[0], [1], [2]]
    assert [[fact["name"] for fact in facts] for _, facts in told] == [["asked", "asked"], [], []]


@pytest.mark.slow
def test_a_small_group_is_not_waited_for_by_a_large_one() -> None:
    """Three have three turns, two have one."""
    told = _measured(5, {"groups": [[0, 1, 2], [3, 4]], "tell_below_gbps": 1e9})
    assert [sum(each["name"] == "gbps" for each in rank) for rank, _ in told] == [2, 2, 2, 1, 1]
    assert [sum(each["name"] == "group_gbps" for each in rank) for rank, _ in told] == [1] * 5


@pytest.mark.slow
def test_a_group_without_time_for_all_its_exchanges_says_so_and_tells_no_median() -> None:
    told = _measured(2, {"groups": [[0, 1]]}, round_s=0.0)
    for rank, facts in told:
        assert [each["name"] for each in rank] == []
        assert [each["value"] for each in facts if each["name"] == "late"] == [{"fabric": "nodes", "exchanges": [0, 1]}]


@pytest.mark.parametrize(
    ("name", "handling", "timeout"), [("links/x", "2", timedelta(seconds=5)), ("world", "3", timedelta(days=1))]
)
def test_over_nccl_what_fails_raises_on_a_link_and_ends_the_rank_in_the_world(
    monkeypatch: pytest.MonkeyPatch, name: str, handling: str, timeout: timedelta
) -> None:
    """A stand-in for NCCL's group, which needs a GPU: what it is told, and what it finds in the environment."""
    told = [f"TORCH_NCCL_{each}" for each in ("ASYNC_ERROR_HANDLING", "DUMP_ON_TIMEOUT", "WAIT_TIMEOUT_DUMP_MILSEC")]
    seen = dict[str, Any]()

    def stand_in(backend: str, **options: Any) -> None:
        seen.update(options, backend=backend, environ=[os.environ[each] for each in told])

    for each in told:
        monkeypatch.setenv(each, "1")
    monkeypatch.setattr(dist, "init_process_group", stand_in)
    context = LoneContext(
        check="links", store=dist.HashStore(), backend="nccl", device=replace(CPU, type="cuda", backend="nccl", index=3)
    )
    groups.form(context, name, [0], timedelta(seconds=5))
    assert seen["environ"] == [handling, "0", "0"]
    assert (seen["backend"], seen["timeout"], str(seen["device_id"])) == ("nccl", timeout, "cuda:3")
