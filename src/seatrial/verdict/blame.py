"""Who is at fault when a trial did not run to its end. Pure: a trial in, findings out.

Only the primary cause of each generation is named: who died, or ran out of memory, or lost its device; else who
raised an exception of its own; else who was frozen; else who did not come; else a node that vanished; else the fabric.
What the others said meanwhile ("connection reset by peer") is a consequence and becomes evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from seatrial.verdict.findings import Culprit, Finding
from seatrial.verdict.scene import NOBODY, Scene, culprit_rank, ended_how, look, seconds
from seatrial.verdict.silence import explain_silence
from seatrial.verdict.trial import ErrorTold, Trial, TroubleSeen

__all__ = ["blame"]

_SIGNAL_ACTIONS = {
    "SIGKILL": "look for the kernel's out-of-memory killer there (dmesg, the memory limit of the container or job)",
    "SIGTERM": "find out who ended it: the scheduler, a time limit, an administrator",
    "SIGBUS": "look at the size of /dev/shm and for memory errors there",
}
_JOIN_S, _START_S, _KILL_S = 60.0, 180.0, 15.0
"""At most so long the nodes have to join, a generation to start, and its ranks to be ended after trouble."""
_CRASHED = "look at its last output and at the kernel and driver log there"


def blame(trial: Trial) -> tuple[Finding, ...]:
    """The findings that events alone tell of, whatever was measured."""
    findings: list[Finding] = []
    generations = {seen.number for seen in trial.generations} | {entry.generation for entry in trial.troubles}
    generations |= {error.generation for error in trial.errors} | {seen.generation for seen in trial.exits}
    for generation in sorted(generations):
        scene = look(trial, generation)
        found = next(filter(None, (explain(scene) for explain in _IN_ORDER)), [])
        findings += [_told_when(scene, finding) for finding in found] + _after_the_end(scene)
    for left in trial.left:
        node = f"node {left.node}" if left.node is None else trial.hostname(left.node)
        what = f"process {left.pid} of rank {left.rank} on {node} could not be ended (state {left.state or 'unknown'})"
        who = Culprit(kind="node", name=node, ranks=(left.rank,), nodes=(node,))
        findings.append(_finding("warn", "trial", what, who, action=f"end process {left.pid} there, or restart {node}"))
    findings += [_finding(note.severity, "trial", note.text, NOBODY) for note in trial.notes]
    return tuple(findings)


def _dead_or_broken(scene: Scene) -> list[Finding]:
    """Death, memory and device errors: each is a fault of its own, however many there are."""
    trial = scene.trial
    own = {rank: error for rank, error in scene.raised.items() if error.cause in ("memory", "device")}
    # An abort is what a library does when a peer does not answer: only without any other suspicion is it a cause.
    aborted = {rank for rank, seen in scene.died.items() if seen and ended_how(seen.code).signal == "SIGABRT"}
    others = bool(own or scene.lost_nodes or scene.of("frozen", "absent") or aborted != set(scene.died))
    died = {rank: seen for rank, seen in scene.died.items() if not (others and rank in aborted)}
    if len(died) > 1:
        # Which of several came first is told by how they ended, or not at all.
        died = {rank: seen for rank, seen in died.items() if seen is not None}
    died = {rank: seen for rank, seen in died.items() if scene.node_of(rank) not in scene.lost_nodes}
    phases = {entry.rank: entry.phase for entry in scene.of("dead")}
    waiting = scene.waiting([*died, *own])
    found = []
    for rank, seen in sorted(died.items()):
        ending = ended_how(seen.code) if seen else None
        phase = (seen.phase if seen else "") or phases.get(rank, "")
        what = f"{trial.label(rank)} {ending.words if ending else 'is gone; how it ended was not told'}"
        found.append(
            _finding(
                "fail",
                scene.check,
                what + (f" in {phase}" if phase else ""),
                culprit_rank(trial, rank),
                evidence=(*scene.evidence(rank), *waiting),
                action=_SIGNAL_ACTIONS.get(ending.signal if ending else "", _CRASHED),
            )
        )
    for rank, error in sorted(own.items()):
        found.append(_broken(scene, rank, error, waiting))
    return found


def _broken(scene: Scene, rank: int, error: ErrorTold, waiting: tuple[str, ...]) -> Finding:
    label, where = scene.trial.label(rank), f" in {error.phase}" if error.phase else ""
    message = _message(error)
    memory = error.cause == "memory"
    return _finding(
        "fail",
        scene.check,
        f"out of memory on {label}{where}: {message}" if memory else f"device error on {label}{where}: {message}",
        culprit_rank(scene.trial, rank, device=not memory),
        evidence=(*_stack(error), *scene.evidence(rank), *waiting),
        action=(
            "look at what else uses that memory, or ask for less (a smaller batch size or message size)"
            if memory
            else "look at the driver log there (XID, ECC), reset or replace the device"
        ),
    )


def _raised(scene: Scene) -> list[Finding]:
    """A wrong request, a mistake of ours, an error whose words were lost: none of them is the cluster's fault."""
    found = []
    own = {rank: error for rank, error in scene.raised.items() if error.cause in ("own", "request")}
    waiting = scene.waiting(own)
    for rank, error in sorted(own.items()):
        if error.cause == "request":
            what, action = _message(error), "correct the request"
        else:
            where = f" in {error.phase}" if error.phase else ""
            what = f"an exception of our own on {scene.trial.label(rank)}{where}: {error.type}: {_message(error)}"
            action = "this says nothing of the cluster: report it with the folder of this run"
        evidence = (*_stack(error), *scene.evidence(rank), *waiting)
        found.append(_finding("error", scene.check, what, NOBODY, evidence=evidence, action=action))
    for entry in scene.of("error"):
        if entry.rank is not None and entry.rank not in scene.raised:
            what = (
                f"{scene.trial.label(entry.rank)} told an error whose words were lost ({entry.detail or 'no detail'})"
            )
            found.append(_finding("error", scene.check, what, NOBODY))
    for rank, seen in sorted(scene.died_unsure.items()):
        words = ended_how(seen.code).words
        what = f"{scene.trial.label(rank)} {words}, but what would say why may be among the lost events"
        found.append(_finding("error", scene.check, what, NOBODY, evidence=scene.evidence(rank)))
    return found


