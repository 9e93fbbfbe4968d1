"""More trials that went wrong, for what a report says word for word: each shows a branch that SCENES does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from event_streams import Stream
from fake_checks import CHECKS, a_plan

from seatrial.protocol.connecting import OTHERS_HAD_ITS_CORE

ABORT = -6
PHASES = ("collectives/all_reduce 8 B", "collectives/barrier")


def _stopped(
    *seen: dict[str, Any],
    until: str = "collectives",
    size: int = 2,
    outcome: str = "deadline",
    waiting: tuple[int, ...] = (),
    timeout_s: float = 60.0,
    **job: Any,
) -> Stream:
    """A step that ends by its deadline with these observations."""
    stream = Stream(size, nodes=size, **job)
    for name in stream.plan.checks[: stream.plan.checks.index(until)]:
        stream.check(name)
    stream.begin(until, timeout_s=timeout_s)
    stream.trouble(*seen, waiting=waiting, outcome=outcome)
    stream.kill(*range(size))
    return stream.close(ranks=False)


def _starting(*seen: dict[str, Any], size: int = 3) -> Stream:
    """The trial ends while ranks start."""
    stream = Stream(size, nodes=size)
    full = [{"phase": "start-up/import torch", "waited_s": 40.0, "detail": "", "step": -1, **entry} for entry in seen]
    stream.send("conductor", "trouble", gen=0, step=-1, seen=full, waiting=[])
    stream.kill(*range(size))
    return stream.close(ranks=False)


def _several_died(*codes: int, others: tuple[int, ...] = (), size: int = 4) -> Stream:
    stream = Stream(size, nodes=2).until("collectives")
    seen = []
    for rank, code in enumerate(codes):
        stream.exit(rank, code, ours=False, phase=PHASES[rank % 2], last_lines=(f"words {rank}", "more"))
        seen.append({"rank": rank, "how": "dead", "detail": f"exit code {code}"})
    stream.trouble(*seen, waiting=others)
    stream.kill(*range(len(codes), size))
    return stream.close(ranks=False)


def _unknown_end() -> Stream:
    """The agent's report of an end is missing for one of two dead ranks."""
    stream = Stream(3).until("collectives")
    stream.exit(1, -7, ours=False)
    stream.trouble(
        {"rank": 1, "how": "dead", "detail": "exit code -7"}, {"rank": 2, "how": "dead", "detail": ""}, waiting=(0,)
    )
    stream.kill(0)
    return stream.close(ranks=False)


def _only_unknown_end() -> Stream:
    stream = Stream(2).until("collectives")
    stream.trouble({"rank": 1, "how": "dead", "detail": ""}, waiting=(0,))
    stream.kill(0)
    return stream.close(ranks=False)


def _many_wait() -> Stream:
    """Seven ranks report the consequences."""
    stream = Stream(8, nodes=2).until("collectives")
    for rank in range(7):
        stream.error(rank, "fabric", "Connection closed by peer\nsecond line", PHASES[0])
    stream.exit(7, -9, ours=False)
    seen = [{"rank": rank, "how": "error", "detail": "fabric"} for rank in range(7)]
    stream.trouble(*seen, {"rank": 7, "how": "dead", "detail": "exit code -9"})
    stream.kill(*range(7))
    return stream.close(ranks=False)


def _unconnected(count: int) -> Stream:
    """Some ranks cannot connect; one has no address, one nothing but silence."""
    stream = Stream(count, nodes=count).until("collectives")
    gloo = "Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: "
    said = [
        "Gloo connectFullMesh failed with [pair.h:311] Connect timeout [none]",
        gloo + "Connection timed out, remote=[10.0.0.9]:2989$0",
        *(gloo + f"Connection refused, remote=[10.0.0.{rank}]:2989$0" for rank in range(2, count)),
    ]
    for rank in range(count):
        stream.error(rank, "fabric", said[rank], "bootstrap/meet at the store")
    stream.trouble(*({"rank": rank, "how": "error", "detail": "fabric"} for rank in range(count)))
    stream.kill(*range(count))
    return stream.close(ranks=False)


