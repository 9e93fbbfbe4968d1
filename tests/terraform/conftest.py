"""One double of EC2 for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from terraform.modules import Module, moto


@pytest.fixture(scope="session")
def ec2() -> Iterator[str]:
    """The address of the double."""
    with moto() as address:
        yield address


@pytest.fixture(scope="session")
def planned(ec2: str, tmp_path_factory: pytest.TempPathFactory) -> Module:
    """A copy of the module, for plans only."""
    return Module.copied(tmp_path_factory.mktemp("plans"), ec2)
