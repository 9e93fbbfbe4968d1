"""Counters of devices during a check, as evidence of its findings about the ranks that used them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from seatrial.checks.diagnostics.history import NAME, NodeHistory, histories
from seatrial.checks.diagnostics.judge_device import held_s
from seatrial.devices.state import COUNTERS, THROTTLE
from seatrial.evidence.findings import Finding, Ruling
from seatrial.judge.trial import Trial

_LEAST_SHARE = 0.05
"""A reason that held for less of the check explains nothing."""


def with_device_activity(trial: Trial, rulings: Mapping[str, Ruling]) -> dict[str, Ruling]:
    """Return the rulings; a finding about ranks has a line for what their devices counted in its check."""
    facts = tuple(fact for fact in trial.facts if (fact.check, fact.generation) == (NAME, 0))
    nodes, _ = histories(facts, trial.ranks, trial.host_names)
    # Thousands of ranks may be meant by one finding.
    devices = {rank: (history, uuid) for history in nodes for uuid, rank in history.ranks.items()}
    if not devices:
        return dict(rulings)
    known: dict[tuple[int, str], tuple[str, ...]] = {}

    def lines_of(rank: int, check: str) -> tuple[str, ...]:
        # Any number of findings may be about one rank, and its device may have any number of windows.
        if (rank, check) not in known:
            known[rank, check] = tuple(_lines(*devices[rank], check))
        return known[rank, check]

    def explained(finding: Finding) -> Finding:
        if finding.check == NAME or finding.severity == "info":
            return finding
        lines = [line for rank in finding.culprit.ranks if rank in devices for line in lines_of(rank, finding.check)]
        return replace(finding, evidence=(*finding.evidence, *lines))

    return {
        name: replace(ruling, findings=tuple(explained(finding) for finding in ruling.findings))
        for name, ruling in rulings.items()
    }


def _lines(history: NodeHistory, uuid: str, check: str) -> Iterable[str]:
    windows = [(window, changes) for window, changes in history.windows_of(uuid) if window.check == check]
    total_s = sum(window.seconds for window, _ in windows)
    for name, words in THROTTLE.items():
        seconds = sum(held_s(window, changes, name) for window, changes in windows)
        if total_s and seconds >= _LEAST_SHARE * total_s:
            yield f"counted meanwhile: its GPU was {words} for {seconds:.1f} of {total_s:.1f} s"
    for name, words in COUNTERS.items():
        count = sum(changes.risen.get(name, 0) for _, changes in windows)
        if count:
            yield f"counted meanwhile: {count} {words}"