def _start_cut(scene: Scene) -> list[Finding]:
    """Ranks that were still starting when the deadline of the whole trial may have passed: nobody had its time."""
    entries = [
        entry
        for entry in scene.of("late", "stuck", "frozen")
        # Who was stopped for long was told of at once, before any deadline.
        if entry.step in (None, -1) and not (entry.how == "frozen" and entry.detail[:7].lower() == "state t")
    ]
    deadline_s = _number_of(scene.trial.plan.get("deadline_s"))
    before_s = sum(
        _START_S + _KILL_S + sum(step.seconds or 0.0 for step in scene.trial.steps if step.generation == number)
        for number in range(scene.generation)
    )
    if not entries or (deadline_s is not None and deadline_s >= _JOIN_S + before_s + _START_S):
        return []
    told = "the trial's deadline" + ("" if deadline_s is None else f" of {deadline_s:.3g} s")
    what = f"{told} passed while ranks were starting: {len(entries)} of {len(scene.ranks)} were not ready"
    evidence = tuple(f"rank {entry.rank} was{_in(entry)}{seconds(entry)}" for entry in entries[:4])
    return [
        _finding("error", scene.check, what, NOBODY, evidence=evidence, action="give the trial more time (deadline_s)")
    ]


def _frozen(scene: Scene) -> list[Finding]:
    return _named(
        scene,
        scene.of("frozen"),
        lambda entry: f"was frozen{_in(entry)}{seconds(entry)}",
        "look at the kernel log there; a process that stays in state D waits for a device or a file system",
    )


