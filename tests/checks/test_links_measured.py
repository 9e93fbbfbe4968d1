"""Real measurements of ranks in one round: pairs one after the other, and a group."""

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
from checks.fake_context import CPU, FakeContext

from seatrial.rank import groups

_PART = {"fabric": "nodes", "pairs": [], "groups": [], "turns": 1, "at_once": 1, "repeats": 5, "list_below_gbps": None}
_PARAMS = {"cpu_bytes": 65_536, "seconds": 0.05, "pair_timeout_s": 1.0}


def _measured(
    size: int, *parts: dict[str, Any], round_s: float = 60.0, lie: str = ""
) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return measurements and facts of each rank for a round of ``round_s`` seconds. Rank 0 tells the lie."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked = json.dumps({"parts": [{**_PART, **part} for part in parts]})
    words = [str(size), str(port), asked, json.dumps(_PARAMS), str(round_s)]
    script = str(Path(__file__).with_name("links_rank.py"))
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, script, str(rank), *words, "" if rank else lie], stdout=subprocess.PIPE, text=True
                )
            )
            for rank in range(size)
        ]
        for process in running:
            stack.callback(process.kill)
        answers = [process.communicate(timeout=50)[0] for process in running]
    read = [json.loads(text.splitlines()[-1]) for text in answers]
    # Ranks of one step pass the same phases, also where no pair of a turn has them; a small group has fewer turns.
    longest = max((phases for *_, phases in read), key=len)
    assert all(phases == longest[: len(phases)] for *_, phases in read)
    return [(measurements, facts) for measurements, facts, _ in read]


@pytest.mark.slow
def test_a_pair_and_a_group_on_two_fabrics() -> None:
    group = {"fabric": "others", "groups": [[0, 1, 2]], "list_below_gbps": 1e9}
    answers = _measured(3, {"pairs": [[0, 1], [2, 0]], "turns": 2}, group)
    rates = [(each["rank"], each["peer"]) for rank, _ in answers for each in rank if each["name"] == "gbps"]
    every = {(a, b) for a in range(3) for b in range(3) if a != b}
    assert sorted(rates) == sorted([*every, (0, 1), (1, 0), (0, 2), (2, 0)])
    shares = [(each["rank"], each["peer"]) for rank, _ in answers for each in rank if each["name"] == "cpu_share"]
    # A kernel may not count how long a thread waited for a core.
    assert sorted(shares) in ([], [(0, 1), (0, 2), (1, 0), (2, 0)])
    assert all(each["value"] > 0 for rank, _ in answers for each in rank if each["name"] != "cpu_share")
    late = {(each["rank"], each["peer"]) for rank, _ in answers for each in rank if each["name"] == "latency_us"}
    assert late == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert [[each["rank"] for each in rank if each["name"] == "group_gbps"] for rank, _ in answers] == [[0], [1], [2]]
    assert [[fact["name"] for fact in facts] for _, facts in answers] == [["asked", "asked"], [], []]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ("other bytes", "rank 0 sent back other bytes than it was sent"),
        ("many transfers", "1000000 transfers were announced, which nobody asked for"),
        ("late", "it had not ended after 8.1 s"),
    ],
)
def test_a_rank_that_lies_to_its_peer_fails_their_pair_only(lie: str, reason: str) -> None:
    answers = _measured(3, {"pairs": [[0, 1], [1, 2]], "turns": 2}, lie=lie)
    assert [fact["value"] for fact in answers[1][1]] == [{"peer": 0, "reason": reason}]
    assert [(each["rank"], each["peer"]) for each in answers[2][0] if each["name"] == "gbps"] == [(2, 1)]


@pytest.mark.slow
def test_a_large_group_does_not_wait_for_a_small_one() -> None:
    """Three have three turns, two have one."""
    answers = _measured(5, {"groups": [[0, 1, 2], [3, 4]], "list_below_gbps": 1e9})
    assert [sum(each["name"] == "gbps" for each in rank) for rank, _ in answers] == [2, 2, 2, 1, 1]
    assert [sum(each["name"] == "group_gbps" for each in rank) for rank, _ in answers] == [1] * 5


@pytest.mark.slow
def test_a_late_group_says_so_and_reports_no_median() -> None:
    answers = _measured(2, {"groups": [[0, 1]]}, round_s=0.0)
    for rank, facts in answers:
        assert [each["name"] for each in rank] == []
        assert [each["value"] for each in facts if each["name"] == "late"] == [{"fabric": "nodes", "exchanges": [0, 1]}]


@pytest.mark.parametrize(
    ("name", "handling", "timeout"), [("links/x", "2", timedelta(seconds=5)), ("world", "3", timedelta(days=1))]
)
def test_the_handling_of_nccl_errors_on_a_link_and_in_the_world(
    monkeypatch: pytest.MonkeyPatch, name: str, handling: str, timeout: timedelta
) -> None:
    """A stand-in for NCCL's group, which needs a GPU: its arguments, and its environment."""
    variables = [
        f"TORCH_NCCL_{each}" for each in ("ASYNC_ERROR_HANDLING", "DUMP_ON_TIMEOUT", "WAIT_TIMEOUT_DUMP_MILSEC")
    ]
    seen = dict[str, Any]()

    def stand_in(backend: str, **options: Any) -> None:
        seen.update(options, backend=backend, environ=[os.environ[variable] for variable in variables])

    for variable in variables:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(dist, "init_process_group", stand_in)
    context = FakeContext(
        check="links", store=dist.HashStore(), backend="nccl", device=replace(CPU, type="cuda", backend="nccl", index=3)
    )
    groups.form(context, name, [0], timedelta(seconds=5))
    assert seen["environ"] == [handling, "0", "0"]
    assert (seen["backend"], seen["timeout"], str(seen["device_id"])) == ("nccl", timeout, "cuda:3")
