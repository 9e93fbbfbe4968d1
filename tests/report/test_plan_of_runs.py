"""A plan with limits from recorded runs, and the runs that give none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report.screens import HERE

from seatrial.checks import registry
from seatrial.errors import RequestError
from seatrial.evidence.findings import Judged, Limit, Ruling
from seatrial.evidence.measurement import Measurement
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.judge.decide import decide
from seatrial.plan.plan_reader import read_plan
from seatrial.protocol.wire import Decoder
from seatrial.report.card import card
from seatrial.report.console import lines
from seatrial.report.document import document
from seatrial.report.formats.junit import text as junit
from seatrial.report.plan_of_runs import plan_text, refuse_disturbed, warnings
from seatrial.report.summary import drill
from seatrial.report.view import View

Change = Callable[[dict[str, Any]], None]


def recorded(name: str = "pass", change: Change = lambda event: None) -> Conclusion:
    """Judge a recorded run again, with its events changed; ``cut``: the run that passed without its last event."""
    recording = "pass" if name == "cut" else name
    events = list(Decoder().lines((HERE / "recordings" / f"{recording}.events").read_bytes()))
    events = events[:-1] if name == "cut" else events
    for event in events:
        change(event)
    return conclude(events)


def job(**fields: Any) -> Change:
    """Return a change of the job in the first event."""

    def change(event: dict[str, Any]) -> None:
        if event["kind"] == "run":
            event["job"].update(fields)

    return change


def plan(**fields: Any) -> Change:
    """Return a change of the plan in the first event."""

    def change(event: dict[str, Any]) -> None:
        if event["kind"] == "run":
            event["plan"].update(fields)

    return change


def other_device(event: dict[str, Any]) -> None:
    if event["kind"] == "rank":
        event["device"] = "Other CPU"
    for fact in event.get("facts", ()):
        if fact["name"] == "inventory":
            fact["value"]["device"] = "Other CPU"


def other_work(event: dict[str, Any]) -> None:
    if event["kind"] == "run":
        event["plan"]["settings"]["compute"]["cpu_size"][0] = 77


def disturbed(conclusion: Conclusion, share: float = 0.4) -> Conclusion:
    """Return the run with a rank that got only this share of the CPU."""
    measured = Measurement(check="compute", name="cpu_share", value=share, unit="1", rank=0)
    trial = conclusion.trial
    return replace(conclusion, trial=replace(trial, measurements=(*trial.measurements, measured)))


def test_the_limits_are_below_every_value_of_the_runs(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(plan_text([recorded(), recorded()]))
    read = read_plan(str(file), schemas=registry.schemas(), scopes=registry.scopes())
    limits = {
        (check, name): setting.value
        for check, table in read.settings.items()
        for name, setting in table.items()
        if setting.origin.startswith(f"plan {file}: from 2 runs: median ")
    }
    assert set(limits) == {
        ("compute", "min_tflops"), ("memory", "min_copy_gbps"), ("collectives", "min_busbw_gbps"),
    }  # fmt: skip
    lowest = min(
        entry.value for entry in recorded().trial.measurements if (entry.name, entry.variant) == ("tflops", "fp32")
    )
    assert 0 < limits["compute", "min_tflops"] <= lowest
    assert read.demands_limits
    assert "median" in file.read_text()
    assert recorded().trial.run in file.read_text()


def between_nodes(*rates: float) -> Conclusion:
    """Return a run of two nodes that demands limits, with rates of links in GB/s, each from another round."""
    conclusion = recorded(change=plan(demands_limits=True))
    trial = conclusion.trial
    ranks = {rank: replace(record, node_rank=rank) for rank, record in trial.ranks.items()}
    link = Measurement(check="links", name="gbps", value=0.0, unit="GB/s", better="high", rank=0, peer=1)
    limit = Limit(value=0.1, unit="GB/s", origin="fleet")
    judged = tuple(
        Judged(measurement=replace(link, value=rate, stage=f"round {number}"), limit=limit, passed=True)
        for number, rate in enumerate(rates, start=1)
    )
    unlimited = (*conclusion.verdict.unlimited, "links.min_gbps")
    return replace(
        conclusion,
        trial=replace(trial, ranks=ranks),
        rulings={**conclusion.rulings, "links": Ruling(judged=judged, unlimited=("links.min_gbps",))},
        verdict=replace(conclusion.verdict, unlimited=unlimited),
    )


def test_links_inside_a_machine_are_no_links_between_nodes() -> None:
    """Also where each rank has a separate agent, which counts as a node: ranks 0 and 1 share a machine."""
    conclusion = between_nodes(40.0, 42.0)
    trial, links = conclusion.trial, conclusion.rulings["links"]
    ranks = {rank: replace(trial.ranks[0], rank=rank, node_rank=rank, local_rank=rank % 2) for rank in range(4)}
    places = {0: "10.0.0.1", 1: "10.0.0.1", 2: "10.0.0.2", 3: "10.0.0.2"}
    inside, between = (
        [replace(entry, measurement=replace(entry.measurement, **change)) for entry in links.judged]
        for change in ({"value": 400.0}, {"peer": 2})
    )
    rulings = {**conclusion.rulings, "links": replace(links, judged=(*inside, *between))}
    run = replace(conclusion, trial=replace(trial, ranks=ranks, places_of_nodes=places), rulings=rulings)
    assert "\nmin_gbps = 35.9\n" in plan_text([run])


def test_links_between_nodes_get_a_limit_from_any_round() -> None:
    text = plan_text([between_nodes(40.0, 42.0)])
    assert "[links]\n# GB/s between nodes: median 41, 40 to 42 over 2 values" in text
    assert "\nmin_gbps = 35.9\n" in text


def test_a_limit_that_no_run_can_give_is_said_and_asked_for() -> None:
    """Nobody is sent to plan from for a limit that it does not write."""
    without = between_nodes()
    assert "[links]\n# min_gbps: no limit, because these runs have no value of it; write one here." in plan_text(
        [without]
    )
    shown = card(without, Path("reports/x/report.html"), View())
    assert shown[-1].startswith('next: write limits into a plan file with level = "smoke": links.min_gbps; then run: ')
    assert "# No limit is made for storage" in plan_text([recorded()])


def test_few_runs_and_loaded_runs_are_said() -> None:
    def without_shares(event: dict[str, Any]) -> None:
        if event["kind"] == "measurements":
            event["measurements"] = [entry for entry in event["measurements"] if entry["name"] != "cpu_share"]

    idle = recorded(change=without_shares)
    assert [words.partition(":")[0] for words in warnings([idle])] == ["1 run shows no spread"]
    assert "1 run, no spread between runs" in plan_text([recorded()])
    assert [words.partition(":")[0] for words in warnings([idle] * 2)] == ["2 runs show little of the spread"]
    assert not list(warnings([idle] * 3))

    loaded = disturbed(idle)
    (words,) = warnings([idle, idle, loaded])
    assert "other processes held the CPU (rank 0 " in words
    assert "got 40 % of the CPU time that it could use in compute)" in words
    assert f"# Warning: {words}" in plan_text([loaded])
    # Only one is needed for limits that find little, and each of them says so.
    refuse_disturbed([idle] * 3)
    with pytest.raises(RequestError, match=r"other processes held the CPU .* or take them with --disturbed-runs"):
        refuse_disturbed([idle, idle, loaded])
    assert 'compute.min_tflops = "from 3 runs, 1 of them beside other work: median ' in plan_text([idle, idle, loaded])
    assert 'compute.min_tflops = "from 1 run beside other work: median ' in plan_text([loaded])


def test_a_limit_lies_below_the_lowest_run_by_the_spread() -> None:
    """A healthy run that is a little lower than all before passes: only one below by their whole spread fails."""
    conclusion = between_nodes(100.0, 90.0, 80.0)
    assert "\nmin_gbps = 60\n" in plan_text([conclusion])
    assert "\nmin_gbps = 89\n" in plan_text([between_nodes(99.0, 101.0)])


def test_values_of_the_plan_file_of_the_runs_are_kept(tmp_path: Path) -> None:
    def own(event: dict[str, Any]) -> None:
        if event["kind"] == "run":
            event["plan"]["settings"]["training"]["data"] = ["/shared/data", "plan mine.toml:training.data"]
            event["plan"]["settings"]["collectives"]["min_busbw_gbps"] = [
                0.001, "plan mine.toml:collectives.min_busbw_gbps",
            ]  # fmt: skip
            event["plan"]["deadline_s"] = [700, "plan mine.toml:deadline_s"]

    text = plan_text([recorded(change=own)])
    assert 'training.data = "kept from plan mine.toml"' in text
    file = tmp_path / "limits.toml"
    file.write_text(text)
    read = read_plan(str(file), schemas=registry.schemas(), scopes=registry.scopes())
    assert read.settings["training"]["data"].value == "/shared/data"
    assert read.settings["training"]["data"].origin == f"plan {file}: kept from plan mine.toml"
    assert "deadline_s = 700  # kept: plan mine.toml:deadline_s" in text
    # The limit of a contract is no value of runs.
    assert "\nmin_busbw_gbps = 0.001\n" in text
    assert text.count("min_busbw_gbps =") == 2, "the value and its origin"


def test_a_limit_says_in_the_report_from_which_file_and_runs_it_is() -> None:
    words = "plan fleet.toml: from 3 runs: median 812, lowest 800 less 10 % of the median"

    def limited(event: dict[str, Any]) -> None:
        if event["kind"] == "run":
            event["plan"]["name"] = "fleet.toml"
            event["plan"]["settings"]["collectives"]["min_busbw_gbps"] = [712, words]

    conclusion = recorded(change=limited)
    failed = next(finding for finding in conclusion.findings if finding.severity == "fail")
    assert failed.limit is not None
    assert failed.limit.origin == words
    assert any(f"limit 712 GB/s ({words})" in line for line in card(conclusion, None, View()))
    judged = [entry.limit.origin for entry in conclusion.rulings["collectives"].judged]
    assert words in judged
    # The next plan keeps the limit, and still says where it is from.
    origins = [line for line in plan_text([recorded(change=pass_below(limited))]).splitlines() if "from 3 runs" in line]
    assert origins == [f'collectives.min_busbw_gbps = "{words.partition(": ")[2]}"']


def pass_below(change: Change) -> Change:
    """Return the change, with a limit that every run reaches."""

    def changed(event: dict[str, Any]) -> None:
        change(event)
        if event["kind"] == "run":
            event["plan"]["settings"]["collectives"]["min_busbw_gbps"][0] = 1e-9

    return changed


@pytest.mark.parametrize(
    ("conclusions", "words"),
    [
        (lambda: [recorded("killed", job(planted=[]))], "FAIL; limits come from runs that passed"),
        (lambda: [recorded(), recorded(change=other_device)], "differ in the devices"),
        (lambda: [recorded(change=job(planted=["x@y:0"]))], "a fault was planted"),
        (lambda: [recorded(change=plan(not_asked={"links": "--skip"}))], "the PASS is partial (links not asked for)"),
        (lambda: [recorded(change=other_work)], "measures speeds with other sizes than each level"),
    ],
)
def test_runs_that_give_no_limits(conclusions: Callable[[], list[Conclusion]], words: str) -> None:
    with pytest.raises(RequestError, match=words.replace("(", r"\(").replace(")", r"\)")):
        plan_text(conclusions())


def test_a_pass_names_the_speeds_without_a_limit() -> None:
    keys = ("compute.min_tflops", "memory.min_copy_gbps", "collectives.min_busbw_gbps")
    conclusion = recorded()
    assert conclusion.verdict.unlimited == keys
    assert conclusion.verdict.partial == ()
    assert any(line.endswith(f"sets limits: {', '.join(keys)}") for line in card(conclusion, None, View()))


def test_nodes_of_one_machine_are_no_full_acceptance() -> None:
    demanding = recorded(change=plan(demands_limits=True))
    one_machine = Ruling(not_applicable="all nodes are one machine")
    nodes = (*demanding.trial.nodes, *demanding.trial.nodes)[:2]
    trial, rulings = replace(demanding.trial, nodes=nodes), {**demanding.rulings, "network": one_machine}
    verdict = decide(trial, rulings, demanding.findings)
    assert "all nodes are one machine, nothing between machines was checked" in verdict.partial
    conclusion = replace(demanding, trial=trial, rulings=rulings, verdict=verdict)
    with pytest.raises(RequestError, match="nothing between machines was checked"):
        plan_text([conclusion])


def test_a_plan_that_demands_limits_is_a_partial_pass_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the reports of earlier runs count, as after make run
    demanding = recorded(change=plan(demands_limits=True))
    assert demanding.verdict.status == "PASS"
    assert "no limit compute.min_tflops" in demanding.verdict.partial
    shown = card(demanding, Path("reports/x/report.html"), View())
    assert shown[-1].startswith("next: 1 of 3 runs for limits so far; on idle nodes, run: seatrial run smoke")
    assert shown[-1].endswith(", after 3: seatrial plan from reports/x RUN2 RUN3 > limits.toml")
    # Such a run gives the limits that it lacks.
    assert "min_tflops" in plan_text([demanding])


@pytest.mark.parametrize("limited", [True, False], ids=["limits are missing", "a check was left out"])
def test_the_next_run_refuses_a_partial_pass_as_this_one_did(limited: bool) -> None:
    def both(event: dict[str, Any]) -> None:
        job(require_full=True, options=["--require-full", "--device", "cpu"])(event)
        plan(**({"demands_limits": True} if limited else {"not_asked": {"links": "--skip"}}))(event)

    conclusion = recorded(change=both)
    assert conclusion.verdict.exit_code == 3
    shown = card(conclusion, Path("reports/x/report.html"), View())[-1]
    assert shown.startswith("next: ")
    assert shown.count("--require-full") == 1


def test_no_command_is_proposed_that_would_be_refused() -> None:
    def both(event: dict[str, Any]) -> None:
        other_work(event)
        plan(demands_limits=True)(event)

    shown = card(recorded(change=both), Path("reports/x/report.html"), View())
    file = 'a plan file with level = "smoke"'
    assert shown[-1].startswith(f"next: write limits into {file}: compute.min_tflops, memory.min_copy_gbps, ")
    assert "; then run: seatrial run PLAN.toml" in shown[-1]


def test_a_full_pass_can_be_required() -> None:
    def both(event: dict[str, Any]) -> None:
        job(require_full=True)(event)
        plan(demands_limits=True)(event)

    assert recorded(change=both).verdict.exit_code == 3
    assert recorded(change=job(require_full=True)).verdict.exit_code == 0
    assert recorded(change=plan(demands_limits=True)).verdict.exit_code == 0
    assert recorded("killed", change=both).verdict.exit_code == 1


KILLED = "FAIL (drill: kill@training/step 5:1)"


@pytest.mark.parametrize(
    ("name", "partial", "require_full", "shown", "exit_code"),
    [
        ("pass", False, False, "PASS", 0),
        ("pass", False, True, "PASS", 0),
        ("pass", True, False, "PASS (partial)", 0),
        ("pass", True, True, "PASS (partial; exit code 3 because of --require-full)", 3),
        ("killed", False, False, KILLED, 1),
        ("killed", False, True, KILLED, 1),
        ("killed", True, False, KILLED, 1),
        ("killed", True, True, KILLED, 1),
        ("cut", False, False, "INCONCLUSIVE", 3),
        ("cut", False, True, "INCONCLUSIVE", 3),
        ("cut", True, False, "INCONCLUSIVE", 3),
        ("cut", True, True, "INCONCLUSIVE", 3),
    ],
)
def test_banner_last_lines_and_files_agree(
    name: str, partial: bool, require_full: bool, shown: str, exit_code: int
) -> None:
    """A PASS may be partial, and --require-full may refuse that: every place says both, as the exit code does."""

    def change(event: dict[str, Any]) -> None:
        plan(demands_limits=partial)(event)
        job(require_full=require_full)(event)

    conclusion = recorded(name, change)
    limits = ", ".join(conclusion.verdict.partial)
    in_full = shown.replace("(partial", f"(partial: {limits}")
    banner, *_ = (line for line in card(conclusion, None, View()) if line.startswith("FINAL ACCEPTANCE"))
    assert banner == f"FINAL ACCEPTANCE: {in_full}"
    (figures,) = (line for line in card(conclusion, None, View()) if " passed, " in line)
    assert figures.replace("FAIL (drill)", KILLED).startswith(f"{shown}: ")
    (line,) = lines(conclusion, None, View(is_quiet=True))
    assert line.removeprefix(f"{drill(conclusion)}; ").startswith(f"{in_full}: ")
    report = document(conclusion)
    assert report["exit_code"] == conclusion.verdict.exit_code == exit_code
    assert report["acceptance"]["status"] == shown.partition(" ")[0]
    assert bool(report["acceptance"]["partial"]) == ("partial" in shown)
    *_, trial = ElementTree.fromstring(junit(conclusion)).iter("testcase")
    assert trial.get("name") == "trial"
    assert bool(len(trial)) == (exit_code != 0)


def test_acceptance_demands_limits() -> None:
    read = read_plan("acceptance", schemas=registry.schemas(), scopes=registry.scopes())
    assert read.demands_limits
    assert {"compute", "memory", "links", "collectives"} <= set(read.checks)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300, 10**299, 2e6])
def test_a_speed_that_cannot_be_gives_no_limit(value: float) -> None:
    with pytest.raises(RequestError, match=r"links.min_gbps: a rank of these runs reports .* no device"):
        plan_text([between_nodes(40.0, 41.0), between_nodes(40.0, value)])


@pytest.mark.parametrize("value", [float("inf"), 2e6, 1e-3])
def test_a_bandwidth_that_contradicts_its_time_gives_no_limit(value: float) -> None:
    def claim(event: dict[str, Any]) -> None:
        for entry in event.get("measurements", ()):
            if (entry["check"], entry["name"]) == ("collectives", "busbw"):
                entry["value"] = value

    with pytest.raises(RequestError, match="INCONCLUSIVE; limits come from runs that passed"):
        plan_text([recorded(), recorded(), recorded(change=claim)])


@pytest.mark.parametrize("origin", [None, 5, ["x"], {"a": 1}])
def test_a_plan_whose_origins_are_no_text_ends_in_a_sentence(origin: object) -> None:
    def change(event: dict[str, Any]) -> None:
        if event["kind"] == "run":
            event["plan"]["demands_limits"] = True
            event["plan"]["settings"]["compute"]["timeout_s"][1] = origin

    conclusion = recorded(change=change)
    assert conclusion.verdict.status == "INCONCLUSIVE"
    assert lines(conclusion, Path("x/report.html"))
    with pytest.raises(RequestError, match="INCONCLUSIVE"):
        plan_text([conclusion])
