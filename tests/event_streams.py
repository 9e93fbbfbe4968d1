"""Streams of events as a real trial writes them, healthy and with faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from fake_checks import a_plan

from seatrial.evidence.measurement import Fact, Measurement
from seatrial.plan.model import Plan
from seatrial.protocol.events import SCHEMA, Source
from seatrial.protocol.wire import encode

Event = dict[str, Any]
RUN = "20260102-030405-abcd"
BEGUN = 1_767_322_645.0
"""2026-01-02 02:57:25 UTC."""


def event_of(source: Source, kind: str, /, **payload: Any) -> Event:
    """The next event of a source, whatever its payload."""
    return source.event(cast(Any, {"kind": kind, **payload}))


class Stream:
    """Writes the events of a trial; every source numbers its own."""

    def __init__(
        self,
        world_size: int = 2,
        *,
        nodes: int = 1,
        plan: Plan | None = None,
        run: str = RUN,
        conductor: str = "laptop",
        hostnames: Sequence[str] = (),
        **job: Any,
    ) -> None:
        self.run, self.world_size, self.nodes = run, world_size, nodes
        self.plan = plan or a_plan()
        self.events: list[Event] = []
        self.per_node = world_size // nodes
        self.alive = tuple(range(world_size))
        self.generation = 0
        self._sources: dict[str, Source] = {}
        self._now = BEGUN
        self._step, self._check, self._stage, self._timeout_s = -1, "", "measure", 60.0
        self.send(
            "conductor",
            "run",
            version="0.1.0",
            schema=SCHEMA,
            created=BEGUN,
            hostname=conductor,
            plan=self.plan.to_json(),
            job={"target": "local", "nodes": nodes, "world_size": world_size, "device": "cpu", "planted": [], **job},
        )
        for node in range(nodes):
            named = {"hostname": hostnames[node] if hostnames else f"gpu-{node}", "address": f"10.0.0.{node}"}
            self.send(f"node{node}", "node", node=node, **named, pid=10, cores=2)
        self.start(self.alive)

    def send(self, src: str, event: str, /, **payload: Any) -> None:
        """Add one event of one source."""
        source = self._sources.setdefault(src, Source(self.run, src, self._tick))
        self.events.append(event_of(source, event, **payload))

    def _tick(self) -> float:
        self._now += 0.25
        return self._now

    def start(self, ranks: tuple[int, ...]) -> None:
        """Start a generation whose ranks all start."""
        rows = [[rank, rank // self.per_node, rank % self.per_node] for rank in ranks]
        self.alive = ranks
        self.send("conductor", "generation", gen=self.generation, ranks=rows)
        for rank, node, local_rank in rows:
            self.send(
                self.of(rank),
                "rank",
                gen=self.generation,
                rank=rank,
                node=f"gpu-{node}",
                node_rank=node,
                hostname=f"gpu-{node}",
                local_rank=local_rank,
                pid=100 + rank,
                device="Test CPU",
                device_type="cpu",
                libraries="torch 2.13.0",
                threads=1,
                torch="2.13.0",
                python="3.11.0",
                backend="gloo",
            )

    def of(self, rank: int) -> str:
        """Return the source of a rank in this generation."""
        return f"rank{rank}.{self.generation}"

    def begin(self, check: str, stage: str = "measure", timeout_s: float = 60.0) -> int:
        """Start a step, and return its number."""
        self._step, self._check, self._stage, self._timeout_s = self._step + 1, check, stage, timeout_s
        fields = {"gen": self.generation, "step": self._step, "check": check, "stage": stage}
        self.send("conductor", "step", **fields, ranks=list(self.alive), timeout_s=timeout_s)
        return self._step

    def measure(self, check: str, rank: int, value: float = 2.0, /, **changed: Any) -> None:
        """Send a measurement and a fact of a rank; ``changed``: other fields of the measurement."""
        step = {"gen": self.generation, "step": self._step}
        where: dict[str, Any] = {"check": check, "rank": rank, "generation": self.generation, "stage": self._stage}
        measurement = Measurement(name="value", value=value, unit="GB/s", better="high", **where)
        fact = Fact(name="digest", value="00ff", **where)
        self.send(self.of(rank), "measurements", **step, measurements=[{**measurement.to_json(), **changed}])
        self.send(self.of(rank), "facts", **step, facts=[fact.to_json()])

    def done(self, rank: int) -> None:
        """Let a rank finish the step."""
        self.send(self.of(rank), "done", gen=self.generation, step=self._step, rank=rank, seconds=0.5, share={})

    def step_end(self, outcome: str = "done") -> None:
        """Let the conductor end the step."""
        self.send("conductor", "step_end", gen=self.generation, step=self._step, outcome=outcome, seconds=0.7)

    def check(self, check: str, value: Callable[[int], float] = lambda rank: 2.0) -> None:
        """Run a step without a fault."""
        self.begin(check)
        for rank in self.alive:
            self.measure(check, rank, value(rank))
            self.done(rank)
        self.step_end()

    def error(self, rank: int, cause: str, message: str, phase: str, kind: str = "RuntimeError") -> None:
        """Let a rank report an exception."""
        step = {"gen": self.generation, "step": self._step, "rank": rank}
        stack = (
            "Traceback (most recent call last):\n"
            f'  File "seatrial/checks/{self._check}/measure.py", line 71, in measure\n    loss = train(batch)\n'
            f"{kind}: {message}"
        )
        self.send(self.of(rank), "error", **step, cause=cause, type=kind, message=message, stack=stack, phase=phase)

    def exit(
        self,
        rank: int,
        code: int,
        *,
        ours: bool,
        phase: str = "collectives/all_reduce 8 B",
        last_lines: tuple[str, ...] = (),
    ) -> None:
        """Let an agent report the end of a rank."""
        node = f"node{rank // self.per_node}"
        ending = {"code": code, "ours": ours, "phase": phase, "last_lines": list(last_lines)}
        self.send(node, "exit", gen=self.generation, rank=rank, **ending)

    def trouble(self, *seen: Event, waiting: tuple[int, ...] = (), outcome: str = "trouble") -> None:
        """Let the conductor report suspects (rank or node, how, and more) and end the step."""
        full = [{"phase": "collectives/all_reduce 8 B", "waited_s": 16.0, "detail": "", **entry} for entry in seen]
        rows = [[rank, f"{self._check}/all_reduce 8 B"] for rank in waiting]
        # The run takes as long as somebody waited in it.
        waits = [float(entry["waited_s"]) for entry in full if 0 < float(entry["waited_s"] or 0) < 600]
        self._now += self._timeout_s if outcome == "deadline" else max(waits, default=0.0)
        self.send("conductor", "trouble", gen=self.generation, step=self._step, seen=full, waiting=rows)
        self.step_end(outcome)

    def kill(self, *ranks: int) -> None:
        """Let the agents end these ranks."""
        for rank in ranks:
            stack = f'File "seatrial/checks/{self._check}/measure.py", line 71 in measure'
            node = f"node{rank // self.per_node}"
            self.send(node, "stack", gen=self.generation, rank=rank, state="S", wchan="futex", text=stack)
            self.exit(rank, -9, ours=True)

    def close(self, *, ranks: bool = True, nodes: tuple[int, ...] | None = None) -> Stream:
        """Send the ``end`` events."""
        for rank in self.alive if ranks else ():
            self.send(self.of(rank), "end")
            self.exit(rank, 0, ours=True, phase="end")
        for node in range(self.nodes) if nodes is None else nodes:
            self.send(f"node{node}", "end")
        self.send("conductor", "end")
        return self

    def until(self, check: str) -> Stream:
        """Run all checks before that one, and start it."""
        for name in self.plan.checks[: self.plan.checks.index(check)]:
            self.check(name)
        self.begin(check)
        return self


def on_gpus(stream: Stream, *options: str) -> Stream:
    """Return the trial as one of GPUs: these are what most users accept."""
    job = stream.events[0]["job"]
    job["device"], job["options"] = "cuda", list(options)
    for event in stream.events:
        if event["kind"] == "rank":
            address = f"0000:{26 + 16 * event['local_rank']:02x}:00"
            event |= {"device": "NVIDIA H200", "device_id": address, "device_type": "cuda", "backend": "nccl"}
            event["libraries"] = "torch 2.7.0+cu128 CUDA 12.8"
    return stream


def healthy(world_size: int = 2, **kwargs: Any) -> Stream:
    """Return a trial without a fault."""
    stream = Stream(world_size, **kwargs)
    for check in stream.plan.checks:
        stream.check(check)
    return stream.close()


def died(code: int = -9, rank: int = 1) -> Stream:
    """A rank dies in the collectives; the others see a communication error and are ended by us."""
    stream = Stream().until("collectives")
    other = 1 - rank
    stream.error(other, "fabric", "Connection closed by peer", "collectives/all_reduce 8 B")
    said = "Fatal Python error: Segmentation fault" if code == -11 else "RuntimeError: broken" if code == 3 else ""
    stream.exit(rank, code, ours=False, last_lines=(said,) if said else ())
    dead = {"rank": rank, "how": "dead", "detail": f"exit code {code}"}
    stream.trouble({"rank": other, "how": "error", "detail": "fabric"}, dead)
    stream.kill(other)
    return stream.close(ranks=False)


def frozen(how: str = "frozen") -> Stream:
    """Rank 1 stops, or never enters the collective, and the other one waits."""
    stream = Stream().until("collectives")
    detail = {
        "frozen": "state T (stopped)",
        "absent": "no progress and no CPU time, state S",
        "late": "state S, had not finished when the deadline passed",
    }[how]
    stream.trouble({"rank": 1, "how": how, "phase": "collectives/begin", "detail": detail}, waiting=(0,))
    stream.kill(0, 1)
    return stream.close(ranks=False)


def raised(
    cause: str,
    message: str = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 139.81 GiB of which "
    "1.12 GiB is free",
) -> Stream:
    """Rank 1's own program raises."""
    stream = Stream().until("training")
    stream.error(1, cause, message, "training/step 3 forward")
    stream.trouble({"rank": 1, "how": "error", "detail": cause}, waiting=(0,))
    stream.kill(0, 1)
    return stream.close(ranks=False)


