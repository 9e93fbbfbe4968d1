"""A plan with limits from runs that passed: the median of each speed, less what such runs differ by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from seatrial.checks import collectives, compute, registry
from seatrial.checks.shared.facts import latest
from seatrial.errors import RequestError
from seatrial.evidence.measurement import Measurement
from seatrial.judge.conclude import Conclusion
from seatrial.plan.model import Plan
from seatrial.plan.plan_file import LEVELS
from seatrial.plan.plan_reader import read_plan
from seatrial.util.text import printable

_CHECKS = ("compute", "memory", "links", "collectives")
"""The checks of speeds that a user can set a limit for."""
_LEAST_MARGIN = 0.1
"""The difference of a healthy device from one day to the next; more where the runs differ by more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    """One speed and the parameter that limits it."""

    check: str
    parameter: str
    words: str
    values: tuple[float, ...]


def plan_text(conclusions: Sequence[Conclusion]) -> str:
    """Return a plan file with limits. Raises RequestError for runs that are no full PASS, or of other devices."""
    for conclusion in conclusions:
        _refuse(conclusion)
    first = conclusions[0]
    for other in conclusions[1:]:
        _refuse_other(first, other)
    level = _level_of(first)
    trial = first.trial
    runs = ", ".join(printable(conclusion.trial.run) for conclusion in conclusions)
    lines = [
        "# Limits from runs that passed, written by seatrial plan from.",
        f"# Runs: {runs}",
        f"# Devices: {', '.join(_devices(first))}; ranks: {trial.world_size()}, nodes: {len(trial.nodes)}",
        f'level = "{level}"',
        "demands_limits = true",
    ]
    table = ""
    for speed in _speeds(conclusions):
        if speed.check != table:
            lines += ["", f"[{speed.check}]"]
            table = speed.check
        lines += _limit_lines(speed)
    return "\n".join(lines)


def gives_limits(conclusion: Conclusion) -> bool:
    """Return whether ``plan_text`` takes this run."""
    try:
        plan_text([conclusion])
    except RequestError:
        return False
    return True


def _limit_lines(speed: _Speed) -> Iterator[str]:
    middle, low, high = median(speed.values), min(speed.values), max(speed.values)
    # As far below the median as the runs lie apart: each of them passes.
    margin = max(_LEAST_MARGIN, (high - low) / middle)
    limit = min(middle * (1 - margin), low) if margin < 1 else low / 2
    yield (
        f"# {speed.words}: median {middle:.4g}, {low:.4g} to {high:.4g} over {len(speed.values)};"
        f" limit = {limit / middle:.2f} x median"
    )
    yield f"{speed.parameter} = {limit:.4g}"


def _refuse(conclusion: Conclusion) -> None:
    trial, verdict = conclusion.trial, conclusion.verdict
    run = printable(trial.run)
    limitations = [words for words in verdict.partial if not words.startswith("no limit ")]
    if verdict.status != "PASS" or verdict.interrupted:
        raise RequestError(f"{run}: {verdict.status}; limits come from runs that passed.")
    if limitations:
        raise RequestError(f"{run}: the PASS is partial ({printable(', '.join(limitations))}); give a full one.")
    if trial.job.get("planted"):
        raise RequestError(f"{run}: a fault was planted in this run; give one without.")


def _refuse_other(first: Conclusion, other: Conclusion) -> None:
    for words, one, another in (
        ("the devices", _devices(first), _devices(other)),
        ("the number of ranks", first.trial.world_size(), other.trial.world_size()),
        ("the number of nodes", len(first.trial.nodes), len(other.trial.nodes)),
        ("the level", _level_of(first), _level_of(other)),
    ):
        if one != another:
            raise RequestError(
                f"{printable(first.trial.run)} and {printable(other.trial.run)} differ in {words} ({_shown(one)},"
                f" {_shown(another)}); give runs of the same devices."
            )


def _shown(value: object) -> str:
    return printable(" and ".join(value)) if isinstance(value, tuple) else str(value)


def _devices(conclusion: Conclusion) -> tuple[str, ...]:
    return tuple(sorted({printable(record.device) for record in conclusion.trial.ranks.values()}))


def _level_of(conclusion: Conclusion) -> str:
    """Return the level with which the speeds of a run were measured. Raises RequestError where there is none."""
    plan = Plan.from_json(conclusion.trial.plan)
    for level in ("acceptance", *LEVELS):
        known = read_plan(level, schemas=registry.schemas(), scopes=registry.scopes())
        if all(
            check in known.checks and _work(plan, check) == _work(known, check)
            for check in _CHECKS
            if check in plan.checks
        ):
            return level
    raise RequestError(
        f"{printable(conclusion.trial.run)}: the plan {printable(plan.name)} measures speeds with other sizes than each"
        f" level; give a run of a level ({', '.join(LEVELS)})."
    )


def _work(plan: Plan, check: str) -> dict[str, object]:
    """Return the settings that decide what a check measures."""
    table = plan.to_json()["settings"][check]
    return {name: pair[0] for name, pair in table.items() if not name.startswith(("min_", "max_", "timeout"))}


def _speeds(conclusions: Sequence[Conclusion]) -> Iterator[_Speed]:
    """Yield the speeds of all runs that have values."""
    for check, parameter, words in (
        ("compute", "min_tflops", "TFLOP/s of each rank, first dtype"),
        ("memory", "min_copy_gbps", "GB/s of copies inside the memory of each rank"),
        ("memory", "min_host_copy_gbps", "GB/s of copies between host and device"),
        ("links", "min_gbps", "GB/s between nodes"),
        ("collectives", "min_busbw_gbps", "GB/s, bus bandwidth of the largest all_reduce"),
    ):
        values = [value for conclusion in conclusions for value in _values(conclusion, check, parameter)]
        if values:
            yield _Speed(check=check, parameter=parameter, words=words, values=tuple(values))


def _values(conclusion: Conclusion, check: str, parameter: str) -> Iterator[float]:
    measurements = latest(conclusion.trial.measurements)
    if check == "links" and "links" in conclusion.rulings:
        # Of a link measured in several rounds, those with the fewest transfers at once.
        measurements = tuple(entry.measurement for entry in conclusion.rulings["links"].judged)
    for measurement in measurements:
        is_first = (measurement.check, measurement.generation, measurement.stage) == (check, 0, "measure")
        if is_first and measurement.value > 0 and _is_limited(conclusion, measurement, parameter):
            yield measurement.value


def _is_limited(conclusion: Conclusion, measurement: Measurement, parameter: str) -> bool:
    """Return whether the parameter is the limit of this measurement."""
    trial = conclusion.trial
    plan = Plan.from_json(trial.plan)
    if parameter == "min_tflops":
        first = plan.params("compute", compute.params.Params).dtypes(trial.device_type)[0]
        return (measurement.name, measurement.variant) == ("tflops", first)
    if parameter in ("min_copy_gbps", "min_host_copy_gbps"):
        is_device = measurement.variant == "device"
        return measurement.name == "copy_gbps" and is_device == (parameter == "min_copy_gbps")
    if parameter == "min_busbw_gbps":
        largest = plan.params("collectives", collectives.params.Params).sizes(trial.device_type)[-1]
        described = (measurement.name, measurement.variant, measurement.size_bytes)
        return described == ("busbw", "all_reduce", largest) and measurement.rank == min(trial.ranks)
    nodes = {record.node_rank for rank, record in trial.ranks.items() if rank in (measurement.rank, measurement.peer)}
    return measurement.name == "gbps" and len(nodes) > 1
