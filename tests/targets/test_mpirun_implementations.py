"""The implementations of mpirun: recognized by version, and the options of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.errors import RequestError
from seatrial.targets.mpirun.implementations import (
    MpiLauncher,
    argv_of,
    environ_of,
    hostfile_of,
    own_folders_of,
    recognize,
)

# Output of the real launchers.
OPEN_MPI_4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n\n"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date:       Fri Sep 25\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\nCopyright 2003-2026\n"

HOSTS = [("node0", 4), ("node1.example.org", 2)]


def launcher(kind: str) -> MpiLauncher:
    return recognize("/opt/bin/mpirun", {"openmpi": OPEN_MPI_5, "mpich": MPICH, "intel": INTEL}[kind])


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (OPEN_MPI_4, "Open MPI 4.1.4"),
        (OPEN_MPI_5, "Open MPI 5.0.11"),
        ("mpirun (Open MPI) 4.1.7rc1\n", "Open MPI 4.1.7rc1"),
        (MPICH, "MPICH 5.0.2"),
        (INTEL, "Intel MPI 2021.18.1"),
    ],
)
def test_an_mpirun_is_recognized_by_its_version(output: str, words: str) -> None:
    assert str(recognize("mpirun", output)) == words


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("mpirun (Open MPI) 3.1.6\n", "is Open MPI 3.1.6; name one of version 4 or newer"),
        ("mpirun (IBM Spectrum MPI) 10.4\n", r"prints 'mpirun \(IBM Spectrum MPI\) 10.4', which is none of Open MPI"),
        ("  \n", "prints nothing"),
        ("\x1b[2J\n", r"prints '\\x1b\[2J', which is none of"),
    ],
)
def test_an_unknown_mpirun_is_refused(output: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        recognize("mpirun", output)


def test_the_hostfile_has_the_syntax_of_the_launcher() -> None:
    assert hostfile_of(launcher("openmpi"), HOSTS) == "node0 slots=4\nnode1.example.org slots=2\n"
    assert hostfile_of(launcher("mpich"), HOSTS) == hostfile_of(launcher("intel"), HOSTS)
    assert hostfile_of(launcher("mpich"), HOSTS) == "node0:4\nnode1.example.org:2\n"


@pytest.mark.parametrize("kind", ["openmpi", "mpich", "intel"])
def test_hosts_and_rank_count_are_given_and_user_arguments_are_last(kind: str) -> None:
    argv = argv_of(
        launcher(kind),
        hostfile="/run/hosts",
        rank_count=6,
        exported=("TOKEN",),
        as_root=False,
        extra_args=("--tag", "a b"),
    )
    assert argv[0] == "/opt/bin/mpirun"
    assert argv[argv.index("-np") + 1] == "6"
    assert argv[argv.index("--hostfile" if kind == "openmpi" else "-machinefile") + 1] == "/run/hosts"
    assert argv[-2:] == ("--tag", "a b")
    assert ("-x" in argv) == (kind == "openmpi")


def test_values_of_variables_are_on_no_command_line() -> None:
    argv = argv_of(launcher("openmpi"), hostfile="f", rank_count=1, exported=("A", "B"), as_root=False)
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "-x"] == ["A", "B"]


@pytest.mark.parametrize("as_root", [True, False])
def test_only_open_mpi_gets_an_option_for_root(as_root: bool) -> None:
    argv = argv_of(launcher("openmpi"), hostfile="f", rank_count=1, exported=(), as_root=as_root)
    assert ("--allow-run-as-root" in argv) == as_root
    assert "--allow-run-as-root" not in argv_of(
        launcher("mpich"), hostfile="f", rank_count=1, exported=(), as_root=as_root
    )


def test_no_rank_is_bound_to_a_core() -> None:
    """A rank and its threads on one core would be measured as a slow device."""
    for kind, words in (("openmpi", "--bind-to none"), ("mpich", "-bind-to none")):
        assert words in " ".join(argv_of(launcher(kind), hostfile="f", rank_count=1, exported=(), as_root=False))
    assert environ_of(launcher("intel"), {})["I_MPI_PIN"] == "0"


def test_intel_mpi_finds_its_programs() -> None:
    assert environ_of(launcher("intel"), {"PATH": "/usr/bin"})["PATH"] == "/opt/bin:/usr/bin"
    assert environ_of(launcher("intel"), {"PATH": "/usr/bin:/opt/bin"})["PATH"] == "/usr/bin:/opt/bin"
    assert environ_of(launcher("intel"), {})["PATH"] == "/opt/bin"
    assert environ_of(launcher("openmpi"), {"PATH": "/usr/bin"}) == {}


def test_folders_of_the_user_for_what_neighbors_can_foresee(tmp_path: Path) -> None:
    """Segments of shared memory get one only where all ranks run here: mpirun hands its variables on."""
    places = {
        kind: own_folders_of(launcher(kind), {}, (), only_this_machine=True) for kind in ("openmpi", "mpich", "intel")
    }
    assert [*places["openmpi"]] == ["", "/dev/shm"]
    assert places["mpich"] == places["intel"] == {}
    assert own_folders_of(launcher("openmpi"), {}, (), only_this_machine=False) == {
        "": ("PRTE_MCA_prte_local_tmpdir_base",)
    }
    older = recognize("/opt/bin/mpirun", OPEN_MPI_4)
    assert own_folders_of(older, {}, (), only_this_machine=False) == {"": ("OMPI_MCA_orte_local_tmpdir_base",)}


@pytest.mark.parametrize(
    "path", [".openmpi/mca-params.conf", ".prte/mca-params.conf", "etc/openmpi-mca-params.conf", "my/own.conf"]
)
def test_a_base_of_the_session_that_is_set_stays(path: str, tmp_path: Path) -> None:
    """Open MPI refuses one for this host beside one for all."""
    mpirun = replace(launcher("openmpi"), path=f"{tmp_path}/bin/mpirun")
    home = {"HOME": str(tmp_path), "OMPI_MCA_mca_base_param_files": f"{tmp_path}/none:{tmp_path}/my/own.conf"}
    for environ, words in (
        ({"OMPI_MCA_orte_tmpdir_base": "/set"}, ()),
        ({}, ("--mca", "orte_tmpdir_base", "/set")),
        ({}, ("--prtemca", "prte_local_tmpdir_base", "/set")),
    ):
        assert "" not in own_folders_of(mpirun, {**home, **environ}, words, only_this_machine=False)
    remote = {**home, "PRTE_MCA_prte_remote_tmpdir_base": "/set"}
    assert "" in own_folders_of(mpirun, remote, (), only_this_machine=False)
    (settings := tmp_path / path).parent.mkdir()
    settings.write_text("# orte_tmpdir_base = /scratch\n")
    assert "" in own_folders_of(mpirun, home, (), only_this_machine=False)
    settings.write_text("btl_sm_backing_directory = /set\n orte_tmpdir_base = /scratch\n")
    kept = own_folders_of(mpirun, home, (), only_this_machine=True)
    assert [*kept] == ["/dev/shm"]
    assert "OMPI_MCA_btl_sm_backing_directory" not in kept["/dev/shm"]
