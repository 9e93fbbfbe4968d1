"""The last lines of a trial: the banner, the verdict in figures, who is at fault, the report, and what to run next."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.environment.self_location import command_line
from seatrial.evidence.evidence import a_node
from seatrial.evidence.findings import SEATRIAL, Finding
from seatrial.judge.conclude import Conclusion
from seatrial.plan.plan_file import LEVELS
from seatrial.report.disturbance import cpu_shortage, disturbance_lines
from seatrial.report.finding_lines import MOST_IN_CARD, advised_once, is_fault
from seatrial.report.summary import (
    comm_variables,
    drill,
    headline,
    not_applicable,
    not_full,
    sentence,
    summary,
)
from seatrial.report.view import USUAL_COLUMNS, View, command_lines, height
from seatrial.util.text import all_of, and_list, format_number, format_seconds, plan_value, printable

_RULE = "=" * 50
_HIDDEN = "(hidden)"
"""Stands in an event for a value that nobody but the user may read (``targets/hidden_values.py``)."""
_MOST_ERROR_ROWS, _MOST_ROWS_OF_TWO = 5, 3
_MOST_NAMES = 3
_COUNTED = {
    "fail": "failed",
    "pass": "passed",
    "error": "inconclusive",
    "inconclusive": "inconclusive",
    "absent": "not run",
    "skipped": "not checked",
    "not_applicable": "not applicable",
}
"""The status of a requested check -> the word under which it is counted, in the order of the words."""
_PROCESSORS = {"cpu": "CPU ", "cuda": "GPU "}
_LONGER = "longer.toml"
"""The plan file that a longer run needs."""
_CHOICE = ("--only", "--skip", "--workload", "--data", "--model", "--epochs", "--batch-size")
_CHOICE_FLAGS = ("--validation-only",)
_CHOOSING = (*_CHOICE, *_CHOICE_FLAGS)
"""Options that choose the checks of a trial, or are refused where they leave the training out."""
_HARMLESS = ("--on", "--hosts", "--nodes", "--nproc-per-node", "--device", "--only", "--skip", "--deadline", "--gres")
_HARMLESS_FLAGS = ("--require-full", "--validation-only", "--oversubscribe")
"""Options that are shown for copying where others may have made the events: no path, command, image or variable."""
_HARMLESS_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:-]*")
_NOT_SHOWN, _OTHER_PLAN = "OTHER-OPTIONS", "PLAN.toml"
"""Stand for options that no command of ours has or that take no value, and for a plan file."""
_LOOKS = (
    (re.compile(r"dmesg -T \| grep -iE? '[a-z| ]+'"), ""),
    (re.compile(r"nvidia-smi (?:-q -d [A-Z_,]+|topo -m)"), "NVIDIA "),
    (re.compile(r"amd-smi metric(?: --[a-z]+)?"), "AMD "),
)
"""Commands in an advice that only read, and the devices that they are about: whatever matches does no harm."""
_WORD = re.compile(r"'[^']*'|\S+")
_STRONGER = {"smoke": "quick", "quick": "standard", "standard": "acceptance"}


def card(conclusion: Conclusion, report: Path | None, view: View) -> list[str]:
    """Return the card; nothing follows it. ``report``: path of the written report."""
    rule = _RULE[: view.columns]
    return [
        rule,
        headline(conclusion),
        *(f"- {line}" for line in [*summary(conclusion), *_errors(conclusion, view)]),
        rule,
        f"{_verdict(conclusion)}: {figures(conclusion)}",
        *([f"{_at_fault(conclusion)}: {culprits(conclusion)}"] if conclusion.verdict.status == "FAIL" else []),
        *why_lines(conclusion),
        *_not_applicable(conclusion),
        *_unlimited(conclusion),
        *disturbance_lines(conclusion),
        *([f"report: {printable(str(report))}"] if report is not None else []),
        *_next_lines(_next_of(conclusion, report, view), view),
    ]


def _verdict(conclusion: Conclusion) -> str:
    """Return the verdict as the first line of the banner has it, without the limitations of a PASS."""
    verdict = conclusion.verdict
    is_partial = verdict.status == "PASS" and verdict.partial
    more = [f"partial{not_full(conclusion)}"] if is_partial else []
    more += ["drill"] if drill(conclusion) else []
    return f"{verdict.status} ({', '.join(more)})" if more else verdict.status


def _at_fault(conclusion: Conclusion) -> str:
    return "at fault in this drill" if drill(conclusion) else "at fault"


def figures(conclusion: Conclusion) -> str:
    """Return how many checks, ranks and seconds a trial had.

    ``level quick, 1 of 7 checks failed, 5 passed, 1 not run, 2 CPU ranks, 20 s``: the numbers of checks add up.
    """
    trial, verdict = conclusion.trial, conclusion.verdict
    counts = Counter(_COUNTED[status] for status in verdict.checks.values() if status != "not_asked")
    first = "failed" if counts["failed"] else "passed"
    checks = f"{counts[first]} of {_number(sum(counts.values()), 'check')} {first}"
    others = [word for word in dict.fromkeys(_COUNTED.values()) if word != first and counts[word]]
    checks = ", ".join([checks, *(f"{counts[word]} {word}" for word in others)]) if counts else "no check was requested"
    types = {str(event.get("device_type")) for event in trial.started.values()}
    processor = _PROCESSORS.get(types.pop(), "") if len(types) == 1 else ""
    nodes = trial.num_nodes()
    where = f" on {nodes} nodes" if nodes > 1 else ""
    seconds = "" if trial.seconds is None else f", {format_seconds(trial.seconds)}"
    plan = str(trial.plan.get("name") or "")
    which = printable(f"{'level' if plan in LEVELS else 'plan'} {plan}, ") if plan else ""
    return f"{which}{checks}, {_number(trial.world_size(), f'{processor}rank')}{where}{seconds}"


def culprits(conclusion: Conclusion) -> str:
    """Return who is at fault, the first three by name."""
    named = [finding.culprit for finding in conclusion.findings if finding.severity == "fail"]
    # One of several that are not separable is of the kind none, too.
    known = [culprit for culprit in named if culprit.kind != "none" or culprit.ranks or culprit.nodes]
    names = list(dict.fromkeys(printable(culprit.name) for culprit in known))
    if not names:
        return "nobody could be named"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    one_node = len(names) > 1 and len(nodes := {node for culprit in known for node in culprit.nodes}) == 1
    together = f"; {all_of(len(names), 'fault')} on {printable(a_node(nodes.pop()))}" if one_node else ""
    are_processes = conclusion.trial.device_type == "cuda" and all(culprit.kind == "process" for culprit in known)
    healthy = "; no device is blamed" if are_processes else ""
    return (and_list(names) if not more else ", ".join(names[:_MOST_NAMES]) + more) + together + healthy


def _number(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _errors(conclusion: Conclusion, view: View) -> list[str]:
    """Return the first error in full, or both of two; and the number of the others, which stand above the card."""
    errors = [finding for finding in advised_once(conclusion.findings) if is_fault(finding)]
    if len(errors) == MOST_IN_CARD:
        return [_error(finding, _MOST_ROWS_OF_TWO, view) for finding in errors]
    count = len(errors) - 1
    more = [f"and {_number(count, 'more error')} (see above)"] if count > 0 else []
    return [*(_error(finding, _MOST_ERROR_ROWS, view) for finding in errors[:1]), *more]


def _error(finding: Finding, most_rows: int, view: View) -> str:
    """Return the sentence of an error, on a terminal of usual width in this number of rows."""
    columns = view.columns or USUAL_COLUMNS
    longest = most_rows * max(columns, USUAL_COLUMNS)
    error = f"Error: {sentence(finding, longest)}"
    while height(f"- {error}", view.columns) > most_rows and columns >= USUAL_COLUMNS:
        longest -= 4
        error = f"Error: {sentence(finding, longest)}"
    return error


def comm_lines(conclusion: Conclusion, *, is_own: bool = True) -> list[str]:
    """Return the network variables of the ranks as one line, to copy them into a job script.

    ``is_own``: this command ran the trial; NCCL and others load libraries and read files from paths in such variables.
    """
    variables = comm_variables(conclusion)
    hidden = [name for name, value in variables.items() if not (is_own or _HARMLESS_VALUE.fullmatch(value.strip("^=")))]
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items() if name not in hidden]
    words += [f"(not shown: {', '.join(hidden)}; see job.env in report.json)"] if hidden else []
    return [printable(f"environment of the ranks: {' '.join(words)}")] if words else []


def reason_lines(conclusion: Conclusion) -> list[str]:
    """Return why it is not a PASS, without the reasons that are findings; checks that never started are one line."""
    verdict = conclusion.verdict
    findings = {finding.what for finding in conclusion.findings}
    absent = [name for name, status in verdict.checks.items() if status == "absent"]
    folded = {f"{name} was requested but never started" for name in absent} if len(absent) > 1 else set()
    reasons = [reason for reason in verdict.reasons if reason not in findings | folded]
    if verdict.interrupted and verdict.status == "INCONCLUSIVE":
        reasons = [_interruption(conclusion), *_without_what_follows(conclusion, reasons[1:])]
    elif verdict.status == "FAIL":
        reasons = [f"incomplete record: {what}" for what in conclusion.trial.missing]
    elif folded:
        reasons.append(f"requested but never started: {', '.join(absent)}")
    return [f"not a PASS: {printable(reason)}" for reason in reasons]


def _interruption(conclusion: Conclusion) -> str:
    """Return who stopped the trial, and when: ``stopped by Ctrl-C (SIGINT) before training ended``."""
    by, checks = conclusion.trial.interrupted or "", conclusion.verdict.checks
    reason = f"Ctrl-C ({by})" if by == "SIGINT" else by
    begun = [name for name, status in checks.items() if status == "inconclusive"]
    not_begun = [name for name, status in checks.items() if status == "absent"]
    when = f" before {', '.join(begun)} ended" if begun else f" before {not_begun[0]} started" if not_begun else ""
    return f"stopped by {reason}{when}"


def _without_what_follows(conclusion: Conclusion, reasons: Sequence[str]) -> list[str]:
    """Return the reasons without those that follow from an interruption: checks that did not end, or start."""
    checks = conclusion.verdict.checks
    follow = {f"{name} was requested but never started" for name in checks}
    follow |= {f"not all {members} finished {name}" for members in ("ranks", "nodes") for name in checks}
    return [reason for reason in reasons if reason not in follow]


def _not_applicable(conclusion: Conclusion) -> list[str]:
    """Return which checks of a PASS were about nothing here."""
    names = not_applicable(conclusion)
    return [f"not applicable: {', '.join(names)}"] if names and conclusion.verdict.status == "PASS" else []


def _unlimited(conclusion: Conclusion) -> list[str]:
    """Return which speeds of a PASS were held against no limit, and how they get one."""
    verdict = conclusion.verdict
    if verdict.status != "PASS" or not verdict.unlimited:
        return []
    speeds = and_list(list(dict.fromkeys(key.partition(".")[0] for key in verdict.unlimited)))
    keys = ", ".join(verdict.unlimited)
    what = f"held against no limit, at most against one another: the speeds of {speeds}"
    return [printable(f"{what}; a plan file sets limits: {keys}")]


def why_lines(conclusion: Conclusion) -> list[str]:
    """Return the first reason of a trial that is not decided, where no error of the banner says it."""
    if conclusion.verdict.status != "INCONCLUSIVE" or any(map(is_fault, conclusion.findings)):
        return []
    return [f"why: {line.removeprefix('not a PASS: ')}" for line in reason_lines(conclusion)[:1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What to do next: words, and a command as the words that a shell takes."""

    words: str
    command: tuple[str, ...]


