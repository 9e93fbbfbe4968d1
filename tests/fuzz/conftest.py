"""The inputs of the fuzz are counted over all its tests, so the one that holds their sum comes last."""

from __future__ import annotations

import pytest
from fuzz.harness import COUNTED

LAST = "test_a_hundred_thousand_inputs_were_really_given"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == LAST)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTED:
        counts = ", ".join(f"{number} {target}" for target, number in sorted(COUNTED.items()))
        terminalreporter.write_line(f"FUZZ: {COUNTED.total()} inputs: {counts}")
