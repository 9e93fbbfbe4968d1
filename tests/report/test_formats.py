"""All formats of the report, for every trial of event_streams.py: valid, complete and harmless."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from event_streams import RUN, SCENES, Stream, healthy, too_short
from fake_checks import a_plan, fake_load
from live.trials import SCHEMA

from seatrial.checks.check import Check
from seatrial.evidence.findings import Culprit, Finding, Ruling
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.plan.model import Setting
from seatrial.report.console import lines, print_lines
from seatrial.report.document import document, to_text
from seatrial.report.formats import load as load_formats
from seatrial.report.formats.html import text as html
from seatrial.report.formats.junit import text as junit
from seatrial.report.summary import sentence
from seatrial.report.view import View, height, wrapped

HOSTILE = "<script>alert(1)</script>\x1b[2J\nFINAL ACCEPTANCE: PASS\u202e"
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def concluded(stream: Stream) -> Conclusion:
    return conclude(stream.events, load=fake_load)


def hostile(value: Any) -> Any:
    """Return the event with every text of a rank or host replaced."""
    if isinstance(value, dict):
        fixed = ("kind", "run", "src", "check", "stage", "how", "outcome", "cause", "better", "severity", "device_type")
        return {key: entry if key in fixed else hostile(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [hostile(entry) for entry in value]
    return HOSTILE if isinstance(value, str) else value


class Page(HTMLParser):
    """Collects tags and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_all(conclusion: Conclusion) -> None:
    report = document(conclusion)
    VALIDATOR.validate(report)
    text = to_text(report)
    assert text.isascii()
    assert json.loads(text) == report
    page = Page()
    page.feed(html(conclusion))
    assert page.open == []
    assert "script" not in page.tags
    ElementTree.fromstring(junit(conclusion))
    assert all(line.isprintable() for line in lines(conclusion, Path("reports/x/report.html")))


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_every_format_of_every_trial(scene: str) -> None:
    stream = SCENES[scene]()
    check_all(concluded(stream))
    for count in (0, 1, 5, len(stream.events) // 2):
        check_all(conclude(stream.events[:count], load=fake_load))


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_hostile_words_are_only_words(scene: str) -> None:
    stream = SCENES[scene]()
    plan = stream.events[0]["plan"]
    stream.events = [hostile(event) for event in stream.events]
    stream.events[0]["plan"] = plan
    conclusion = concluded(stream)
    assert not conclusion.trial.missing
    check_all(conclusion)
    page = html(conclusion)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page
    assert sum(line.startswith("FINAL ACCEPTANCE") for line in lines(conclusion)) == 1


def test_the_schema_refuses_missing_and_extra_keys() -> None:
    report = document(concluded(healthy()))
    for key in list(report):
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate({name: value for name, value in report.items() if name != key})
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({**report, "surprise": 1})
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({**report, "missing": ["the `end` event of conductor is missing"]})


def test_the_document_has_the_keys_of_the_first_users() -> None:
    report = document(concluded(healthy()))
    assert report["test_timestamp"] == "2026-01-02 02:57:25"
    assert (report["world_size"], report["status"], report["exit_code"]) == (2, "success", 0)
    assert report["acceptance"]["status"] == "PASS"
    assert report["acceptance"]["summary"] == [
        "GPU Available: NO (CPU trial)",
        "Communication (gloo): PASS",
        "Training Status: PASS",
    ]
    assert report["validation"]["checks"] == {"compute": "pass", "bootstrap": "pass", "collectives": "pass"}
    assert report["performance"]["main_measurements"][0]["value"] == 2.0
    assert report["run_id"] == RUN


@pytest.mark.parametrize(
    ("scene", "status"),
    [("healthy", "success"), ("killed", "failed"), ("own", "inconclusive"), ("interrupted", "interrupted")],
)
def test_the_status_in_one_word(scene: str, status: str) -> None:
    assert document(concluded(SCENES[scene]()))["status"] == status


def test_numbers_that_are_not_finite_are_words() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.begin("compute")
    for rank in stream.alive:
        stream.measure("compute", rank, "nan")  # type: ignore[arg-type]  # as on the wire
        stream.done(rank)
    stream.step_end()
    conclusion = concluded(stream.close())
    check_all(conclusion)
    assert document(conclusion)["measurements"][0]["value"] == "nan"
    assert conclusion.verdict.status == "FAIL"


def gpu(stream: Stream) -> Stream:
    for event in stream.events:
        if event["kind"] == "rank":
            event.update(device="NVIDIA H200", device_type="cuda", backend="nccl")
    return stream


def banner_of(shown: list[str]) -> list[str]:
    """Return the lines from the first rule to the second one."""
    begin = shown.index("=" * 50)
    return shown[begin : shown.index("=" * 50, begin + 1) + 1]


def test_the_banner_of_a_pass_on_gpus() -> None:
    assert banner_of(lines(concluded(gpu(healthy())))) == [
        "=" * 50,
        "FINAL ACCEPTANCE: PASS",
        "- GPU Available: YES",
        "- NCCL Communication: PASS",
        "- Training Status: PASS",
        "=" * 50,
    ]


def test_the_banner_of_a_partial_pass() -> None:
    shown = lines(concluded(gpu(healthy(1, plan=a_plan(not_asked={"links": "--skip links"})))))
    assert shown[1:4] == [
        "FINAL ACCEPTANCE: PASS (partial: links not asked for, 1 rank)",
        "- GPU Available: YES",
        "- NCCL Communication: NOT CHECKED (1 rank)",
    ]
    plan = a_plan(("compute", "bootstrap", "collectives"), {"training": "--validation-only"})
    shown = lines(concluded(healthy(plan=plan)))
    assert shown[1] == "FINAL ACCEPTANCE: PASS (partial: training not asked for)"
    assert shown[4] == "- Training Status: NOT CHECKED (not asked for)"


def test_the_banner_of_a_failure() -> None:
    shown = lines(concluded(SCENES["out of memory"]()), Path("reports/x/report.html"))
    banner = banner_of(shown)
    assert banner[1] == "FINAL ACCEPTANCE: FAIL"
    assert banner[-2].startswith("- Error: out of memory on rank 1 (Test CPU, local rank 1 on node gpu-0)")
    assert shown[-4:] == [
        "FAIL: level quick, 1 of 4 checks failed, 3 passed, 2 CPU ranks, 26 s",
        "at fault: rank 1 on node gpu-0, its process (pid 101), or what else uses that memory",
        "report: reports/x/report.html",
        "next: fix the problem above, then run: seatrial run quick",
    ]


def test_an_error_line_has_measured_value_limit_and_origin() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.check("compute", lambda rank: 0.5 if rank else 2.0)
    shown = lines(concluded(stream.close()))
    assert "- Error: rank 1 is slow; measured 0.5 GB/s; limit 1 GB/s (plan test.toml:min_value)" in shown


LONG_STACK = "\n".join(f'  File "/a/long/path/of/a/library/{number}.py", line {number} in f' for number in range(40))


def with_long_evidence(stream: Stream) -> Stream:
    """Return the events with stacks and last lines that fill a screen each."""
    for event in stream.events:
        if event["kind"] == "stack":
            event["text"] = LONG_STACK
        if event["kind"] == "exit":
            event["last_lines"] = ["a line of output " * 10] * 20
    return stream


@pytest.mark.parametrize("columns", [None, 80], ids=["pipe", "80 columns"])
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_one_fault_fits_into_a_terminal(scene: str, columns: int | None) -> None:
    """23 rows of 80 columns with the card, also with a second fault, however long their evidence is."""
    conclusion = concluded(with_long_evidence(SCENES[scene]()))
    shown = lines(conclusion, Path("seatrial-reports/20260102-030405-abcd/report.html"), View(columns=columns))
    rule = shown.index("=" * 50)
    faults = [finding for finding in conclusion.findings if finding.severity in ("fail", "error")]
    if len(faults) == 1:
        assert sum(height(line, columns) for line in shown) <= 23, shown
        if len("\n".join(faults[0].evidence).splitlines()) > 24:
            assert any("more lines in the report" in line for line in shown)
    if len(faults) == 2:
        assert sum(height(line, columns) for line in shown) <= 23, shown
        assert sum(line.startswith("- Error: ") for line in shown) == 2
        return
    assert sum(height(line, columns) for line in shown[rule:]) <= 17, shown
    after = [line.partition(":")[0] for line in shown if line.startswith(("report: ", "next: "))]
    assert after == ["report", "next"]
    last = next(number for number, line in enumerate(shown) if line.startswith("next: "))
    assert all(line.startswith(("  ", "fix the problem above, then run:")) for line in shown[last + 1 :])


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_lines_break_between_words(scene: str, columns: int) -> None:
    view = View(columns=columns)
    for line in lines(concluded(with_long_evidence(SCENES[scene]())), Path("r/x/report.html"), view):
        parts = wrapped(line, columns)
        assert " ".join(" ".join(parts).split()) == " ".join(line.split())
        if not line.startswith(("report: ", "next: ")):
            assert all(len(part) <= columns or len(part.removesuffix(" \\").split()) == 1 for part in parts)


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_quiet_is_one_line(scene: str) -> None:
    conclusion = concluded(SCENES[scene]())
    (line,) = lines(conclusion, Path("r/x/report.html"), View(is_quiet=True))
    assert line.startswith(conclusion.verdict.status)
    assert line.endswith("report: r/x/report.html")


def test_verbose_shows_all_evidence_and_measurements() -> None:
    conclusion = concluded(with_long_evidence(SCENES["frozen"]()))
    shown = lines(conclusion, view=View(is_verbose=True))
    assert not any("more lines in the report" in line for line in shown)
    assert any("line 39 in f" in line for line in shown)
    assert any(line.startswith("compute") for line in shown)
    assert "line 39 in f" not in "".join(lines(conclusion))


def test_zeros_of_one_name_are_one_row() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.begin("compute")
    for rank in stream.alive:
        for pattern in ("0x00", "0x55", "0xff"):
            stream.measure("compute", rank, 0.0, name="wrong_words", unit="1", better="low", variant=pattern)
        stream.done(rank)
    stream.step_end()
    shown = lines(concluded(stream.close()), view=View(is_verbose=True))
    assert [" ".join(line.split()) for line in shown if "wrong_words" in line] == [
        "compute wrong_words, 3 kinds 0 all of 6"
    ]


def test_the_next_command_keeps_the_options() -> None:
    options = ["--on", "slurm", "--nodes", "2", "--env", "A=b c"]
    shown = lines(concluded(healthy(options=options)))
    assert shown[-1] == "next: to test more, run: seatrial run standard --on slurm --nodes 2 --env 'A=b c'"
    assert lines(concluded(healthy(options=options, launcher="torchrun")))[-1].startswith(
        "next: to test more, run under torchrun as before: seatrial run standard --on"
    )


def test_the_next_command_has_the_deadline_that_is_needed() -> None:
    """The run that is repeated must not end at the same deadline again."""
    late = {"rank": 1, "how": "late", "phase": "start-up/import torch", "waited_s": 5.0}
    for typed, needed in ((3.0, "120s"), (90.0, "180s")):
        short = replace(a_plan(), deadline_s=Setting(value=typed, origin="--deadline"))
        stream = Stream(plan=short, options=["--deadline", f"{typed:g}", "--skip", "links"])
        stream.send("conductor", "trouble", gen=0, step=-1, seen=[late], waiting=[])
        stream.kill(0, 1)
        shown = lines(concluded(stream.close(ranks=False)))
        assert shown[-1] == f"next: with more time, run: seatrial run quick --deadline {needed} --skip links"
        assert any(f"give the trial more time (--deadline {needed})" in line for line in shown)


def test_a_timeout_that_a_short_deadline_made_is_mended_by_the_deadline() -> None:
    cut = {"timeout_s": Setting(value=60.0, origin="0.75 x the trial's deadline (plan x.toml:deadline_s: 80)")}
    plan = replace(
        a_plan(),
        name="x.toml",
        deadline_s=Setting(value=80.0, origin="plan x.toml:deadline_s"),
        settings={name: {**table, **cut} for name, table in a_plan().settings.items()},
    )
    assert lines(concluded(too_short(plan)))[-1] == "next: with more time, run: seatrial run x.toml --deadline 160s"


def test_checks_that_never_started_are_one_reason() -> None:
    stream = Stream().until("compute")
    stream.error(1, "own", "list index out of range", "compute/begin")
    stream.trouble({"rank": 1, "how": "error", "detail": "own"}, waiting=(0,))
    shown = lines(concluded(stream.close()))
    assert sum("never started" in line for line in shown[: shown.index("=" * 50)]) == 1
    assert "not a PASS: requested but never started: bootstrap, collectives, training" in shown


def test_many_errors_are_counted_not_listed() -> None:
    stream = Stream(40, plan=a_plan(("compute",)))
    stream.check("compute", lambda rank: 0.5)
    shown = lines(concluded(stream.close()))
    assert "- and 39 more errors (see above)" in shown
    assert "and 30 more of fail" in shown
    assert len(shown) < 50


def test_an_interruption_is_in_the_first_line() -> None:
    shown = lines(concluded(SCENES["interrupted"]()))
    assert banner_of(shown)[1] == "FINAL ACCEPTANCE: INCONCLUSIVE (interrupted by SIGINT)"
    assert "why: stopped by Ctrl-C (SIGINT) before training ended" in shown
    assert not any(line.startswith("not a PASS") for line in shown), "that follows from the interruption"


@pytest.mark.parametrize("scene", ["healthy", "frozen", "own"])
def test_every_format_says_that_a_fault_was_planted(scene: str) -> None:
    stream = SCENES[scene]() if scene in SCENES else healthy()
    words = "DRILL (kill@collectives:1): this result says nothing about the cluster"
    for planted in ([], ["kill@collectives:1"]):
        stream.events[0]["job"]["planted"] = planted
        conclusion = concluded(stream)
        texts = {name: each.text(conclusion) for name, each in load_formats().items()}
        texts["console"] = "\n".join(lines(conclusion))
        texts["one line"] = lines(conclusion, view=View(is_quiet=True))[0]
        assert {name for name, text in texts.items() if words in text} == (set(texts) if planted else set())


def test_no_case_of_a_planted_fault_is_a_pass_for_ci() -> None:
    suite = ElementTree.fromstring(junit(concluded(healthy(planted=["kill@collectives:1"]))))
    cases = list(suite.iter("testcase"))
    assert len(cases) == 5
    for case in cases:
        assert case.findall("skipped")[0].attrib["message"].startswith("DRILL (kill@collectives:1)")


def test_a_check_about_nothing_is_said_in_every_format() -> None:
    def load(name: str) -> Check:
        known = fake_load(name)
        one_machine = Ruling(not_applicable="all nodes are one machine")
        return replace(known, judge=lambda evidence, params: one_machine) if name == "compute" else known

    conclusion = conclude(healthy().events, load=load)
    shown = lines(conclusion)
    assert "PASS: level quick, 3 of 4 checks passed, 1 not applicable, 2 CPU ranks, 10 s" in shown
    assert "not applicable: compute (all nodes are one machine)" in shown
    assert "not applicable: all nodes are one machine" in html(conclusion)
    (case,) = (
        case for case in ElementTree.fromstring(junit(conclusion)).iter("testcase") if case.get("name") == "compute"
    )
    assert case.findall("skipped")[0].attrib["message"] == "NOT APPLICABLE (all nodes are one machine)"
    check = document(conclusion)["checks"]["compute"]
    assert (check["status"], check["not_applicable"]) == ("not_applicable", "all nodes are one machine")
    VALIDATOR.validate(document(conclusion))


def test_the_page_shows_values_as_a_plan_file_has_them() -> None:
    values = {"minutes": Setting(value=30.0, origin="level quick"), "min_tflops": Setting(value=None, origin="default")}
    plan = replace(a_plan(("compute",)), settings={"compute": {**a_plan().settings["compute"], **values}})
    page = html(concluded(healthy(plan=plan)))
    assert re.search(r"compute\.minutes</td>\s*<td>30</td>", page)
    assert re.search(r"compute\.min_tflops</td>\s*<td>none</td>", page)


def test_network_variables_of_the_ranks_are_shown() -> None:
    conclusion = concluded(healthy(env={"NCCL_NET": "Socket", "OMPI_MCA_btl": "^openib; x", "HOME_TOKEN": "secret"}))
    assert "environment of the ranks: NCCL_NET=Socket OMPI_MCA_btl='^openib; x'" in lines(conclusion)
    assert "env.NCCL_NET" in html(conclusion)
    assert not any("secret" in line for line in [*lines(conclusion), html(conclusion)])
    assert not any("environment of the ranks" in line for line in lines(concluded(healthy())))


class Terminal(io.StringIO):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("OMPI_COMM_WORLD_RANK", "0")], ids=lambda text: text
)
def test_colors_only_on_a_terminal(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NO_COLOR", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = lines(concluded(SCENES["killed"]()))
    plain, colored = io.StringIO(), Terminal()
    print_lines(shown, plain)
    print_lines(shown, colored)
    assert plain.getvalue() == "".join(f"{line}\n" for line in shown)
    assert "\x1b[" in colored.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored.getvalue()) == plain.getvalue()
    monkeypatch.setenv(name, value)
    again = Terminal()
    print_lines(shown, again)
    assert again.getvalue() == plain.getvalue()


