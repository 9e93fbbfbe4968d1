"""The Terraform module for EC2, as far as ``terraform plan`` tells; what is refused, and by which sentence."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
from terraform.modules import MODULE, ROOT, Module, resources, sentences, user_data

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(240)]

HOME = "203.0.113.7/32"


def test_it_is_formatted_and_valid(planned: Module) -> None:
    assert planned("fmt", "-check", "-recursive") == ""
    planned("validate", "-no-color")


def test_the_provider_is_pinned_and_so_is_its_package(planned: Module) -> None:
    lock = (MODULE / ".terraform.lock.hcl").read_text()
    (version,) = re.findall(r'version     = "(.*)"', lock)
    assert f'version = "{version}"' in (MODULE / "versions.tf").read_text()
    # Copied and initialized with -lockfile=readonly: the package of this machine is the one of the lock file.
    assert (planned.folder / ".terraform.lock.hcl").read_text() == lock


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"worker_kind": "gpu", "worker_count": 0, "region": "eu-west-1a", "multinode_mpi": True},
            [
                "allowed_cidr is not set: it says from which addresses ssh may come in.",
                'worker_kind is "gpu", which is neither cpu, nvidia nor amd, nor an instance type',
                "worker_count is 0, and must be a whole number from 1 to 100.",
                'region is "eu-west-1a", which is no name of an AWS region.',
            ],
        ),
        (
            {
                "allowed_cidr": "128.0.0.0/1",
                "worker_kinds": ["cpu", "tpu"],
                "launcher_disk_gb": 7.5,
                "worker_disk_gb": 1,
                "stop_after_hours": 0,
                "name": "Mine",
                "ssh_public_key_file": "../../../key",
                "availability_zone": "us-east-1a",
                "torch_version": "latest",
                "torch_index_urls": {"cpu": "http://x", "nvidia": "https://x", "amd": "https://x"},
            },
            [
                'allowed_cidr is "128.0.0.0/1", which opens ssh to the whole internet or a large part of it.',
                "consent with allow_ssh_from_anywhere = true",
                "worker_kinds is [cpu, tpu]. It takes at most 100 entries, and each must be cpu, nvidia, amd or",
                "worker_kinds is [cpu, tpu], which needs multinode_mpi = true.",
                "launcher_disk_gb is 7.5, and must be a whole number from 8 to 16384.",
                "worker_disk_gb is 1, and must be a whole number from 16 to 16384",
                "stop_after_hours is 0, and must be from 0.5 to 168 (a week).",
                'name is "Mine". It must begin with a lowercase letter',
                "which does not hold one public ssh key in one line. Name the file that ends in .pub",
                'availability_zone is "us-east-1a", which is not in the region eu-west-1.',
                'torch_version is "latest", and must be a full version such as 2.13.0.',
                "Each must be an https:// or file:// address of a package index.",
            ],
        ),
        (
            {"allowed_cidr": "home", "ssh_public_key_file": "/none.pub"},
            [
                'allowed_cidr is "home", which is not an IPv4 network.',
                'ssh_public_key_file is "/none.pub", and there is no such file. Make a key with ssh-keygen',
            ],
        ),
        (
            {"allowed_cidr": HOME, "worker_kind": "g2.2xlarge"},
            ["eu-west-1 does not offer g2.2xlarge to this account. Choose another region, or another worker_kind."],
        ),
        (
            {
                "allowed_cidr": HOME,
                "torch_index_urls": {"cpu": "https://me:hidden@x", "nvidia": "https://x", "amd": "https://x"},
            },
            ["torch_index_urls has an address with a user name or a password, which all who may read the state"],
        ),
        ({"allowed_cidr": HOME, "worker_kind": "t4g.xlarge"}, ["t4g.xlarge has no x86_64 processor"]),
        (
            {"allowed_cidr": HOME, "worker_kind": "amd", "availability_zone": "eu-west-1a"},
            ["eu-west-1a does not offer all of g4ad.xlarge; these zones do: eu-west-1b."],
        ),
    ],
    ids=["kind count cidr", "all others", "no network no key", "not offered", "password", "arm", "zone"],
)
def test_a_wrong_variable_is_refused_by_a_sentence(
    planned: Module, variables: dict[str, Any], expected: list[str]
) -> None:
    done = planned.run("plan", "-input=false", "-no-color", **variables)
    assert done.returncode == 1
    said = sentences(done.stderr)
    assert "hidden" not in said
    assert [sentence for sentence in expected if sentence not in said] == [], said


def _instances(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return resources(plan["planned_values"], "aws_instance")


def test_two_cpu_workers_on_spot_and_a_launcher(planned: Module) -> None:
    plan = planned.plan(multinode_mpi=True, spot=True, allowed_cidr="0.0.0.0/0", allow_ssh_from_anywhere=True)
    made = _instances(plan)
    launcher = made.pop("aws_instance.launcher[0]")
    assert launcher["instance_type"] == "t3.micro"
    assert launcher["root_block_device"][0]["volume_size"] == 16
    assert "instance_market_options" not in launcher
    assert [worker["instance_type"] for worker in made.values()] == ["t3.xlarge", "t3.xlarge"]
    assert [worker["instance_market_options"][0]["market_type"] for worker in made.values()] == ["spot", "spot"]
    # No placement group and no EFA: AWS says that t3 has neither.
    assert resources(plan["planned_values"], "aws_placement_group") == {}
    assert resources(plan["planned_values"], "aws_network_interface") == {}
    assert plan["planned_values"]["outputs"]["prices"]["value"]["machines"].endswith("/ec2/spot/pricing/")


def test_large_nvidia_workers_are_near_each_other_with_efa(planned: Module) -> None:
    plan = planned.plan(multinode_mpi=True, worker_kind="g4dn.12xlarge", worker_count=3, allowed_cidr=HOME)
    made = _instances(plan)
    del made["aws_instance.launcher[0]"]
    assert {worker["placement_group"] for worker in made.values()} == {"seatrial-near"}
    (group,) = resources(plan["planned_values"], "aws_placement_group").values()
    assert group["strategy"] == "cluster"
    interfaces = resources(plan["planned_values"], "aws_network_interface").values()
    assert [each["interface_type"] for each in interfaces] == ["efa"] * 3
    assert sorted(each["private_ips"][0] for each in interfaces) == ["10.77.1.10", "10.77.1.11", "10.77.1.12"]
    outputs = plan["planned_values"]["outputs"]
    assert outputs["hostfile"]["value"] == "worker-0 slots=4\nworker-1 slots=4\nworker-2 slots=4\n"
    assert "--device cuda" in outputs["next_command"]["value"]
    assert all("TORCH_INDEX=https://download.pytorch.org/whl/cu126\n" in user_data(each) for each in made.values())
    assert resources(plan["planned_values"], "aws_eip") == resources(plan["planned_values"], "aws_nat_gateway") == {}


@pytest.mark.parametrize(
    ("kind", "type_", "index", "device"),
    [("nvidia", "g4dn.xlarge", "cu126", "cuda"), ("amd", "g4ad.xlarge", "rocm7.2", "cpu")],
)
def test_a_single_machine_with_a_gpu(planned: Module, kind: str, type_: str, index: str, device: str) -> None:
    plan = planned.plan(worker_kind=kind, allowed_cidr=HOME, worker_disk_gb=200)
    ((address, machine),) = _instances(plan).items()
    assert address == 'aws_instance.worker["worker-0"]'
    assert machine["instance_type"] == type_
    assert machine["root_block_device"][0]["volume_size"] == 200
    assert f"TORCH_INDEX=https://download.pytorch.org/whl/{index}\n" in user_data(machine)
    assert plan["planned_values"]["outputs"]["next_command"]["value"].endswith(
        f"worker-0 seatrial run --device {device} --out reports"
    )


def test_what_the_machines_are_told_fits_and_is_what_cloud_init_reads(planned: Module) -> None:
    told = _instances(planned.plan(multinode_mpi=True, worker_count=100, allowed_cidr=HOME))
    assert len(told) == 101
    texts = [user_data(machine) for machine in told.values()]
    assert max(len(text.encode()) for text in texts) <= 16384
    for text in texts[:2]:
        assert text.startswith("#cloud-config\n")
        assert "PRIVATE KEY" not in text


def test_the_scripts_of_the_machines_pass_shellcheck() -> None:
    scripts = sorted(map(str, (MODULE / "machine").glob("*.sh")))
    assert len(scripts) == 3
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stdout


def test_the_page_has_every_variable_and_output() -> None:
    page = (ROOT / "docs" / "ec2.md").read_text()
    variables = re.findall(r'^variable "(\w+)"', (MODULE / "variables.tf").read_text(), re.MULTILINE)
    assert len(variables) > 10
    assert [name for name in variables if f"`{name}`" not in page] == []
    shown = set(re.findall(r"terraform output (?:-raw )?(\w+)", page))
    outputs = set(re.findall(r'^output "(\w+)"', (MODULE / "outputs.tf").read_text(), re.MULTILINE))
    assert {"connect", "install_command", "next_command", "fetch_command", "machines", "prices"} <= shown <= outputs
