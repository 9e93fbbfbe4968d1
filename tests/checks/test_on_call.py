"""A check names its functions by module: each of them is there, and help imports none of them."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest

from seatrial.checks import registry
from seatrial.checks.shared.on_call import OnCall


@pytest.mark.parametrize("name", registry.names())
def test_each_function_of_a_check_is_there(name: str) -> None:
    check = registry.load(name)
    parameters = {"measure": 2, "judge": 2, "suspects": 2, "next_round": 2, "interface": 2}
    for field in dataclasses.fields(check):
        value = getattr(check, field.name)
        if isinstance(value, OnCall):
            assert len(inspect.signature(value.function()).parameters) == parameters[field.name], field.name


def test_a_dry_run_imports_no_judge_and_no_measurement() -> None:
    program = (
        "import sys\nfrom seatrial.checks import registry\n[registry.load(name) for name in registry.names()]\n"
        "print(*(name for name in sys.modules if name.startswith('seatrial.checks.')\n"
        "        and name.rsplit('.', 1)[1] in ('judge', 'measure')))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.split() == []