def _next_lines(steps: Sequence[_Step], view: View) -> list[str]:
    """Return the steps as one line; on a terminal where that is too long, each command stands alone."""
    whole = ", ".join(f"{step.words} {' '.join(step.command)}" for step in steps)
    line = printable(f"next: {whole}")
    if view.columns is None or len(line) <= view.columns:
        return [line]
    parts = [(step.words, command_lines(step.command, view.columns)) for step in steps]
    shown = [line for words, command in parts for line in (words, *command)]
    return [f"next: {printable(shown[0])}", *map(printable, shown[1:])]


def _next_of(conclusion: Conclusion, report: Path | None, view: View) -> list[_Step]:
    if view.foreign is None:
        return _next(conclusion, report, ())
    harmless, blanks = _without_risks(conclusion, view.foreign)
    return _next(harmless, report, blanks)


def _next(conclusion: Conclusion, report: Path | None, blanks: Sequence[str]) -> list[_Step]:
    """Return what to do next, with the command as it was typed. ``blanks``: words of it that stand for others."""
    trial, verdict = conclusion.trial, conclusion.verdict
    plan = str(trial.plan.get("name") or "quick")
    launcher = trial.job.get("launcher")
    is_drill = verdict.status != "PASS" and bool(drill(conclusion))
    # The folder of a drill stays one: its newest report must not be that of a real trial.
    again = _command(conclusion, plan, left_out=("--out",) if is_drill else ())
    run = f"run under {launcher} as before:" if launcher else "run:"
    if any(_HIDDEN in word for word in again):
        run = f"write the values in place of {_HIDDEN} and {run}"
    if blanks := [word for word in blanks if word in again]:
        run = f"put your own in place of {and_list(blanks)} and {run}"
    if verdict.interrupted:
        return [_Step(words=f"for a verdict, let it end; {run}", command=again)]
    if is_drill:
        real = ("env -u SEATRIAL_PLANT", *again)  # it may be exported
        return [_Step(words=f"nothing to repair, the fault was planted; for a real trial, {run}", command=real)]
    if verdict.status == "PASS" and verdict.unlimited and trial.plan.get("demands_limits") is True:
        return _limits_first(conclusion, report, run)
    if verdict.status == "PASS" and "not_asked" in verdict.checks.values():
        return [_Step(words=f"for a full PASS, {run}", command=_command(conclusion, plan, left_out=_CHOOSING))]
    if verdict.status == "PASS" and trial.plan.get("demands_limits") is True and cpu_shortage(conclusion):
        return [_Step(words=f"before you sign, on idle nodes, {run}", command=again)]
    if verdict.status == "PASS":
        stronger = _STRONGER.get(plan)
        words = f"to test more, {run}" if stronger else f"after each repair or change, {run}"
        return [_Step(words=words, command=_command(conclusion, stronger or plan))]
    if keys := _keys(conclusion):
        return _longer(plan, keys, run, conclusion)
    if telling := _telling(conclusion):
        words = f"to tell which, {run}" if trial.num_nodes() > 2 else f"to tell which, add a third node and {run}"
        again = _command(conclusion, plan, *telling)
    elif _needed(conclusion):
        words = f"with more time, {run}"
    elif verdict.status == "FAIL" and trial.num_nodes() == 2 and _is_about_link(conclusion):
        words = f"two nodes have one link, which nothing tells from its ends: repeat first; {run}"
    elif verdict.status == "FAIL":
        words = f"fix the problem above, then {run}"
    elif any(finding.culprit == SEATRIAL for finding in conclusion.findings if is_fault(finding)):
        folder = f", with the folder {shlex.quote(printable(str(report.parent)))}" if report is not None else ""
        words = f"report the bug{folder}; to try once more, {run}"
    else:
        words = f"resolve the problem above, then {run}"
    return [*_inspection(conclusion), _Step(words=words, command=again)]


