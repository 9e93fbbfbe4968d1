"""Where the ranks of a script stand, compared: which of them stand elsewhere than the others, or work. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seatrial.util.text import as_name, named_ranks, quoted

WORKS_S = 15.0
"""A rank that has used CPU time within three looks of its agent (``agent/standstill.py``) still does."""
_MOST_CHARS = 500
"""Characters of a frame or a function of the kernel: paths have fewer, and the words of agents end up in notes."""
_FRAME = re.compile(rf"    (\S.{{0,{_MOST_CHARS - 1}}})")
_PLAIN_FRAME = re.compile(r"[^\s()]{1,200} \([^\s()]{1,300}\)")
_WAITS = (
    *("torch/distributed/", "torch/nn/parallel/distributed.py", "torch/autograd/", "torch/cuda/"),
    "seatrial/mpi_backend/",
)
"""Parts of the innermost frames of ranks that wait for other ranks, or for a device that does."""


def cpu_use(still_s: Mapping[int, float]) -> str:
    """Return a phrase about the ranks that use CPU time or print while others do neither; may be empty.

    ``still_s``: rank that runs -> seconds without output and CPU time.
    """
    idle = sorted(rank for rank, seconds in still_s.items() if seconds >= WORKS_S)
    at_work = sorted(still_s.keys() - idle)
    if not idle or not at_work:
        return ""
    return f"{named_ranks(at_work)} printed or used CPU time within {WORKS_S:.0f} s, {named_ranks(idle)} did neither"


def main_thread_frames(text: str) -> list[str]:
    """Return the frames of the main thread as py-spy wrote them, the innermost first; empty where it wrote none.

    One that is no name with a place stands in quotes: an agent may write a sentence there.
    """
    threads = f"\n{text}".split("\nThread ")
    # A script that never imports threading has no name for its thread.
    main = next((thread for thread in threads if '"MainThread"' in thread.partition("\n")[0]), "".join(threads[1:2]))
    frames = [match[1] for line in main.splitlines() if (match := _FRAME.match(line))]
    return [frame if _PLAIN_FRAME.fullmatch(frame) else quoted(frame) for frame in frames]


def kernel_function(event: Mapping[str, Any]) -> str:
    """Return the function of the kernel in which a rank waits, from its ``stack`` event; empty: none is known."""
    function = str(event.get("wchan", ""))[:_MOST_CHARS]
    return function and as_name(function)


def ranks_apart(stacks: Mapping[int, Mapping[str, Any]]) -> str:
    """Return a sentence without its full stop, or an empty text where nothing sets a minority of the ranks apart.

    This is evidence and no verdict: the ranks of a job at work stand at different places as well.

    Args:
        stacks: rank -> its ``stack`` event.
    """
    frames = {rank: main_thread_frames(str(event.get("text", ""))) for rank, event in stacks.items()}
    if all(frames.values()):
        places = {rank: place_of(event) for rank, event in stacks.items()}
        waiting = {rank for rank, of_rank in frames.items() if any(part in of_rank[0] for part in _WAITS)}
        apart = sorted(frames.keys() - waiting) if waiting else _minority(places)
    else:
        places = {rank: kernel_function(event) or _running(event) for rank, event in stacks.items()}
        apart = _minority(places) if all(places.values()) else []
    together = sorted(stacks.keys() - set(apart))
    if not apart or not together:
        return ""
    return (
        f"{named_ranks(apart)} {'stands' if len(apart) == 1 else 'stand'} in {_listed(places, apart)},"
        f" {named_ranks(together)} in {_listed(places, together)}:"
        f" if the job hangs, look at {named_ranks(apart)} first"
    )


def _running(event: Mapping[str, Any]) -> str:
    return "no function of the kernel (it runs)" if event.get("state") == "R" else ""


def _minority(places: Mapping[int, str]) -> list[int]:
    """Return the ranks that are not where more than half of them are."""
    ranks_by_place: dict[str, list[int]] = {}
    for rank, place in places.items():
        ranks_by_place.setdefault(place, []).append(rank)
    most = max(ranks_by_place.values(), key=len, default=[])
    return sorted(places.keys() - set(most)) if 2 * len(most) > len(places) else []


def place_of(event: Mapping[str, Any]) -> str:
    """Return where a rank is, from its ``stack`` event; empty where that is not known.

    It is the innermost frame and, where that is in a library, the innermost one outside of it; without frames the
    function of the kernel.
    """
    frames = main_thread_frames(str(event.get("text", "")))
    if not frames:
        return kernel_function(event)
    own = next((frame for frame in frames if not _is_of_torch(frame)), "")
    return frames[0] if own in ("", frames[0]) else f"{frames[0]}, called by {own}"


def waits_for_ranks(event: Mapping[str, Any]) -> bool:
    """Return whether a rank may wait for others: in torch, or for a thread, as ``Work.wait`` in a script does.

    A rank that sleeps in an unknown function of the kernel may do that, too: some kernels show it to root only.
    """
    frames = main_thread_frames(str(event.get("text", "")))
    wchan = str(event.get("wchan", ""))
    is_unknown = not wchan and event.get("state") != "R"
    return is_unknown or "futex" in wchan or any(_is_of_torch(frame) for frame in frames[:1])


def _is_of_torch(frame: str) -> bool:
    return "(torch/" in frame or "/torch/" in frame


def _listed(places: Mapping[int, str], ranks: list[int]) -> str:
    """Return the places of these ranks, two at most."""
    different = list(dict.fromkeys(places[rank] for rank in ranks))
    return " or ".join(different[:2]) + (" or elsewhere" if len(different) > 2 else "")
