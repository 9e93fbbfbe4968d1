"""Rules by which pods under MPI find one another, each with a way to break it."""

from __future__ import annotations

import pytest
from kubernetes.rules import (
    MPI,
    OF,
    Objects,
    Rule,
    begin_of,
    containers_of,
    drop,
    each,
    env_of,
    launcher_of,
    node_pods,
    of_kind,
    pods_of,
    program_of,
    see,
    set_to,
    shells_of,
    spec_of,
    spoil_sshd,
    sshd_config,
)
from kubernetes.workloads import container_of, workload_object

_OWN_OF_EACH_POD = {"SEATRIAL_NODE_NAME", "SEATRIAL_POD_IP", "SEATRIAL_SSH_KEY"}


def _own_address(objects: Objects) -> str:
    env = launcher_of(objects)["env"]
    return next(str(entry["valueFrom"]["fieldRef"]["fieldPath"]) for entry in env if entry["name"] == "SEATRIAL_POD_IP")


_RULES = [
    Rule(
        name="mpi: the launcher waits until sshd answers",
        cases=OF["mpijob"],
        kept=lambda objects: (
            spec_of(objects)["launcherCreationPolicy"] == "WaitForWorkersReady"
            and all(container_of(pod)["readinessProbe"]["tcpSocket"]["port"] == 2222 for pod in node_pods(objects))
        ),
        spoil=each(node_pods, lambda pod: container_of(pod)["readinessProbe"].update(tcpSocket={"port": 22})),
    ),
    Rule(
        name="mpi: sshd needs no right: a high port, a key of its user, no file of process ids, lax modes",
        cases=MPI,
        kept=lambda objects: (
            {"Port 2222", "HostKey /tmp/ssh_key", "PidFile none", "StrictModes no"}
            <= set(sshd_config(objects).splitlines())
        ),
        spoil=spoil_sshd,
    ),
    Rule(
        # Trainer takes any Secret of its name, and mpi-operator any that names the MPIJob as its owner.
        name="mpi: no pod reads the key that the operator mounts, but the one in the Secret of the run",
        cases=MPI,
        kept=lambda objects: (
            "/opt/seatrial-ssh" not in str(pods_of(objects)) + str(of_kind(objects, "ConfigMap"))
            and of_kind(objects, "Secret")[0]["stringData"]["ssh-privatekey"] == "not-a-real-key\n"
            and all(
                entry["valueFrom"]["secretKeyRef"] == {"name": "trial-1", "key": "ssh-privatekey"}
                for container in containers_of(objects)
                for entry in container["env"]
                if entry["name"] == "SEATRIAL_SSH_KEY"
            )
        ),
        spoil=lambda objects: launcher_of(objects)["command"].append("/opt/seatrial-ssh/id_rsa"),
    ),
    Rule(
        name="mpi: the key of the operator is not where its mode would be 0600 for root alone",
        cases=OF["mpijob"],
        kept=lambda objects: spec_of(objects)["sshAuthMountPath"] == "/opt/seatrial-ssh",
        spoil=set_to("sshAuthMountPath", "/root/.ssh"),
    ),
    Rule(
        name="mpi: host file and ssh's options stand on the command line, for Open MPI 5",
        cases=["mpijob", "trainjob-mpi"],
        kept=lambda objects: (
            program_of(launcher_of(objects))[10:15] == ["mpirun", "--hostfile", "/tmp/hosts", "-np", "16"]
            and "plm_rsh_args" in launcher_of(objects)["command"]
        ),
        spoil=lambda objects: launcher_of(objects)["command"].remove("--hostfile"),
    ),
    Rule(
        # The recording resume-mpijob: launcher and workers started together, and ssh did not know the worker's name.
        name="mpi: the launcher waits for each host before mpirun",
        cases=MPI,
        kept=lambda objects: (
            any(
                'exec "$$0" /tmp/seatrial/wait_for_hosts.py /etc/mpi/hostfile /tmp/hosts "$$@"' in shell
                and "cat /etc/mpi/hostfile > /tmp/hosts || exit 3" in shell
                for shell in shells_of(objects)
            )
            and program_of(launcher_of(objects))[3] == "python3"
            and program_of(launcher_of(objects))[6:9] == ["2", "2222", "900"]
        ),
        spoil=lambda objects: launcher_of(objects)["command"].__setitem__(begin_of(launcher_of(objects)) + 3, "x"),
    ),
    Rule(
        # As the operators name the pods (the recordings run-mpijob, run-trainjob-mpi): others may change the file.
        name="mpi: the launcher knows which hosts and slots the host file must have, and mpirun reads its copy",
        cases=MPI,
        kept=lambda objects: (
            program_of(launcher_of(objects))[4]
            == f"trial-1-{'worker' if workload_object(objects)['kind'] == 'MPIJob' else 'node-0'}-{{}}.trial-1"
            and program_of(launcher_of(objects))[5]
            == (":8" if "-genvlist" in launcher_of(objects)["command"] else " slots=8")
            and "/etc/mpi/hostfile" not in launcher_of(objects)["command"]
        ),
        spoil=lambda objects: launcher_of(objects)["command"].append("/etc/mpi/hostfile"),
    ),
    Rule(
        name="mpi: hydra gets the options of ssh by the name that it reads",
        cases=["mpijob-mpich"],
        kept=lambda objects: "HYDRA_LAUNCHER_EXTRA_ARGS=-F /tmp/seatrial/ssh_config" in launcher_of(objects)["command"],
        spoil=lambda objects: launcher_of(objects)["command"].remove(
            "HYDRA_LAUNCHER_EXTRA_ARGS=-F /tmp/seatrial/ssh_config"
        ),
    ),
    Rule(
        # The proxies of hydra obey whoever answers for its name, for which they ask along the search path of their pod.
        name="mpi: hydra's proxies get the address of the launcher, and no name",
        cases=["mpijob-mpich"],
        kept=lambda objects: (
            program_of(launcher_of(objects))[9] == "mpich"
            and _own_address(objects) == "status.podIP"
            and program_of(launcher_of(objects))[13:16] == ["mpirun", "-localhost", "$(SEATRIAL_POD_IP)"]
        ),
        spoil=lambda objects: launcher_of(objects)["command"].remove("-localhost"),
    ),
    Rule(
        # Above 16 hosts its proxies would start one another, and give their names.
        name="mpi: Intel MPI starts all proxies in the launcher, which finds the interface of its address",
        cases=["mpijob-intel"],
        kept=lambda objects: (
            program_of(launcher_of(objects))[9] == "intel"
            and _own_address(objects) == "status.podIP"
            and "I_MPI_HYDRA_BRANCH_COUNT=2" in launcher_of(objects)["command"]
        ),
        spoil=lambda objects: launcher_of(objects)["command"].remove("I_MPI_HYDRA_BRANCH_COUNT=2"),
    ),
    Rule(
        name="mpi: no long option with one dash, which Open MPI 5 takes for a program",
        cases=["mpijob", "trainjob-mpi"],
        kept=lambda objects: (
            {word for word in program_of(launcher_of(objects))[10:] if word[:1] == "-" != word[1:2]}
            <= {"-np", "-x", "-F /tmp/seatrial/ssh_config"}
        ),
        spoil=lambda objects: launcher_of(objects)["command"].append("-bind-to"),
    ),
    Rule(
        name="mpi: Open MPI 4 keeps the names whole",
        cases=["mpijob", "trainjob-mpi"],
        kept=lambda objects: "orte_keep_fqdn_hostnames" in launcher_of(objects)["command"],
        spoil=lambda objects: launcher_of(objects)["command"].remove("orte_keep_fqdn_hostnames"),
    ),
    Rule(
        name="mpi: every variable of the container is passed on, as sessions of ssh see none",
        cases=["mpijob", "trainjob-mpi", "mpijob-everything"],
        kept=lambda objects: (
            {*env_of(launcher_of(objects)), "MASTER_ADDR"} - _OWN_OF_EACH_POD
            == {
                launcher_of(objects)["command"][place + 1]
                for place, word in enumerate(launcher_of(objects)["command"])
                if word == "-x"
            }
        ),
        spoil=lambda objects: (
            drop("NCCL_DEBUG")(launcher_of(objects)) or launcher_of(objects)["env"].append({"name": "X", "value": ""})
        ),
    ),
    Rule(
        name="mpi: hydra passes on the same, and reads the host file",
        cases=["mpijob-mpich", "mpijob-intel"],
        kept=lambda objects: (
            set(launcher_of(objects)["command"][launcher_of(objects)["command"].index("-genvlist") + 1].split(","))
            == {*env_of(launcher_of(objects)), "MASTER_ADDR"} - _OWN_OF_EACH_POD
            and "-f" in launcher_of(objects)["command"]
        ),
        spoil=lambda objects: drop("HOME")(launcher_of(objects)),
    ),
    Rule(
        name="mpi: the launcher takes no device, and has limits for a namespace with a quota for them",
        cases=MPI,
        kept=lambda objects: (
            launcher_of(objects)["resources"]["limits"].keys() == {"cpu", "memory"}
            and all("nvidia.com/gpu" in container_of(pod)["resources"]["limits"] for pod in node_pods(objects))
        ),
        spoil=lambda objects: launcher_of(objects)["resources"].update(limits={"nvidia.com/gpu": "1"}),
    ),
    Rule(
        name="mpi: no word of a user is in what a shell reads",
        cases=MPI,
        kept=lambda objects: (
            len(shells_of(objects)) == 2
            and not any(
                word in shell for shell in shells_of(objects) for word in ("trial-1", "quick", "registry.example.com")
            )
        ),
        spoil=lambda objects: launcher_of(objects)["command"].__setitem__(
            begin_of(launcher_of(objects)) + 2, "mpirun python3 seatrial.pyz run quick"
        ),
    ),
]


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.name)
def test_rule_is_kept_and_the_wrong_way_is_found(rule: Rule) -> None:
    see(rule)