def test_junit_has_a_case_for_every_check_and_the_verdict() -> None:
    plan = a_plan(("compute", "bootstrap", "collectives"), {"training": "--validation-only"})
    stream = Stream(plan=plan)
    stream.check("compute", lambda rank: 0.5)
    stream.check("bootstrap")
    suite = ElementTree.fromstring(junit(concluded(stream.close()))).find("testsuite")
    assert suite is not None
    results = {case.get("name"): [child.tag for child in case] for case in suite}
    assert results == {
        "compute": ["failure"],
        "bootstrap": [],
        "collectives": ["error"],
        "training": ["skipped"],
        "trial": ["failure"],
    }
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("2", "1", "1")
    messages = {case.get("name"): child.get("message") for case in suite for child in case}
    assert messages["collectives"] == "NOT CHECKED (never started)"
    assert messages["training"] == "NOT CHECKED (not asked for)"
    assert "\nfail compute: rank 0 is slow" in "".join(suite.itertext())


def test_charts_are_drawn_by_kind() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.begin("compute")
    for rank in stream.alive:
        stream.measure("compute", rank)
        for power in (3, 10, 20):
            stream.measure("compute", rank, float(power), name="busbw", size_bytes=1 << power, variant="all_reduce")
        for step in range(5):
            stream.measure("compute", rank, 1 / (1 + step), name="loss", step=step)
        stream.measure("compute", rank, 7.5, name="bandwidth", peer=1 - rank)
        stream.done(rank)
    stream.step_end()
    conclusion = concluded(stream.close())
    check_all(conclusion)
    page = html(conclusion)
    for title in (
        "compute busbw (GB/s)",
        "compute loss (GB/s)",
        "compute value (GB/s)",
        "compute bandwidth (GB/s), from",
    ):
        assert f"<h3>{title}" in page
    points = re.findall(r'<polyline points="([^"]+)"', page)
    assert [len(line.split()) for line in points] == [3, 5]
    shown = lines(conclusion, view=View(is_verbose=True))
    assert any(re.match(r"compute +busbw all_reduce 1 MiB +20 GB/s", line) for line in shown)
    assert any(re.match(r"compute +loss +0.2 GB/s", line) for line in shown)


