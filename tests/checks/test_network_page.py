"""``docs/network.md`` begins with a finding: each finding of the network check has its row there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checks.simulated_network import network_evidence

from seatrial.checks.network.judge import judge
from seatrial.checks.network.params import Params

_GOLDEN = Path(__file__).parent / "golden" / "network.txt"
_PAGE = Path(__file__).parents[2] / "docs" / "network.md"
_VARIABLE = r"(?:nodes? )?node\d(?:(?:,| and) node\d)*|\b[AHN]\b|\d[\d,]*|eth1|\.\.\."
"""What differs from finding to finding: nodes, addresses, names, numbers."""
_PLURALS = {"take no": "takes no", "own names of": "own name of", "lead to": "leads to"}


def _rows() -> list[re.Pattern[str]]:
    cells = re.findall(r"^\| (`.+?`) \|", _PAGE.read_text().partition("| finding |")[2], flags=re.MULTILINE)
    parts = [re.split(_VARIABLE, text) for cell in cells for text in re.findall("`(.+?)`", cell)]
    assert len(parts) > 10
    return [re.compile(".+?".join(map(re.escape, words))) for words in parts]


def _of_names() -> list[str]:
    """A finding about a name that some nodes reach, which the golden file lacks."""
    names = ["10.0.0.0", "10.9.0.1", "10.0.0.2"]
    some = network_evidence(3, name_failure=lambda source, _: "refused" if source == 0 else None, names=names)
    return [finding.what for finding in judge(some, Params()).findings]


def _findings() -> list[str]:
    known = re.findall(r"^(?:fail|warn): (.+)$", _GOLDEN.read_text(), flags=re.MULTILINE)
    return list(dict.fromkeys([*known, *_of_names()]))


@pytest.mark.parametrize("finding", _findings())
def test_a_finding_has_its_row(finding: str) -> None:
    text = finding
    for several, one in _PLURALS.items():
        text = text.replace(several, one)
    assert any(row.match(text) for row in _rows()), text
