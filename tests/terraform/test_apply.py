"""The Terraform module for EC2, applied to a double of EC2 and destroyed again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from terraform.modules import Applied, applied, resources, user_data

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(300)]

HOME = "203.0.113.7/32"
OURS = {"allowed_cidr": HOME, "tags": {"team": "hardware"}}


@pytest.fixture(scope="module")
def clusters(ec2: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Applied]]:
    """A launcher with a worker of each kind, and a single machine. Nothing must be left of them at the end."""
    mixed = {**OURS, "multinode_mpi": True, "worker_kinds": ["cpu", "nvidia", "amd"]}
    with applied(tmp_path_factory.mktemp("clusters"), ec2, mixed=mixed, single=OURS) as made:
        yield made


def _rules(values: dict[str, Any], direction: str) -> set[tuple[str, str, int | None, int | None, str]]:
    """The rules as (group, protocol, from port, to port, whence or whither)."""
    groups = {each["id"]: each["name"] for each in resources(values, "aws_security_group").values()}
    return {
        (
            groups[rule["security_group_id"]],
            rule["ip_protocol"],
            rule["from_port"],
            rule["to_port"],
            rule["cidr_ipv4"] or groups[rule["referenced_security_group_id"]],
        )
        for rule in resources(values, f"aws_vpc_security_group_{direction}_rule").values()
    }


def _assert_careful(machine: dict[str, Any], security_groups: set[str], values: dict[str, Any]) -> None:
    groups = {each["id"]: each["name"] for each in resources(values, "aws_security_group").values()}
    assert {groups[each] for each in machine["vpc_security_group_ids"]} == security_groups
    (metadata,) = machine["metadata_options"]
    assert (metadata["http_tokens"], metadata["http_put_response_hop_limit"]) == ("required", 1)
    (disk,) = machine["root_block_device"]
    assert disk["encrypted"]
    assert disk["delete_on_termination"]
    assert machine["instance_initiated_shutdown_behavior"] == "terminate"
    assert not machine["iam_instance_profile"]
    assert not machine["key_name"]
    assert machine["tags_all"]["Project"] == "seatrial"
    assert machine["tags_all"]["team"] == "hardware"


def test_all_three_kinds_at_once(clusters: dict[str, Applied]) -> None:
    made = clusters["mixed"]
    machines = resources(made.values, "aws_instance")
    launcher = machines["aws_instance.launcher[0]"]
    workers = [machines[f'aws_instance.worker["worker-{number}"]'] for number in range(3)]
    assert len(machines) == 4
    assert launcher["instance_type"] == "t3.micro"
    assert [each["instance_type"] for each in workers] == ["t3.xlarge", "g4dn.xlarge", "g4ad.xlarge"]
    # The one zone where the double has g4ad.
    assert {each["availability_zone"] for each in machines.values()} == {"eu-west-1b"}
    assert launcher["public_ip"]
    assert [each["public_ip"] for each in workers] == ["", "", ""]
    _assert_careful(launcher, {"seatrial-cluster", "seatrial-ssh"}, made.values)
    for worker in workers:
        _assert_careful(worker, {"seatrial-cluster"}, made.values)
    assert _rules(made.values, "ingress") == {
        ("seatrial-cluster", "-1", None, None, "seatrial-cluster"),
        ("seatrial-ssh", "tcp", 22, 22, HOME),
    }
    assert _rules(made.values, "egress") == {
        ("seatrial-cluster", "-1", None, None, "seatrial-cluster"),
        ("seatrial-cluster", "tcp", 80, 80, "0.0.0.0/0"),
        ("seatrial-cluster", "tcp", 443, 443, "0.0.0.0/0"),
    }
    (default,) = resources(made.values, "aws_default_security_group").values()
    assert default["ingress"] == default["egress"] == []
    # The workers' way out is the launcher.
    way_out = resources(made.values, "aws_route")["aws_route.private[0]"]
    assert way_out["network_interface_id"] == launcher["primary_network_interface_id"]
    assert not launcher["source_dest_check"]
    # Ranks of one trial have the same build of torch.
    assert all("TORCH_INDEX=https://download.pytorch.org/whl/cpu\n" in user_data(worker) for worker in workers)
    assert "TORCH_INDEX=\n" in user_data(launcher)
    addresses = {f"worker-{number}": f"10.77.1.{10 + number}" for number in range(3)}
    assert made.outputs["private_ips"] == {"launcher": "10.77.0.10", **addresses}
    assert made.outputs["master_address"] == "10.77.1.10"
    assert made.outputs["head_address"] == launcher["public_ip"]
    assert made.outputs["machines"] == {"t3.micro": 1, "t3.xlarge": 1, "g4dn.xlarge": 1, "g4ad.xlarge": 1}
    assert made.outputs["prices"]["machines"] == "https://aws.amazon.com/ec2/pricing/on-demand/"
    assert "PRIVATE KEY" not in json.dumps(made.state)


def test_the_hostfile_feeds_the_next_command(clusters: dict[str, Applied], tmp_path: Path) -> None:
    outputs = clusters["mixed"].outputs
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(outputs["hostfile"])
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{address} {name}\n" for name, address in outputs["private_ips"].items()))
    mpirun = tmp_path / "mpirun_double"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    mpirun.chmod(0o755)
    # As the output tells it, but for where the hostfile lies.
    words = outputs["next_command"].partition(" seatrial ")[2].split()
    words[words.index("/etc/seatrial/hostfile")] = str(hostfile)
    # With the names that the machines have in /etc/hosts.
    with_names = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']
    command = [sys.executable, "-m", "seatrial", *words, "--mpirun", str(mpirun), "--dry-run"]
    shown = subprocess.run([*with_names, str(hosts), *command], capture_output=True, text=True, timeout=50, check=False)
    assert shown.returncode == 0, shown.stderr
    assert all(f"worker-{number} slots=1" in shown.stdout for number in range(3))
    assert " -np 3 " in shown.stdout


@pytest.mark.parametrize("name", ["mixed", "single"])
def test_connect_sh_passes_shellcheck(clusters: dict[str, Applied], tmp_path: Path, name: str) -> None:
    connect = tmp_path / "connect.sh"
    connect.write_text(clusters[name].outputs["connect"])
    done = subprocess.run(["shellcheck", "-s", "sh", str(connect)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", ["link", "of another user"])
def test_connect_sh_uses_no_folder_of_others(clusters: dict[str, Applied], tmp_path: Path, kind: str) -> None:
    (tmp_path / "connect.sh").write_text(clusters["single"].outputs["connect"])
    planted = tmp_path / ("elsewhere" if kind == "link" else "seatrial-ssh")
    planted.mkdir()
    if kind == "link":
        (tmp_path / "seatrial-ssh").symlink_to("elsewhere")
    elif os.geteuid() == 0:
        os.chown(planted, 65534, 65534)
    else:
        pytest.skip("only root can give a folder to another user")
    done = subprocess.run(["sh", "connect.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "seatrial-ssh is a link or belongs to another user; remove it" in done.stderr
    assert list(planted.iterdir()) == []


def test_one_machine_and_no_launcher(clusters: dict[str, Applied]) -> None:
    made = clusters["single"]
    (machine,) = resources(made.values, "aws_instance").values()
    assert machine["instance_type"] == "t3.xlarge"
    _assert_careful(machine, {"seatrial-cluster", "seatrial-ssh"}, made.values)
    assert len(resources(made.values, "aws_subnet")) == 1
    assert made.outputs["head_address"] == machine["public_ip"] != ""
    assert made.outputs["hostfile"] == "worker-0 slots=1\n"
    assert made.outputs["private_ips"] == {"worker-0": "10.77.0.10"}
    assert made.outputs["machines"] == {"t3.xlarge": 1}
    assert made.outputs["next_command"].endswith(" worker-0 seatrial run --device cpu --out reports")
