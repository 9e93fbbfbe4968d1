"""What must be there for a PASS, worked out a second time, without the fold: by plain loops over the events."""

from __future__ import annotations

from collections import Counter
from typing import Any

Event = dict[str, Any]


def may_pass(messages: list[Event]) -> bool:
    """Whether all that is essential was said, and nothing that forbids a PASS. Messages are as the wire gives them."""
    runs = [event for event in messages if event.get("kind") == "run" and event.get("src") == "conductor"]
    if not runs or any(event != runs[0] for event in runs):
        return False
    run = runs[0]
    mine = _once([event for event in messages if event.get("run") == run["run"]])
    return (
        len(mine) == len(_once(messages))
        and run["schema"] == 2
        and all(_whole(mine, src) for src in {event["src"] for event in mine})
        and _all_came(mine, run)
        and all(_step_is_done(mine, check) for check in run["plan"]["checks"])
        and not any(_forbids(event) for event in mine)
    )


def _once(events: list[Event]) -> list[Event]:
    found: list[Event] = []
    for event in events:
        if event not in found:
            found.append(event)
    return found


def _whole(events: list[Event], src: str) -> bool:
    """Numbered without a gap or a second event under one number, and ``end`` is the last of them."""
    own = sorted((event for event in events if event["src"] == src), key=lambda event: int(event["seq"]))
    return [event["seq"] for event in own] == list(range(len(own))) and own[-1]["kind"] == "end"


def _all_came(events: list[Event], run: Event) -> bool:
    """Every rank that was asked for is placed once, came, and ended; so did its node."""
    (first,) = [event for event in events if event["kind"] == "generation" and event["src"] == "conductor"] or [{}]
    placed = {row[0]: row[1] for row in first.get("ranks", [])}
    size = run["job"].get("world_size", len(placed))
    counts = Counter((event["src"], event["kind"]) for event in events)
    return (
        first.get("gen") == 0
        and len(placed) == len(first["ranks"]) == size > 0
        and all(counts[f"rank{rank}.0", "rank"] == 1 == counts[f"rank{rank}.0", "end"] for rank in placed)
        and all(counts[f"node{node}", "end"] == 1 for node in placed.values())
        and counts["conductor", "end"] == 1
    )


def _step_is_done(events: list[Event], check: str) -> bool:
    """It began, every requested rank reported ``done``, and the conductor saw the end of each of its steps."""
    steps = [
        event for event in events if (event["kind"], event["src"]) == ("step", "conductor") and event["check"] == check
    ]
    ends = {
        event["step"]: event["outcome"]
        for event in events
        if (event["kind"], event["src"]) == ("step_end", "conductor")
    }
    done = {(event["src"], event["step"]) for event in events if event["kind"] == "done"}
    return bool(steps) and all(
        ends.get(step["step"]) == "done" and all((f"rank{rank}.0", step["step"]) in done for rank in step["ranks"])
        for step in steps
    )


def _forbids(event: Event) -> bool:
    kind = event["kind"]
    return (
        kind in ("error", "trouble", "interrupted")
        or (kind == "note" and event.get("severity") == "error")
        or (kind == "exit" and event["src"].startswith("node") and not event["ours"] and event["code"] != 0)
    )
