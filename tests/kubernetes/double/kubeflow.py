"""The training-operator, Trainer and mpi-operator of the double of a cluster."""

from __future__ import annotations

import base64
import copy
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from kubernetes.double.pods import (
    World,
    is_active,
    is_over,
    is_ready,
    is_suspended,
    make_pod,
    phase,
    upserted,
    was_suspended,
)
from kubernetes.double.recorded import (
    HOSTFILE_MOUNT,
    host_file_volume,
    init_pytorch,
    mpi_launcher_environment,
    mpi_worker_environment,
    pytorch_environment,
    ssh_volume,
    torch_environment,
    trainer_ssh_volume,
)
from kubernetes.double.store import Object, condition


def reconcile_pytorchjob(world: World, job: Object) -> None:
    """A Service and a pod for each replica."""
    store, spec, name = world.store, job["spec"], job["metadata"]["name"]
    pods = store.owned(job, "Pod")
    if is_over(job):
        _clean(world, job, pods)
        return
    condition(job, "Created", True, "PyTorchJobCreated", f"PyTorchJob {name} is created.")
    # The operator warns of each healthy job at each look (the recording run-pytorchjob).
    message = "Restart policy in pod template will be overwritten by restart policy in replica spec"
    store.event(job, "Warning", "SetPodTemplateRestartPolicy", message)
    if is_suspended(job):
        # pkg/controller.v1/common/job.go: pods and Services are deleted, whatever the policy says.
        condition(job, "Suspended", True, "PyTorchJobSuspended", f"PyTorchJob {name} is suspended.")
        for thing in (*pods, *store.owned(job, "Service")):
            store.drop(thing)
        return
    if was_suspended(job):
        condition(job, "Suspended", False, "PyTorchJobResumed", f"PyTorchJob {name} is resumed.")
    there = {pod["metadata"]["name"] for pod in pods}
    for kind, replica in spec["pytorchReplicaSpecs"].items():
        for number in range(replica.get("replicas", 1)):
            own = f"{name}-{kind.lower()}-{number}"
            labels = {
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
                "training.kubeflow.org/replica-type": kind.lower(),
                "training.kubeflow.org/replica-index": str(number),
            }
            _make_service(world, job, own, labels, publish=False)
            if own in there:
                continue
            template = copy.deepcopy(replica["template"])
            container = next(each for each in template["spec"]["containers"] if each["name"] == "pytorch")
            # Every replica, by the name of the port (defaulting_utils.go, pytorch_defaults.go of training-operator).
            if not any(port.get("name") == "pytorchjob-port" for port in container.setdefault("ports", [])):
                container["ports"].append({"containerPort": 23456, "name": "pytorchjob-port", "protocol": "TCP"})
            role = {"training.kubeflow.org/job-role": "master"} if kind == "Master" else {}
            if kind == "Worker":
                template["spec"].setdefault("initContainers", []).append(init_pytorch(job))
            make_pod(
                world,
                job,
                own,
                template,
                labels={**labels, **role},
                added=pytorch_environment(job, number + (kind == "Worker")),
                spec={"restartPolicy": replica.get("restartPolicy", "OnFailure")},
            )
    failed = [pod["metadata"]["name"] for pod in pods if phase(pod) == "Failed"]
    if failed and "backoffLimit" in spec.get("runPolicy", {}):
        # Up to 1.9.3 all pods are deleted then, before any policy is looked at (kubeflow/trainer #3419).
        for pod in pods:
            store.forget(pod) if not is_active(pod) else store.drop(pod)
    if failed:
        condition(job, "Failed", True, "PyTorchJobFailed", f"PyTorchJob {name} is failed because {failed[0]} failed.")
    elif any(phase(pod) == "Succeeded" for pod in pods if "-master-" in pod["metadata"]["name"]):
        condition(job, "Succeeded", True, "PyTorchJobSucceeded", f"PyTorchJob {name} is successfully completed.")
    elif any(phase(pod) == "Running" for pod in pods):
        condition(job, "Running", True, "PyTorchJobRunning", f"PyTorchJob {name} is running.")


