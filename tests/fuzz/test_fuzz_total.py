"""How much was tried: counted where each input is given, not worked out."""

from __future__ import annotations

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


@pytest.mark.fuzz
def test_a_hundred_thousand_inputs_were_really_given(request: pytest.FixtureRequest) -> None:
    config = request.config
    if config.getoption("keyword") or any(".py" in argument for argument in config.args):
        pytest.skip("only a part of the fuzz was asked for")
    assert set(COUNTED) == set(_LEAST)
    assert {name: COUNTED[name] for name, least in _LEAST.items() if COUNTED[name] < least} == {}
    assert COUNTED.total() >= _LEAST_IN_ALL, COUNTED
