"""The Job controller, and JobSet's, of the double of a cluster."""

from __future__ import annotations

import copy

from kubernetes.double.pods import World, is_active, is_over, is_ready, is_suspended, make_pod, phase, was_suspended
from kubernetes.double.recorded import INDEX, job_environment
from kubernetes.double.store import Object, condition, random_suffix

_BACKOFF_S = 10.0
"""Of the Job controller, before a pod takes the place of a failed one; doubled with each."""


def reconcile_job(world: World, job: Object) -> None:
    """One look at a Job: pods that are missing, and how it stands."""
    store, spec, metadata = world.store, job["spec"], job["metadata"]
    if is_over(job):
        _expire(world, job)
        return
    pods = store.owned(job, "Pod")
    stopped: set[str] = world.memory.setdefault((metadata["uid"], "stopped"), set())
    if is_suspended(job):
        # syncJob of Kubernetes 1.34: its active pods are deleted, and none of them counts as a failure.
        condition(job, "Suspended", True, "JobSuspended", "Job suspended")
        for pod in filter(is_active, pods):
            stopped.add(pod["metadata"]["uid"])
            store.drop(pod)
        return
    if was_suspended(job):
        condition(job, "Suspended", False, "JobResumed", "Job resumed")
    failed: set[str] = world.memory.setdefault((metadata["uid"], "failed"), set())
    for pod in pods:
        if pod["metadata"]["uid"] in stopped:
            continue
        if phase(pod) == "Failed" or ("deletionTimestamp" in pod["metadata"] and phase(pod) != "Succeeded"):
            failed.add(pod["metadata"]["uid"])
    done = [pod for pod in pods if phase(pod) == "Succeeded"]
    active = [pod for pod in pods if is_active(pod)]
    status = job.setdefault("status", {})
    status.update(active=len(active), ready=sum(map(is_ready, active)), succeeded=len(done), failed=len(failed))
    wanted = spec.get("completions", spec.get("parallelism", 1))
    if len(failed) > spec.get("backoffLimit", 6):
        for pod in active:
            store.drop(pod)
        message = "Job has reached the specified backoff limit"
        condition(job, "Failed", True, "BackoffLimitExceeded", message)
        store.event(job, "Warning", "BackoffLimitExceeded", message)
    elif len(done) >= wanted:
        condition(job, "Complete", True, "CompletionsReached", "Reached expected number of succeeded pods")
        store.event(job, "Normal", "Completed", "Job completed")
    elif not failed or world.first_seen(job, f"after {len(failed)}") > _BACKOFF_S * 2 ** (len(failed) - 1):
        _make_missing(world, job, [*done, *active], wanted)


def _make_missing(world: World, job: Object, present: list[Object], wanted: int) -> None:
    name = job["metadata"]["name"]
    labels = {
        "batch.kubernetes.io/job-name": name,
        "job-name": name,
        "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
        "controller-uid": job["metadata"]["uid"],
    }
    template = job["spec"]["template"]
    if job["spec"].get("completionMode") != "Indexed":
        for _ in range(wanted - len(present)):
            make_pod(world, job, f"{name}-{random_suffix()}", template, labels=labels)
        return
    there = {pod["metadata"]["annotations"][INDEX] for pod in present}
    for number in range(wanted):
        if str(number) not in there:
            make_pod(
                world,
                job,
                f"{name}-{number}-{random_suffix()}",
                template,
                labels={**labels, INDEX: str(number)},
                annotations={INDEX: str(number)},
                added=job_environment(),
                spec={"hostname": f"{name}-{number}"},
            )


def _expire(world: World, thing: Object) -> None:
    ttl_s = thing["spec"].get("ttlSecondsAfterFinished")
    if ttl_s is not None and world.first_seen(thing, "over") >= ttl_s:
        world.store.drop(thing)


