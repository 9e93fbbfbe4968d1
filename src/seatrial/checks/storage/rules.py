"""The limits of the storage check."""

from __future__ import annotations

from seatrial.checks.check import Rule, exact_rule, user_rule
from seatrial.checks.shared.speed import BEYOND_KNOWN, ceiling_rule
from seatrial.checks.storage.params import Params
from seatrial.evidence.statistics import fleet_rules

WRONG_BYTES = exact_rule("wrong_bytes")
QUICK_FSYNC_MS = 5.0
"""Appends of at most this duration count as equal in a fleet: no checkpoint waits for them."""
_EXTRA_BYTES = 1 << 20
"""Space that a rank needs on top of its file, for the appends and its token."""
_INODES = 3
"""The number of inodes that a rank needs."""


def room_rules(params: Params) -> dict[str, Rule]:
    """Return the rules for the free space that one rank needs, by measurement."""
    condition, origin = "for each rank that writes there", "storage.size_bytes"
    size_bytes = params.size_bytes + _EXTRA_BYTES
    return {
        "free_bytes": Rule(
            measurement="free_bytes",
            condition=condition,
            comparison="at least",
            value=size_bytes,
            unit="B",
            origin=origin,
        ),
        "free_inodes": Rule(
            measurement="free_inodes", condition=condition, comparison="at least", value=_INODES, origin=origin
        ),
    }


def room_rule(params: Params, measurement: str, sharers: int) -> Rule:
    """Return the rule for the free space that ``sharers`` ranks need on one file system."""
    origin = f"storage.size_bytes {params.size_bytes} for {sharers} ranks that write there"
    return room_rules(params)[measurement].scaled(sharers, origin=origin)


def user_rules(params: Params) -> tuple[Rule, ...]:
    """Return the rules for the speeds of a node that only the user can set."""
    write, read, fsync = params.min_write_gbps, params.min_read_gbps, params.max_fsync_ms
    return (
        user_rule("write_gbps", "at least", write, "GB/s", key="storage.min_write_gbps", condition="of a node"),
        user_rule("read_gbps", "at least", read, "GB/s", key="storage.min_read_gbps", condition="of a node"),
        user_rule("fsync_ms", "at most", fsync, "ms", key="storage.max_fsync_ms", condition="p99 of a node"),
    )


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the limits of bytes, space, sharing and speeds."""
    sharing = {"yes": "one folder for all ranks", "no": "a folder for each node", "any": "none: only reported"}
    fleet = "fleet of nodes on one kind of file system, again alone"
    return (
        WRONG_BYTES,
        *room_rules(params).values(),
        Rule(measurement="ranks that see one another", text=sharing[params.shared], origin="storage.shared"),
        *(rule for rule in user_rules(params) if rule.value is not None),
        # Storage varies as much as CPUs do.
        *(
            Rule(
                measurement="write, read, fsync", condition=f"{count} nodes", text=f"as for CPUs: {text}", origin=fleet
            )
            for count, text in fleet_rules(gpu=False)
        ),
        Rule(
            measurement="fsync_ms",
            condition="fleet of nodes",
            text=f"medians of {QUICK_FSYNC_MS:g} ms or less count as equal",
            origin="no checkpoint waits for less",
        ),
        ceiling_rule("write, read", f"at most {BEYOND_KNOWN} x the fastest memory known"),
    )