def _inspection(conclusion: Conclusion) -> list[_Step]:
    """Return where to look first, with the command of the first fault's advice; nothing where it names none."""
    fault = next(filter(is_fault, conclusion.findings), None)
    if fault is None:
        return []
    nodes = fault.culprit.nodes
    where = f"on {a_node(nodes[0])}" if len(nodes) == 1 else "there"
    found = (command.search(fault.action) for command, device in _LOOKS if device in fault.culprit.name)
    return [_Step(words=f"look {where}:", command=tuple(_WORD.findall(match[0]))) for match in found if match][:1]


def _longer(plan: str, keys: Mapping[str, str], run: str, conclusion: Conclusion) -> list[_Step]:
    """Return how a plan gets parameters: one that begins with the level is written, a file that there is is changed."""
    settings = [f"{name} = {value}" for name, value in keys.items()]
    if plan not in LEVELS:
        words = f"set {', '.join(settings)} in {plan}, then {run}"
        return [_Step(words=words, command=_command(conclusion, plan))]
    # Without blanks it is one word, which stays whole on a line.
    text = "".join(f"{line.replace(' ', '')}\\n" for line in (f"level={plan_value(plan)}", *settings))
    write = ("printf", shlex.quote(text), f"> {_LONGER} &&")
    return [_Step(words=f"with more time, {run}", command=(*write, *_command(conclusion, _LONGER)))]