def reconcile_jobset(world: World, jobset: Object) -> None:
    """One look at a JobSet: its Service, its Jobs, and whether all of them must start again."""
    store, spec = world.store, jobset["spec"]
    jobs = store.owned(jobset, "Job")
    if is_over(jobset):
        # Those that still run are of no use any more: the sshd of nodes under MPI.
        for job in jobs:
            if not is_over(job):
                store.drop(job)
        _expire(world, jobset)
        return
    # jobset_controller.go: the Jobs of a suspended JobSet are made all the same, suspended, and so is its Service.
    suspended = is_suspended(jobset)
    for job in jobs:
        job["spec"]["suspend"] = suspended
    if suspended:
        condition(jobset, "Suspended", True, "SuspendedJobs", "jobset is suspended")
    elif was_suspended(jobset):
        condition(jobset, "Suspended", False, "ResumeJobs", "jobset is resumed")
    _make_service(world, jobset)
    restarts: int = world.memory.setdefault((jobset["metadata"]["uid"], "restarts"), 0)
    if any(is_over(job) == "Failed" for job in jobs):
        if restarts >= spec.get("failurePolicy", {}).get("maxRestarts", 0):
            # JobSet 0.12 (the recording kill-run-jobset).
            message = "jobset failed due to reaching max number of restarts"
            condition(jobset, "Failed", True, "ReachedMaxRestarts", message)
            store.event(jobset, "Warning", "ReachedMaxRestarts", message)
            return
        world.memory[jobset["metadata"]["uid"], "restarts"] = restarts + 1
        jobset.setdefault("status", {})["restarts"] = restarts + 1
        for job in jobs:
            store.drop(job)
        return
    policy = spec.get("successPolicy", {})
    targets = policy.get("targetReplicatedJobs") or [replicated["name"] for replicated in spec["replicatedJobs"]]
    counted = [job for job in jobs if job["metadata"]["labels"][_REPLICATED] in targets]
    is_enough = any if policy.get("operator") == "Any" else all
    are_there = len({job["metadata"]["labels"][_REPLICATED] for job in counted}) == len(targets)
    if are_there and is_enough(is_over(job) == "Complete" for job in counted):
        condition(jobset, "Completed", True, "AllJobsCompleted", "jobset completed successfully")
        return
    for replicated in spec["replicatedJobs"]:
        if all(_is_met(depends, jobs) for depends in replicated.get("dependsOn", ())):
            _make_jobs(world, jobset, replicated, restarts)


_REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"


def _is_met(depends: Object, jobs: list[Object]) -> bool:
    its = [job for job in jobs if job["metadata"]["labels"][_REPLICATED] == depends["name"]]
    if depends["status"] == "Complete":
        return bool(its) and all(is_over(job) == "Complete" for job in its)
    ready = [
        job.get("status", {}).get("ready", 0) + job.get("status", {}).get("succeeded", 0) >= job["spec"]["parallelism"]
        for job in its
    ]
    return bool(ready) and all(ready)


def _make_service(world: World, jobset: Object) -> None:
    name, network = jobset["metadata"]["name"], jobset["spec"].get("network", {})
    subdomain = network.get("subdomain", name)
    namespace = jobset["metadata"]["namespace"]
    if world.faults.any("no-service", owner=name):
        return
    if network.get("enableDNSHostnames", True) and world.store.get("Service", namespace, subdomain) is None:
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": subdomain},
            "spec": {
                "clusterIP": "None",
                "selector": {"jobset.sigs.k8s.io/jobset-name": name},
                "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
            },
        }
        world.store.add(service, namespace, jobset)


def _jobs_before(jobset: Object, name: str) -> int:
    names = [each["name"] for each in jobset["spec"]["replicatedJobs"]]
    return sum(each.get("replicas", 1) for each in jobset["spec"]["replicatedJobs"][: names.index(name)])


def _make_jobs(world: World, jobset: Object, replicated: Object, restarts: int) -> None:
    name, network = jobset["metadata"]["name"], jobset["spec"].get("network", {})
    for number in range(replicated.get("replicas", 1)):
        job_name = f"{name}-{replicated['name']}-{number}"
        if world.store.get("Job", jobset["metadata"]["namespace"], job_name) is not None:
            continue
        told = copy.deepcopy(replicated["template"])
        marks = {
            "jobset.sigs.k8s.io/jobset-name": name,
            _REPLICATED: replicated["name"],
            "jobset.sigs.k8s.io/job-index": str(number),
            # Of all Jobs of the JobSet, in the order of its spec.
            "jobset.sigs.k8s.io/job-global-index": str(_jobs_before(jobset, replicated["name"]) + number),
            "jobset.sigs.k8s.io/replicatedjob-replicas": str(replicated.get("replicas", 1)),
            "jobset.sigs.k8s.io/restart-attempt": str(restarts),
            "jobset.sigs.k8s.io/global-replicas": str(
                sum(each.get("replicas", 1) for each in jobset["spec"]["replicatedJobs"])
            ),
        }
        spec = {"parallelism": 1, "completionMode": "Indexed", **told["spec"]}
        spec.setdefault("completions", spec["parallelism"])
        spec["suspend"] = is_suspended(jobset)
        template = spec["template"]
        metadata = template.setdefault("metadata", {})
        for field in ("labels", "annotations"):
            metadata[field] = {**metadata.get(field, {}), **marks}
        template["spec"].setdefault("restartPolicy", "OnFailure")
        if network.get("enableDNSHostnames", True):
            template["spec"]["subdomain"] = network.get("subdomain", name)
        its = told.get("metadata", {})
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": job_name,
                "labels": {**its.get("labels", {}), **marks},
                "annotations": {**its.get("annotations", {}), **marks},
            },
            "spec": spec,
            "status": {},
        }
        world.store.add(job, jobset["metadata"]["namespace"], jobset)
