"""The culprit of a trial that did not run to its end. Pure: a trial in, findings out.

Only the primary cause of each generation is named. In this order: ranks that died, ran out of memory or lost their
device, or got no further thread from their host, for which nobody is named; a rank that raised an exception; a frozen
rank; a rank that never entered a collective; a lost node; the fabric, to which ranks belong that crashed while they
connected to other hosts.
The errors that other ranks reported meanwhile ("connection reset by peer") are consequences and become evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from seatrial.evidence.evidence import a_node
from seatrial.evidence.findings import NOBODY, SEATRIAL, Culprit, Finding, Severity
from seatrial.judge.advice import fabric_action, frozen_action, telling_apart, waits_for_device
from seatrial.judge.connect_errors import clearest, connect_errors, lines_of, only_large_messages
from seatrial.judge.host_lacks import is_of_host, lack_of, lacks_of_hosts, may_abort, what_lacked, without_more
from seatrial.judge.how_far import how_far, needed_s, whose_cores
from seatrial.judge.kept_from_devices import kept_from_devices
from seatrial.judge.lost_nodes import blame_lost_nodes
from seatrial.judge.more_time import longer_deadline, longer_timeout
from seatrial.judge.root_causes import Observed
from seatrial.judge.slow_start import blame_slow_start, on_node
from seatrial.judge.step_view import (
    StepView,
    build_step_view,
    describe_exit,
    in_phase,
    may_be_device,
    most_wait_s,
    num_hosts,
    process_culprit,
    rank_culprit,
    waited,
    works_alone,
)
from seatrial.judge.trial import AgentEnd, ErrorRecord, ExitRecord, NodeFailure, Note, Trial, TroubleRecord
from seatrial.plan.plan_reader import OF_DEADLINE
from seatrial.protocol.connecting import FROM_OTHERS, connects
from seatrial.protocol.fabric_errors import MTU_ACTION
from seatrial.protocol.own_errors import ALL_TAKEN, first_lack, in_one_line, is_of_link
from seatrial.protocol.timeouts import patience_s
from seatrial.util.text import all_named, all_of, as_name, named_ranks, out_of_memory_words, quoted

_SIGNAL_ACTIONS = {
    "SIGKILL": "look for the kernel's out-of-memory killer there (dmesg -T | grep -i 'killed process'), and at the"
    " memory limit of the container or job",
    "SIGTERM": "find out what ended it: the scheduler, a time limit, an administrator",
    "SIGBUS": "look at the size of /dev/shm and for memory errors there",
}
_MOST_WITH_ALL_LINES = 8
"""Findings of one attempt that each have the lines about the ranks that only waited."""
_OUT_OF_MEMORY = "allow it more memory (the limit of the container, job or host), or find out what used it"
_TORCH_SAYS = "CUDA out of memory. "
_BUG = "bug in seatrial, not a fault of the cluster"
_REPORT_IT = "report it with the folder of this run; no part of the cluster needs a repair"
_CRASHED = "look at its last output and at the kernel and driver log there"
_BOTH_ENDS = (
    "look at the links of that GPU and of those that it is connected to (nvidia-smi nvlink -e, nvidia-smi topo -m; XID"
    " there: dmesg -T | grep -i xid), at the fabric manager and at IMEX; either end of the link may be at fault"
)
_CONNECTED = (
    "look at its last output, at the libraries and plugins that it loads to communicate, and at the memory there; if"
    " all nodes are alike in that, repeat the trial without one of the others after the other: it may send what no rank"
    " of ours sends"
)


def blame(trial: Trial) -> tuple[Finding, ...]:
    """Return the findings that follow from events alone, whatever was measured."""
    return tuple(entry.finding for entry in observe(trial))


def observe(trial: Trial) -> tuple[Observed, ...]:
    """Return the findings of ``blame``, and which of them are hangs that another fault may explain."""
    observed: list[Observed] = []
    generations = {entry.number for entry in trial.generations} | {entry.generation for entry in trial.troubles}
    generations |= {error.generation for error in trial.errors} | {ending.generation for ending in trial.exits}
    for generation in sorted(generations):
        view = build_step_view(trial, generation)
        explain, causes = next(((explain, found) for explain in _IN_ORDER if (found := explain(view))), (None, []))
        if generation and explain in (blame_slow_start, _deadline):
            causes = []  # a restart attempt has the time that the first one left, so its lack of time says nothing
        is_hang = explain in (_did_not_come, _crashed, _fabric, _deadline)
        begin, causes = _of_generation(view) if causes else "", _without_repeats(causes)
        observed += [
            Observed(finding=replace(finding, what=f"{begin}{finding.what}"), is_hang=is_hang) for finding in causes
        ]
        observed += [Observed(finding=finding) for finding in _after_the_end(view)]
    for left in trial.left:
        node = "an unknown node" if left.node is None else a_node(trial.place(left.node))
        what = f"process {left.pid} of rank {left.rank} on {node} could not be ended (state {left.state or 'unknown'})"
        nodes = () if left.node is None else (trial.host_name(left.node),)
        culprit = Culprit(kind="node", name=node, ranks=(left.rank,), nodes=nodes)
        action = f"end process {left.pid} there, or restart {node}"
        observed.append(Observed(finding=_finding("warn", "trial", what, culprit, action=action)))
    checks = {(step.generation, step.number): step.check for step in trial.steps} if trial.node_failures else {}
    places = {node: trial.place(node) for node in {failure.node for failure in trial.node_failures}}
    failures = [
        _could_not(failure, checks.get((failure.generation, failure.step), "trial"), places[failure.node])
        for failure in trial.node_failures
    ]
    notes = [_finding(note.severity, "trial", _noted(trial, note), NOBODY) for note in trial.notes]
    return (*observed, *(Observed(finding=finding) for finding in (*failures, *notes)))


def _noted(trial: Trial, note: Note) -> str:
    """Return what a note says; one of a node or a rank as its words."""
    if note.rank is not None:
        return f"{trial.named(note.rank)} says: {quoted(note.text)}"
    return note.text if note.node is None else f"{trial.place(note.node)} says: {quoted(note.text)}"


def _could_not(failure: NodeFailure, check: str, place: str) -> Finding:
    error, *more = failure.error.splitlines() or ["no message"]
    what = f"{quoted(error)}; seen on {a_node(place)}, in {check}"
    if lack := first_lack(error):
        return _finding("error", check, f"{lack.words()}: {what}", NOBODY, evidence=tuple(more), action=lack.action)
    what = f"{_BUG}: {what}"
    return _finding("error", check, what, SEATRIAL, evidence=tuple(more), action=_REPORT_IT)


def _dead_or_broken(view: StepView) -> list[Finding]:
    """Return one finding for each death, memory error and device error: each is a separate fault."""
    trial = view.trial
    broken = {rank: error for rank, error in view.raised.items() if error.cause in ("memory", "device")}
    lacking = {rank: error for rank, error in view.raised.items() if is_of_host(error)}
    kept_from = {rank: error for rank, error in sorted(view.raised.items()) if error.cause == "setup"}
    kept_from = {rank: error for rank, error in kept_from.items() if rank not in lacking}
    # Libraries abort when a peer does not answer: an abort is a cause only where nothing else is.
    aborted = {
        rank
        for rank, ending in view.died.items()
        if ending and describe_exit(ending.code).signal == "SIGABRT" and not may_be_device(trial, ending)
    }
    lacks = any(map(may_abort, lacking.values()))
    others = bool(
        broken or kept_from or lacks or view.lost_nodes or view.of("frozen", "absent") or aborted != set(view.died)
    )
    died = {rank: ending for rank, ending in view.died.items() if not (others and rank in aborted)}
    if len(died) > 1:
        # Of several deaths, those with an unknown exit status are more likely consequences.
        died = {rank: ending for rank, ending in died.items() if ending is not None}
    died = {rank: ending for rank, ending in died.items() if view.node_of(rank) not in view.lost_nodes}
    follow = view.may_follow() & died.keys()
    if follow < died.keys() or any(finding.severity == "fail" for finding in blame_lost_nodes(view)):
        died = {rank: ending for rank, ending in died.items() if rank not in follow}
    phases = {entry.rank: entry.phase for entry in view.of("dead")}
    waiting = view.waiting([*died, *broken, *kept_from, *lacking])
    findings = []
    for rank, ending in sorted(died.items()):
        described = describe_exit(ending.code) if ending else None
        phase = (ending.phase if ending else "") or phases.get(rank, "")
        oom = f": {_oom_words(ending)}" if ending is not None and ending.oom else ""
        where = in_phase(phase)
        words = f"{described.words}{where}{oom}" if described else f"disappeared{where}; its exit status is unknown"
        findings.append(
            _finding(
                "fail",
                view.check,
                f"{trial.label(rank)} {words}",
                rank_culprit(trial, rank)
                if ending is not None and may_be_device(trial, ending)
                else process_culprit(trial, view.generation, rank),
                evidence=(*view.evidence(rank), *waiting),
                action=_OUT_OF_MEMORY if oom else _SIGNAL_ACTIONS.get(described.signal if described else "", _CRASHED),
            )
        )
    findings += [_broken(view, rank, error, waiting) for rank, error in sorted(broken.items())]
    return [*findings, *kept_from_devices(view, kept_from, waiting), *without_more(view, lacking, waiting)]


def _oom_words(ending: ExitRecord) -> str:
    return ending.oom_words or out_of_memory_words(ending.oom_limit_bytes)


def _broken(view: StepView, rank: int, error: ErrorRecord, waiting: tuple[str, ...]) -> Finding:
    where = f"{view.trial.label(rank)}{in_phase(error.phase)}"
    message = quoted(error.first_line().removeprefix(_TORCH_SAYS))
    memory = error.cause == "memory"
    return _finding(
        "fail",
        view.check,
        f"out of memory on {where}: {message}" if memory else f"device error on {where}: {message}",
        _memory_culprit(view, rank) if memory else rank_culprit(view.trial, rank, "device"),
        evidence=(*error.stack_lines(), *view.evidence(rank), *waiting),
        action=(
            "see what else uses that memory (nvidia-smi, amd-smi); if nothing does, make the batch or message size"
            " smaller"
            if memory
            else "look for XID and ECC there (dmesg -T | grep -iE 'xid|ecc'), reset or replace the device"
        ),
    )


def _memory_culprit(view: StepView, rank: int) -> Culprit:
    """Return the process that found no memory, or whatever else has taken it: the error does not tell which."""
    culprit = process_culprit(view.trial, view.generation, rank)
    return replace(culprit, name=f"{culprit.name}, or what else uses that memory")


def _raised(view: StepView) -> list[Finding]:
    """Return findings for wrong requests, bugs of seatrial and errors without a text: none is the cluster's fault."""
    findings = []
    errors = {rank: error for rank, error in view.raised.items() if error.cause in ("own", "request")}
    waiting = view.waiting(errors)
    for rank, error in sorted(errors.items()):
        if error.cause == "request":
            what = view.trial.refusal(error)
            action, culprit = "correct the request, if that is so", NOBODY
        else:
            seen = f"seen on {view.trial.label(rank)}{',' if error.phase else ''}{in_phase(error.phase)}"
            said = f"{as_name(error.type)}: {quoted(error.first_line())}"
            what, action, culprit = f"{_BUG}: {said}; {seen}", _REPORT_IT, SEATRIAL
        evidence = (*error.stack_lines(), *view.evidence(rank), *waiting)
        findings.append(_finding("error", view.check, what, culprit, evidence=evidence, action=action))
    for entry in view.of("error"):
        if entry.rank is not None and entry.rank not in view.raised:
            label = view.trial.label(entry.rank)
            what = f"{label} reported an error, but its text was lost ({as_name(entry.detail or 'no detail')})"
            findings.append(_finding("error", view.check, what, NOBODY))
    for rank, ending in sorted(view.died_unsure.items()):
        words = describe_exit(ending.code).words
        what = f"{view.trial.label(rank)} {words}; the event that explains it may be among those lost"
        findings.append(_finding("error", view.check, what, NOBODY, evidence=view.evidence(rank)))
    return findings


