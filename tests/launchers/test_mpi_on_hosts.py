"""Ranks that meet at ``mpi://`` on two hosts whose names lead to their own loopback, as Debian writes /etc/hosts."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import Host, Hosts
from launchers.mpiruns import first_mpirun
from launchers.test_on_mpirun import usable

import seatrial

pytestmark = [pytest.mark.hosts, pytest.mark.mpi4py]

_SCRIPT = """
import os, sys
from datetime import timedelta
sys.path[:0] = {folders!r}
os.environ.pop("MASTER_ADDR", None)
os.environ.update({variables!r})
import torch, torch.distributed as dist, seatrial.mpi
dist.init_process_group(seatrial.mpi.BACKEND, init_method="mpi://", timeout=timedelta(seconds=20))
dist.all_reduce(total := torch.ones(1))
print("rank", dist.get_rank(), "on", os.uname().nodename, "sees", int(total))
"""
_MPIS_NETWORK = {
    f"{prefix}_MCA_{name}_tcp_if_include": "10.77.0.0/24"
    for prefix, name in (("OMPI", "btl"), ("OMPI", "oob"), ("PRTE", "oob"))
}


def _said(made: Hosts, mpirun: str, **variables: str) -> str:
    """What a script on two hosts says with these variables. MPI itself is told which network is theirs."""
    for host in made:
        names = "".join(f"{other.address} {other.name}\n" for other in made if other is not host)
        (host.etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n{names}")
    folders = [os.environ["SEATRIAL_TEST_MPI4PY"], str(Path(seatrial.__file__).parents[1])]
    script = made[0].home / "script.py"
    script.write_text(_SCRIPT.format(folders=folders, variables=variables))
    out = made.folder / "shared"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    where = ["--on", "mpirun", "--mpirun", usable(made, mpirun), "--hosts", "node0:1,node1:1", "--device", "cpu"]
    words = ["launch", *where, "--python", str(made.python), "--out", str(out), str(script)]
    done = made[0].run("env", *(f"{name}={value}" for name, value in _MPIS_NETWORK.items()), *made.seatrial(*words))
    return done.stdout + done.stderr


def _add_network(host: Host, address: str) -> None:
    """Another one, by which no other host is reached."""
    host.ip("link", "add", "out0", "type", "veth", "peer", "name", "out1")
    host.ip("addr", "add", f"{address}/24", "dev", "out0")
    for name in ("out0", "out1"):
        host.ip("link", "set", name, "up")


@contextlib.contextmanager
def _stranger(host: Host, address: str) -> Iterator[None]:
    """Whoever asks for this address there reaches one that accepts at each port, and says nothing."""
    code = "import socket, time; kept = socket.create_server(('', 4000)); print('listens', flush=True); time.sleep(300)"
    with subprocess.Popen(host.argv("python3", "-c", code), stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout
        assert listening.stdout.readline() == "listens\n"
        host.firewall("-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", address, "-j", "REDIRECT", "--to-ports", "4000")
        yield
        listening.kill()


@first_mpirun
@pytest.mark.parametrize(
    "network", ["common", "bridge", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("NAT", "far"))]
)
def test_ranks_meet_where_their_hosts_do(hosts: Callable[[int], Hosts], mpirun: str, network: str) -> None:
    """The others got 127.0.0.1 where there is no way out, or the number that each host has on its way out."""
    made, variables = hosts(2), {}
    for host in made:
        if network == "NAT":
            _add_network(host, "10.0.2.15")
            host.ip("route", "add", "default", "via", "10.0.2.2", "dev", "out0")
        elif network == "far":
            # The same network by its numbers, and not by its cables.
            _add_network(host, f"10.66.0.{10 + host.number}")
            variables = {"MASTER_ADDR": "10.66.0.10"}
        elif network == "bridge":
            _add_network(host, "172.17.0.1")
            variables = {"MASTER_ADDR": "172.17.0.1"}
    with _stranger(made[1], variables["MASTER_ADDR"]) if variables else contextlib.nullcontext():
        if network == "bridge":
            made[1].ip("link", "set", "out1", "down")
        text = _said(made, mpirun, **variables)
    assert "rank 0 on node0 sees 2" in text, text