def stuck() -> Stream:
    """All ranks hang in a collective."""
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"rank": 0, "how": "stuck"}, {"rank": 1, "how": "stuck"}, outcome="deadline")
    stream.kill(0, 1)
    return stream.close(ranks=False)


def too_short(plan: Plan | None = None) -> Stream:
    """All ranks are at work when the deadline of the step passes."""
    stream = Stream(2, plan=plan).until("training")
    stream.trouble(
        *({"rank": rank, "how": "working", "phase": "training/step 21 forward"} for rank in (0, 1)), outcome="deadline"
    )
    stream.kill(0, 1)
    return stream.close(ranks=False)


def node_lost(how: str = "silent", conductor: str = "laptop") -> Stream:
    """A node disappears with its rank."""
    stream = Stream(2, nodes=2, conductor=conductor).until("collectives")
    stream.error(0, "fabric", "Connection reset by peer", "collectives/all_reduce 8 B")
    detail = "the control connection was closed" if how == "lost" else ""
    stream.trouble({"node": 1, "how": how, "detail": detail}, {"rank": 0, "how": "error", "detail": "fabric"})
    stream.kill(0)
    return stream.close(ranks=False, nodes=(0,))


def interrupted() -> Stream:
    """A person presses Ctrl-C; the launcher ends a rank before we do."""
    stream = Stream().until("training")
    stream.send("conductor", "interrupted", by="SIGINT")
    stream.step_end("interrupted")
    stream.exit(1, -15, ours=False)
    stream.kill(0)
    return stream.close(ranks=False)