def _clean(world: World, job: Object, pods: list[Object], *, ttl: bool = True) -> None:
    policy = job["spec"].get("runPolicy", {})
    clean = policy.get("cleanPodPolicy", "None")
    for pod in pods:
        if clean == "All" or (clean == "Running" and is_active(pod)):
            world.store.drop(pod)
    ttl_s = policy.get("ttlSecondsAfterFinished")
    if ttl and ttl_s is not None and world.first_seen(job, "over") >= ttl_s:
        world.store.drop(job)


def _make_service(world: World, owner: Object, name: str, selector: dict[str, str], *, publish: bool) -> None:
    absent = world.faults.any("no-service", owner=owner["metadata"]["name"])
    if world.store.get("Service", owner["metadata"]["namespace"], name) is None and not absent:
        spec: Object = {"clusterIP": "None", "selector": selector}
        if publish:
            spec["publishNotReadyAddresses"] = True
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
        world.store.add(service, owner["metadata"]["namespace"], owner)


def reconcile_mpijob(world: World, job: Object) -> None:
    """Service, host file, key, workers; the launcher is a Job, and comes when they are ready."""
    store, spec, name = world.store, job["spec"], job["metadata"]["name"]
    namespace = job["metadata"]["namespace"]
    pods = store.owned(job, "Pod")
    if is_over(job):
        # mpi-operator gives ttlSecondsAfterFinished to the launcher's Job alone: the MPIJob stays.
        _clean(world, job, pods, ttl=False)
        return
    condition(job, "Created", True, "MPIJobCreated", f"MPIJob {namespace}/{name} is created.")
    labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/operator-name": "mpi-operator"}
    _make_service(world, job, name, labels, publish=bool(spec.get("runLauncherAsWorker")))
    count = spec["mpiReplicaSpecs"]["Worker"].get("replicas", 0)
    slots, how = spec.get("slotsPerWorker", 1), spec.get("mpiImplementation", "OpenMPI")
    lines = [f"{name}-worker-{number}.{name}.{namespace}.svc" for number in range(count)]
    _make_host_file(world, job, f"{name}-config", [_slot(line, slots, how) for line in lines], lines)
    _make_key(world, job, f"{name}-ssh")
    there = {pod["metadata"]["name"] for pod in pods}
    suspended = is_suspended(job)
    if suspended:
        # Word for word as in the recording resume-mpijob.
        condition(job, "Suspended", True, "MPIJobSuspended", "MPIJob suspended")
        condition(job, "Running", False, "MPIJobSuspended", f"MPIJob {namespace}/{name} is suspended.")
        for pod in filter(is_active, pods):
            store.drop(pod)
        count = 0
    elif was_suspended(job):
        condition(job, "Suspended", False, "MPIJobResumed", "MPIJob resumed")
    for number in range(count):
        own = f"{name}-worker-{number}"
        if own not in there:
            _make_worker(world, job, own, number, labels)
    launcher = store.get("Job", namespace, f"{name}-launcher")
    if launcher is None:
        waits = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
        # While it is suspended there are 0 workers and 0 of them are ready, so the launcher's Job is made, and starts
        # together with the workers when the MPIJob is resumed (mpi-operator #615; seen as resume-mpijob).
        if not waits or sum(map(is_ready, pods)) == count:
            _make_launcher(world, job, labels, slots, how)
        return
    launcher["spec"]["suspend"] = suspended
    failed = [pod["metadata"]["name"] for pod in pods if phase(pod) == "Failed"]
    if is_over(launcher) == "Complete":
        condition(job, "Succeeded", True, "MPIJobSucceeded", f"MPIJob {namespace}/{name} successfully completed.")
    elif is_over(launcher) == "Failed":
        condition(job, "Failed", True, "MPIJobFailed", f"MPIJob {namespace}/{name} has failed")
    elif failed:
        evicted = f"{len(failed)}/{count} workers are evicted"
        store.event(job, "Warning", "MPIJobEvicted", evicted)
    elif launcher.get("status", {}).get("active"):
        condition(job, "Running", True, "MPIJobRunning", f"MPIJob {namespace}/{name} is running.")