def _limits_first(conclusion: Conclusion, report: Path | None, run: str) -> list[_Step]:
    """Return how a plan gets the limits that it demands: by hand, or from runs on healthy nodes."""
    from seatrial.report.earlier_runs import runs_for_limits
    from seatrial.report.plan_of_runs import ENOUGH_RUNS, written_limits

    plan = str(conclusion.trial.plan.get("name") or "quick")
    by_hand = [key for key in conclusion.verdict.unlimited if key not in written_limits(conclusion)]
    if by_hand:
        file, plan = (f'a plan file with level = "{plan}"', _OTHER_PLAN) if plan in LEVELS else ("the plan", plan)
        words = f"write limits into {file}: {', '.join(by_hand)}; then {run}"
        return [_Step(words=words, command=_command(conclusion, plan))]
    folder = None if report is None else report.parent
    earlier = [] if folder is None else runs_for_limits(conclusion, folder)
    is_disturbed = bool(cpu_shortage(conclusion))
    such = [*map(str, earlier), *([] if is_disturbed else ["RUN" if folder is None else str(folder)])]
    named = [shlex.quote(run) for run in such] + [f"RUN{number}" for number in range(len(such) + 1, ENOUGH_RUNS + 1)]
    write = (command_line(), "plan", "from", *named, ">", "limits.toml")
    if len(such) >= ENOUGH_RUNS:
        limited = _command(conclusion, "limits.toml", "--require-full")
        return [
            _Step(words=f"{len(such)} runs give limits:", command=write),
            _Step(words=f"then {run}", command=limited),
        ]
    no_limits = "this run gives no limits; " if is_disturbed else ""
    return [
        _Step(
            words=f"{no_limits}{len(such)} of {ENOUGH_RUNS} runs for limits so far; on idle nodes, {run}",
            command=_command(conclusion, plan),
        ),
        _Step(words=f"after {ENOUGH_RUNS}:", command=write),
    ]


