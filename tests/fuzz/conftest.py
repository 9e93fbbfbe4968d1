"""The inputs of the fuzz are counted where each one is given, over all tests and all processes of pytest-xdist."""

from __future__ import annotations

from typing import Any

import pytest
from fuzz.harness import COUNTED

_LEAST = {
    "plans": 10_000,
    "environments": 10_000,
    "event streams": 10_000,
    "control messages": 30_000,
    "arguments": 2_000,
    "judges": 2_000,
}
_LEAST_IN_ALL = 100_000


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run that gave fewer inputs than it should, if it was to be all of the fuzz."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["fuzz"] = dict(COUNTED)
    elif too_few(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    COUNTED.update(node.workeroutput.get("fuzz", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTED:
        counts = ", ".join(f"{number} {target}" for target, number in sorted(COUNTED.items()))
        terminalreporter.write_line(f"FUZZ: {COUNTED.total()} inputs: {counts}")
    for line in too_few(terminalreporter.config):
        terminalreporter.write_line(f"FUZZ: {line}")


def too_few(config: pytest.Config) -> list[str]:
    """Return a sentence for each target that had too few inputs; none where only a part of the fuzz was asked for."""
    is_partial = config.getoption("keyword") or any(".py" in argument for argument in config.args)
    is_whole = config.getoption("marked") or "fuzz" in config.getoption("markexpr")
    if is_partial or config.getoption("lf") or not is_whole or not COUNTED:
        return []
    short = [
        f"{target} had {COUNTED[target]} inputs, and should have at least {least}"
        for target, least in _LEAST.items()
        if COUNTED[target] < least
    ]
    if COUNTED.total() < _LEAST_IN_ALL:
        short.append(f"{COUNTED.total()} inputs in all, and should be at least {_LEAST_IN_ALL}")
    return short