def lines_of(events: list[Event]) -> list[bytes]:
    """Return the events as lines of the wire."""
    return [line for event in events for line in encode(event)]


def second_generation(fault_again: bool = False) -> Stream:
    """Rank 3 of 4 dies; the others start again without it, and finish or lose another rank."""
    stream = Stream(4, nodes=2).until("collectives")
    stream.exit(3, -11, ours=False, last_lines=("Fatal Python error: Segmentation fault",))
    stream.trouble({"rank": 3, "how": "dead", "detail": "exit code -11"}, waiting=(0, 1, 2))
    stream.kill(0, 1, 2)
    stream.generation = 1
    stream.start((0, 1, 2))
    stream.check("bootstrap")
    if not fault_again:
        stream.check("collectives")
        return stream.close()
    stream.begin("collectives")
    stream.trouble({"rank": 2, "how": "frozen", "detail": "state D (in uninterruptible sleep)"}, waiting=(0, 1))
    stream.kill(0, 1, 2)
    return stream.close(ranks=False)


def watchdog_aborts() -> Stream:
    """A rank dies, and the library of the others aborts them because of it."""
    stream = Stream(3).until("collectives")
    stream.exit(1, -9, ours=False)
    stream.exit(0, -6, ours=False)
    seen = [{"rank": rank, "how": "dead", "detail": f"exit code {code}"} for rank, code in ((0, -6), (1, -9))]
    stream.trouble(*seen, waiting=(2,))
    stream.kill(2)
    return stream.close(ranks=False)