def test_pairs_are_a_small_table_on_the_console() -> None:
    stream = Stream(3, plan=a_plan(("compute",))).until("compute")
    for rank in range(3):
        stream.measure("compute", rank, 7.5 if rank else 0.75, name="bandwidth", peer=(rank + 1) % 3)
    shown = lines(concluded(stream.close()), view=View(is_verbose=True))
    (first,) = (index for index, line in enumerate(shown) if line.startswith("compute bandwidth"))
    assert shown[first].endswith("from the rank of the row to that of the column")
    assert shown[first + 1 : first + 5] == [
        "            0     1    2",
        "  rank 0       0.75",
        "  rank 1             7.5",
        "  rank 2  7.5",
    ]
    many = Stream(9, plan=a_plan(("compute",))).until("compute")
    for rank in range(9):
        many.measure("compute", rank, 7.5, name="bandwidth", peer=(rank + 1) % 9)
    assert any("9 ranks, see the report" in line for line in lines(concluded(many.close()), view=View(is_verbose=True)))


@pytest.mark.parametrize("place", [{"peer": 0}, {"size_bytes": 1}, {}], ids=["pairs", "curves", "bars"])
def test_names_without_end_are_a_hundred_charts_and_a_count(place: dict[str, int]) -> None:
    stream = Stream(2, plan=a_plan(("compute",))).until("compute")
    for number in range(105):
        for rank in range(2):
            at = {name: value + rank for name, value in place.items()}
            stream.measure("compute", rank, name=f"name{number}", **at)
    page = html(concluded(stream.close()))
    assert len(set(re.findall(r"<h3>compute name(\d+)", page))) == 100
    assert "<p>5 more names of such measurements are in report.json.</p>" in page
    shown = lines(concluded(stream.close()), view=View(is_verbose=True))
    assert ("5 more names of such measurements are in report.json." in shown) == ("peer" in place)