def _frozen(view: StepView) -> list[Finding]:
    return _named(
        view,
        view.of("frozen"),
        lambda entry: (
            "was frozen" + (f", {entry.detail}," if entry.detail else "") + f"{in_phase(entry.phase)}{waited(entry)}"
        ),
        lambda entry: frozen_action(entry.detail),
    )


def _did_not_come(view: StepView) -> list[Finding]:
    """Return findings for ranks that were absent or late, or alone in a step and did not finish it."""
    together = {entry.rank for entry in _late_together(view)}
    entries = [entry for entry in _standing(view, "absent", "late") if entry.rank not in together]
    stuck = [] if entries else _standing(view, "stuck")
    if stuck and len(view.ranks) > 1 and stuck[0].step in (None, -1):
        evidence = tuple(f"{on_node(view, entry)} was{in_phase(entry.phase)}{waited(entry)}" for entry in stuck[:4])
        what = f"none of {len(stuck)} ranks was ready in time"
        if len(stuck) < len(view.ranks):
            what = f"{len(stuck)} of {len(view.ranks)} ranks were not ready in time; {evidence[0]}"
        return [_finding("error", "trial", what, NOBODY, evidence=evidence, action="look at the output of the ranks")]
    if not view.trial.missing:
        entries += [entry for entry in stuck if _alone(view, entry)]
    return _named(
        view,
        entries,
        lambda entry: (
            (_absent_words(view, entry) if entry.how == "absent" else _late_words(view, entry))
            + (f" ({entry.detail})" if entry.detail else "")
        ),
        lambda entry: "look at its stack for what it waits for, and at what else runs on that node",
    )


