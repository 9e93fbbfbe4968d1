"""Mpiruns by what they say of themselves, and how each is called."""

from __future__ import annotations

import pytest

from seatrial.errors import RequestError
from seatrial.launch.mpi_launchers import MpiLauncher, argv_of, environ_of, hostfile_of, recognise

# As the launchers printed it.
OPEN_MPI_4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n\n"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date:       Fri Sep 25\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\nCopyright 2003-2026\n"

HOSTS = [("node0", 4), ("node1.example.org", 2)]


def launcher(kind: str) -> MpiLauncher:
    return recognise("/opt/bin/mpirun", {"openmpi": OPEN_MPI_5, "mpich": MPICH, "intel": INTEL}[kind])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (OPEN_MPI_4, "Open MPI 4.1.4"),
        (OPEN_MPI_5, "Open MPI 5.0.11"),
        ("mpirun (Open MPI) 4.1.7rc1\n", "Open MPI 4.1.7rc1"),
        (MPICH, "MPICH 5.0.2"),
        (INTEL, "Intel MPI 2021.18.1"),
    ],
)
def test_each_is_known_by_its_version(told: str, words: str) -> None:
    assert str(recognise("mpirun", told)) == words


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("mpirun (Open MPI) 3.1.6\n", "is Open MPI 3.1.6; name one of version 4 or newer"),
        ("mpirun (IBM Spectrum MPI) 10.4\n", r"says 'mpirun \(IBM Spectrum MPI\) 10.4' and is none of Open MPI"),
        ("  \n", "says nothing"),
        ("\x1b[2J\n", r"says '\\x1b\[2J' and is none of"),
    ],
)
def test_any_other_is_refused(told: str, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        recognise("mpirun", told)


def test_hosts_are_spelled_as_each_reads_them() -> None:
    assert hostfile_of(launcher("openmpi"), HOSTS) == "node0 slots=4\nnode1.example.org slots=2\n"
    assert hostfile_of(launcher("mpich"), HOSTS) == hostfile_of(launcher("intel"), HOSTS)
    assert hostfile_of(launcher("mpich"), HOSTS) == "node0:4\nnode1.example.org:2\n"


@pytest.mark.parametrize("kind", ["openmpi", "mpich", "intel"])
def test_hosts_and_number_are_always_told_and_what_the_user_adds_comes_last(kind: str) -> None:
    argv = argv_of(
        launcher(kind), hostfile="/run/hosts", count=6, passed_on=("TOKEN",), as_root=False, more=("--tag", "a b")
    )
    assert argv[0] == "/opt/bin/mpirun"
    assert argv[argv.index("-np") + 1] == "6"
    assert argv[argv.index("--hostfile" if kind == "openmpi" else "-machinefile") + 1] == "/run/hosts"
    assert argv[-2:] == ("--tag", "a b")
    assert ("-x" in argv) == (kind == "openmpi")


def test_values_of_variables_stand_on_no_command_line() -> None:
    argv = argv_of(launcher("openmpi"), hostfile="f", count=1, passed_on=("A", "B"), as_root=False)
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "-x"] == ["A", "B"]


@pytest.mark.parametrize("as_root", [True, False])
def test_open_mpi_is_told_when_root_calls_it(as_root: bool) -> None:
    argv = argv_of(launcher("openmpi"), hostfile="f", count=1, passed_on=(), as_root=as_root)
    assert ("--allow-run-as-root" in argv) == as_root
    assert "--allow-run-as-root" not in argv_of(launcher("mpich"), hostfile="f", count=1, passed_on=(), as_root=as_root)


def test_no_rank_is_bound_to_a_core() -> None:
    """A rank and its threads on one core would be measured as a slow device."""
    for kind, words in (("openmpi", "--bind-to none"), ("mpich", "-bind-to none")):
        assert words in " ".join(argv_of(launcher(kind), hostfile="f", count=1, passed_on=(), as_root=False))
    assert environ_of(launcher("intel"), {})["I_MPI_PIN"] == "0"


def test_intel_finds_its_own_programs() -> None:
    assert environ_of(launcher("intel"), {"PATH": "/usr/bin"})["PATH"] == "/opt/bin:/usr/bin"
    assert environ_of(launcher("intel"), {"PATH": "/usr/bin:/opt/bin"})["PATH"] == "/usr/bin:/opt/bin"
    assert environ_of(launcher("intel"), {})["PATH"] == "/opt/bin"
    assert environ_of(launcher("openmpi"), {"PATH": "/usr/bin"}) == {}
