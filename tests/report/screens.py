"""Screens of the console: recorded trials and wrong requests as the real renderer prints them on a terminal.

``tools/write_screens.py`` writes them into the folder ``screens``.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

from event_streams import SCENES, Stream, healthy
from fake_checks import a_plan, fake_load

from seatrial.judge.conclude import Conclusion, conclude
from seatrial.protocol.wire import Decoder
from seatrial.report.console import lines, print_lines
from seatrial.report.view import View

HERE = Path(__file__).parent
COLUMNS = (60, 80)
_REPORT = Path("reports/20260102-030405-abcd/report.html")


def _recorded(name: str) -> Conclusion:
    """Judge a real trial again, from its events in ``recordings``."""
    decoder = Decoder()
    messages = list(decoder.lines((HERE / "recordings" / f"{name}.events").read_bytes()))
    return conclude(messages, damaged=decoder.damaged)


def _scene(stream: Stream) -> Conclusion:
    return conclude(stream.events, load=fake_load)


def _slow() -> Stream:
    stream = Stream(plan=a_plan(("compute",)), options=["--only", "compute"])
    stream.check("compute", lambda rank: 0.5 if rank else 2.0)
    return stream.close()


def _network() -> Stream:
    stream = SCENES["fabric"]()
    stream.events[0]["job"]["options"] = ["--on", "ssh", "--hosts", "gpu-0,gpu-1"]
    return stream


SCREENS: Mapping[str, Callable[[], Conclusion]] = {
    "pass": lambda: _recorded("pass"),
    "pass-partial": lambda: _scene(
        healthy(plan=a_plan(("compute", "bootstrap", "collectives"), {"training": "--skip"}))
    ),
    "fail-killed": lambda: _recorded("killed"),
    "fail-wrong": lambda: _recorded("wrong"),
    "fail-slow": lambda: _scene(_slow()),
    "fail-hang": lambda: _scene(SCENES["absent"]()),
    "fail-frozen": lambda: _scene(SCENES["frozen"]()),
    "fail-stuck-together": lambda: _scene(SCENES["stuck"]()),
    "fail-out-of-memory": lambda: _scene(SCENES["out of memory"]()),
    "fail-device": lambda: _scene(SCENES["device"]()),
    "fail-node-lost": lambda: _scene(SCENES["node lost"]()),
    "fail-communication": lambda: _scene(_network()),
    "fail-two-faults": lambda: _scene(SCENES["second fault"]()),
    "inconclusive-deadline": lambda: _scene(SCENES["too short"]()),
    "inconclusive-own": lambda: _scene(SCENES["own"]()),
    "interrupted": lambda: _scene(SCENES["interrupted"]()),
}


class Terminal(io.StringIO):
    """A terminal; its columns come from COLUMNS, as a user may set them."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def screen(name: str, columns: int) -> str:
    """Return what a terminal of this width shows. COLUMNS must have the same value, and NO_COLOR be set."""
    terminal = Terminal()
    print_lines(lines(SCREENS[name](), _REPORT, View(columns=columns)), terminal)
    return terminal.getvalue()