def _fabric(view: StepView) -> list[Finding]:
    """Return a finding where all or most ranks hung together, or had communication errors and none is gone."""
    stuck, late = _standing(view, "stuck"), _late_together(view)
    errors = [error for error in view.raised.values() if error.cause == "fabric"]
    troubled = bool(view.troubles) or view.trial.interrupted is None
    if not (stuck or late or errors) or not troubled:
        return []
    if stuck:
        what = f"{all_of(len(stuck), 'rank')} hung{in_phase(stuck[0].phase)}{waited(stuck[0])}"
    elif late:
        what = f"{len(late)} of {_num_asked(view, late[0])} ranks hung{in_phase(late[0].phase)} until the deadline"
    else:
        phase = errors[0].phase
        ranks = [rank for rank, error in view.raised.items() if error.cause == "fabric"]
        what = f"{named_ranks(sorted(ranks))} saw a communication error{in_phase(phase)}"
    nodes = _nodes(view)
    # One stack shows where all of them wait.
    shown = next((view.evidence(entry.rank) for entry in stuck or late if entry.rank is not None), ())
    evidence = (*view.waiting(()), *shown)
    action = fabric_action(view.trial, nodes)
    unreached = connect_errors(view)
    evidence = (*lines_of(view, unreached), *evidence)
    if not (stuck or late) and (ended := _ended_before(view, errors)) is not None:
        return [_follows_from(view, ended, what, evidence)]
    lacking = {} if stuck or late else lacks_of_hosts(errors)
    if linked := {} if stuck or late else _linked(view):
        error = next(iter(linked.values()))
        what = f"{named_ranks([*linked])} saw an error of a link between GPUs{in_phase(error.phase)}"
        what += f": {quoted(in_one_line(error.message))}"
        action = _BOTH_ENDS
    elif lacking:
        if num_hosts(view.trial, view.generation) < 2:
            return without_more(view, lacking, evidence)
        rank, error = next(iter(lacking.items()))
        why = f", while connecting to other nodes: {FROM_OTHERS}" if connects(error.phase) else f"; {ALL_TAKEN}"
        what, action = f"{what_lacked(view, {rank: error})}{why}", lack_of(error).action
    elif (worst := clearest(unreached.values())) is not None:
        rank = next(rank for rank, error in unreached.items() if error == worst)
        what += f": {view.trial.label(rank)} could not connect to {worst.words()}"
        action = worst.action()
    elif only_large_messages(view, stuck):
        action = MTU_ACTION
    if busy := [entry for entry in stuck if entry.detail and entry.rank is not None]:
        # A rank that waits over gloo uses none. A stack shows a wait, too, while another thread holds the interpreter.
        computing = named_ranks(sorted(entry.rank for entry in busy if entry.rank is not None))
        what += f"; {computing} used CPU time meanwhile, the others none"
        action = f"look at {computing} first: what its threads do (py-spy dump); else {action}"
    if view.trial.missing:
        # The event that names a culprit may be among those lost.
        what += "; events were lost, so the cause is not known"
        return [_finding("error", view.check, what, NOBODY, evidence=evidence)]
    culprit = _either_end(view, [*linked]) if linked else _between(nodes)
    options = () if linked or lacking else telling_apart(view.trial, nodes)
    return [_finding("fail", view.check, what, culprit, evidence=evidence, action=action, options=options)]


