"""The few lines that everyone reads: the banner, and the main measurements of each check."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from seatrial.checks.diagnostics.judge import NO_STATE
from seatrial.checks.shared.facts import latest
from seatrial.evidence.findings import Culprit, Finding, Limit
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.schema_types import Whole
from seatrial.judge.conclude import Conclusion
from seatrial.judge.decide import COMMUNICATION, TRAINING
from seatrial.util.text import all_named, and_list, fitted, format_number, named_ranks, printable

DIAGNOSTICS = "diagnostics"
_MOST_ERRORS = 10
_SHORTEST_PART = 40
_MOST_FAULT_CHARS = 60
_MOST_NODES = 3
_WORDS = {
    "pass": "PASS",
    "fail": "FAIL",
    "error": "INCONCLUSIVE (error)",
    "inconclusive": "INCONCLUSIVE",
    "skipped": "NOT CHECKED (1 rank)",
    "not_applicable": "NOT APPLICABLE",
    "absent": "NOT CHECKED (never started)",
    "not_asked": "NOT CHECKED (not asked for)",
}

_MISSING = "not checked: "
"""Begins a finding of the diagnostics about what could not be read."""
_SILENT = (" did not answer ", " no longer says ")
"""Words of its warnings about drivers and devices that fell silent."""
LABEL = re.compile(r"(rank \d+) \([^()]*local rank[^()]*\)")
"""The full name of a rank, with its device and node."""
_NAMED_IN_WORDS = ("none", "process")
"""Kinds of culprits that are not put into the sentence: the judge names the rank of a process there."""
_SOURCE = re.compile(r" \([^()]*\)$")
"""Where the number in the origin of a limit was published; the report has it."""
_EXACT = "exact"
"""Origin of the limit of what is right or wrong."""
_OF_MEDIAN = re.compile(r"^fleet, median .+ of (\d+)$")
"""Origin of a limit that comes from the spread of devices or nodes of one model; the report has the method."""
_COMM = re.compile(r"(NCCL|RCCL|TORCH|UCX|UCC|FI|OMPI_MCA)_[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MainMeasurement:
    """The measurements of one name and variant as one row; of several sizes the largest, of several steps the last."""

    check: str
    name: str
    variant: str
    value: float
    """The median over ranks and pairs."""
    low: float
    high: float
    unit: str
    count: Whole
    """Number of values."""
    size_bytes: int | None


def headline(conclusion: Conclusion) -> str:
    """Return the first line: ``FINAL ACCEPTANCE: PASS (partial: training not asked for)``."""
    verdict = conclusion.verdict
    more = [f"drill: {fitted(faults, _MOST_FAULT_CHARS)}"] if (faults := planted(conclusion)) else []
    if verdict.interrupted:
        more.append(f"interrupted by {printable(conclusion.trial.interrupted or '')}")
    elif verdict.status == "PASS" and verdict.partial:
        more.append(f"partial: {printable(', '.join(verdict.partial))}{not_full(conclusion)}")
    return f"FINAL ACCEPTANCE: {verdict.status}" + (f" ({'; '.join(more)})" if more else "")


def not_full(conclusion: Conclusion) -> str:
    """Return ``; exit code 3 because of --require-full`` for a partial PASS that this option refuses; else nothing."""
    verdict = conclusion.verdict
    is_refused = verdict.status == "PASS" and verdict.exit_code != 0
    return f"; exit code {verdict.exit_code} because of --require-full" if is_refused else ""


def summary(conclusion: Conclusion) -> list[str]:
    """Return the lines of the banner under the first one, without dashes; ``error_lines`` returns the errors."""
    trial = conclusion.trial
    types = [str(event.get("device_type") or "") for event in trial.started.values()]
    cuda = types.count("cuda")
    if not types:
        gpu = "NOT CHECKED (no rank started)"
    elif cuda == len(types):
        started = f"{cuda} of {trial.world_size()} {'rank' if trial.world_size() == 1 else 'ranks'} at the start"
        gpu = "YES" if conclusion.verdict.status == "PASS" else f"YES ({started})"
    else:
        gpu = f"NO ({len(types) - cuda} of {len(types)} ranks have none)" if cuda else "NO (CPU trial)"
    backend = printable(trial.backend)
    communication = (
        "NCCL Communication" if backend == "nccl" else "Communication" + (f" ({backend})" if backend else "")
    )
    return [
        f"GPU Available: {gpu}",
        f"{communication}: {_communication(conclusion)}",
        f"Training Status: {status_word(conclusion, TRAINING)}",
        *([f"GPU diagnostics: {_diagnostics(conclusion)}"] if is_about_devices(conclusion) else []),
    ]


def planted(conclusion: Conclusion) -> str:
    """Return the planted faults of a drill; empty for any other trial."""
    faults = conclusion.trial.job.get("planted") or ()
    return printable(", ".join(map(str, faults)) if isinstance(faults, (list, tuple)) else str(faults))


def drill(conclusion: Conclusion) -> str:
    """Return the line of a trial with planted faults, which every report begins with; empty for any other."""
    faults = planted(conclusion)
    return f"DRILL ({faults}): this result says nothing about the cluster" if faults else ""


def is_about_devices(conclusion: Conclusion) -> bool:
    """Return whether the trial was asked about the state of GPUs, and there were any."""
    return conclusion.verdict.checks.get(DIAGNOSTICS, "not_applicable") != "not_applicable"


def not_applicable(conclusion: Conclusion) -> list[str]:
    """Return the checks that are about nothing here, with the reason: ``network (all nodes are one machine)``."""
    return [
        printable(f"{name} ({conclusion.rulings[name].not_applicable})")
        for name, status in conclusion.verdict.checks.items()
        if status == "not_applicable"
    ]


def _diagnostics(conclusion: Conclusion) -> str:
    """Return the status of the diagnostics: what failed is in the lines of errors; here is what warns or is missing."""
    status, found = status_word(conclusion, DIAGNOSTICS), defaultdict[str, list[str]](list)
    for finding in conclusion.findings:
        if finding.check == DIAGNOSTICS:
            found[finding.severity].append(printable(finding.what))
    missing = [what.removeprefix(_MISSING) for what in found["info"] if what.startswith(_MISSING)]
    if status != "PASS":
        return status
    ruling = conclusion.rulings.get(DIAGNOSTICS)
    if ruling is not None and any(what.startswith(NO_STATE) for what in ruling.unjudged):
        silent = [what for what in found["warn"] if any(words in what for words in _SILENT)]
        return f"NOT CHECKED: {'; '.join([*silent[:3], *missing]) or 'no node could read its devices'}"
    if found["warn"]:
        more = f" and {len(found['warn']) - 1} more" if len(found["warn"]) > 1 else ""
        return f"WARN: {found['warn'][0]}{more}"
    return f"PASS (not checked: {'; '.join(missing)})" if missing else "PASS"


def comm_variables(conclusion: Conclusion) -> dict[str, str]:
    """Return the network variables of the ranks, such as those of ``--comm-profile``, to copy them to other jobs."""
    env = conclusion.trial.job.get("env")
    variables = env.items() if isinstance(env, dict) else ()
    return {name: str(value) for name, value in variables if _COMM.fullmatch(str(name))}


def status_word(conclusion: Conclusion, check: str) -> str:
    """Return the status of a check in the words of the banner."""
    status = conclusion.verdict.checks.get(check)
    if check == COMMUNICATION and status == "absent" and conclusion.is_disconnected:
        return "FAIL (the ranks cannot connect)"
    return _WORDS[status] if status else "NOT CHECKED (not in the plan)"


def _communication(conclusion: Conclusion) -> str:
    """Return the status of communication: who made it fail, if that was a rank or a node, and a failure in training."""
    status, failures = conclusion.verdict.checks.get(COMMUNICATION), defaultdict[str, list[Culprit]](list)
    for finding in conclusion.findings:
        if finding.severity == "fail":
            failures[finding.check].append(finding.culprit)
    # A rank that is not separable from the links that lead to it may as well be the cause.
    paths = [culprit for culprit in failures[TRAINING] if culprit.kind == "link" or _is_fabric_alone(culprit)]
    if status == "pass" and paths:
        return "FAIL (in training; its own check passed)"
    word, named = status_word(conclusion, COMMUNICATION), failures[COMMUNICATION]
    if status == "fail" and named:
        if all(culprit.kind in ("rank", "process", "device") for culprit in named):
            ranks = sorted({rank for culprit in named for rank in culprit.ranks})
            nodes = sorted({node for culprit in named for node in culprit.nodes})
            several = len(conclusion.trial.nodes) > 1 and 0 < len(nodes) <= _MOST_NODES
            where = f" on {printable(all_named('node', nodes))}" if several else ""
            return f"{word} (because of {named_ranks(ranks)}{where})"
        if all(culprit.kind == "node" for culprit in named):
            return f"{word} (because of {printable(and_list([culprit.name for culprit in named[:_MOST_NODES]]))})"
    return word


def _is_fabric_alone(culprit: Culprit) -> bool:
    return culprit.kind == "fabric" and not culprit.ranks


def error_lines(conclusion: Conclusion) -> list[str]:
    """Return one line for each failure and error, ten at most, and their number beyond."""
    errors = [finding for finding in conclusion.findings if finding.severity in ("fail", "error")]
    lines = [f"Error: {sentence(finding)}" for finding in errors[:_MOST_ERRORS]]
    if len(errors) > _MOST_ERRORS:
        lines.append(f"and {len(errors) - _MOST_ERRORS} more errors in the report")
    return lines


def sentence(finding: Finding, longest: int | None = None) -> str:
    """Return what happened, the culprit, the measured value, the limit with its origin, and what to do, in one line.

    ``longest``: most characters. First the name of the rank is shortened, which the line of the culprits has; then the
    origin of the limit is cut, then what happened, and last what to do.
    """
    what, limit, action = with_culprit(finding), "", finding.action
    measured = f"measured {finding.measured}" if finding.measured and finding.measured not in finding.what else ""
    if finding.limit is not None:
        limit = _limit_words(finding.limit)
    what, measured, limit, action = (printable(part.rstrip(".")) for part in (what, measured, limit, action))

    def in_one() -> str:
        return "; ".join(filter(None, (what, measured, limit, action)))

    if longest is None:
        return in_one()
    if len(in_one()) > longest and finding.severity == "fail":
        what = LABEL.sub(r"\1", what, count=1)
    if len(in_one()) > longest:
        limit = fitted(limit, max(_SHORTEST_PART, len(limit) - 1 - (len(in_one()) - longest)))
        limit += ")" * (limit.count("(") - limit.count(")"))
    what = fitted(what, max(_SHORTEST_PART, len(what) - max(0, len(in_one()) - longest)))
    return fitted(in_one(), longest)


def _limit_words(limit: Limit) -> str:
    """Return ``limit 675.3 TFLOP/s (0.85 x 794.5 TFLOP/s, attainable by H200 SXM)``."""
    if (limit.value, limit.origin) == (0, _EXACT):
        return "none is allowed"
    unit = "" if limit.unit == "1" else f" {limit.unit}"
    origin = _OF_MEDIAN.sub(r"by the median of \1 alike", _SOURCE.sub("", limit.origin))
    return f"limit {format_number(limit.value)}{unit} ({origin})"


def named_in_full(finding: Finding) -> str:
    """Return ``what`` of the finding; a culprit that it names short has its full name, with device and node."""
    what, name = finding.what, finding.culprit.name
    if finding.culprit.kind in _NAMED_IN_WORDS or _mention(name, what):
        return what
    mention = _mention(name.partition(" (")[0], what)
    return what[: mention.start()] + name + what[mention.end() :] if mention else what


def with_culprit(finding: Finding, *, in_short: bool = False) -> str:
    """Return ``what`` of the finding with the full name of the culprit, but never with the culprit twice.

    ``in_short``: a culprit that it does not name is added without what stands in parentheses.
    """
    what, name = named_in_full(finding), finding.culprit.name
    if finding.culprit.kind in _NAMED_IN_WORDS or _mention(name, what):
        return what
    name = name.partition(" (")[0] if in_short else name
    return f"{what}; at fault: {name}" if finding.severity == "fail" else f"{what}; {name}"


def _mention(name: str, text: str) -> re.Match[str] | None:
    """Find the name in the text: "rank 1" is not in "local rank 1", in "rank 10" or in "rank 1 (another device)"."""
    return re.search(rf"(?<!local )(?<![\w-]){re.escape(name)}(?![\w'-]|\.\w| \()", text)


def main_measurements(measurements: Iterable[Measurement]) -> list[MainMeasurement]:
    """Return the main measurements of generation 0, without repeats, and only those with a good direction."""
    groups: defaultdict[tuple[str, str, str], list[Measurement]] = defaultdict(list)
    # A long check reports its measurements repeatedly; the last report of each rank counts, as for the judge.
    for measurement in latest(measurement for measurement in measurements if measurement.generation == 0):
        if measurement.better is not None and measurement.stage != "repeat":
            groups[measurement.check, measurement.name, measurement.variant].append(measurement)
    lines = []
    for (check, name, variant), group in groups.items():
        sizes = [measurement.size_bytes for measurement in group if measurement.size_bytes is not None]
        largest = max(sizes, default=None)
        last = max((measurement.step for measurement in group if measurement.step is not None), default=None)
        chosen = [
            measurement for measurement in group if measurement.size_bytes == largest and measurement.step == last
        ]
        values = [measurement.value for measurement in chosen if math.isfinite(measurement.value)]
        if values:
            lines.append(
                MainMeasurement(
                    check=check,
                    name=name,
                    variant=variant,
                    value=median(values),
                    low=min(values),
                    high=max(values),
                    unit=chosen[0].unit,
                    count=len(values),
                    size_bytes=largest,
                )
            )
    return lines