def _died_afterwards() -> Stream:
    """Ranks fail after their work is done: one by itself, one is ended by us."""
    stream = Stream(3)
    for check in stream.plan.checks:
        stream.check(check)
    for rank, (code, ours) in enumerate(((-11, False), (-9, True), (0, False))):
        stream.send(stream.of(rank), "end")
        stream.exit(rank, code, ours=ours, phase="end")
    for source in ("node0", "conductor"):
        stream.send(source, "end")
    return stream


def _left_behind() -> Stream:
    stream = Stream(2, nodes=2)
    for check in stream.plan.checks:
        stream.check(check)
    stream.send("node1", "left", gen=0, rank=1, pid=4711, state="D")
    return stream.close()


def _lost_text() -> Stream:
    """An error whose text is missing, and long output of the rank."""
    stream = Stream(2).until("training")
    stream.exit(1, 1, ours=True, last_lines=tuple(f"line {number}" for number in range(40)))
    stream.trouble({"rank": 1, "how": "error", "detail": "own"}, waiting=(0,))
    stream.kill(0)
    return stream.close(ranks=False)


def _several_raised() -> Stream:
    """Two bugs, a memory error and a fabric error: the memory error is the cluster's."""
    stream = Stream(4, nodes=2).until("training")
    stream.error(0, "fabric", "Connection reset by peer", "training/step 3")
    stream.error(1, "own", "\n  list index out of range\nmore", "training/step 3", "IndexError")
    stream.error(2, "memory", "CUDA out of memory", "")
    stream.error(3, "own", "", "training/step 4", "KeyError")
    stream.trouble(*({"rank": rank, "how": "error", "detail": "own"} for rank in range(4)))
    stream.kill(0, 1, 2, 3)
    return stream.close(ranks=False)


def _two_bugs() -> Stream:
    stream = Stream(3).until("training")
    stream.error(1, "own", "list index out of range", "training/step 3", "IndexError")
    stream.error(2, "request", "--batch-size 0: at least 1", "training/step 3", "RequestError")
    seen = [{"rank": rank, "how": "error", "detail": "own"} for rank in (1, 2)]
    stream.trouble(*seen, waiting=(0,))
    stream.kill(0, 1, 2)
    return stream.close(ranks=False)


def _short(how: str, waited_s: float) -> Stream:
    """The trial's deadline leaves the step 20 s of its 60."""
    seen = [{"rank": rank, "how": how, "phase": PHASES[1], "waited_s": waited_s} for rank in (0, 1)]
    return _stopped(*seen, timeout_s=20.0)


def _again() -> Stream:
    """After a death the second attempt has no time left; the third one loses a rank."""
    stream = Stream(4, nodes=2).until("collectives")
    stream.exit(3, -7, ours=False)
    stream.trouble({"rank": 3, "how": "dead", "detail": "exit code -7"}, waiting=(0, 1, 2))
    stream.kill(0, 1, 2)
    stream.generation = 1
    stream.start((0, 1, 2))
    stream.check("bootstrap")
    stream.begin("collectives", timeout_s=5.0)
    stream.trouble(*({"rank": rank, "how": "working", "waited_s": 1.0} for rank in (0, 1, 2)), outcome="deadline")
    stream.kill(0, 1, 2)
    stream.generation = 2
    stream.start((0, 2))
    stream.check("bootstrap")
    stream.begin("collectives")
    stream.trouble({"rank": 2, "how": "absent", "detail": ""}, waiting=(0,))
    stream.kill(0, 2)
    return stream.close(ranks=False)


def _slow_check() -> Stream:
    stream = Stream(3, nodes=3)
    stream.check("compute", lambda rank: 0.5 if rank == 2 else 2.0)
    for check in CHECKS[1:]:
        stream.check(check)
    return stream.close()


def _unfinished() -> Stream:
    """The record ends in the middle of a step."""
    return Stream(3, nodes=3).until("collectives")


def _planted() -> Stream:
    stream = Stream(2, planted=["kill@training:1"], plan=a_plan(not_asked={"links": "--skip"}))
    for check in stream.plan.checks:
        stream.check(check)
    return stream.close()


def _nodes(*hows: str) -> Stream:
    """Nodes disappear together; one is silent, one is lost, or both alike."""
    stream = Stream(4, nodes=4).until("collectives")
    stream.trouble(*({"node": 2 + at, "how": how, "detail": ""} for at, how in enumerate(hows)), waiting=(0, 1))
    stream.kill(0, 1)
    return stream.close(ranks=False, nodes=(0, 1))