def _linked(view: StepView) -> dict[int, ErrorRecord]:
    """Return the errors of ranks that stand at an end of a link between GPUs which failed: it may be the other end."""
    if view.trial.device_type != "cuda":
        return {}
    return {
        rank: error
        for rank, error in sorted(view.raised.items())
        if error.cause == "fabric" and is_of_link(error.message)
    }


def _either_end(view: StepView, ranks: Sequence[int]) -> Culprit:
    nodes = sorted({view.trial.ranks[rank].node for rank in ranks if rank in view.trial.ranks})
    name = f"a link of the GPU of {view.trial.label(ranks[0])}, or of a GPU that it is connected to"
    if len(ranks) > 1:
        name = f"a link of the GPUs of {named_ranks(ranks)}, or of a GPU that they are connected to"
    return Culprit(kind="link", name=name, nodes=tuple(nodes))


def _between(nodes: Sequence[str]) -> Culprit:
    """Return the communication between the ranks as the culprit: not known which node, or which link."""
    name = f"communication between {all_named('node', nodes)} (node or link not told apart)"
    if len(nodes) < 2:
        inside = f"the processes inside {a_node(nodes[0])}" if nodes else "the ranks"
        name = f"communication between {inside}"
    return Culprit(kind="fabric", name=name, nodes=tuple(nodes))


