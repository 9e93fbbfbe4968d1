"""Which cases of a class run with every change; the others of the class are marked ``nightly``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def by_day(cases: Iterable[Any], *numbers: int) -> list[Any]:
    """Return the cases for ``parametrize``: those with these numbers run by day, or the first one; others nightly."""
    listed = [
        case if _is_param(case) else pytest.param(*(case if isinstance(case, tuple) else (case,))) for case in cases
    ]
    return [
        case
        if number in (numbers or (0,))
        else pytest.param(*case.values, marks=[*case.marks, pytest.mark.nightly], id=case.id)
        for number, case in enumerate(listed)
    ]


def _is_param(case: Any) -> bool:
    return isinstance(case, type(pytest.param()))