def _slot(host: str, slots: int, implementation: str) -> str:
    return f"{host} slots={slots}" if implementation == "OpenMPI" else f"{host}:{slots}"


def _with_ssh(template: Object, job: Object) -> Object:
    path = job["spec"].get("sshAuthMountPath", "/root/.ssh")
    spec = template["spec"]
    volume = ssh_volume(f"{job['metadata']['name']}-ssh", 0o600 if path == "/root/.ssh" else None)
    _with_volume(spec, spec["containers"][0], volume, path)
    return template


def _make_worker(world: World, job: Object, own: str, number: int, labels: dict[str, str]) -> None:
    replica = job["spec"]["mpiReplicaSpecs"]["Worker"]
    template = _with_ssh(copy.deepcopy(replica["template"]), job)
    container = template["spec"]["containers"][0]
    if not container.get("command") and not container.get("args"):
        container["command"] = ["/usr/sbin/sshd", "-De"]
    container["env"] = [*container.get("env", ()), *mpi_worker_environment()]
    role = {"training.kubeflow.org/job-role": "worker", "training.kubeflow.org/replica-index": str(number)}
    service, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    told = template["spec"].get("dnsConfig", {})
    searches = [*told.get("searches", ()), f"{service}.{namespace}.svc.cluster.local"]
    # Of the workers alone, so that they know the launcher by the name of its host.
    place = {"hostname": own, "subdomain": service, "dnsConfig": {**told, "searches": searches}}
    restart = {"restartPolicy": replica.get("restartPolicy", "Never")}
    make_pod(world, job, own, template, labels={**labels, **role}, spec={**place, **restart})


def _make_launcher(world: World, job: Object, labels: dict[str, str], slots: int, how: str) -> None:
    name, replica = job["metadata"]["name"], job["spec"]["mpiReplicaSpecs"]["Launcher"]
    template = _with_ssh(copy.deepcopy(replica["template"]), job)
    container = template["spec"]["containers"][0]
    _with_volume(template["spec"], container, host_file_volume(f"{name}-config", by_trainer=False), HOSTFILE_MOUNT)
    container["env"] = [*container.get("env", ()), *mpi_launcher_environment(how, slots, role=True)]
    template["spec"] |= {
        "hostname": f"{name}-launcher",
        "subdomain": name,
        "restartPolicy": replica.get("restartPolicy", "OnFailure"),
    }
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), **labels, "training.kubeflow.org/job-role": "launcher"}
    made = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{name}-launcher", "labels": {"app": name}},
        "spec": {
            "backoffLimit": job["spec"].get("runPolicy", {}).get("backoffLimit", 6),
            "suspend": is_suspended(job),
            "template": template,
        },
        "status": {},
    }
    world.store.add(made, job["metadata"]["namespace"], job)


def _with_volume(spec: Object, container: Object, volume: Object, path: str) -> None:
    spec.setdefault("volumes", []).append(volume)
    container.setdefault("volumeMounts", []).append({"name": volume["name"], "mountPath": path})


def _make_host_file(world: World, owner: Object, name: str, lines: list[str], hosts: list[str]) -> None:
    if world.store.get("ConfigMap", owner["metadata"]["namespace"], name) is None:
        discover = "".join(f"echo {host}\n" for host in hosts)
        data = {"hostfile": "".join(f"{line}\n" for line in lines), "discover_hosts.sh": f"#!/bin/sh\n{discover}"}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        world.store.add(config, owner["metadata"]["namespace"], owner)