def _crashed(view: StepView) -> list[Finding]:
    """Return a finding where ranks ended while they connected to other hosts: any of those may have caused it."""
    if not view.crashed or not (view.troubles or view.trial.interrupted is None):
        return []
    (rank, ending), *more = sorted(view.crashed.items())
    oom = f" ({_oom_words(ending)})" if ending.oom else ""
    what = f"{view.trial.label(rank)} {describe_exit(ending.code).words}{in_phase(ending.phase)}{oom}"
    what += f", while connecting to other nodes: {FROM_OTHERS}"
    what += f"; {named_ranks([other for other, _ in more])} ended there, too" if more else ""
    evidence = (*view.evidence(rank), *view.waiting((rank,)))
    if view.trial.missing:
        return [_finding("error", view.check, what, NOBODY, evidence=evidence)]
    nodes = _nodes(view)
    options = telling_apart(view.trial, nodes)
    return [_finding("fail", view.check, what, _between(nodes), evidence=evidence, action=_CONNECTED, options=options)]


def _nodes(view: StepView) -> list[str]:
    return sorted({view.trial.ranks[rank].node for rank in view.ranks if rank in view.trial.ranks})


def _ended_before(view: StepView, errors: Iterable[ErrorRecord]) -> AgentEnd | None:
    """Return the end of the ranks of a node by its agent that these errors of communication follow from, if there is
    one.

    Clocks of hosts differ, so the ranks of that node tell the order: where a network was cut they complained before.
    """
    first_at: dict[int | None, float] = {}
    for error in errors:
        node = view.node_of(error.rank)
        first_at[node] = min(error.at, first_at.get(node, error.at))
    ends = (ending for ending in view.trial.agent_ends if ending.generation == view.generation)
    return next((ending for ending in ends if ending.node not in first_at or ending.at <= first_at[ending.node]), None)


