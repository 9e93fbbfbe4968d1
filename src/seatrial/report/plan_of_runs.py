"""A plan with limits from runs that passed: the lowest of each speed, less what such runs differ by.

No single host of three or more decides a limit by what it says, since any of them may report whatever the judge
believes. One that holds up what all ranks do together lowers the bandwidth of all, as in the runs themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median

from seatrial.checks import collectives, compute, registry
from seatrial.checks.collectives.operations import busbw_gbps
from seatrial.checks.links.fabrics import ranks_of_hosts
from seatrial.checks.shared.facts import latest
from seatrial.errors import RequestError
from seatrial.evidence.measurement import Measurement
from seatrial.judge.conclude import Conclusion, evidence_of
from seatrial.judge.trial import Trial
from seatrial.plan.model import Plan
from seatrial.plan.plan_file import LEVELS
from seatrial.plan.plan_reader import LONGEST_ORIGIN, read_plan
from seatrial.report.disturbance import DISTURBED_ORIGIN, cpu_shortage, is_one_machine
from seatrial.util.text import fitted, format_number, plan_value, printable

_CHECKS = ("compute", "memory", "links", "collectives")
"""The checks of speeds that a user can set a limit for."""
_MOST_SPEED = 1e6
"""GB/s or TFLOP/s that nothing reaches: the fastest devices have some thousands."""
_LEAST_MARGIN = 0.1
"""The difference of a healthy device from one day to the next; more where the runs differ by more."""
ENOUGH_RUNS = 3
"""The fewest runs whose spread says something: the next of normal values is below two others by more than ``_spread``
once in 6 runs, below three once in 11, below five once in 34; of any other values below all n once in n + 1 at most.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A speed in one run, and the hosts whose word it is: both ends of a link."""

    value: float
    hosts: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    """One speed, the parameter that limits it, and its values by run."""

    check: str
    parameter: str
    words: str
    runs: tuple[tuple[_Value, ...], ...]

    def values(self) -> list[float]:
        return [entry.value for run in self.runs for entry in run]


def plan_text(conclusions: Sequence[Conclusion]) -> str:
    """Return a plan file with limits. Raises RequestError for runs that ``refuse_unlike`` refuses."""
    refuse_unlike(conclusions)
    first = conclusions[0]
    level = _level_of(first)
    disturbed = sum(bool(cpu_shortage(conclusion)) for conclusion in conclusions)
    trial = first.trial
    runs = ", ".join(printable(conclusion.trial.run) for conclusion in conclusions)
    lines = [
        "# Limits from runs that passed, written by seatrial plan from.",
        f"# Runs: {runs}",
        *(f"# Warning: {warning}" for warning in (*_loads(conclusions), *_lone_hosts(conclusions))),
        f"# Devices: {', '.join(_devices(first))}; ranks: {trial.world_size()}, nodes: {trial.num_nodes()}",
        f'level = "{level}"',
        "demands_limits = true",
        *_own_plan(trial, level),
    ]
    tables, origins = _own_values(trial)
    for speed in _speeds(conclusions):
        table = tables.setdefault(speed.check, {})
        # A limit that the plan of the runs has is a contract, or was taken from other runs.
        if speed.parameter not in table:
            limit, words = _limit(speed, len(conclusions), disturbed)
            table[speed.parameter] = (*_comment(speed, len(conclusions), limit), f"{speed.parameter} = {limit:.4g}")
            origins[f"{speed.check}.{speed.parameter}"] = words
    for key in sorted(set(first.verdict.unlimited)):
        check, _, parameter = key.partition(".")
        tables.setdefault(check, {}).setdefault(
            parameter, (f"# {parameter}: no limit, because these runs have no value of it; write one here.",)
        )
    for check, table in tables.items():
        lines += ["", f"[{check}]", *(line for entry in table.values() for line in entry)]
    if origins:
        lines += ["", "# Shown beside each limit.", "[origins]"]
        lines += [f"{key} = {plan_value(words)}" for key, words in origins.items()]
    lines += [
        "",
        "# No limit is made for storage ([storage] min_write_gbps, min_read_gbps), for dtypes after the first, and for",
        "# links within one node, which are compared with one another only.",
    ]
    return "\n".join(lines)


def warnings(conclusions: Sequence[Conclusion]) -> Iterator[str]:
    """Yield why these limits may fit the cluster badly: few runs, others held the CPU, or one host differs from all."""
    if len(conclusions) < ENOUGH_RUNS:
        runs = (
            "1 run shows no spread" if len(conclusions) == 1 else f"{len(conclusions)} runs show little of the spread"
        )
        yield f"{runs}: the next healthy run may miss these limits; give {ENOUGH_RUNS} runs or more, on idle nodes."
    yield from _loads(conclusions)
    yield from _lone_hosts(conclusions)


def _lone_hosts(conclusions: Sequence[Conclusion]) -> Iterator[str]:
    """Yield the limits that the values of one host change by more than the least margin. Raises as ``plan_text``."""
    for speed in _speeds(conclusions):
        runs, is_majority = _without_lowest(speed.runs)
        others = _limit_of(runs) if runs else 0.0
        if _limit_of(speed.runs) < (1 - _LEAST_MARGIN) * others:
            taken = (
                f"the limit allows {_LEAST_MARGIN * 100:.0f} % for it, and a run with such values may miss it"
                if is_majority
                else "too few hosts are left to tell which one is right, so the limit is that of all"
            )
            yield (
                f"{speed.check}.{speed.parameter}: the other hosts alone would give {others:.4g}, without the one with"
                f" the lowest value; {taken}: look at that host."
            )


def _loads(conclusions: Sequence[Conclusion]) -> Iterator[str]:
    for conclusion in conclusions:
        if shortage := cpu_shortage(conclusion):
            what = f"its speeds are too low for limits; {_instead(conclusion)}"
            yield f"{printable(conclusion.trial.run)}: {shortage}, so {what}."


def _instead(conclusion: Conclusion) -> str:
    """Return what a run needs whose ranks lacked the CPU."""
    return "add --env OMP_NUM_THREADS=N" if is_one_machine(conclusion) else "give runs on idle nodes"


def refuse_disturbed(conclusions: Sequence[Conclusion]) -> None:
    """Raise RequestError for runs whose ranks waited for the CPU: their limits are so low that they find nothing."""
    disturbed = [conclusion for conclusion in conclusions if cpu_shortage(conclusion)]
    if not disturbed:
        return
    first = disturbed[0]
    others = f", and {len(disturbed) - 1} more of these runs" if len(disturbed) > 1 else ""
    raise RequestError(
        f"{printable(first.trial.run)}{others}: {cpu_shortage(first)}; limits of such speeds find little;"
        f" {_instead(first)}, or take them with --disturbed-runs."
    )


def _own_plan(trial: Trial, level: str) -> Iterator[str]:
    """Yield the deadline and the checks of the plan of a run, where they are not those of the level."""
    plan = Plan.from_json(trial.plan)
    known = read_plan(level, schemas=registry.schemas(), scopes=registry.scopes())
    if plan.deadline_s.origin.startswith("plan "):
        yield f"deadline_s = {plan_value(plan.deadline_s.value)}  # kept: {printable(plan.deadline_s.origin)}"
    # A check may also be left out because there is nothing here that it is about; the next run decides that anew.
    if added := [check for check in plan.checks if check not in known.checks]:
        yield f"checks = {plan_value([*known.checks, *added])}"


def _own_values(trial: Trial) -> tuple[dict[str, dict[str, tuple[str, ...]]], dict[str, str]]:
    """Return the values that the plan file of a run sets, such as a folder: their lines, and where they are from.

    The lines by check and parameter, the origins by ``CHECK.PARAMETER``.
    """
    tables: dict[str, dict[str, tuple[str, ...]]] = {}
    origins: dict[str, str] = {}
    plan = Plan.from_json(trial.plan)
    for check, schema in registry.schemas().items():
        for field in fields(schema) if check in plan.settings else ():
            setting = plan.settings[check].get(field.name)
            if setting is None or setting.value is None or not setting.origin.startswith("plan "):
                continue
            path = f"{check}.{field.name}"
            file = setting.origin.removesuffix(f":{path}")
            kept = setting.origin.removeprefix(f"plan {plan.name}: ") if file == setting.origin else f"kept from {file}"
            origins[path] = fitted(printable(kept), LONGEST_ORIGIN)
            tables.setdefault(check, {})[field.name] = (f"{field.name} = {plan_value(setting.value)}",)
    return tables, origins


def written_limits(conclusion: Conclusion) -> tuple[str, ...]:
    """Return the limits that ``plan_text`` makes of this run, as ``verdict.unlimited`` names them; empty: refused."""
    try:
        plan_text([conclusion])
    except RequestError:
        return ()
    return tuple(f"{speed.check}.{speed.parameter}" for speed in _speeds([conclusion]))


def _limit(speed: _Speed, num_runs: int, disturbed: int) -> tuple[float, str]:
    """Return the limit of a speed, and where it is from. ``disturbed``: runs whose ranks waited for the CPU."""
    middle, low = _typical(speed.runs), min(speed.values())
    margin, spread = _LEAST_MARGIN * middle, _spread(speed.runs)
    limit = _limit_of(speed.runs)
    less = "half of it" if low - max(margin, spread) <= 0 else f"the spread {spread:.4g}"
    if spread <= margin:
        less = f"{_LEAST_MARGIN * 100:.0f} % of the median"
    others, is_majority = _without_lowest(speed.runs)
    least = (1 - _LEAST_MARGIN) * _limit_of(others) if is_majority else limit
    if least > limit:
        limit, less = least, f"{low - least:.4g}, as the other hosts allow"
    many = "" if disturbed == num_runs else f", {disturbed} of them"
    loaded = f"{many} {DISTURBED_ORIGIN}" if disturbed else ""
    return limit, f"from {_runs(num_runs)}{loaded}: median {middle:.4g}, lowest {low:.4g} less {less}"


def _limit_of(runs: Sequence[Sequence[_Value]]) -> float:
    """Return the lowest value less the margin or the spread, or half of it where nothing would be left."""
    low = min(entry.value for run in runs for entry in run)
    limit = low - max(_LEAST_MARGIN * _typical(runs), _spread(runs))
    return limit if limit > 0 else low / 2


def _spread(runs: Sequence[Sequence[_Value]]) -> float:
    """Return how far healthy values lie apart: twice from the typical to the lowest one, as in a symmetric spread.

    The highest value is no part of it: whoever claims one would lower the limit of all. ENOUGH_RUNS says how often a
    healthy run is lower than the lowest value by more.
    """
    return 2 * max(0.0, _typical(runs) - min(entry.value for run in runs for entry in run))


def _typical(runs: Sequence[Sequence[_Value]]) -> float:
    """Return the median of all runs, of each run the lowest of the medians without each host: none of them raises it.

    Where a host has part in all values, as of two hosts with a link, it is the median of all values of the run.
    """
    return median(map(_typical_of_run, runs))


def _typical_of_run(run: Sequence[_Value]) -> float:
    ordered = sorted(run, key=lambda entry: entry.value)
    places: dict[int, list[int]] = {}
    for place, entry in enumerate(ordered):
        for host in entry.hosts:
            places.setdefault(host, []).append(place)
    numbers = [entry.value for entry in ordered]
    medians = []
    for left_out in places.values():
        if rest := len(ordered) - len(left_out):
            medians.append(median(numbers[_place(left_out, half)] for half in ((rest - 1) // 2, rest // 2)))
    return min(medians, default=median(numbers))


def _place(left_out: Sequence[int], number: int) -> int:
    """Return the place of the value with this number among those that are not left out."""
    for place in left_out:
        if place > number:
            break
        number += 1
    return number


def _without_lowest(runs: Sequence[Sequence[_Value]]) -> tuple[list[list[_Value]], bool]:
    """Return the runs without the host of the lowest value of each, and whether no other host decides what is left.

    Nothing where such a host has part in all values. It is another one in each run, since a host may be another node
    in each. Of both ends of a link that one is left out without which the lowest value is the higher one.
    """
    without, is_majority = [], True
    for run in runs:
        lowest = min(run, key=lambda entry: entry.value)
        rests = [[entry for entry in run if host not in entry.hosts] for host in lowest.hosts]
        rests = [rest for rest in rests if rest]
        if not rests:
            return [], False
        decided = [rest for rest in rests if not frozenset.intersection(*(entry.hosts for entry in rest))]
        is_majority &= bool(decided)
        without.append(max(decided or rests, key=lambda rest: min(entry.value for entry in rest)))
    return without, is_majority


def _comment(speed: _Speed, num_runs: int, limit: float) -> Iterator[str]:
    values = speed.values()
    middle, low, high = _typical(speed.runs), min(values), max(values)
    count = "1 value" if len(values) == 1 else f"{len(values)} values"
    runs = "1 run, no spread between runs" if num_runs == 1 else _runs(num_runs)
    yield (
        f"# {speed.words}: median {middle:.4g}, {low:.4g} to {high:.4g} over {count}, {runs};"
        f" limit = {limit / middle:.2f} x median"
    )


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def refuse_unlike(conclusions: Sequence[Conclusion]) -> None:
    """Raise RequestError for runs that are no PASS but for missing limits, or differ in devices, ranks or level."""
    for conclusion in conclusions:
        _refuse(conclusion)
    for other in conclusions[1:]:
        _refuse_other(conclusions[0], other)


def _refuse(conclusion: Conclusion) -> None:
    trial, verdict = conclusion.trial, conclusion.verdict
    run = printable(trial.run)
    if trial.job.get("planted"):
        raise RequestError(f"{run}: a fault was planted in this run, it is a drill; give one without.")
    limitations = [words for words in verdict.partial if not words.startswith("no limit ")]
    if verdict.status != "PASS" or verdict.interrupted:
        raise RequestError(f"{run}: {verdict.status}; limits come from runs that passed.")
    if limitations:
        raise RequestError(f"{run}: the PASS is partial ({printable(', '.join(limitations))}); give a full one.")


def _refuse_other(first: Conclusion, other: Conclusion) -> None:
    for words, one, another in (
        ("the devices", _devices(first), _devices(other)),
        ("the number of ranks", first.trial.world_size(), other.trial.world_size()),
        ("the number of nodes", first.trial.num_nodes(), other.trial.num_nodes()),
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
        by_run = [tuple(_values(conclusion, check, parameter)) for conclusion in conclusions]
        speed = _Speed(check=check, parameter=parameter, words=words, runs=tuple(filter(None, by_run)))
        if impossible := [value for value in speed.values() if not 0 < value <= _MOST_SPEED]:
            raise RequestError(
                f"{check}.{parameter}: a rank of these runs reports {format_number(impossible[0])} {words}, which no"
                " device has; repeat that run without its node."
            )
        if speed.runs:
            yield speed


def _values(conclusion: Conclusion, check: str, parameter: str) -> Iterator[_Value]:
    hosts = ranks_of_hosts(evidence_of(conclusion.trial, check)).items()
    host_of: dict[int | None, int] = {rank: host for host, ranks in hosts for rank in ranks}
    measurements = latest(conclusion.trial.measurements)
    if check == "links" and "links" in conclusion.rulings:
        # Of a link measured in several rounds, those with the fewest transfers at once.
        measurements = tuple(entry.measurement for entry in conclusion.rulings["links"].judged)
    is_limited = _limited(conclusion, parameter, host_of)
    for measurement in measurements:
        # The links check measures in rounds, each of them a stage.
        stage = measurement.stage if check == "links" else "measure"
        is_first = (measurement.check, measurement.generation, measurement.stage) == (check, 0, stage)
        if is_first and not measurement.value <= 0 and is_limited(measurement):
            value = measurement.value
            if parameter == "min_busbw_gbps":
                value = busbw_gbps(measurement.size_bytes or 0, value, conclusion.trial.world_size())
            ends = [rank for rank in (measurement.rank, measurement.peer) if rank in host_of]
            yield _Value(value=value, hosts=frozenset(host_of[rank] for rank in ends))


def _limited(
    conclusion: Conclusion, parameter: str, host_of: Mapping[int | None, int]
) -> Callable[[Measurement], bool]:
    """Return the function that tells whether the parameter is the limit of a measurement."""
    trial = conclusion.trial
    plan = Plan.from_json(trial.plan)
    if parameter == "min_tflops":
        dtype = plan.params("compute", compute.params.Params).dtypes(trial.device_type)[0]
        return lambda measurement: (measurement.name, measurement.variant) == ("tflops", dtype)
    if parameter in ("min_copy_gbps", "min_host_copy_gbps"):
        is_inside = parameter == "min_copy_gbps"
        return lambda measurement: measurement.name == "copy_gbps" and is_inside == (measurement.variant == "device")
    if parameter == "min_busbw_gbps":
        largest = plan.params("collectives", collectives.params.Params).sizes(trial.device_type)[-1]
        # The first rank alone reports the bandwidth: the times of all ranks tell it as well.
        limited = ("time_us", "all_reduce", largest)
        return lambda measurement: (measurement.name, measurement.variant, measurement.size_bytes) == limited
    return lambda measurement: (
        measurement.name == "gbps" and len({host_of.get(measurement.rank), host_of.get(measurement.peer)} - {None}) > 1
    )