def _make_key(world: World, owner: Object, name: str) -> None:
    if world.store.get("Secret", owner["metadata"]["namespace"], name) is not None:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "key")
        make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-C", "", "-f", str(file)]
        subprocess.run(make, check=True, timeout=20, stdin=subprocess.DEVNULL)
        parts = {"ssh-privatekey": file.read_bytes(), "ssh-publickey": file.with_suffix(".pub").read_bytes()}
    data = {key: base64.b64encode(content).decode() for key, content in parts.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/ssh-auth", "metadata": {"name": name}}
    world.store.add({**secret, "data": data}, owner["metadata"]["namespace"], owner)


def reconcile_trainjob(world: World, job: Object) -> None:
    """A JobSet of the same name, made of the runtime, the policy of which adds variables."""
    store, name, namespace = world.store, job["metadata"]["name"], job["metadata"]["namespace"]
    if is_over(job):
        return
    reference = job["spec"]["runtimeRef"]
    runtime = store.get(reference.get("kind", "ClusterTrainingRuntime"), namespace, reference["name"])
    if runtime is None:
        store.event(job, "Warning", "TrainJobResourcesCreationFailed", f'runtime "{reference["name"]}" not found')
        return
    # trainjob_controller.go, constants.go; the JobSet is suspended and resumed with it.
    if is_suspended(job):
        condition(job, "Suspended", True, "Suspended", "TrainJob is suspended")
    elif was_suspended(job):
        condition(job, "Suspended", False, "Resumed", "TrainJob is resumed")
    jobset = store.get("JobSet", namespace, name)
    if jobset is not None:
        jobset["spec"]["suspend"] = is_suspended(job)
    if jobset is None:
        store.add(_jobset(world, job, runtime["spec"]), namespace, job)
    elif end := is_over(jobset):
        word = "Complete" if end == "Completed" else "Failed"
        reason, message = ("AllJobsCompleted", "jobset completed successfully")
        if word == "Failed":
            reason, message = ("FailedJobs", "jobset failed due to one or more job failures")
        condition(job, word, True, reason, message)


def _jobset(world: World, job: Object, runtime: Object) -> Object:
    name, trainer = job["metadata"]["name"], job["spec"].get("trainer")
    policy = runtime.get("mlPolicy", {})
    nodes = (trainer or {}).get("numNodes", policy.get("numNodes", 1))
    spec: dict[str, Any] = copy.deepcopy(runtime["template"]["spec"])
    under_mpi = "mpi" in policy
    for replicated in spec["replicatedJobs"]:
        step = replicated["template"].get("metadata", {}).get("labels", {})
        is_trainer = step.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer"
        # pkg/runtime/core/trainingruntime.go: the job with the label `trainer` has as many pods as the RUNTIME says;
        # the MPI plugin sets only `node` from the TrainJob (the recording run-trainjob-mpi: two launchers).
        count = policy.get("numNodes", 1) if under_mpi and is_trainer else nodes if is_trainer else 1
        count = nodes if under_mpi and replicated["name"] == "node" else count
        replicated["template"]["spec"] |= {"parallelism": count, "completions": count}
        pod = replicated["template"]["spec"]["template"]["spec"]
        (container,) = (each for each in pod["containers"] if each["name"] == "node")
        if under_mpi:
            _with_mpi(pod, container, replicated["name"], job, policy["mpi"])
        elif is_trainer and trainer is not None:
            each = trainer.get("numProcPerNode", "auto")
            container["env"] = upserted(container.get("env", ()), torch_environment(name, nodes, each))
    if under_mpi:
        slots = (trainer or {}).get("numProcPerNode", policy["mpi"].get("numProcPerNode", 1))
        hosts = [f"{name}-node-0-{number}.{name}" for number in range(nodes)]
        _make_host_file(world, job, f"{name}-mpi-hostfile", [f"{host} slots={slots}" for host in hosts], hosts)
        _make_key(world, job, f"{name}-mpi-ssh-auth")
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": dict(job["metadata"].get("labels", {}))},
        "spec": {**spec, "suspend": is_suspended(job)},
        "status": {},
    }


def _with_mpi(pod: Object, container: Object, replicated: str, job: Object, mpi: Object) -> None:
    name = job["metadata"]["name"]
    keys = trainer_ssh_volume(f"{name}-mpi-ssh-auth")
    _with_volume(pod, container, keys, mpi.get("sshAuthMountPath", "/root/.ssh"))
    if replicated == "launcher":
        _with_volume(pod, container, host_file_volume(f"{name}-mpi-hostfile", by_trainer=True), HOSTFILE_MOUNT)
        slots = job["spec"].get("trainer", {}).get("numProcPerNode", mpi.get("numProcPerNode", 1))
        container["env"] = upserted(container.get("env", ()), mpi_launcher_environment("OpenMPI", slots, role=False))