def _did_not_come(scene: Scene) -> list[Finding]:
    """Absent, late, or alone in not finishing: a deadline with a named non-arriver."""
    if _cut_short(scene):
        return []
    entries = [entry for entry in scene.of("absent", "late") if entry not in _late_together(scene)]
    stuck = [] if entries else scene.of("stuck")
    if len(stuck) > 1 and stuck[0].step in (None, -1):
        what = f"none of {len(stuck)} ranks was ready in time"
        evidence = tuple(f"rank {entry.rank} was{_in(entry)}{seconds(entry)}" for entry in stuck[:4])
        return [_finding("error", "trial", what, NOBODY, evidence=evidence, action="look at the output of the ranks")]
    if not scene.trial.missing:
        entries += [entry for entry in stuck if _alone(scene, entry)]
    return _named(
        scene,
        entries,
        lambda entry: (
            f"did not come: it stayed{_in(entry)}{seconds(entry)} while others waited"
            if entry.how == "absent"
            else f"did not finish in time: it was still{_in(entry)}"
        ),
        "look at its stack, and at what else runs on that node",
    )


def _fabric(scene: Scene) -> list[Finding]:
    """All entered and none left, or most did not, or communication errors with nobody gone: the fabric, and no rank."""
    stuck, late = scene.of("stuck"), _late_together(scene)
    errors = [error for error in scene.raised.values() if error.cause == "fabric"]
    troubled = bool(scene.troubles) or scene.trial.interrupted is None
    if _cut_short(scene) or not (stuck or late or errors) or not troubled:
        return []
    if stuck:
        what = f"all {len(stuck)} ranks entered{_in(stuck[0])[3:]} and none left it{seconds(stuck[0])}"
    elif late:
        what = (
            f"{len(late)} of {_num_asked(scene, late[0])} ranks entered{_in(late[0])[3:]} and did not leave it in time"
        )
    else:
        phase = errors[0].phase
        what = f"{len(errors)} of {len(scene.ranks)} ranks had a communication error" + (
            f" in {phase}" if phase else ""
        )
    nodes = sorted({scene.trial.ranks[rank].node for rank in scene.ranks if rank in scene.trial.ranks})
    evidence = (
        *scene.waiting(()),
        *(line for entry in (stuck or late)[:2] if entry.rank is not None for line in scene.evidence(entry.rank)),
    )
    action = "look at cables, switches and the network settings between these nodes"
    if scene.trial.missing:
        # The event that would name somebody may be the one that was lost.
        return [
            _finding("error", scene.check, f"{what}; events were lost, so why is not known", NOBODY, evidence=evidence)
        ]
    name = f"the fabric between {', '.join(nodes[:8])}" if len(nodes) > 1 else "communication inside " + "".join(nodes)
    who = Culprit(kind="fabric", name=name, nodes=tuple(nodes))
    return [_finding("fail", scene.check, what, who, evidence=evidence, action=action)]


def _deadline(scene: Scene) -> list[Finding]:
    """A step that passed its deadline with nobody to name."""
    found = []
    for step in scene.trial.steps:
        if step.generation == scene.generation and step.outcome == "deadline":
            why, action = ", and nobody could be named", ""
            if _cut_short(scene):
                why, action = ": the deadline of the whole trial cut it short", "give the trial more time (deadline_s)"
            elif working := scene.of("working"):
                why = f", and all {len(working)} ranks were still at work"
                action = f"give it more time ({step.check}.timeout_s), or see what slows all of them down"
            what = f"{step.check}/{step.stage} was not finished within {step.timeout_s:.3g} s{why}"
            evidence = scene.waiting(())
            found.append(_finding("error", step.check, what, NOBODY, evidence=evidence, action=action))
    return found


_IN_ORDER: tuple[Callable[[Scene], list[Finding]], ...] = (
    _dead_or_broken,
    _raised,
    _start_cut,
    _frozen,
    _did_not_come,
    explain_silence,
    _fabric,
    _deadline,
)