def _follows_from(view: StepView, ended: AgentEnd, what: str, evidence: tuple[str, ...]) -> Finding:
    """Return a finding that names nobody: whoever is in the path can have an agent give up, and so can a controller
    that sleeps."""
    name = view.trial.place(ended.node)
    return _finding(
        "error",
        view.check,
        f"{what} after the agent of {a_node(name)} had ended its ranks, as it says: {quoted(ended.why)}",
        NOBODY,
        evidence=evidence,
        action="find out why that agent gave up: a controller that slept or was stopped, or somebody changes packets"
        f" between it and {name} (ip neigh, on both); then repeat the trial",
    )


def _deadline(view: StepView) -> list[Finding]:
    """Return a finding for a step that passed its deadline where no culprit is known."""
    step = view.last_step()
    if step is None or step.outcome != "deadline":
        return []
    name, seconds = f"{step.check}/{step.stage}", f"{step.timeout_s:.3g} s"
    working, cut_short = view.of("working"), _cut_short(view)
    option = longer_timeout(view.trial, step.check, needed_s(view, working))
    words = f"{option[0]} = {option[1]} in a plan file, {' '.join(option[2:])}"
    slow = "it" if len(working) == 1 else "them" if len(working) < len(step.ranks) else "all of them"
    action = f"give it more time ({words}), or see what slows {slow} down"
    if working:
        limit = seconds if cut_short else f"its {seconds} ({step.check}.timeout_s)"
        ranks = f"{all_of(len(working), 'rank')} were" if len(working) > 1 else f"rank {working[0].rank} was"
        what = f"{name} ran out of time: {how_far(view, working)} within {limit}, and {ranks} still at work"
        if needed := needed_s(view, working):
            what += f"; at this pace it needs about {needed:.0f} s"
        what += whose_cores(view, working)
    elif cut_short:
        what = f"{name} was not finished within {seconds}"
    else:
        what, action, option = f"{name} was not finished within {seconds}, and nobody could be named", "", ()
    if cut_short:
        what += ": the deadline of the whole trial cut it short"
    if cut_short or view.trial.origin(step.check, "timeout_s").startswith(OF_DEADLINE):
        option = longer_deadline(view.trial)
        action = f"give the trial more time ({' '.join(option)})"
    return [_finding("error", step.check, what, NOBODY, evidence=view.waiting(()), action=action, options=option)]


_IN_ORDER: tuple[Callable[[StepView], list[Finding]], ...] = (
    _dead_or_broken,
    _raised,
    blame_slow_start,
    _frozen,
    _did_not_come,
    blame_lost_nodes,
    _crashed,
    _fabric,
    _deadline,
)


def _after_the_end(view: StepView) -> list[Finding]:
    """Return a warning for each rank that failed after it had finished its work."""
    return [
        _finding(
            "warn",
            "trial",
            f"{view.trial.label(ending.rank)} {describe_exit(ending.code).words} after its work was done",
            process_culprit(view.trial, view.generation, ending.rank),
            evidence=view.evidence(ending.rank),
        )
        for ending in view.trial.exits
        if ending.generation == view.generation
        and ending.code != 0
        and not ending.ours
        and f"rank{ending.rank}.{ending.generation}" in view.trial.ended
    ]


def _named(
    view: StepView,
    entries: Iterable[TroubleRecord],
    describe: Callable[[TroubleRecord], str],
    advise: Callable[[TroubleRecord], str],
) -> list[Finding]:
    """Return a finding for each rank; ``describe`` returns what it did, as a verb and the rest of the clause."""
    ranked = [(entry.rank, entry) for entry in entries if entry.rank is not None]
    waiting = view.waiting(rank for rank, _ in ranked)
    return [
        _finding(
            "fail",
            view.check,
            f"{view.trial.label(rank)} {describe(entry)}",
            _culprit_of(view, entry, rank),
            evidence=(*view.evidence(rank), *waiting),
            action=advise(entry),
        )
        for rank, entry in ranked
    ]


