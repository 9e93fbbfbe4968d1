"""What ``nvidia-smi nvlink -s`` and ``-e`` print: state, speed and errors of each NVLink.

Forms: one line a value, or several values between bars (NVLink 4 and before); other names from NVLink 5 on. Lines in
other words are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from seatrial.devices.plausible import NOT_READ

_GPU = re.compile(r"GPU (?P<index>\d{1,4}):.*?(?:\(UUID: (?P<uuid>GPU-[0-9a-fA-F-]+)\))?\s*")
_LINK = re.compile(r"\s+Link (?P<link>\d{1,2}): (?P<says>.+)")
_SPEED = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,6})?) GB/s")
_COUNT = re.compile(r"(?:Link \d+: )?(?P<name>[A-Za-z0-9 -]+?): (?P<count>\d{1,19})")
_ALL_INACTIVE = "all links are inactive"
_COUNTERS: Mapping[str, str] = {
    "replay errors": "nvlink_replays",
    "recovery errors": "nvlink_recoveries",
    "crc errors": "nvlink_crc_errors",
    "malformed packet errors": "nvlink_malformed_packets",
    "buffer overrun errors": "nvlink_buffer_overruns",
    "rx errors": "nvlink_receive_errors",
    "local link integrity errors": "nvlink_integrity_errors",
    "tx discards": "nvlink_discards",
    "link recovery failed events": "nvlink_failed_recoveries",
    "total link recovery events": "nvlink_recoveries",
    "effective errors": "nvlink_effective_errors",
    "symbol errors": "nvlink_symbol_errors",
}
"""Name in lower case -> name of ``state.COUNTERS``."""
_HISTORY = re.compile(r"fec errors - (\d{1,2})")
_BINS = 16


@dataclass(slots=True)
class Links:
    """The NVLinks of one device."""

    gbps: dict[int, float] = field(default_factory=dict)
    """Number of a link -> its speed, GB/s; 0: it is not active."""
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    """Name of ``state.COUNTERS`` -> number of a link -> count."""
    history: dict[int, int] = field(default_factory=dict)
    """Wrong symbols at once -> how often they were corrected, on all links."""
    all_inactive: bool = False

    def values(self) -> dict[str, object]:
        """Return the fields of ``DeviceState`` that are known, but for the counters."""
        active = [speed for speed in self.gbps.values() if speed]
        found: dict[str, object] = {}
        if self.gbps:
            found |= {"nvlinks": len(self.gbps), "nvlinks_active": len(active)}
            found["nvlink_gbps"] = min(active, default=None)
        elif self.all_inactive:
            found["nvlinks_active"] = 0
        if self.counts:
            found["link_counters"] = {name: _by_number(counts) for name, counts in self.counts.items()}
        if len(self.history) == _BINS:
            found["nvlink_fec_history"] = tuple(self.history[number] for number in range(_BINS))
        return found

    def counters(self) -> dict[str, int]:
        """Return name of ``state.COUNTERS`` -> total of all links."""
        return {name: sum(counts.values()) for name, counts in self.counts.items()}


def parse(states: str, errors: str) -> dict[str, Links]:
    """Return the links of each device, by its UUID, and by its number as text."""
    found: dict[str, Links] = {}
    for links, link, says in _lines(states, found):
        links.all_inactive = links.all_inactive or _ALL_INACTIVE in says
        if link is not None and (speed := _SPEED.match(says)):
            links.gbps[link] = float(speed[1])
        elif link is not None and "inactive" in says:
            links.gbps[link] = 0.0
    for links, link, says in _lines(errors, found):
        if link is not None:
            _count(links, link, says)
    return found


def _lines(text: str, found: dict[str, Links]) -> Iterator[tuple[Links, int | None, str]]:
    """Yield each line under the heading of a device, with the number of its link."""
    links = None
    for line in text.splitlines():
        if heading := _GPU.fullmatch(line):
            links = found.setdefault(heading["index"], Links())
            if heading["uuid"]:
                found[heading["uuid"]] = links
        elif links is not None:
            match = _LINK.fullmatch(line)
            yield (links, int(match["link"]), match["says"]) if match else (links, None, line)


def _count(links: Links, link: int, says: str) -> None:
    for part in says.split("|"):
        if match := _COUNT.fullmatch(part.strip()):
            said, count = match["name"].strip().lower(), int(match["count"])
            if name := _COUNTERS.get(said):
                links.counts.setdefault(name, {})[link] = count
            elif (bins := _HISTORY.fullmatch(said)) and int(bins[1]) < _BINS:
                links.history[int(bins[1])] = links.history.get(int(bins[1]), 0) + count


def _by_number(counts: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(counts.get(link, NOT_READ) for link in range(max(counts) + 1))
