"""The tree of exceptions: one exit code for each, and the picture of it in the docstring."""

from __future__ import annotations

import re

import pytest

from seatrial import errors

CLASSES: list[type[errors.SeatrialError]] = [value for value in vars(errors).values() if isinstance(value, type)]


def test_the_docstring_draws_every_class_with_its_exit_code() -> None:
    rows = re.findall(r"^ {4}[│ ├└─]*(\w+Error) +(\d) {3}\S", errors.__doc__ or "", re.MULTILINE)
    assert {name: int(code) for name, code in rows} == {error.__name__: error.exit_code for error in CLASSES}


@pytest.mark.parametrize("error", CLASSES)
def test_every_exception_is_a_seatrial_error(error: type[errors.SeatrialError]) -> None:
    assert issubclass(error, errors.SeatrialError)
    assert issubclass(error, errors.RequestError) == (error.exit_code == 2)