def noted() -> Stream:
    """No fault, but an agent has a note that forbids a PASS."""
    stream = Stream()
    for check in stream.plan.checks:
        stream.check(check)
    stream.send("node0", "note", severity="error", text="the disk is full: the events are not whole")
    return stream.close()


def refused() -> Stream:
    """A rank finds at its start that the request is wrong, reports that and exits."""
    stream = Stream()
    stream.events = [event for event in stream.events if (event["src"], event["kind"]) != ("rank1.0", "rank")]
    del stream._sources["rank1.0"]
    stream.error(1, "request", "--device cuda: torch finds no usable device", "start-up/open device")
    stream.exit(1, 1, ours=False, phase="start-up/open device")
    error, dead = {"how": "error", "detail": "request"}, {"how": "dead", "detail": "exit code 1"}
    seen = [{"rank": 1, "phase": "start-up/open device", "waited_s": 0.0, **what} for what in (error, dead)]
    stream.send("conductor", "trouble", gen=0, step=-1, seen=seen, waiting=[[0, "ready"]])
    stream.kill(0)
    return stream.close(ranks=False)


def alone() -> Stream:
    """Two ranks hang in a step in which they wait for no other rank."""
    stream = Stream().until("compute")
    stream.trouble({"rank": 0, "how": "stuck"}, {"rank": 1, "how": "stuck"}, outcome="deadline")
    stream.kill(0, 1)
    return stream.close(ranks=False)


SCENES: dict[str, Callable[[], Stream]] = {
    "healthy": healthy,
    "killed": died,
    "crashed": lambda: died(-11),
    "exited": lambda: died(3),
    "exited early": lambda: died(0),
    "rank 0 killed": lambda: died(rank=0),
    "frozen": frozen,
    "absent": lambda: frozen(how="absent"),
    "late": lambda: frozen(how="late"),
    "out of memory": lambda: raised("memory"),
    "device": lambda: raised("device", "CUDA error: uncorrectable ECC error"),
    "own": lambda: raised("own", "list index out of range"),
    "request": lambda: raised("request", "--device cuda: no device"),
    "fabric": lambda: raised("fabric", "Connection closed"),
    "stuck": stuck,
    "too short": too_short,
    "node silent": node_lost,
    "one of two silent": lambda: node_lost(conductor="gpu-0"),
    "node lost": lambda: node_lost("lost"),
    "interrupted": interrupted,
    "second generation": second_generation,
    "second fault": lambda: second_generation(fault_again=True),
    "watchdog": watchdog_aborts,
    "noted": noted,
    "refused": refused,
    "alone": alone,
}
"""The trials of the tests of fold, blame and reports, by name."""