def _command(conclusion: Conclusion, plan: str, *more: str, left_out: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command with the options of this run; ``more``: further ones, of which --only chooses other checks;
    ``left_out``: options of the run that it does without."""
    options = conclusion.trial.job.get("options")
    words = [str(word) for word in options] if isinstance(options, list) else []
    words = _without(words, _CHOOSING if "--only" in more else left_out)
    words += [word for word in more if word not in words]
    for name, value in _needed(conclusion).items():
        if not name.startswith("--"):  # a key of a plan file
            continue
        at = words.index(name) if name in words else len(words)
        words[at : at + 2] = name, value
    return (command_line(), "run", *map(shlex.quote, (plan, *words)))


def command_of(conclusion: Conclusion) -> str:
    """Return the command that the trial was, as its events have it, and what started it."""
    trial = conclusion.trial
    options = trial.job.get("options")
    words = [str(trial.plan.get("name") or ""), *(map(str, options) if isinstance(options, list) else ())]
    launcher = trial.job.get("launcher") or trial.job.get("target") or ""
    return f"{shlex.join(['seatrial', 'run', *filter(None, words)])}{launcher and f' (by {launcher})'}"


def _without_risks(conclusion: Conclusion, with_value: Collection[str]) -> tuple[Conclusion, list[str]]:
    """Return a trial whose options can do no harm where a person copies them: its events may come from others.

    ``with_value``: options of seatrial run that take a value. Also returns the words that stand for what is not shown.
    """
    trial = conclusion.trial
    options = trial.job.get("options")
    words = iter([str(word) for word in options] if isinstance(options, list) else [])
    name = str(trial.plan.get("name"))
    plan = name if name in LEVELS else _OTHER_PLAN
    shown, blanks, more = list[str](), [_OTHER_PLAN], False
    for word in words:
        name, has_value, value = word.partition("=")
        if word in _HARMLESS_FLAGS:
            shown.append(word)
        elif name not in with_value:
            more = True
        else:
            value = value if has_value else next(words, "")
            blank = name.lstrip("-").upper()
            if name in _HARMLESS and _HARMLESS_VALUE.fullmatch(value):
                shown += [name, value]
            elif blank not in blanks:
                shown += [name, blank]
                blanks.append(blank)
    launcher = str(trial.job.get("launcher") or "")
    job = {
        **trial.job,
        "options": [*shown, *([_NOT_SHOWN] if more else [])],
        "launcher": launcher if _HARMLESS_VALUE.fullmatch(launcher) else "",
    }
    harmless = replace(conclusion, trial=replace(trial, job=job, plan={**trial.plan, "name": plan}))
    return harmless, [*blanks, _NOT_SHOWN]


def _without(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the options without those of these names, and their values."""
    left: list[str] = []
    drops_value = False
    for word in words:
        name, has_value, _ = word.partition("=")
        if not drops_value and name not in names:
            left.append(word)
        drops_value = not drops_value and name in names and name not in _CHOICE_FLAGS and not has_value
    return left


def _is_about_link(conclusion: Conclusion) -> bool:
    """Return whether the first fault is a link."""
    return next(
        (finding.culprit.kind == "link" for finding in conclusion.findings if finding.severity == "fail"), False
    )


def _needed(conclusion: Conclusion) -> dict[str, str]:
    """Return the options and keys of a plan file that the findings of a trial that is not decided ask for."""
    if conclusion.verdict.status != "INCONCLUSIVE":
        return {}
    asked = [finding.options for finding in conclusion.findings if finding.severity == "error"]
    return {name: value for options in asked for name, value in zip(options[::2], options[1::2], strict=False)}


def _keys(conclusion: Conclusion) -> dict[str, str]:
    """Return those of them that stand in a plan file."""
    return {name: value for name, value in _needed(conclusion).items() if not name.startswith("--")}


def _telling(conclusion: Conclusion) -> tuple[str, ...]:
    """Return the options of the run that tells more about the first fault."""
    return next((finding.options for finding in conclusion.findings if finding.severity == "fail"), ())


def measured_line(conclusion: Conclusion) -> str:
    """Return how many measurements have a limit."""
    verdict = conclusion.verdict
    return f"{format_number(verdict.judged)} of {verdict.measurements} measurements have a limit"
