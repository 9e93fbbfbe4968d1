"""Additions of the operators to pods, recorded from their sources, not from our renderer; for the double of a cluster.

| who | version | where |
|---|---|---|
| Job controller | Kubernetes 1.31 | pkg/controller/job/{indexed_job_utils,job_controller}.go |
| JobSet | 0.10 to 0.12 | pkg/controllers/jobset_controller.go, api/jobset/v1alpha2/jobset_types.go |
| training-operator | release-1.9 | pkg/controller.v1/pytorch/{envvar,master,initcontainer}.go, common/ |
| Trainer | 2.0 to 2.3 | pkg/runtime/framework/plugins/{torch/torch,mpi/mpi,jobset/builder}.go, pkg/constants |
| mpi-operator | 0.6 to 0.8 | pkg/controller/mpi_job_controller.go |
| kubelet | 1.31 | pkg/kubelet/envvars, pkg/kubelet/kubelet_pods.go |
"""

from __future__ import annotations

from kubernetes.double.store import Object

INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of pods, and label of them since 1.28."""
HOSTFILE_MOUNT = "/etc/mpi"
_HOSTFILE = f"{HOSTFILE_MOUNT}/hostfile"
_SSH_ARGS = "-o ConnectionAttempts=10"
OPERATOR_VARIABLES: dict[str, tuple[str, ...]] = {
    "job": ("JOB_COMPLETION_INDEX",),
    "jobset": ("JOB_COMPLETION_INDEX",),
    "pytorchjob": ("RANK", "MASTER_ADDR"),
    "trainjob": ("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
}
"""By the target of seatrial: those without which its pods cannot find one another."""

_KEYS = (("ssh-privatekey", "id_rsa"), ("ssh-publickey", "id_rsa.pub"), ("ssh-publickey", "authorized_keys"))

KUBELET = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
    "KUBERNETES_PORT_443_TCP_PORT": "443",
    "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
}
"""In every container, whatever ``enableServiceLinks`` says: that is for other Services."""


def job_environment() -> list[Object]:
    """Of all containers of an Indexed Job, behind what the manifest has."""
    # Since 1.28 from the label, as in the recording run-job (1.34); before, from the annotation.
    field = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    return [{"name": "JOB_COMPLETION_INDEX", "valueFrom": field}]


def pytorch_environment(job: Object, rank: int) -> list[Object]:
    """Of all containers of the pods of a PyTorchJob with a Master, behind what the manifest has."""
    name, spec = job["metadata"]["name"], job["spec"]
    replicas = sum(replica.get("replicas", 1) for replica in spec["pytorchReplicaSpecs"].values())
    told = spec.get("nprocPerNode", "auto")
    each = 1 if told in ("auto", "gpu", "cpu") else int(told)
    master = spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    (container,) = (container for container in master if container["name"] == "pytorch")
    ports = [port["containerPort"] for port in container.get("ports", ()) if port.get("name") == "pytorchjob-port"]
    port = str(ports[0] if ports else 23456)
    return _listed(
        {
            "PYTHONUNBUFFERED": "1",
            "MASTER_PORT": port,
            "PET_MASTER_PORT": port,
            "MASTER_ADDR": f"{name}-master-0",
            "PET_MASTER_ADDR": f"{name}-master-0",
            "WORLD_SIZE": str(replicas * each),
            "RANK": str(rank),
            "PET_NODE_RANK": str(rank),
            "PET_NPROC_PER_NODE": told,
            "PET_NNODES": str(replicas),
        }
    )


def init_pytorch(job: Object) -> Object:
    """Waits in each worker until the name of the master resolves."""
    wait = (
        f"err=1;for i in $(seq 100); do if nslookup {job['metadata']['name']}-master-0; then err=0 && break; fi;"
        "echo waiting for master; sleep 2; done; exit $err"
    )
    return {
        "name": "init-pytorch",
        "image": "alpine:3.10",
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"cpu": "100m", "memory": "20Mi"}, "requests": {"cpu": "50m", "memory": "10Mi"}},
        "command": ["sh", "-c", wait],
    }


def torch_environment(name: str, nodes: int, nproc_per_node: int | str) -> list[Object]:
    """Of the container ``node`` of a TrainJob whose runtime has torch as its policy."""
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    return [
        *_listed({"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(nproc_per_node)}),
        {"name": "PET_NODE_RANK", "valueFrom": field},
        *_listed({"PET_MASTER_ADDR": f"{name}-node-0-0.{name}", "PET_MASTER_PORT": "29500"}),
    ]


def mpi_launcher_environment(implementation: str, slots: int, *, role: bool) -> list[Object]:
    """Of the launcher. ``role``: as mpi-operator does it, which also hides devices; Trainer has Open MPI only."""
    own = {
        "OpenMPI": {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": _HOSTFILE,
            "OMPI_MCA_plm_rsh_args": _SSH_ARGS,
            "OMPI_MCA_orte_set_default_slots": str(slots),
        },
        "Intel": {
            "I_MPI_HYDRA_HOST_FILE": _HOSTFILE,
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _SSH_ARGS,
            "I_MPI_PERHOST": str(slots),
        },
        "MPICH": {"HYDRA_HOST_FILE": _HOSTFILE, "HYDRA_LAUNCH_EXTRA_ARGS": _SSH_ARGS},
    }[implementation]
    hidden = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    return _listed({"K_MPI_JOB_ROLE": "launcher", **own, **hidden} if role else own)


def mpi_worker_environment() -> list[Object]:
    """Of the workers of an MPIJob."""
    return _listed({"K_MPI_JOB_ROLE": "worker"})


def ssh_volume(secret: str, mode: int | None) -> Object:
    """mpi-operator's: the one key pair of all pods, under the three names that ssh and sshd know."""
    items = [{"key": key, "path": path} for key, path in _KEYS]
    keys: Object = {"secretName": secret, "items": items}
    return {"name": "ssh-auth", "secret": keys if mode is None else {**keys, "defaultMode": mode}}


def trainer_ssh_volume(secret: str) -> Object:
    """Trainer's (2.3, the recording run-trainjob-mpi; before, the modes were Kubernetes' own, 0644)."""
    items = [{"key": key, "path": path, "mode": 0o640 if key == "ssh-privatekey" else 0o644} for key, path in _KEYS]
    return {"name": "mpi-ssh-auth", "secret": {"secretName": secret, "items": items, "defaultMode": 0o400}}


def host_file_volume(config: str, *, by_trainer: bool) -> Object:
    """The host file; mpi-operator adds a script that lists the hosts that run."""
    items: list[Object] = [{"key": "hostfile", "path": "hostfile", "mode": 0o444}]
    if not by_trainer:
        items.append({"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555})
    name = "mpi-hostfile" if by_trainer else "mpi-job-config"
    return {"name": name, "configMap": {"name": config, "items": items}}


def _listed(variables: dict[str, str]) -> list[Object]:
    return [{"name": name, "value": value} for name, value in variables.items()]