def test_names_without_end_are_a_hundred_rows_of_a_check_and_a_count() -> None:
    stream = Stream(plan=a_plan(("compute", "memory"))).until("compute")
    for number in range(105):
        stream.measure("compute", 0, variant=f"kind {number}")
    stream.begin("memory")
    stream.measure("memory", 0, name="copy")
    page = html(concluded(stream.close()))
    table = page.partition("<h2>Main measurements</h2>")[2].partition("<h")[0]
    assert table.count("<td>value kind ") == 100
    assert "<td>copy " in table, "one check hides no other"
    assert "<p>5 more names of such measurements are in report.json.</p>" in table
    assert "5 more names" not in html(concluded(Stream(plan=a_plan(("compute",))).until("compute").close()))


def test_the_last_report_of_a_measurement_counts() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.begin("compute")
    for value in (9.0, 6.0, 3.0):
        for rank in stream.alive:
            stream.measure("compute", rank, value + rank)
    conclusion = concluded(stream.close())
    (row,) = document(conclusion)["validation"]["main_measurements"]
    assert (row["value"], row["low"], row["high"], row["count"]) == (3.5, 3.0, 4.0, 2)
    assert any(
        re.match(r"compute +value +3\.5 GB/s +3 to 4 over 2", line)
        for line in lines(conclusion, view=View(is_verbose=True))
    )
    assert not any(line.startswith("compute ") for line in lines(conclusion))