def _culprit_of(view: StepView, entry: TroubleRecord, rank: int) -> Culprit:
    if not waits_for_device(entry.detail):
        return process_culprit(view.trial, view.generation, rank)
    if view.check == "storage" or entry.phase.endswith(("/import torch", "/read data")):
        # Other users of a disk or its server can keep it from answering.
        return Culprit(kind="none", name=f"a file system that {view.trial.label(rank)} waits for")
    return rank_culprit(view.trial, rank)


def _absent_words(view: StepView, entry: TroubleRecord) -> str:
    if _alone(view, entry):
        return f"stood still{in_phase(entry.phase)}{waited(entry)}, when others had finished"
    return f"never entered the collective: {_still(entry)}, while the others waited"


def _late_words(view: StepView, entry: TroubleRecord) -> str:
    step = view.step(entry.step)
    if step is not None and (entry.waited_s or 0.0) < patience_s(step.timeout_s):
        return f"was too slow: {how_far(view, [entry])} in {step.timeout_s:.3g} s"
    return f"did not finish in time: {_still(entry)}"


def _still(entry: TroubleRecord) -> str:
    return f"it was {f'still{in_phase(entry.phase)}' if entry.phase else 'not done'}{waited(entry, 'after')}"


def _alone(view: StepView, entry: TroubleRecord) -> bool:
    """Return whether the rank waited for no other: while it started, in a repeat, or in a check that it runs alone."""
    step = view.step(entry.step)
    return step is None or step.stage == "repeat" or len(step.ranks) == 1 or works_alone(step.check)


def _num_asked(view: StepView, entry: TroubleRecord) -> int:
    step = view.step(entry.step)
    return len(view.ranks if step is None else step.ranks)


def _late_together(view: StepView) -> list[TroubleRecord]:
    """Return the late ranks of one phase if they are more than half of the step: then no single rank holds them up."""
    late = [entry for entry in _standing(view, "late") if not _alone(view, entry)]
    phase, count = next(iter(Counter(entry.phase for entry in late).most_common(1)), ("", 0))
    together = [entry for entry in late if entry.phase == phase]
    return together if together and 2 * count > _num_asked(view, together[0]) else []


def _standing(view: StepView, *hows: str) -> list[TroubleRecord]:
    """Return the conductor's observations of these kinds, but not those of too short a time.

    What stood still at the end of a step that the trial's deadline cut short did so for a time that says something.
    """
    step = view.last_step()
    entries = view.of(*hows)
    if step is None or not _cut_short(view):
        return entries
    least_s = max(patience_s(step.timeout_s), most_wait_s(view.trial, step.check) if "stuck" in hows else 0.0)
    return [entry for entry in entries if min(entry.waited_s or 0.0, step.timeout_s) >= least_s]


def _cut_short(view: StepView) -> bool:
    """Return whether the deadline of the whole trial left the step less time than the plan gives it."""
    step = view.last_step()
    if step is None or step.outcome != "deadline":
        return False
    planned = view.trial.setting(step.check, "timeout_s")
    return planned is not None and step.timeout_s < planned - 0.01


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """Return the findings; those after the first few without the lines that the first one has, too."""
    if len(findings) <= _MOST_WITH_ALL_LINES:
        return findings
    first = {*findings[0].evidence}
    rest = findings[_MOST_WITH_ALL_LINES:]
    return findings[:_MOST_WITH_ALL_LINES] + [
        replace(finding, evidence=tuple(line for line in finding.evidence if line not in first)) for finding in rest
    ]


def _of_generation(view: StepView) -> str:
    """Return the begin of a sentence that says the generation, and the ranks that were left out of it."""
    if view.generation == 0:
        return ""
    without = sorted(set(view.trial.ranks) - set(view.ranks))
    restart = "a restart" if view.generation == 1 else f"restart {view.generation}"
    names = f" without {named_ranks(without)}" if without else ""
    return f"after {restart}{names}, "


def _finding(
    severity: Severity,
    check: str,
    what: str,
    culprit: Culprit,
    *,
    evidence: tuple[str, ...] = (),
    action: str = "",
    options: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        severity=severity, check=check, what=what, culprit=culprit, evidence=evidence, action=action, options=options
    )