def _silent(*nodes: int, count: int, conductor: str = "laptop") -> Stream:
    """Nodes fall silent together."""
    stream = Stream(count, nodes=count, conductor=conductor).until("collectives")
    left = tuple(node for node in range(count) if node not in nodes)
    stream.trouble(*({"node": node, "how": "silent", "detail": ""} for node in nodes), waiting=left)
    stream.kill(*left)
    return stream.close(ranks=False, nodes=left)


def _not_all_in_a_stage() -> Stream:
    """A step of a check that only one rank was asked for."""
    stream = Stream(3, nodes=3)
    for check in stream.plan.checks[:-1]:
        stream.check(check)
    stream.alive = (0,)
    stream.check(stream.plan.checks[-1])
    stream.alive = (0, 1, 2)
    return stream.close()


def _late(*phases: str, size: int = 4) -> Stream:
    seen = [{"rank": rank, "how": "late", "phase": phase, "waited_s": 50.0} for rank, phase in enumerate(phases)]
    return _stopped(*seen, size=size)


MORE_SCENES: dict[str, Callable[[], Stream]] = {
    "two killed": lambda: _several_died(-9, -15, others=(2, 3)),
    "an abort beside a crash": lambda: _several_died(ABORT, -11, others=(2, 3)),
    "all aborted": lambda: _several_died(ABORT, ABORT, ABORT, ABORT),
    "killed by signals without a name": lambda: _several_died(-77, 77, others=(2, 3)),
    "one end is unknown": _unknown_end,
    "the only end is unknown": _only_unknown_end,
    "many wait": _many_wait,
    "two cannot connect": lambda: _unconnected(2),
    "seven cannot connect": lambda: _unconnected(7),
    "failed afterwards": _died_afterwards,
    "left behind": _left_behind,
    "an error without its text": _lost_text,
    "several raised": _several_raised,
    "two bugs": _two_bugs,
    "one of three not started": lambda: _starting({"rank": 1, "how": "late"}),
    "nobody started": lambda: _starting(*({"rank": rank, "how": "stuck"} for rank in range(3))),
    "stopped while starting": lambda: _starting({"rank": 2, "how": "frozen", "detail": "state T", "waited_s": 0.0}),
    "cut short, stood still": lambda: _short("stuck", 18.0),
    "cut short, hardly stood still": lambda: _short("stuck", 2.0),
    "cut short, at work": lambda: _short("working", 2.0),
    "others had the cores": lambda: _stopped(
        *(
            {"rank": rank, "how": "working", "phase": PHASES[1], "detail": OTHERS_HAD_ITS_CORE if rank else ""}
            for rank in (0, 1)
        )
    ),
    "cut short, late": lambda: _short("late", 19.0),
    "one at work": lambda: _stopped({"rank": 1, "how": "working", "phase": PHASES[0]}, until="training"),
    "nobody known": lambda: _stopped(),
    "three of four late together": lambda: _late(*[PHASES[0]] * 3, PHASES[1]),
    "half late together": lambda: _late(PHASES[0], PHASES[0]),
    "one late": lambda: _late(PHASES[1]),
    "late without a phase": lambda: _late(""),
    "nine hosts stuck": lambda: _stopped(
        *({"rank": rank, "how": "stuck", "waited_s": 45.4} for rank in range(9)), size=9
    ),
    "eight hosts stuck": lambda: _stopped(*({"rank": rank, "how": "stuck"} for rank in range(8)), size=8),
    "a third attempt": _again,
    "slow": _slow_check,
    "unfinished": _unfinished,
    "planted and skipped": _planted,
    "the only node silent": lambda: _silent(0, count=1),
    "all nodes silent": lambda: _silent(0, 1, 2, count=3),
    "all nodes but the conductor's silent": lambda: _silent(1, 2, 3, count=4, conductor="gpu-0"),
    "all nodes but one silent": lambda: _silent(0, 1, 3, count=4),
    "one rank in the last step": _not_all_in_a_stage,
    "two nodes silent": lambda: _nodes("silent", "silent"),
    "one node silent, one lost": lambda: _nodes("silent", "lost"),
}
