"""The card and the findings above it: numbers that add up, evidence that says something, commands to copy."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest
from event_streams import SCENES, Stream, healthy
from fake_checks import fake_load

from seatrial.evidence.findings import NOBODY, Culprit, Finding, Limit
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.report.card import figures
from seatrial.report.console import lines
from seatrial.report.finding_lines import finding_lines
from seatrial.report.summary import sentence
from seatrial.report.view import View, command_lines, wrapped
from seatrial.targets.hidden_values import HIDDEN


def concluded(stream: Stream) -> Conclusion:
    return conclude(stream.events, load=fake_load)


def test_agents_of_one_machine_are_one_node() -> None:
    """Under torchrun, mpirun and srun each rank has a separate agent; ``--nodes N`` stands for N nodes."""
    for local_ranks, words in (((0, 1, 0, 1), "4 CPU ranks on 2 nodes"), ((0, 0, 0, 0), "4 CPU ranks on 4 nodes")):
        stream = Stream(4, nodes=4, hostnames=("gpu-0", "gpu-0", "gpu-1", "gpu-1"), nproc_per_node=1)
        for event in stream.events:
            if event["kind"] == "node":
                event["address"] = event["hostname"]
            if event["kind"] == "rank":
                event["local_rank"] = local_ranks[event["rank"]]
        assert words in figures(concluded(stream.close()))


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_the_numbers_of_checks_add_up(scene: str) -> None:
    words = figures(concluded(SCENES[scene]()))
    total = re.search(r"(\d+) of (\d+) checks? ", words)
    assert total is not None
    others = re.findall(r", (\d+) (?:passed|inconclusive|not run|not checked|not applicable)", words)
    assert sum(map(int, [total[1], *others])) == int(total[2]), words


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_no_heading_stands_without_what_it_announces(scene: str, columns: int) -> None:
    shown = lines(concluded(SCENES[scene]()), view=View(columns=columns))
    for line, following in pairwise(shown):
        if line.startswith("        ") and line.endswith(":"):
            assert following.startswith("          "), (line, following)


def test_of_a_stack_the_innermost_call_is_shown() -> None:
    """A traceback ends with it; faulthandler begins with it, in the thread that was asked."""
    of_faulthandler = (
        "stack of rank 1:\nThread 0x01 (most recent call first):\n"
        + '  File "threading.py", line 1 in wait\n' * 8
        + 'Current thread 0x02 (most recent call first):\n  File "inner.py", line 7 in f\n'
        + '  File "outer.py", line 9 in <module>\n' * 8
    )
    of_python = (
        "its stack:\nTraceback (most recent call last):\n"
        + '  File "outer.py", line 9 in <module>\n    main()\n' * 8
        + '  File "inner.py", line 7 in f\n    g()\nRuntimeError: no'
    )
    for stack in (of_faulthandler, of_python):
        finding = Finding(
            severity="fail", check="x", what="it failed", culprit=NOBODY, evidence=(stack, "rank 0 waited")
        )
        shown = finding_lines((finding,), View(columns=80), 23)
        assert any('File "inner.py", line 7 in f' in line for line in shown), shown
        assert shown[-2] == "        rank 0 waited"
        assert shown[-1].endswith(" more lines in the report")


def test_of_a_long_path_in_a_stack_the_end_is_shown() -> None:
    path = "/a/very/long/path" * 6 + "/inner.py"
    stack = f'stack of rank 1:\nThread 0x01 (most recent call first):\n  File "{path}", line 7 in f\n' + "  more\n" * 9
    finding = Finding(severity="fail", check="x", what="it " * 60 + "failed", culprit=NOBODY, evidence=(stack,))
    heading, announced, call, more = finding_lines((finding,), View(columns=80), 6)
    assert (heading.startswith("fail  x: it"), announced) == (True, "        stack of rank 1:")
    assert call.startswith('            File "...')
    assert call.endswith('/inner.py", line 7 in f')
    assert len(call) == 80
    assert more == "        10 more lines in the report"


def test_a_long_error_keeps_its_advice() -> None:
    limit = Limit(value=675.3, unit="TFLOP/s", origin="a long origin " * 40)
    what = f"rank 1 is slow {'in everything ' * 40}"
    finding = Finding(severity="fail", check="x", what=what, culprit=NOBODY, limit=limit, action="look at its clocks")
    short = sentence(finding, 300)
    assert len(short) <= 300
    assert short.endswith("; look at its clocks")
    assert "limit 675.3 TFLOP/s" in short


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_a_broken_command_is_read_by_a_shell_as_the_whole(columns: int) -> None:
    words = ["seatrial", "run", "limits.toml", "--on", "ssh", "--hosts", f"gpu-{'0' * 90}", "--env", "'A=b c'", "-v"]
    broken = command_lines(words, columns)
    shell = ["sh", "-c", "set -- " + "\n".join(broken) + "\nprintf '%s\\n' \"$@\""]
    read = subprocess.run(shell, capture_output=True, text=True, check=True, timeout=60).stdout
    assert read.splitlines() == shlex.split(" ".join(words))
    assert all(len(line) <= columns or len(line.split()) <= 2 for line in broken)
    assert [part for line in broken for part in wrapped(line, columns)] == broken


def faulty(*actions: str, device: str = "NVIDIA H200") -> Conclusion:
    """Return a trial with a fault for each advice, on ranks of one node."""
    culprits = [Culprit(kind="device", name=f"rank {i} ({device})", nodes=("n1",)) for i in range(len(actions))]
    faults = (
        Finding(severity="fail", check="x", what=f"it failed {number} times", culprit=culprit, action=action)
        for number, (action, culprit) in enumerate(zip(actions, culprits, strict=True))
    )
    return replace(concluded(SCENES["killed"]()), findings=tuple(faults))


@pytest.mark.parametrize("count", [2, 3, 12])
def test_an_advice_is_said_once(count: int) -> None:
    shown = "\n".join(lines(faulty(*["reset it"] * count, "replace it"))).partition("report: ")[0]
    assert (shown.count("reset it"), shown.count("replace it")) == (1, int(count < 10))
    assert "\n".join(lines(faulty("reset it", "replace it", "reset it"))).count("replace it") == 1
    assert "\n".join(lines(faulty("reset it", "reset it"))).count("reset it") == 1


@pytest.mark.parametrize(
    ("advice", "device", "command"),
    [
        ("see (dmesg -T | grep -iE 'xid|ecc'), reset it", "x", "dmesg -T | grep -iE 'xid|ecc'"),
        ("look (nvidia-smi -q -d ECC,ROW_REMAPPER or amd-smi metric --ecc)", "NVIDIA H200", "nvidia-smi -q -d ECC,ROW"),
        ("look (nvidia-smi -q -d ECC,ROW_REMAPPER or amd-smi metric --ecc)", "AMD MI300X", "amd-smi metric --ecc"),
        ("look (nvidia-smi -q -d ECC,ROW_REMAPPER or amd-smi metric --ecc)", "other", ""),
        ("ask node dmesg -T | grep -i 'x' ; rm -rf /; $(rm)", "x", "dmesg -T | grep -i 'x'"),
        ("check that nvidia-smi; rm -rf / is up (dmesg; rm)", "NVIDIA H200", ""),
    ],
)
def test_the_command_of_an_advice_stands_after_next(advice: str, device: str, command: str) -> None:
    last = lines(faulty(advice, device=device))[-1]
    first = f"next: look on node n1: {command}" if command else "next: fix the problem above, then run: "
    assert last.startswith(first)
    assert "fix the problem above, then run: seatrial run quick" in last
    assert "rm" not in last


def test_a_number_stays_with_its_unit() -> None:
    assert wrapped("it waited until the end for 18 s", 30) == ["it waited until the end for", "  18 s"]


def test_a_drill_asks_for_no_repair() -> None:
    stream = SCENES["killed"]()
    stream.events[0]["job"]["planted"] = ["kill@collectives:1"]
    shown = lines(concluded(stream))
    assert shown[0].startswith("DRILL (kill@collectives:1): ")
    assert any(line.startswith("FAIL (drill): level quick, 1 of 4 checks failed") for line in shown)
    assert any(line.startswith("at fault in this drill: rank 1 ") for line in shown)
    assert shown[-1].startswith(
        "next: nothing to repair, the fault was planted; for a real trial, run: env -u SEATRIAL_PLANT seatrial "
    )


@pytest.mark.parametrize("scene", ["healthy", "killed", "own", "interrupted", "too short"])
def test_a_command_with_hidden_values_says_what_to_fill_in(scene: str) -> None:
    stream = healthy() if scene == "healthy" else SCENES[scene]()
    stream.events[0]["job"]["options"] = ["--env", f"A={HIDDEN}"]
    shown = lines(concluded(stream))[-1]
    assert "write the values in place of (hidden) and run: " in shown
    assert "--env 'A=(hidden)'" in shown


def test_a_bug_of_ours_is_to_be_reported() -> None:
    assert lines(concluded(SCENES["own"]()))[-1] == "next: report the bug; to try once more, run: seatrial run quick"


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("healthy", "PASS"),
        ("stuck", "FAIL"),
        ("frozen", "FAIL (because of rank 1)"),
        ("second fault", "FAIL (because of ranks 2, 3 on node gpu-1)"),
        ("node lost", "FAIL (because of node gpu-1)"),
        ("fabric", "FAIL (in training; its own check passed)"),
    ],
)
def test_communication_says_who_made_it_fail(scene: str, words: str) -> None:
    assert f"- Communication (gloo): {words}" in lines(concluded(SCENES[scene]()))


def test_a_rank_or_its_links_do_not_make_communication_fail() -> None:
    """Nothing tells which of the two it was: its own check passed."""
    conclusion = concluded(SCENES["fabric"]())
    known = Culprit(kind="fabric", name="rank 1 or the links that lead to it, not separable", ranks=(1,))
    findings = tuple(replace(finding, culprit=known) for finding in conclusion.findings)
    assert "- Communication (gloo): PASS" in lines(replace(conclusion, findings=findings))


_NOISE = (
    "[W1123 18:58:10.366516123 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
)


def test_a_warning_of_every_rank_is_not_shown_as_the_last_output() -> None:
    last = "RuntimeError: sample 4711"
    finding = Finding(
        severity="fail",
        check="training",
        what="rank 1 failed",
        culprit=NOBODY,
        evidence=(f"its last output:\n{_NOISE}",),
    )
    assert finding_lines((finding,), View(), 6) == ["fail  training: rank 1 failed"]
    both = replace(finding, evidence=(f"its last output:\n{last}\n{_NOISE}",))
    assert finding_lines((both,), View(), 6)[1:] == ["        its last output:", f"          {last}"]
    # -v shows what was recorded.
    assert any(_NOISE in line for line in finding_lines((finding,), View(is_verbose=True), 6))


def test_no_line_says_that_there_are_no_more_lines() -> None:
    long = "x" * 300
    finding = Finding(
        severity="fail", check="training", what="rank 1 failed", culprit=NOBODY, evidence=(f"its stack:\n{long}", long)
    )
    for rows in range(1, 9):
        shown = finding_lines((finding,), View(), rows)
        assert not any(line.strip().startswith("0 more") for line in shown), shown


def test_a_drill_is_repeated_without_its_folder() -> None:
    stream = SCENES["killed"]()
    stream.events[0]["job"] |= {"planted": ["kill@training:1"], "options": ["--out", "/drill", "--device", "cpu"]}
    assert lines(concluded(stream))[-1].endswith(" env -u SEATRIAL_PLANT seatrial run quick --device cpu")


def test_one_link_of_two_nodes_is_repeated_before_it_is_repaired() -> None:
    stream = Stream(2, nodes=2)
    conclusion = concluded(stream.close())
    link = Culprit(kind="link", name="link n0-n1", ranks=(0, 1), nodes=("n0", "n1"))
    finding = Finding(severity="fail", check="links", what="the link is slow", culprit=link)
    slow = replace(conclusion, findings=(finding,), verdict=replace(conclusion.verdict, status="FAIL"))
    assert lines(slow)[-1].startswith(
        "next: two nodes have one link, which nothing tells from its ends: repeat first; run:"
    )
