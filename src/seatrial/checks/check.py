"""The contract of a check: ``Check``, its stages, and the rules that hold its limits.

A new check is one new file in this folder, and its name in a plan. Importing a check costs nothing: torch is imported
inside ``measure`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Judged, Limit, Ruling
from seatrial.evidence.measurement import Measurement

Scope = Literal["agents", "alone", "node", "pairs", "bootstrap", "world"]
"""The order of a trial: each scope needs only what the scope before it has shown to work.

``agents``: the agents carry the check out, once on each node, before any rank is started.
"""
NETWORK_SCOPES: tuple[Scope, ...] = ("pairs", "bootstrap", "world")
"""The scopes in which ranks of several nodes connect to one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a check. All ranks of a generation run it, or only the first rank, for what it shares."""

    name: str = "measure"
    """The name that ``context.stage``, measurements and facts carry."""
    shares: Callable[[dict[str, Any]], bool] | None = None
    """Given if only the first rank runs this stage, for example to open a store, and shares values with the stages that
    follow: whether they have the form that it shares. None: all ranks run the stage, and share nothing."""
    excuses: bool = False
    """Whether it only brings what excuses failures that earlier stages saw. Scope ``agents`` only: it follows also
    where a node was late in an earlier stage, without that node, and a record without it lacks nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit of a check: the judge applies it, and ``seatrial plan show`` prints it.

    A rule with a number judges by itself::

        rule = Rule(measurement="form_s", comparison="at most", value=2.5, unit="s", origin="user bootstrap.max_form_s")
        rule.judge(measurement)  # Judged(..., passed=measurement.value <= 2.5)
        rule.requirement         # 'at most 2.5 s'

    A rule that no single number states has ``text`` instead, such as ``equal on all ranks``. Without both it is the
    limit that the user left out: the value is only measured.
    """

    measurement: str
    """The name of the measurement or fact that the rule judges, such as ``tflops``."""
    comparison: Literal["at least", "at most", "exactly", "below"] = "exactly"
    """How the measured value must compare with ``value``."""
    value: float | None = None
    """The limit in ``unit``; None when ``text`` states the rule, or when the user set no limit."""
    unit: str = "1"
    """The unit of ``value``; ``1`` for a pure number."""
    origin: str
    """The source of the limit, as ``Limit.origin`` has it: ``exact``, ``user compute.min_tflops``, ``fleet ...``."""
    condition: str = ""
    """The case in which the rule applies, such as ``all_reduce, largest size`` or ``2 to 3 ranks``; empty: always."""
    share_of: str = ""
    """The reference that ``value`` multiplies, such as ``attainable``; ``scaled`` makes a rule for one device of it."""
    text: str = ""
    """The whole requirement in words, where no single number states it."""
    severity: Literal["fail", "warn"] = "fail"
    """The severity of a finding for a missed rule; default: ``fail``."""

    @property
    def subject(self) -> str:
        """The measurement and its condition: ``tflops, 2 to 3 ranks``."""
        return f"{self.measurement}, {self.condition}" if self.condition else self.measurement

    @property
    def is_left_out(self) -> bool:
        """Whether it is a limit that the user has not set."""
        return self.value is None and not self.text

    @property
    def requirement(self) -> str:
        """The limit as a person reads it: ``at least 400 GB/s``, ``none: only measured``."""
        if self.text:
            words = self.text
        elif self.value is None:
            return "none: only measured"
        else:
            number = str(int(self.value)) if float(self.value).is_integer() else f"{self.value:g}"
            unit = f" x {self.share_of}" if self.share_of else "" if self.unit == "1" else f" {self.unit}"
            words = f"{self.comparison} {number}{unit}"
        return f"{words}, only warns" if self.severity == "warn" else words

    def limit(self) -> Limit:
        """Return the limit for a finding. Raises ValueError for a rule without a number."""
        if self.value is None or self.share_of:
            raise ValueError(f"the rule for {self.subject} has no number: {self.requirement}")
        return Limit(value=self.value, unit=self.unit, origin=self.origin)

    def passes(self, value: float) -> bool:
        """Return whether a value meets the limit. Raises ValueError for a rule without a number."""
        limit = self.limit().value
        match self.comparison:
            case "at least":
                return value >= limit
            case "at most":
                return value <= limit
            case "below":
                return value < limit
            case "exactly":
                return value == limit

    def scaled(self, reference: float, *, origin: str) -> Rule:
        """Return the rule for one device, whose reference is known. Raises ValueError for a rule without a number."""
        if self.value is None:
            raise ValueError(f"the rule for {self.subject} has no number: {self.requirement}")
        return replace(self, value=self.value * reference, share_of="", origin=origin)

    def judge(self, measurement: Measurement) -> Judged:
        """Compare a measurement with the limit. Raises ValueError for a rule without a number."""
        return Judged(measurement=measurement, limit=self.limit(), passed=self.passes(measurement.value))


def exact_rule(measurement: str, *, condition: str = "") -> Rule:
    """Return the rule that a count of faults is 0."""
    return Rule(measurement=measurement, comparison="exactly", value=0, origin="exact", condition=condition)


def user_rule(
    measurement: str,
    comparison: Literal["at least", "at most"],
    value: float | None,
    unit: str,
    *,
    key: str,
    condition: str = "",
) -> Rule:
    """Return the rule that only the user can set, at ``key`` of the plan; ``value`` None: the user left it out."""
    origin = f"{key} is none" if value is None else f"user {key}"
    return Rule(
        measurement=measurement, comparison=comparison, value=value, unit=unit, origin=origin, condition=condition
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about the cluster.

    A whole check in one file, ``checks/clock_speed.py``, which ``checks = ["clock_speed"]`` in a plan asks for::

        @dataclass(frozen=True, slots=True, kw_only=True)
        class Params:
            min_mhz: float = 1000.0
            timeout_s: float = 30.0

        def rules(params: Params) -> tuple[Rule, ...]:
            return (user_rule("clock", "at least", params.min_mhz, "MHz", key="clock_speed.min_mhz"),)

        def measure(context: Context, params: Params) -> None:
            context.phase("read the clock")
            context.measurement("clock", read_clock_mhz(), "MHz", "high")

        def judge(evidence: Evidence, params: Params) -> Ruling:
            (rule,) = rules(params)
            return Ruling(judged=tuple(rule.judge(measurement) for measurement in evidence.measurements))

        CHECK = Check(name="clock_speed", scope="alone", params=Params, measure=measure, judge=judge, rules=rules)
    """

    name: str
    """The name of the module, and of the table of its parameters in a plan, such as ``compute``."""
    scope: Scope
    """The place of the check in a trial: ``alone`` needs no group, ``world`` needs the group that bootstrap forms."""
    params: type[Any]
    """A frozen dataclass; each field is a parameter that a plan may set, with its unit in its name."""
    measure: Callable[[Any, Any], None]
    """The function that each rank runs once in each stage; it reports measurements and facts through its ``Context``.
    With scope ``agents`` a process of each agent runs it, with a ``NodeContext`` and without torch."""
    judge: Callable[[Evidence, Any], Ruling]
    """The pure function from evidence and parameters to findings, judged values, and what was absent or not judged."""
    rules: Callable[[Any], Iterable[Rule]] | None = None
    """The pure function that returns the limits for given parameters; default None: the check has no limits."""
    work: tuple[str, ...] = ()
    """The parameters that say how much is measured: where a plan sets one below its level, a PASS is partial."""
    min_nodes: int = 1
    """The least number of nodes that the check is about; on fewer it is not asked for, and no report has it."""
    stages: tuple[Stage, ...] = (Stage(),)
    """The steps of the check, in order; default: one stage ``measure`` on all ranks."""
    suspects: Callable[[Evidence, Any], tuple[int, ...]] | None = None
    """The pure function that names the ranks that must measure again (stage ``repeat``), one after the other with all
    other ranks idle, before the judge blames them; default None: no rank measures again."""
    next_round: Callable[[Evidence, Any], tuple[tuple[int, ...], dict[str, Any]] | None] | None = None
    """The pure function that the conductor calls after the last stage and after each round: it returns the ranks that
    measure next and the value of their ``given["round"]``, or None when another round would not change the ruling. It
    must end after a finite number of rounds; default None: no rounds."""
    most_wait_s: Callable[[Any], float] | None = None
    """The pure function that returns the seconds for which its ranks may wait for one another before they say
    themselves who did not come: for less, in a step that the trial's deadline cut short, they have not hung; default
    None: they say nothing."""
    watches: bool = False
    """Whether the process of a check of agents stays until the end of the trial: its ``measure`` sets
    ``context.watcher``, which learns of each later step. Its failure keeps no other check from starting."""
    devices_only: bool = False
    """Whether the check is about GPUs: where the ranks use CPUs it is not asked for, except by ``--only``."""
    interface: Callable[[Evidence, Any], str | None] | None = None
    """The pure function of a check of agents that returns the network interface that the ranks must use, or None for
    the one that their agents have chosen; default None: the check chooses none."""
