"""Any environment: a process finds its identity in it, or reports one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from environment.recorded_environments import PLACES
from environment.test_identity import DISAGREEMENTS, NAMES, SHELLS
from fuzz.harness import Target, assert_sentence, count, explore
from hypothesis import strategies as st

from seatrial.environment.identity import Identity, identify
from seatrial.errors import RequestError
from seatrial.run.external_launcher import Rendezvous, agent_environ, find_rendezvous, is_one_of_many

Environ = dict[str, str]

_RECORDED: list[Environ] = [row[0] for table in (PLACES, SHELLS, DISAGREEMENTS) for row in table.values()]
_NAMES = sorted({*NAMES, "SEATRIAL_TOKEN", "SLURM_STEP_NODELIST", "SLURM_NODELIST", "OMPI_MCA_ess_base_jobid"})
_VALUES = st.one_of(
    st.integers(-1, 9).map(str),
    st.sampled_from(
        ["", " ", "0", "-0", "+1", "1.0", "1e3", "0x1", "1_0", "٣", "nan", "auto", "1:4", "2:2", "2(x3),1"]
    ),
    st.sampled_from(["999999999", "9999999999", "999999999(x999999999)", "4294967290", "9" * 50_000, "n[0-3,7],m1"]),
    st.sampled_from(["n[", "[0-3]", "n[]", ",", "a b", "::1", "[::1]", "\x1b[2J", "tcp://10.0.0.1:80", "a" * 300]),
    # os.environ has them as text, the undecodable ones as surrogates.
    st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)


@st.composite
def _environments(draw: st.DrawFn) -> Environ:
    """Recorded ones, piled up, with some variables lost, exchanged and overwritten."""
    environ: Environ = {}
    for recorded in draw(st.lists(st.sampled_from(_RECORDED), max_size=2)):
        environ |= recorded
    names = sorted(environ) or _NAMES
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        environ.pop(name, None)
    environ |= draw(st.dictionaries(st.sampled_from(names) | st.sampled_from(_NAMES), _VALUES, max_size=3))
    for name, other in draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=1)):
        if other in environ:
            environ[name] = environ[other]
    return environ


def _check(environ: Environ) -> None:
    count("environments")
    try:
        found = identify(environ)
        _assert_consistent(found)
        if is_one_of_many(found):
            _assert_a_rendezvous(find_rendezvous(found, environ), found)
    except RequestError as error:
        assert_sentence(str(error))


def _assert_consistent(found: Identity) -> None:
    for number, size in ((found.rank, found.world_size), (found.node_rank, found.nnodes)):
        assert number is None or number >= 0
        assert size is None or size >= 1
        assert number is None or size is None or number < size
    assert found.level != "rank" or (found.rank is not None and found.world_size is not None)
    assert found.level != "node" or found.node_rank is not None
    if found.local_rank is not None:
        most = [size for size in (found.local_world_size, found.world_size) if size is not None]
        assert 0 <= found.local_rank < min(most)
    assert found.nproc_per_node is None or found.nproc_per_node >= 1
    assert found.master_port is None or 1 <= found.master_port <= 65_535
    assert found.master_addr is None or (found.master_addr.isprintable() and " " not in found.master_addr)
    assert found.note == "" or found.note.isprintable()
    assert len(found.note) < 500
    for name, text in agent_environ(found).items():
        assert name.startswith("SEATRIAL_")
        assert text.isdecimal()


def _assert_a_rendezvous(rendezvous: Rendezvous, found: Identity) -> None:
    assert 0 <= rendezvous.number < rendezvous.agents
    assert rendezvous.host.isprintable()
    assert rendezvous.host.strip() == rendezvous.host != ""
    assert len(set(rendezvous.ports)) == len(rendezvous.ports) > 0
    assert all(1_024 <= port < 32_768 for port in rendezvous.ports)
    assert len(rendezvous.token) == 64
    assert rendezvous.token.isascii()
    assert found.launcher == rendezvous.launcher


ENVIRONMENTS = Target(name="environments", inputs=_environments(), check=_check)


@pytest.fixture(autouse=True)
def _own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret of this machine is made in a folder of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_some_environments_end_in_a_place_or_in_a_sentence() -> None:
    explore(ENVIRONMENTS, 150)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_environments_end_in_a_place_or_in_a_sentence() -> None:
    explore(ENVIRONMENTS, 10_500)
