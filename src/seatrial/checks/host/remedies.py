"""Remedies for a node that is not set up for training, in the words of the environment that it runs in."""

from __future__ import annotations

_CONTAINER = {
    "shm": "start the container with --shm-size=2g",
    "memlock": "start the container with --ulimit memlock=-1",
    "open_files": "start the container with --ulimit nofile=65536:65536",
    "memory": "raise --memory of the container, or start fewer processes on the node",
    "cores": "raise --cpus or --cpuset-cpus of the container, or start fewer processes on the node",
    "name": "start the container with --network=host, or with --add-host NAME:ADDRESS of the node, or set"
    " GLOO_SOCKET_IFNAME to the interface that leads to the other nodes",
}
_REMEDIES: dict[str, dict[str, str]] = {
    "docker": _CONTAINER,
    "podman": _CONTAINER,
    "kubernetes": {
        "shm": "mount a volume on /dev/shm in the pod: emptyDir with medium: Memory and sizeLimit: 2Gi or more, which"
        " counts against the memory limit of the container",
        "memlock": "add the capability IPC_LOCK to the container, or set LimitMEMLOCK=infinity for the container"
        " runtime of the node",
        "open_files": "raise LimitNOFILE of the container runtime of the node",
        "memory": "raise resources.limits.memory of the container, or start fewer processes in the pod",
        "cores": "raise resources.limits.cpu of the container, or start fewer processes in the pod",
        "name": "give the pods a headless Service and leave hostNetwork out, or set GLOO_SOCKET_IFNAME to the interface"
        " that leads to the other nodes",
    },
    "slurm": {
        "shm": "have /dev/shm of the node enlarged (mount -o remount,size=50% /dev/shm); in a container of the job,"
        " mount the one of the node",
        "memlock": "set LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        "open_files": "raise LimitNOFILE of slurmd, and set PropagateResourceLimitsExcept=NOFILE in slurm.conf",
        "memory": "ask for more with --mem or --mem-per-cpu, or start fewer tasks on the node",
        "cores": "ask for more with --cpus-per-task, or start fewer tasks on the node",
        "name": "map the name to the node's address in DNS or /etc/hosts, or export GLOO_SOCKET_IFNAME with the"
        " interface that leads to the other nodes",
    },
    "none": {
        "shm": "enlarge it (mount -o remount,size=50% /dev/shm, and in /etc/fstab)",
        "memlock": "set memlock to unlimited in /etc/security/limits.conf and log in again (LimitMEMLOCK=infinity where"
        " systemd starts it)",
        "open_files": "raise nofile in /etc/security/limits.conf and log in again (LimitNOFILE where systemd"
        " starts it)",
        "memory": "end what else uses memory there, or start fewer processes on the node",
        "cores": "start fewer processes on the node, or lift what binds them (taskset, cpuset, CPUQuota)",
        "name": "map the name to the node's address in DNS or /etc/hosts (Debian and Ubuntu put it on 127.0.1.1), or"
        " export GLOO_SOCKET_IFNAME with the interface that leads to the other nodes",
    },
}


def remedy(topic: str, environment: object) -> str:
    """Return what to change, one clause. ``environment``: as ``probe.host`` names it; any other is a bare machine."""
    return _REMEDIES.get(str(environment), _REMEDIES["none"])[topic]
