"""What Terraform tells the machines, run for real: from a fresh machine to a PASS, with containers in place of EC2's.

What comes from AWS and is not here: the machines themselves, their consoles (``aws_double``), the NFS share (a folder
of this machine), and GPUs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from terraform.machines import Machines, started, torch_index_urls
from terraform.modules import Applied, applied

pytestmark = [pytest.mark.terraform, pytest.mark.podman, pytest.mark.timeout(600)]

KEY = "/clone/key"


@pytest.fixture(scope="module")
def pair(ec2: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    """A launcher and two workers, as Terraform has made them."""
    told = {"allowed_cidr": "203.0.113.7/32", "multinode_mpi": True, "stop_after_hours": 2.5}
    told["torch_index_urls"] = torch_index_urls()
    with applied(tmp_path_factory.mktemp("clusters"), ec2, pair=told) as made:
        yield made["pair"]


@pytest.fixture(scope="module")
def machines(pair: Applied, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The same machines, which start just now."""
    with started(pair, tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture(scope="module")
def connected(machines: Machines) -> Machines:
    """The same, after connect.sh."""
    done = machines.typed(f"sh connect.sh {KEY}", timeout_s=450)
    assert done.returncode == 0, done.stderr + "".join(map(machines.told, ("launcher", "worker-0", "worker-1")))
    return machines


def test_from_fresh_machines_to_a_pass(connected: Machines, pair: Applied) -> None:
    outputs = pair.outputs
    installed = connected.typed(outputs["install_command"], timeout_s=150)
    assert installed.returncode == 0, installed.stderr
    assert re.search(r"^seatrial, version \S+$", installed.stdout, re.MULTILINE)
    # The launcher, which calls, has no torch.
    assert (
        "No module named 'torch'" in connected.on("launcher", "/opt/seatrial/bin/python", "-c", "import torch").stderr
    )
    # As it is told, but for the level: the shortest.
    trial = outputs["next_command"].replace(" seatrial run ", " seatrial run smoke ")
    ended = connected.typed(trial, timeout_s=200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "FINAL ACCEPTANCE: PASS" in ended.stdout
    fetched = connected.typed(outputs["fetch_command"], timeout_s=60)
    assert fetched.returncode == 0, fetched.stderr
    report = json.loads((pair.folder / "reports" / "cluster_test_report.json").read_text())
    assert report["world_size"] == 2
    assert report["acceptance"]["status"] == "PASS"
    assert report["job"]["target"] == "mpirun"


def test_cloud_init_found_nothing_to_complain_of(connected: Machines) -> None:
    for name in ("launcher", "worker-0"):
        checked = connected.on(name, "cloud-init", "schema", "--system")
        assert checked.returncode == 0, checked.stderr
        assert connected.on(name, "cat", "/etc/seatrial/state").stdout == "ready\n"
        assert connected.on(name, "systemctl", "--failed", "--quiet", "--no-legend").stdout == ""


def test_each_machine_will_stop_by_itself(connected: Machines) -> None:
    for name in ("launcher", "worker-0", "worker-1"):
        shown = connected.on(name, "systemctl", "show", "seatrial-stop.timer", "-P", "TimersMonotonic").stdout
        assert re.search(r"OnActiveUSec=2h (30min|29min 5\ds) ;", shown), shown
        assert connected.on(name, "systemctl", "is-active", "seatrial-stop.timer").stdout == "active\n"


def test_a_machine_whose_time_is_over_goes_down(connected: Machines) -> None:
    """At its next start too, which does not give it its time again."""
    connected.start_late("late")
    give_up = time.monotonic() + 90
    while connected.runs("late"):
        assert time.monotonic() < give_up, connected.told("late")
        time.sleep(0.5)


def test_only_public_keys_have_been_carried(connected: Machines) -> None:
    launcher_key = connected.on("launcher", "cat", "/home/trial/.ssh/id_ed25519.pub").stdout.strip()
    assert launcher_key.startswith("ssh-ed25519 ")
    for name in ("worker-0", "worker-1"):
        keys = connected.on(name, "cat", "/home/trial/.ssh/authorized_keys").stdout.splitlines()
        assert [line for line in keys if launcher_key in line] == [f'from="10.77.0.10" {launcher_key}']
        assert connected.on(name, "ls", "/home/trial/.ssh").stdout.split() == ["authorized_keys"]
        host_key = connected.on(name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").stdout.split()[1]
        assert host_key in connected.on("launcher", "cat", "/home/trial/.ssh/known_hosts").stdout
    assert "PRIVATE KEY" not in connected.on("you", "sh", "-c", "cat /clone/deploy/terraform/ec2/seatrial-ssh/*").stdout


def test_connecting_twice_changes_nothing(connected: Machines) -> None:
    before = connected.on("worker-0", "cat", "/home/trial/.ssh/authorized_keys").stdout
    assert connected.typed(f"sh connect.sh {KEY}", timeout_s=100).returncode == 0
    assert connected.on("worker-0", "cat", "/home/trial/.ssh/authorized_keys").stdout == before


def test_a_host_key_that_the_console_does_not_show_is_refused(connected: Machines) -> None:
    console = connected.folder / "seeds" / "launcher" / "console"
    text = console.read_text()
    other = (connected.folder / "seeds" / "worker-0" / "console").read_text()
    console.write_text(other)
    try:
        done = connected.typed(
            f"mkdir -p /tmp/other && cp connect.sh /tmp/other && cd /tmp/other && sh connect.sh {KEY}", timeout_s=60
        )
    finally:
        console.write_text(text)
    assert done.returncode == 1
    assert "launcher: its host key is not the one that its console shows; somebody may be in between" in done.stderr


def test_without_the_command_aws_no_key_is_taken_unasked(connected: Machines) -> None:
    # Nobody is there to be asked.
    line = f"mkdir -p /tmp/unasked && cp connect.sh /tmp/unasked && cd /tmp/unasked && sh connect.sh {KEY}"
    done = connected.typed(line, timeout_s=60, aws=False)
    assert done.returncode == 1
    assert "compare each fingerprint that ssh shows with that in the EC2 console" in done.stderr
    assert connected.on("you", "sh", "-c", "cat /tmp/unasked/seatrial-ssh/known_hosts").stdout == ""


def test_a_key_that_is_not_yours_is_refused_by_a_sentence(connected: Machines) -> None:
    make = "mkdir -p /tmp/mine && cp connect.sh /tmp/mine && cd /tmp/mine && ssh-keygen -q -t ed25519 -N '' -f mine"
    done = connected.typed(f"{make} && sh connect.sh mine", timeout_s=60)
    assert done.returncode == 1
    assert "launcher: refuses your key; name the private half of ssh_public_key_file" in done.stderr
