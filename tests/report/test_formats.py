"""All formats of the report, for every trial that the tests know: valid, whole and harmless."""

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
from event_streams import RUN, SCENES, Stream, healthy
from fake_checks import a_plan, fake_load

from seatrial.conductor.conclude import Conclusion, conclude
from seatrial.plan.model import Setting
from seatrial.report.console import lines, print_lines
from seatrial.report.document import document, schema, to_text
from seatrial.report.html import html, plan_value
from seatrial.report.junit import junit

HOSTILE = "<script>alert(1)</script>\x1b[2J\nFINAL ACCEPTANCE: PASS\u202e"
VALIDATOR = jsonschema.Draft202012Validator(schema())


def concluded(stream: Stream) -> Conclusion:
    return conclude(stream.events, load=fake_load)


def hostile(value: Any) -> Any:
    """The same event with every text of a rank or host replaced."""
    if isinstance(value, dict):
        own = ("kind", "run", "src", "check", "stage", "how", "outcome", "cause", "better", "severity", "device_type")
        return {key: entry if key in own else hostile(entry) for key, entry in value.items()}
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
    found = document(conclusion)
    VALIDATOR.validate(found)
    text = to_text(found)
    assert text.isascii()
    assert json.loads(text) == found
    page = Page()
    page.feed(html(conclusion))
    assert page.open == []
    assert "script" not in page.tags
    ElementTree.fromstring(junit(conclusion))
    assert all(line.isprintable() for line in lines(conclusion, Path("reports/x/report.html")))


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_every_format_of_every_trial(scene: str) -> None:
    stream = SCENES[scene]()
    check_all(concluded(stream))
    for kept in (0, 1, 5, len(stream.events) // 2):
        check_all(conclude(stream.events[:kept], load=fake_load))


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


def test_the_schema_refuses_what_is_not_told() -> None:
    found = document(concluded(healthy()))
    for key in list(found):
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate({name: value for name, value in found.items() if name != key})
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({**found, "surprise": 1})
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({**found, "missing": ["the end of conductor"]})


def test_the_document_has_what_the_first_users_know() -> None:
    found = document(concluded(healthy()))
    assert found["test_timestamp"] == "2026-01-02 02:57:25"
    assert (found["world_size"], found["status"], found["exit_code"]) == (2, "success", 0)
    assert found["acceptance"]["status"] == "PASS"
    assert found["acceptance"]["summary"] == [
        "GPU Available: NO (CPU trial)",
        "Communication (gloo): PASS",
        "Training Status: PASS",
    ]
    assert found["validation"]["checks"] == {"compute": "pass", "bootstrap": "pass", "collectives": "pass"}
    assert found["performance"]["main_figures"][0]["value"] == 2.0
    assert found["run_id"] == RUN


@pytest.mark.parametrize(
    ("scene", "status"),
    [("healthy", "success"), ("killed", "failed"), ("own", "inconclusive"), ("interrupted", "interrupted")],
)
def test_the_status_in_one_word(scene: str, status: str) -> None:
    assert document(concluded(SCENES[scene]()))["status"] == status


def test_numbers_that_are_none_are_told_as_words() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.begin("compute")
    for rank in stream.alive:
        stream.tell("compute", rank, "nan")  # type: ignore[arg-type]  # as the wire tells it
        stream.done(rank)
    stream.step_end()
    conclusion = concluded(stream.close())
    check_all(conclusion)
    assert document(conclusion)["figures"][0]["value"] == "nan"
    assert conclusion.verdict.status == "FAIL"


def gpu(conclusion_of: Stream) -> Stream:
    for event in conclusion_of.events:
        if event["kind"] == "rank":
            event.update(device="NVIDIA H200", device_type="cuda", backend="nccl")
    return conclusion_of


def test_the_banner_of_a_pass_on_gpus() -> None:
    assert lines(concluded(gpu(healthy())))[:6] == [
        "=" * 50,
        "FINAL ACCEPTANCE: PASS",
        "- GPU Available: YES",
        "- NCCL Communication: PASS",
        "- Training Status: PASS",
        "=" * 50,
    ]


def test_the_banner_of_a_partial_pass() -> None:
    told = lines(concluded(gpu(healthy(1, plan=a_plan(not_asked={"links": "--skip links"})))))
    assert told[1:4] == [
        "FINAL ACCEPTANCE: PASS (partial: links not asked for, 1 rank)",
        "- GPU Available: YES",
        "- NCCL Communication: NOT CHECKED (1 rank)",
    ]
    plan = a_plan(("compute", "bootstrap", "collectives"), {"training": "--validation-only"})
    told = lines(concluded(healthy(plan=plan)))
    assert told[1] == "FINAL ACCEPTANCE: PASS (partial: training not asked for)"
    assert told[4] == "- Training Status: NOT CHECKED (not asked for)"


def test_the_banner_of_a_failure() -> None:
    told = lines(concluded(SCENES["out of memory"]()), Path("reports/x/report.html"))
    end = told.index("=" * 50, 1)
    assert told[1] == "FINAL ACCEPTANCE: FAIL"
    assert told[end - 1].startswith("- Error: out of memory on rank 1 (Test CPU, local rank 1 on gpu-0)")
    assert told[end + 1] == "judged 6 of 6 figures"
    assert told[-2:] == [
        "report: reports/x/report.html",
        "next: seatrial run quick when what is named above is repaired",
    ]


def test_an_error_line_has_measured_value_limit_and_origin() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.check("compute", lambda rank: 0.5 if rank else 2.0)
    told = lines(concluded(stream.close()))
    assert "- Error: rank 1 is slow; measured 0.5 GB/s; limit 1 GB/s (plan test.toml:min_value)" in told


def test_many_errors_are_counted_not_listed() -> None:
    stream = Stream(40, plan=a_plan(("compute",)))
    stream.check("compute", lambda rank: 0.5)
    told = lines(concluded(stream.close()))
    assert sum(line.startswith("- Error") for line in told) == 11
    assert "- Error: and 30 more in the report" in told
    assert len(told) < 50


def test_an_interruption_is_told_first() -> None:
    told = lines(concluded(SCENES["interrupted"]()))
    assert told[1] == "FINAL ACCEPTANCE: INCONCLUSIVE (interrupted by SIGINT)"
    assert "not a PASS: training was not finished by all" in told


def test_planted_faults_cannot_be_overlooked() -> None:
    conclusion = concluded(healthy(planted=["kill rank 1 in collectives"]))
    assert any(line.startswith("PLANTED FAULTS: kill rank 1 in collectives") for line in lines(conclusion))
    assert "Planted faults:" in html(conclusion)


def test_the_page_shows_values_as_a_plan_file_has_them() -> None:
    assert [plan_value(value) for value in (None, True, "a", 30.0, 0.5, ["fp32", None])] == [
        *("none", "true", '"a"', "30", "0.5", '["fp32", none]')
    ]
    values = {"minutes": Setting(value=30.0, origin="level quick"), "min_tflops": Setting(value=None, origin="default")}
    plan = replace(a_plan(("compute",)), settings={"compute": {**a_plan().settings["compute"], **values}})
    page = html(concluded(healthy(plan=plan)))
    assert re.search(r"compute\.minutes</td>\s*<td>30</td>", page)
    assert re.search(r"compute\.min_tflops</td>\s*<td>none</td>", page)


def test_what_the_ranks_were_told_of_the_network_can_be_copied() -> None:
    conclusion = concluded(healthy(env={"NCCL_NET": "Socket", "OMPI_MCA_btl": "^openib; x", "HOME_TOKEN": "secret"}))
    assert "the ranks had: NCCL_NET=Socket OMPI_MCA_btl='^openib; x'" in lines(conclusion)
    assert "env.NCCL_NET" in html(conclusion)
    assert not any("secret" in line for line in [*lines(conclusion), html(conclusion)])
    assert not any("the ranks had" in line for line in lines(concluded(healthy())))


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("OMPI_COMM_WORLD_RANK", "0")], ids=lambda given: given
)
def test_colours_only_on_the_terminal_of_a_person_who_wants_them(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("NO_COLOR", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    told = lines(concluded(SCENES["killed"]()))
    plain, coloured = io.StringIO(), Terminal()
    print_lines(told, plain)
    print_lines(told, coloured)
    assert plain.getvalue() == "".join(f"{line}\n" for line in told)
    assert "\x1b[" in coloured.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.getvalue()) == plain.getvalue()
    monkeypatch.setenv(name, value)
    again = Terminal()
    print_lines(told, again)
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
    said = {case.get("name"): child.get("message") for case in suite for child in case}
    assert said["collectives"] == "NOT CHECKED (never begun)"
    assert said["training"] == "NOT CHECKED (not asked for)"
    assert "\nfail compute: rank 0 is slow" in "".join(suite.itertext())


def test_charts_are_drawn_by_kind() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.begin("compute")
    for rank in stream.alive:
        stream.tell("compute", rank)
        for power in (3, 10, 20):
            stream.tell("compute", rank, float(power), name="busbw", size_bytes=1 << power, variant="all_reduce")
        for step in range(5):
            stream.tell("compute", rank, 1 / (1 + step), name="loss", step=step)
        stream.tell("compute", rank, 7.5, name="bandwidth", peer=1 - rank)
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
    told = lines(conclusion)
    assert any(re.match(r"compute +busbw all_reduce 1 MiB +20 GB/s", line) for line in told)
    assert any(re.match(r"compute +loss +0.2 GB/s", line) for line in told)


def test_what_was_measured_between_two_ranks_is_a_small_table_on_the_console() -> None:
    stream = Stream(3, plan=a_plan(("compute",)))
    for rank in range(3):
        stream.tell("compute", rank, 7.5 if rank else 0.75, name="bandwidth", peer=(rank + 1) % 3)
    told = lines(concluded(stream.close()))
    (first,) = (index for index, line in enumerate(told) if line.startswith("compute bandwidth"))
    assert told[first].endswith("from the rank of the row to that of the column")
    assert told[first + 1 : first + 5] == [
        "            0     1    2",
        "  rank 0       0.75",
        "  rank 1             7.5",
        "  rank 2  7.5",
    ]
    many = Stream(9, plan=a_plan(("compute",)))
    for rank in range(9):
        many.tell("compute", rank, 7.5, name="bandwidth", peer=(rank + 1) % 9)
    assert any("9 ranks, see the report" in line for line in lines(concluded(many.close())))


def test_of_a_figure_that_a_long_check_tells_again_the_last_word_of_each_rank_counts() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.begin("compute")
    for value in (9.0, 6.0, 3.0):
        for rank in stream.alive:
            stream.tell("compute", rank, value + rank)
    conclusion = concluded(stream.close())
    (row,) = document(conclusion)["validation"]["main_figures"]
    assert (row["value"], row["low"], row["high"], row["count"]) == (3.5, 3.0, 4.0, 2)
    assert any(re.match(r"compute +value +3\.5 GB/s +3 to 4 over 2", line) for line in lines(conclusion))