@pytest.mark.parametrize(
    ("what", "name", "words"),
    [
        ("rank 1 is slow", "rank 1 (CPU, local rank 1 on node n0)", "rank 1 (CPU, local rank 1 on node n0) is slow"),
        ("rank 1 is slow", "rank 1", "rank 1 is slow"),
        ("bad memory on local rank 1", "rank 1 (CPU)", "bad memory on local rank 1; at fault: rank 1 (CPU)"),
        ("slower than rank 10", "rank 1 (CPU)", "slower than rank 10; at fault: rank 1 (CPU)"),
        ("node a-1 is slow", "node a", "node a-1 is slow; at fault: node a"),
        ("rank 1 (CPU) is slow, unlike rank 0", "rank 1 (CPU)", "rank 1 (CPU) is slow, unlike rank 0"),
    ],
)
def test_a_sentence_names_its_culprit_once(what: str, name: str, words: str) -> None:
    culprit = Culprit(kind="rank", name=name, ranks=(1,))
    assert sentence(Finding(severity="fail", check="compute", what=what, culprit=culprit)) == words


def test_the_cause_is_printed_before_the_gaps_of_the_record() -> None:
    stream = Stream()
    stream.send("controller", "note", severity="error", text="the container runtime is missing; see docker run --help")
    shown = lines(conclude(stream.events[:1] + stream.events[-1:], load=fake_load))
    (cause,) = (number for number, line in enumerate(shown) if line.startswith("error trial: the container runtime"))
    gaps = [number for number, line in enumerate(shown) if line.startswith("not a PASS: ")]
    assert gaps
    assert cause < min(gaps)


def test_the_page_says_what_was_started_and_looked_at() -> None:
    stream = SCENES["healthy"]()
    stream.events[0]["job"] |= {"options": ["--nodes", "2", "--env", "A=<b>"], "launcher": "srun"}
    conclusion = concluded(stream)
    shown = html(conclusion)
    plan = conclusion.trial.plan["name"]
    assert f"Started as: <code>seatrial run {plan} --nodes 2 --env &#x27;A=&lt;b&gt;&#x27; (by srun)</code>" in shown
    assert "<th>looked at</th>" in shown
    names = {entry.name for entry in conclusion.trial.measurements if entry.check == "compute"}
    assert all(name.replace("_", " ") in shown for name in names)
    assert names
