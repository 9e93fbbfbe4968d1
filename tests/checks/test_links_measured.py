"""Real measurements of ranks in one round: pairs one after the other, and a group."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import torch.distributed as dist
from checks.fake_context import CPU, FakeContext
from checks.lying_store import Lie, false_port, late_once, lying_store, poisoned

from seatrial.rank import groups

_PART = {"fabric": "nodes", "pairs": [], "groups": [], "turns": 1, "at_once": 1, "repeats": 5, "list_below_gbps": None}
_PARAMS = {"cpu_bytes": 65_536, "seconds": 0.05, "pair_timeout_s": 1.0}


def _measured(
    size: int,
    *parts: dict[str, Any],
    round_s: float = 60.0,
    lie: str = "",
    lies: Mapping[int, Lie] | None = None,
    poisoned_pair: str = "",
    closed: Sequence[int] = (),
) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return measurements and facts of each rank for a round of ``round_s`` seconds.

    Rank 0 tells its peers the ``lie``; its store tells ``lies``, by rank. Nobody listens where the pages of ``closed``
    are said to be.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [json.dumps(_PARAMS), str(round_s)]
    script = str(Path(__file__).with_name("links_rank.py"))
    with contextlib.ExitStack() as stack:
        if poisoned_pair:
            stack.enter_context(poisoned(port, poisoned_pair))
        running = list[subprocess.Popen[str]]()
        for rank in range(size):
            of_rank = (lies or {}).get(rank)
            seen = stack.enter_context(lying_store(port, of_rank)) if of_rank else port
            argv = [sys.executable, script, str(rank), str(size), str(seen), *words, "" if rank else lie]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        pages = [json.loads(_pipe(process.stdout).readline()) for process in running]
        addresses = {str(rank): ["127.0.0.1", 9 if rank in closed else pages[rank]["port"]] for rank in range(size)}
        asked = json.dumps({"parts": [{**_PART, **part} for part in parts], "addresses": addresses})
        for process in running:
            _pipe(process.stdin).write(f"{asked}\n")
            _pipe(process.stdin).flush()
        answers = [process.communicate(timeout=50)[0] for process in running]
    read = [json.loads(text.splitlines()[-1]) for text in answers]
    # Ranks of one step pass the same phases, also where no pair of a turn has them; a small group has fewer turns.
    longest = max((phases for *_, phases in read), key=len)
    assert all(phases == longest[: len(phases)] for *_, phases in read)
    return [(measurements, [fact for fact in facts if fact["name"] != "page"]) for measurements, facts, _ in read]


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


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


_TOO_LATE = late_once(6.5)
_ON_PAIRS: dict[str, dict[str, Any]] = {
    "a false port": {"lies": {1: false_port}},
    "a beginning that one end hears late": {"lies": {2: late_once(6.0)}},
    "addresses of a neighbor": {"poisoned_pair": "1-2"},
}


@pytest.mark.slow
@pytest.mark.parametrize("liar", _ON_PAIRS)
def test_no_liar_at_the_store_keeps_two_ranks_apart(liar: str) -> None:
    answers = _measured(3, {"pairs": [[1, 2]]}, **_ON_PAIRS[liar])
    assert [facts for _, facts in answers[1:]] == [[answers[1][1][0]], []]
    assert [(each["rank"], each["peer"]) for rank, _ in answers for each in rank if each["name"] == "gbps"] == [
        (1, 2),
        (2, 1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("liar", [false_port, late_once(3.0), _TOO_LATE], ids=["false port", "late", "too late"])
def test_no_liar_at_the_store_has_two_members_accuse_each_other(liar: Lie) -> None:
    """One that comes too late is named by its peer alone, as one that did not come."""
    answers = _measured(3, {"groups": [[0, 1, 2]], "list_below_gbps": 1e9}, lies={2: liar})
    said = [fact["name"] for _, facts in answers for fact in facts if fact["name"] != "asked"]
    assert set(said) <= {"unmet"}
    assert bool(said) == (liar is _TOO_LATE)


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "said"), [([1, 2], ["unreachable"] * 2), ([2], ["unreachable", "unmet"])])
def test_a_page_that_cannot_be_reached(closed: list[int], said: list[str]) -> None:
    answers = _measured(3, {"pairs": [[1, 2]]}, closed=closed)
    assert [fact["name"] for _, facts in answers for fact in facts if fact["name"] != "asked"] == said
    reason = "no connection to the page of rank 2 (refused)"
    assert [fact["value"] for fact in answers[1][1][1:]] == [{"peer": 2, "reason": reason}]


@pytest.mark.parametrize(
    ("is_world", "handling", "timeout"), [(False, "2", timedelta(seconds=5)), (True, "3", timedelta(days=1))]
)
def test_the_handling_of_nccl_errors_on_a_link_and_in_the_world(
    monkeypatch: pytest.MonkeyPatch, is_world: bool, handling: str, timeout: timedelta
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
    store: Any = dist.HashStore()
    context = FakeContext(
        check="links", store=store, backend="nccl", device=replace(CPU, type="cuda", backend="nccl", index=3)
    )
    if is_world:
        monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=None))
        groups.form_world(context)
    else:
        groups.form(context, store, [0], timedelta(seconds=5))
    assert seen["environ"] == [handling, "0", "0"]
    assert (seen["backend"], seen["timeout"], str(seen["device_id"])) == ("nccl", timeout, "cuda:3")