def _after_the_end(scene: Scene) -> list[Finding]:
    """A rank that had said all it had to say and then ended badly."""
    return [
        _finding(
            "warn",
            "trial",
            f"{scene.trial.label(seen.rank)} {ended_how(seen.code).words} after its work was done",
            culprit_rank(scene.trial, seen.rank),
            evidence=scene.evidence(seen.rank),
        )
        for seen in scene.trial.exits
        if seen.generation == scene.generation
        and seen.code != 0
        and not seen.ours
        and f"rank{seen.rank}.{seen.generation}" in scene.trial.ended
    ]


def _named(
    scene: Scene, entries: Iterable[TroubleSeen], say: Callable[[TroubleSeen], str], action: str
) -> list[Finding]:
    ranked = [(entry.rank, entry) for entry in entries if entry.rank is not None]
    waiting = scene.waiting(rank for rank, _ in ranked)
    return [
        _finding(
            "fail",
            scene.check,
            f"{scene.trial.label(rank)} {say(entry)}" + (f" ({entry.detail})" if entry.detail else ""),
            culprit_rank(scene.trial, rank),
            evidence=(*scene.evidence(rank), *waiting),
            action=action,
        )
        for rank, entry in ranked
    ]


def _alone(scene: Scene, entry: TroubleSeen) -> bool:
    """Whether the rank had nobody to wait for: before the world was formed, in a repeat, or asked by itself."""
    step = scene.step(entry.step)
    if step is None or step.stage == "repeat" or len(step.ranks) == 1:
        return True
    formed = [
        other.number
        for other in scene.trial.steps
        if other.generation == scene.generation and other.check == "bootstrap"
    ]
    return not formed or step.number < min(formed)


def _num_asked(scene: Scene, entry: TroubleSeen) -> int:
    step = scene.step(entry.step)
    return len(scene.ranks if step is None else step.ranks)


def _late_together(scene: Scene) -> list[TroubleSeen]:
    """More than half of those who were asked, late in one phase: what they all wait for did not come from any one."""
    late = [entry for entry in scene.of("late") if not _alone(scene, entry)]
    phase, count = next(iter(Counter(entry.phase for entry in late).most_common(1)), ("", 0))
    together = [entry for entry in late if entry.phase == phase]
    return together if together and 2 * count > _num_asked(scene, together[0]) else []


def _cut_short(scene: Scene) -> bool:
    """Whether the deadline of the whole trial left the step less time than the plan gives it: then nobody was slow."""
    step = next((step for step in reversed(scene.trial.steps) if step.generation == scene.generation), None)
    if step is None or step.outcome != "deadline":
        return False
    settings = scene.trial.plan.get("settings")
    table = settings.get(step.check) if isinstance(settings, dict) else None
    planned = _number_of(table.get("timeout_s") if isinstance(table, dict) else None)
    return planned is not None and step.timeout_s < planned - 0.01


def _number_of(pair: object) -> float | None:
    """The value of a setting of the plan, as the events tell it: value and origin."""
    value = pair[0] if isinstance(pair, list) and pair else None
    return float(value) if isinstance(value, (int, float)) else None


def _told_when(scene: Scene, finding: Finding) -> Finding:
    if scene.generation == 0:
        return finding
    without = sorted(set(scene.trial.ranks) - set(scene.ranks))
    names = f", without rank{'s' if len(without) > 1 else ''} {', '.join(map(str, without[:8]))}" if without else ""
    return replace(finding, what=f"in generation {scene.generation}{names}: {finding.what}")


def _in(entry: TroubleSeen) -> str:
    return f" in {entry.phase}" if entry.phase else ""


def _message(error: ErrorTold) -> str:
    return next((line.strip() for line in error.message.splitlines() if line.strip()), error.type or "no message")


def _stack(error: ErrorTold) -> tuple[str, ...]:
    return ("its stack:\n" + error.stack.rstrip(),) if error.stack.strip() else ()


def _finding(
    severity: str, check: str, what: str, culprit: Culprit, *, evidence: tuple[str, ...] = (), action: str = ""
) -> Finding:
    assert severity in ("fail", "error", "warn", "info")
    return Finding(
        severity=severity,  # type: ignore[arg-type]  # just seen
        check=check,
        what=what,
        culprit=culprit,
        evidence=evidence,
        action=action,
    )
