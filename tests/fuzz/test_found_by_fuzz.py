"""Inputs on which the fuzz failed, each as small as it could be made."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, healthy
from fake_checks import fake_load
from fuzz.harness import assert_sentence
from fuzz.test_fuzz_arguments import nothing_is_started, typed

from seatrial.checks import registry
from seatrial.cli.argparse_app import parse
from seatrial.cli.click_app import main
from seatrial.environment.identity import identify
from seatrial.errors import RequestError
from seatrial.judge.conclude import conclude
from seatrial.judge.fold import fold
from seatrial.judge.trial import Trial
from seatrial.plan.plan_reader import read_plan
from seatrial.probe.torch_install import find_torch
from seatrial.report.progress import Progress
from seatrial.run.external_launcher import find_rendezvous

_CHECKS = {name: registry.load(name) for name in registry.names()}


def _refused(folder: Path, text: str, name: str = "p.toml") -> str:
    path = folder / name
    path.write_text(text)
    with pytest.raises(RequestError) as refused:
        read_plan(
            str(path),
            schemas=registry.schemas(),
            scopes=registry.scopes(),
        )
    message = str(refused.value)
    assert_sentence(message.replace(str(folder), ""))
    return message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'level = "quick"\nbootstrap.timeout_s = 0',
            "bootstrap.timeout_s is 0.0 (a number), expected seconds above 0",
        ),
        ("level." + "a." * 90 + "a = 1", "level is {'a': {'a':"),
        ("x = 1\n" + "a." * 400_000 + "a = 1", "line 2 has more than 100 dots"),
        ('x = ["""\n#""", {' + "a." * 400_000 + "a = 1}]", "line 2 has more than 100 dots"),
        (f'level = "quick"\ncompute.cpu_dtypes = ["{"9" * 5_000}"]', "cpu_dtypes is ['999"),
        (f'level = "quick"\n[{"x" * 5_000}]\n[{"x" * 5_000}]', "is not valid TOML"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_plan_files(tmp_path: Path, text: str, words: str) -> None:
    assert words in _refused(tmp_path, text)


def test_a_comment_may_have_any_number_of_dots(tmp_path: Path) -> None:
    assert "level is 'x'" in _refused(tmp_path, f"  # {'.' * 500}\nlevel = 'x'")


def test_the_name_of_a_plan_is_shown_on_one_line(tmp_path: Path) -> None:
    assert r"a\x0ab\x1b[2J.toml" in _refused(tmp_path, "x = 1", "a\nb\x1b[2J.toml")


_SRUN = {
    "SEATRIAL_TOKEN": "0123456789abcdefghij",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
}


@pytest.mark.parametrize("nodelist", [" ", "\0", "n[", "n[]", "n[0-3", "a b", "[a]", "n" * 300, "\x1b[2J"])
def test_a_list_of_nodes_without_a_first_host_is_refused(nodelist: str) -> None:
    environ = {**_SRUN, "SLURM_STEP_NODELIST": nodelist}
    with pytest.raises(RequestError) as refused:
        find_rendezvous(identify(environ), environ)
    assert_sentence(str(refused.value))


def test_the_first_host_may_have_numbers_in_several_places() -> None:
    environ = {**_SRUN, "SLURM_STEP_NODELIST": "r[1-2]n[07,9],m"}
    assert find_rendezvous(identify(environ), environ).host == "r1n07"


def test_an_environment_need_not_be_utf_8() -> None:
    environ = {**_SRUN, "SLURM_JOB_ID": "\udcff", "SLURM_STEP_NODELIST": "n", "SEATRIAL_TOKEN": "\udcfe" * 20}
    other = {**environ, "SEATRIAL_TOKEN": "\udcfd" * 20}
    assert find_rendezvous(identify(environ), environ).token != find_rendezvous(identify(other), other).token


def _trial(stream: Stream) -> Trial:
    conclusion = conclude(stream.events, load=fake_load)
    assert conclusion.verdict.status != "PASS"
    return conclusion.trial


def _before_the_end(src: str, kind: str, **payload: Any) -> Stream:
    """A healthy trial in which a source says one thing more, rightly numbered."""
    stream = healthy()
    end = next(event for event in stream.events if (event["src"], event["kind"]) == (src, "end"))
    stream.events.remove(end)
    stream.events.append({**end, **payload, "kind": kind})
    stream.events.append({**end, "seq": end["seq"] + 1})
    return stream


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (lambda: _before_the_end("node0", "note", severity="error"), "note: text"),
        (lambda: _before_the_end("rank1.0", "end"), "after its `end` event"),
        (lambda: _before_the_end("rank1.0", "rank", gen=0, node_rank=0, local_rank=1, device="another"), "sent twice"),
        (lambda: _before_the_end("node0", "node", node=0, hostname="another"), "sent twice"),
    ],
)
def test_an_event_of_an_unknown_source_is_no_pass(stream: Any, words: str) -> None:
    assert words in " ".join(_trial(stream()).missing)


