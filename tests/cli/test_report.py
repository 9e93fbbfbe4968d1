"""``seatrial report``: the same verdict from files, folders and raw logs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from event_streams import RUN, SCENES, healthy, lines_of
from fake_checks import fake_load
from report import program_scenes

from seatrial.checks import registry
from seatrial.cli.click_app import cli
from seatrial.errors import RequestError
from seatrial.protocol.events import SCHEMA
from seatrial.protocol.wire import encode
from seatrial.report import recorded_events
from seatrial.util.text import and_list


@pytest.fixture(autouse=True)
def _judged_by_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load", fake_load)


def call(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], standalone_mode=False)


def refused(*arguments: Any) -> str:
    result = call(*arguments)
    assert isinstance(result.exception, RequestError)
    assert result.exception.exit_code == 2
    return str(result.exception)


@pytest.mark.parametrize(("scene", "code"), [("healthy", 0), ("killed", 1), ("own", 3), ("interrupted", 130)])
def test_the_exit_code_is_the_verdicts(tmp_path: Path, scene: str, code: int) -> None:
    file = tmp_path / "controller.events"
    file.write_bytes(b"".join(lines_of(SCENES[scene]().events)))
    result = call(file)
    assert result.return_value == code
    assert sum(line.startswith("FINAL ACCEPTANCE: ") for line in result.stdout.splitlines()) == 1
    assert result.stdout.splitlines()[-1].startswith("next: ")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--on", "slurm", "--nodes=2", "--require-full"], "--on slurm --nodes 2 --require-full"),
        (["--mpirun", "/tmp/evil", "--on", "mpirun"], "--mpirun MPIRUN --on mpirun"),
        (["--env", "LD_PRELOAD=/tmp/evil.so", "--env=A=evil"], "--env ENV"),
        (["--hosts", "-oProxyCommand=x"], "--hosts HOSTS"),
        (["--nodes", "2; rm"], "--nodes NODES"),
        (["--nodes"], "--nodes NODES"),
        (["--only", "--out"], "--only ONLY"),
        (["--unprotected", "--nodes", "2"], "--nodes 2 OTHER-OPTIONS"),
        (["--evil", "$(evil)"], "OTHER-OPTIONS"),
    ],
)
def test_options_of_others_that_could_do_harm_are_not_for_copying(
    tmp_path: Path, options: list[str], shown: str
) -> None:
    events = SCENES["killed"]().events
    for event in events:
        if event["kind"] == "run":
            event["job"].update(options=options, launcher="a $(launcher)")
            event["plan"]["name"] = "/tmp/evil.toml"
    file = tmp_path / "controller.events"
    file.write_bytes(b"".join(lines_of(events)))
    last = call(file).stdout.splitlines()[-1]
    assert last.endswith(f" run PLAN.toml {shown}")
    blanks = [word for word in shown.split() if word.isupper()]
    assert f" put your own in place of {and_list(['PLAN.toml', *blanks])} and run: " in last
    assert "evil" not in last
    assert "(launcher)" not in last


def test_variables_of_others_that_load_libraries_are_not_for_copying(tmp_path: Path) -> None:
    events = SCENES["killed"]().events
    for event in events:
        if event["kind"] == "run":
            event["job"]["env"] = {"NCCL_IB_HCA": "^mlx5_0:1,mlx5_1", "NCCL_NET_PLUGIN": "/tmp/evil.so", "UCX_X": "a b"}
    file = tmp_path / "controller.events"
    file.write_bytes(b"".join(lines_of(events)))
    (line,) = (line for line in call(file).stdout.splitlines() if line.startswith("environment of the ranks: "))
    assert line.endswith(
        " NCCL_IB_HCA='^mlx5_0:1,mlx5_1' (not shown: NCCL_NET_PLUGIN, UCX_X; see job.env in report.json)"
    )


def test_a_folder_and_a_raw_log_say_the_same_as_the_events(tmp_path: Path) -> None:
    events = SCENES["killed"]().events
    sources = sorted({event["src"] for event in events})
    folder = tmp_path / "run"
    folder.mkdir()
    for src in sources:
        own = [event for event in events if event["src"] == src]
        (folder / f"{src}.events").write_bytes(b"".join(lines_of(own)))
    (folder / "rank0.log").write_bytes(b"not ours\n")
    log = tmp_path / "kubectl.log"
    log.write_bytes(b"".join(b"[pod-1] 2026-01-02 " + line + b"progress 10%\r\xff\xfe\n" for line in lines_of(events)))
    told = [call(path, "--json") for path in (folder, log)] + [call(folder, log, folder, "--json")]
    first, *others = [json.loads(result.stdout) for result in told]
    assert first["acceptance"]["status"] == "FAIL"
    assert all(other == first for other in others)


def test_a_report_beside_its_events_is_replaced_with_them_only(tmp_path: Path) -> None:
    """Somebody else may copy the name and the time of a run."""
    folder, report = tmp_path / RUN, tmp_path / RUN / "report.json"
    folder.mkdir()
    foreign = _file(tmp_path / "foreign.events")
    (folder / "controller.events").write_bytes(b"".join(lines_of(SCENES["killed"]().events)))
    call(folder, "--out", tmp_path)
    before = report.read_bytes()
    assert json.loads(before)["acceptance"]["status"] == "FAIL"
    assert f"give {folder}, too, or name another folder" in refused(foreign, "--out", tmp_path)
    assert report.read_bytes() == before
    report.write_bytes(before.replace(b'"FAIL"', b'"PASS"'))
    for own in (folder, folder / "controller.events"):
        assert call(own, "--out", tmp_path).return_value == 1
    assert report.read_bytes() == before
    (folder / "controller.events").rename(tmp_path / "moved.events")
    assert call(foreign, "--out", tmp_path).return_value == 0


def test_out_writes_the_reports(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"".join(lines_of(healthy().events)))
    result = call(file, "--out", tmp_path / "again")
    assert result.return_value == 0
    assert (tmp_path / "again" / RUN / "report.html").is_file()
    assert f"report: {tmp_path}/again/{RUN}/report.html" in result.stdout


@pytest.mark.parametrize("foreign", [("report.json", "report.html"), ("report.html",), ()], ids=["all", "page", "none"])
def test_a_report_in_the_folder_is_named_only_where_it_is_this_one(tmp_path: Path, foreign: tuple[str, ...]) -> None:
    """The page of a stranger may have scripts, and may say PASS."""
    call(_file(tmp_path / "x.jsonl"), "--out", tmp_path)
    folder = _file(tmp_path / RUN / "controller.events").parent
    for name in foreign:
        (folder / name).write_text("<script>alert(1)</script>")
    named = [line for line in call(folder).stdout.splitlines() if line.startswith("report: ")]
    expected = {2: [], 1: [f"report: {folder}/report.json"], 0: [f"report: {folder}/report.html"]}
    assert named == expected[len(foreign)]


def _file(path: Path) -> Path:
    path.write_bytes(b"".join(lines_of(healthy().events)))
    return path


def test_a_cut_log_is_no_pass(tmp_path: Path) -> None:
    file = tmp_path / "cut.log"
    text = b"".join(lines_of(healthy().events))
    file.write_bytes(text[: len(text) - 20])
    assert call(file).return_value == 3


def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be read" in refused(tmp_path / "nothing")
    assert "no event file" in refused(tmp_path)
    for run in ("reports/20260101-000000-aaaa", "reports/20260102-000000-bbbb", "reports/20260103-000000-cccc"):
        (tmp_path / run).mkdir(parents=True)
        if not run.endswith("cccc"):
            (tmp_path / run / "controller.events").touch()
    assert refused(tmp_path / "reports").endswith(f"such as {tmp_path}/reports/20260102-000000-bbbb.")
    empty = tmp_path / "empty.events"
    empty.write_bytes(b"")
    assert "no events" in refused(empty)
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refused(tmp_path / "pipe")
    assert recorded_events._MAX_BYTES == 1 << 30
    monkeypatch.setattr(recorded_events, "_MAX_BYTES", 1 << 20)
    huge = tmp_path / "huge.log"
    with huge.open("wb") as file:
        file.truncate((1 << 20) + 1)
    assert "in total; give the event files only" in refused(huge)


def test_two_runs_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "two.events"
    file.write_bytes(b"".join(lines_of(healthy().events + healthy(run="other").events)))
    assert "2 runs" in refused(file)


def test_a_training_or_a_script_has_no_report_and_is_not_failed(tmp_path: Path) -> None:
    run = {"kind": "run", "run": RUN, "src": "conductor", "seq": 0, "version": "0.1.0", "schema": SCHEMA}
    file = tmp_path / "controller.events"
    file.write_bytes(b"".join(encode({**run, "job": {"argv": ["python", "train.py"]}})))
    assert "events of seatrial train or launch" in refused(tmp_path)


def program(tmp_path: Path, *events: dict[str, Any]) -> Path:
    """Write the events of a program into a folder, and return it."""
    run = {"kind": "run", "version": "0.1.0", "schema": SCHEMA, "job": {"argv": ["python", "train.py"]}}
    all_events = ({"run": RUN, "src": "conductor", "seq": seq, **event} for seq, event in enumerate((run, *events)))
    (tmp_path / "controller.events").write_bytes(b"".join(line for event in all_events for line in encode(event)))
    return tmp_path


FAILED = {
    "kind": "outcome",
    "gen": 0,
    "how": "failed",
    "text": "rank 3 on node n1 failed\x1b[2J",
    "last_lines": ["  ^^^", "ValueError"],
    "notes": ["all 4 ranks failed"],
}
TROUBLE = {"kind": "trouble", "gen": 0, "seen": [{"how": "dead", "rank": 3}]}


def test_a_script_ends_as_it_did_on_the_terminal(tmp_path: Path) -> None:
    folder = program(tmp_path, {"kind": "stack", "src": "node0", "rank": 3, "quiet_s": 9.0}, TROUBLE, FAILED)
    (folder / "rank3.gen0.log").touch()
    result = call(folder)
    assert (result.return_value, result.stdout) == (2, "")
    refusal, *end = result.stderr.splitlines()
    assert refusal.startswith(f"seatrial: {folder}: these are the events of seatrial train or launch, and only a trial")
    assert refusal.endswith(" Where the ranks were: lines of kind note and stack of controller.events.")
    assert end == [
        "seatrial: all 4 ranks failed.",
        "seatrial: the last output of rank 3:",
        "    ^^^",
        "  ValueError",
        f"Error: rank 3 on node n1 failed\\x1b[2J; all output is in {folder}.",
    ]
    assert call(folder, "--quiet").stderr.splitlines() == end[-1:]


@pytest.mark.parametrize("name", sorted(program_scenes.SCENES))
def test_the_end_of_a_folder_is_the_block_of_the_screen(tmp_path: Path, name: str) -> None:
    scene = program_scenes.SCENES[name]()
    scene.run()
    folder = program(tmp_path, *scene.events)
    (folder / "rank0.gen0.log").touch()
    shown = " ".join(call(folder).stderr.replace(str(folder), "seatrial-runs/20260102-030405-abcd").split())
    screen = (Path(program_scenes.__file__).parent / "screens" / f"{name}.80.txt").read_text()
    block = re.search("^(seatrial|Error): .*", screen, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert shown.endswith(" ".join(block[0].split()))


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"last_lines": 5, "notes": {"a": 1}}, ["Error: rank 3 on node n1 failed\\x1b[2J."]),
        ({"last_lines": [None, ["x"], "y"], "notes": [7]}, ["seatrial: the last output of rank 3:", "  y"]),
        ({"last_lines": ["x"] * 99 + ["y"], "notes": []}, ["seatrial: the last output of rank 3:", *["  x"] * 39]),
        ({"how": "ended", "t": 10**299, "code": 0}, ["seatrial: rank 3 on node n1 failed\\x1b[2J."]),
        ({"how": "interrupted", "text": "x\n\u202e"}, ["seatrial: x\\x0a\\u202e."]),
    ],
)
def test_the_end_of_a_foreign_script_is_read_by_type(tmp_path: Path, changes: dict[str, Any], end: list[str]) -> None:
    result = call(program(tmp_path, TROUBLE, {**FAILED, **changes}))
    assert result.return_value == 2
    assert result.stderr.splitlines()[1 : 1 + len(end)] == end


@pytest.mark.parametrize("changes", [{"how": "no"}, {"how": []}, {"text": 5}, {"src": "node1"}, {"src": "rank1.0"}])
def test_an_end_that_is_none_is_not_told(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert "events of seatrial train or launch" in refused(program(tmp_path, TROUBLE, {**FAILED, **changes}))


def test_events_of_another_schema_name_the_version_that_reads_them(tmp_path: Path) -> None:
    """Judged, they would be a trial of which everything was lost."""
    file = tmp_path / "old.events"
    told = {"run": {"schema": SCHEMA + 1, "version": "7.8.9"}}
    file.write_bytes(b"".join(lines_of([{**event, **told.get(event["kind"], {})} for event in healthy().events])))
    assert f"seatrial 7.8.9 wrote these events, in schema {SCHEMA + 1}" in refused(file)


@pytest.mark.parametrize("changes", [{"checks": 5}, {"checks": {"diagnostics": 1}}, {"checks": "diagnostics"}])
def test_evidence_beside_a_plan_that_is_none_is_a_sentence(tmp_path: Path, changes: dict[str, Any]) -> None:
    events = healthy().events
    (run,) = (event for event in events if event["kind"] == "run")
    run["plan"] |= changes
    (tmp_path / "all.events").write_bytes(b"".join(lines_of(events)))
    (tmp_path / "diag.json").write_text("{}")
    assert "did without it" in refused(tmp_path / "all.events", "--evidence", tmp_path / "diag.json")


def test_evidence_beside_an_event_of_nobody_is_judged(tmp_path: Path) -> None:
    events = healthy().events
    (run,) = (event for event in events if event["kind"] == "run")
    run["plan"]["checks"] = ["diagnostics"]
    events[-1]["src"] = ["node0"]
    (tmp_path / "all.events").write_bytes(b"".join(lines_of(events)))
    (tmp_path / "diag.json").write_text("{}")
    assert call(tmp_path / "all.events", "--evidence", tmp_path / "diag.json").return_value == 3
