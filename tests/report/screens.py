"""Screens of the console: recorded trials and wrong requests as the real renderer prints them on a terminal.

``tools/write_screens.py`` writes them into the folder ``screens``.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from event_streams import SCENES, Stream, on_gpus
from fake_checks import fake_load
from report import check_scenes, program_scenes
from report.check_scenes import PLAN, fell_off_the_bus, uncorrectable
from report.whole_scenes import trial_of_level

from seatrial.cli.click_app import main
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.protocol.wire import Decoder
from seatrial.report.console import lines, print_lines
from seatrial.report.disturbance import DISTURBED_ORIGIN
from seatrial.report.view import View

HERE = Path(__file__).parent
COLUMNS = (60, 80)
_TWO_HOSTS = ("--on", "ssh", "--hosts", "gpu-0,gpu-1")
_REPORT = Path("reports/20260102-030405-abcd/report.html")


def _recorded(name: str) -> Conclusion:
    """Judge a real trial again, from its events in ``recordings``."""
    decoder = Decoder()
    messages = list(decoder.lines((HERE / "recordings" / f"{name}.events").read_bytes()))
    return conclude(messages, damaged=decoder.damaged)


def _scene(stream: Stream) -> Conclusion:
    return conclude(stream.events, load=fake_load)


def _judged(scene: Callable[[], Stream]) -> Conclusion:
    """Judge a trial by the real checks."""
    return conclude(scene().events)


def _disturbed() -> Conclusion:
    """Judge the acceptance of a rank that waited for the CPU, by limits of such runs."""
    decoder = Decoder()
    messages = list(decoder.lines((HERE / "recordings" / "pass.events").read_bytes()))
    for message in messages:
        for entry in message.get("measurements", ()):
            if (entry["check"], entry["name"]) == ("compute", "cpu_share"):
                entry["value"] = 0.38
        if message["kind"] == "run":
            message["plan"] |= {"name": PLAN, "demands_limits": True}
            for check, name in (
                ("compute", "min_tflops"),
                ("memory", "min_copy_gbps"),
                ("collectives", "min_busbw_gbps"),
            ):
                origin = f"plan {PLAN}: from 3 runs {DISTURBED_ORIGIN}: median 0.5, lowest 0.4 less half of it"
                message["plan"]["settings"][check][name] = [1e-9, origin]
    return conclude(messages)


def _deadline() -> Stream:
    stream = SCENES["too short"]()
    for event in stream.events:
        if event["kind"] == "rank":
            event["device"] = "AMD EPYC 9554"
    stream.events[0]["plan"]["settings"]["training"] |= {"max_steps": [300, "level quick"]}
    return stream


TRIALS: Mapping[str, Callable[[], Conclusion]] = {
    "pass": lambda: _recorded("pass"),
    "pass-gpus": lambda: _judged(trial_of_level),
    "pass-partial": lambda: _judged(partial(trial_of_level, skip=("training",))),
    "pass-disturbed": _disturbed,
    "fail-killed": lambda: _recorded("killed"),
    "fail-wrong": lambda: _recorded("wrong"),
    "fail-slow": lambda: _judged(partial(trial_of_level, slow=(3,))),
    "fail-diagnostics-xid": lambda: _judged(partial(trial_of_level, seen=fell_off_the_bus())),
    "fail-diagnostics-ecc": lambda: _judged(partial(trial_of_level, seen=uncorrectable())),
    "fail-hang": lambda: _scene(on_gpus(SCENES["absent"]())),
    "fail-frozen": lambda: _scene(on_gpus(SCENES["frozen"]())),
    "fail-stuck-together": lambda: _scene(on_gpus(SCENES["stuck"](), *_TWO_HOSTS)),
    "fail-out-of-memory": lambda: _scene(on_gpus(SCENES["out of memory"]())),
    "fail-device": lambda: _scene(on_gpus(SCENES["device"]())),
    "fail-node-lost": lambda: _scene(on_gpus(SCENES["node lost"](), *_TWO_HOSTS)),
    "fail-communication": lambda: _scene(on_gpus(SCENES["fabric"]())),
    "fail-two-faults": lambda: _scene(on_gpus(SCENES["second fault"](), *_TWO_HOSTS)),
    "inconclusive-deadline": lambda: _scene(_deadline()),
    "inconclusive-own": lambda: _scene(on_gpus(SCENES["own"]())),
    "interrupted": lambda: _scene(on_gpus(SCENES["interrupted"]())),
    **{name: partial(_judged, scene) for name, scene in check_scenes.SCENES.items()},
}


WRONG_REQUESTS: Mapping[str, tuple[str, ...]] = {
    "usage-error": ("run", "--nproc", "2"),
    "usage-error-value": ("run", "smoke", "--nproc-per-node", "0"),
    "usage-error-plan": ("run", "quik"),
}
SCREENS = (*TRIALS, *WRONG_REQUESTS, *program_scenes.SCENES)


class Terminal(io.StringIO):
    """A terminal; its columns come from COLUMNS, as a user may set them."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def screen(name: str, columns: int) -> str:
    """Return what a terminal of this width shows. COLUMNS must have the same value, and NO_COLOR be set."""
    terminal = Terminal()
    if name in TRIALS:
        print_lines(lines(TRIALS[name](), _REPORT, View(columns=columns)), terminal)
        return terminal.getvalue()
    if name in program_scenes.SCENES:
        with contextlib.redirect_stderr(terminal), contextlib.redirect_stdout(terminal):
            return program_scenes.show(name, terminal)
    typed = sys.argv
    sys.argv = ["seatrial", *WRONG_REQUESTS[name]]
    try:
        with contextlib.redirect_stderr(terminal), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = typed
    return terminal.getvalue()