def test_an_unannounced_generation_is_no_pass() -> None:
    stream = healthy()
    stream.send("rank1.1", "done", gen=1, step=0, rank=1, seconds=0.1, share={})
    missing = " ".join(_trial(stream).missing)
    assert "done: of a generation that was not begun, from rank 1" in missing
    without = [event for event in stream.events if (event["src"], event["kind"]) != ("conductor", "end")]
    assert "the `generation` event of attempt 1 is missing" in " ".join(fold(without).missing)


def test_a_rank_that_is_not_in_its_generation_blames_nobody() -> None:
    stream = healthy()
    place = {"gen": 0, "step": 2, "rank": 7}
    stream.send("rank7.0", "error", **place, cause="device", type="E", message="m", stack="", phase="p")
    stream.send("rank7.0", "end")
    assert _trial(stream).errors == ()


def test_an_exit_event_from_another_node_blames_nobody() -> None:
    stream = healthy(2, nodes=2)
    stream.events = [event for event in stream.events if (event["src"], event["kind"]) != ("node0", "exit")]
    at = next(number for number, event in enumerate(stream.events) if (event["src"], event["kind"]) == ("node1", "end"))
    lie = {"kind": "exit", "gen": 0, "rank": 0, "code": -9, "ours": False, "phase": "p", "last_lines": []}
    stream.events[at] = {**stream.events[at], **lie}
    conclusion = conclude(stream.events, load=fake_load)
    assert conclusion.verdict.status == "INCONCLUSIVE"
    assert not [finding for finding in conclusion.findings if finding.severity == "fail"]


def test_an_empty_trouble_is_not_shown() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress({"kind": "trouble", "seen": ["x"]})
    progress.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("option", ["--on", "--only", "--skip", "--python", "--epochs", "--a\x1b[1m\n"])
def test_typed_text_is_shown_on_one_line(tmp_path: Path, option: str) -> None:
    with nothing_is_started(tmp_path):
        code, out, err = typed(main, ["run", "--dry-run", option, "a\x1b[2J\nb"])
    assert (code, out) == (2, "")
    assert "\x1b" not in err
    assert_sentence(err.rstrip("\n").split("\n")[-1])


def test_a_dry_run_shows_control_characters_as_a_shell_reads_them(tmp_path: Path) -> None:
    with nothing_is_started(tmp_path):
        code, out, _ = typed(main, ["run", "--dry-run", "smoke", "--device", "cpu", "--out", "it's \x1b é"])
    assert code == 0
    assert r"$'SEATRIAL_KEEP=it\x27s \x1b \xc3\xa9/RUN-ID'" in out


@pytest.mark.parametrize("word", ["--on=--", "--only=--", "--epochs=--"])
def test_two_dashes_are_no_value_of_the_bundle(word: str) -> None:
    with pytest.raises(RequestError, match=f"{word}: two dashes are not a value"):
        parse("seatrial.pyz", "run", ["smoke", word])


@pytest.mark.parametrize("size", ["2", True, [2], 2.0])
def test_an_invalid_number_of_ranks_is_no_pass(size: Any) -> None:
    stream = healthy()
    (run,) = [event for event in stream.events if event["kind"] == "run"]
    run["job"] = {**run["job"], "world_size": size}
    assert _trial(stream).missing


def test_the_name_of_an_interpreter_is_shown_once() -> None:
    name = "a" * 300
    with pytest.raises(RequestError) as refused:
        find_torch(name)
    assert str(refused.value).count(name) == 1
