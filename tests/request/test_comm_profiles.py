"""What the profiles of networks set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seatrial.request.comm_profiles import DEBUG, PROFILES, comm_settings


def test_nothing_is_set_unless_it_is_asked_for() -> None:
    assert comm_settings(None, debug=False) == {}


def test_a_profile_and_the_words_for_debugging_go_together() -> None:
    assert comm_settings("ib", debug=True) == {**PROFILES["ib"], **DEBUG}


@pytest.mark.parametrize("name", PROFILES)
def test_every_setting_is_a_variable_with_a_value(name: str) -> None:
    assert PROFILES[name]
    for variable, value in PROFILES[name].items():
        assert re.fullmatch(r"(NCCL|FI|OMPI_MCA|UCX|UCC)_\w+", variable)
        assert value


def test_the_list_for_rocm_is_whole() -> None:
    """All that the project trained with which published it: a value that is missing sends data through the host."""
    told = comm_settings("ucc-rocm", debug=False)
    assert {name: value for name, value in told.items() if value == "0"} == {
        f"UCX_ROCM_COPY_{way}_THRESH": "0" for way in ("D2H", "H2D")
    } | {f"UCC_EC_ROCM_{what}_HOST_LIMIT": "0" for what in ("REDUCE", "COPY")} | {
        f"OMPI_MCA_mpi_accelerator_rocm_memcpy{way}_limit": "0" for way in ("D2H", "H2D")
    }
    assert told["OMPI_MCA_pml"] == "ucx"


def test_the_page_of_mpi_says_what_is_set() -> None:
    page = (Path(__file__).parents[2] / "docs" / "mpi.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (`[^|]*`) \|", page, re.MULTILINE)
    assert {name: dict(re.findall(r"`(\w+)=([^`]*)`", told)) for name, told in rows} == PROFILES


def test_the_page_says_what_is_set() -> None:
    page = (Path(__file__).parents[2] / "docs" / "launching.md").read_text("utf-8")
    for name, settings in PROFILES.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        if name != "ucc-rocm":  # names that differ in one part stand in braces there
            assert [
                f"{variable}={value}" for variable, value in settings.items() if f"{variable}={value}" not in row
            ] == []
    for variable, value in DEBUG.items():
        assert f"{variable}={value}" in page
