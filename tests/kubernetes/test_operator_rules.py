"""Rules of the operators that no schema has and whose violation silently breaks a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kubernetes.rules import (
    ALL,
    OF,
    Objects,
    Rule,
    begin_of,
    containers_of,
    each,
    env_of,
    jobs_in,
    jobset_of,
    of_kind,
    pod_specs,
    pods_of,
    program_of,
    replicas_of,
    runtime_of,
    see,
    service_finds_pods,
    set_to,
    spec_of,
)
from kubernetes.workloads import CASES

from seatrial.targets.kubernetes.manifest.workload import Object


def _is_numbered(variable: str) -> Callable[[Objects], bool]:
    def kept(objects: Objects) -> bool:
        return all(
            program_of(container)[:2] == ["env", f"SEATRIAL_NODE_RANK=$({variable})"]
            and env_of(container)["SEATRIAL_NNODES"] == "2"
            for container in containers_of(objects)
        )

    return kept


def _fix_number(container: Object) -> None:
    container["command"][begin_of(container) + 1] = "SEATRIAL_NODE_RANK=0"


_RULES = [
    Rule(
        name="job: a failed pod is the end of all",
        cases=OF["job"],
        kept=lambda objects: spec_of(objects)["backoffLimit"] == 0,
        spoil=lambda objects: spec_of(objects).pop("backoffLimit") or set_to("backoffLimit", 6)(objects),
    ),
    Rule(
        name="job: as many pods at once as there are nodes",
        cases=OF["job"],
        kept=lambda objects: spec_of(objects)["completions"] == spec_of(objects)["parallelism"],
        spoil=set_to("parallelism", 100),
    ),
    Rule(
        name="job: several nodes are numbered, and find the first by a name",
        cases=[name for name in OF["job"] if name != "job-one-node"],
        kept=lambda objects: spec_of(objects)["completionMode"] == "Indexed" and service_finds_pods(objects),
        spoil=lambda objects: (
            spec_of(objects)["template"]["spec"].pop("subdomain")
            and spec_of(objects)["template"]["spec"].update(subdomain="other")
        ),
    ),
    Rule(
        name="job, jobset: the node's number is the completion index",
        cases=["job", "job-cpu", *OF["jobset"]],
        kept=_is_numbered("JOB_COMPLETION_INDEX"),
        spoil=each(containers_of, _fix_number),
    ),
    Rule(
        name="jobset: the end of one is the end of all, and all start again",
        cases=OF["jobset"],
        kept=lambda objects: (
            "maxRestarts" in spec_of(objects)["failurePolicy"]
            and all(job["backoffLimit"] == 0 for job in jobs_in(spec_of(objects)))
        ),
        spoil=set_to("replicatedJobs.0.template.spec.backoffLimit", 6),
    ),
    Rule(
        name="jobset: one replicated Job of one replica, or numbers collide",
        cases=OF["jobset"],
        kept=lambda objects: (
            [job["replicas"] for job in spec_of(objects)["replicatedJobs"]] == [1]
            and jobs_in(spec_of(objects))[0]["completions"] == 2
        ),
        spoil=set_to("replicatedJobs.0.replicas", 2),
    ),
    Rule(
        name="jobset: the first pod has a name before it is ready",
        cases=OF["jobset"],
        kept=lambda objects: (
            spec_of(objects)["network"]["publishNotReadyAddresses"]
            and env_of(containers_of(objects)[0])["MASTER_ADDR"] == "trial-1-node-0-0.trial-1"
        ),
        spoil=set_to("network.publishNotReadyAddresses", False),
    ),
    Rule(
        name="pytorchjob: one Master, and the others Workers",
        cases=[name for name in OF["pytorchjob"] if name != "pytorchjob-one-node"],
        kept=lambda objects: (
            {name: spec["replicas"] for name, spec in replicas_of(objects).items()} == {"Master": 1, "Worker": 1}
        ),
        spoil=set_to("pytorchReplicaSpecs.Master.replicas", 2),
    ),
    Rule(
        name="pytorchjob: no Worker where there is one node",
        cases=["pytorchjob-one-node"],
        kept=lambda objects: list(replicas_of(objects)) == ["Master"],
        spoil=lambda objects: replicas_of(objects).update(Worker={}),
    ),
    Rule(
        name="pytorchjob: the container is called pytorch",
        cases=OF["pytorchjob"],
        kept=lambda objects: {container["name"] for container in containers_of(objects)} == {"pytorch"},
        spoil=each(containers_of, lambda container: container.update(name="main")),
    ),
    Rule(
        name="pytorchjob: nprocPerNode is a number, in quotes",
        cases=OF["pytorchjob"],
        kept=lambda objects: spec_of(objects)["nprocPerNode"] == "8",
        spoil=set_to("nprocPerNode", "auto"),
    ),
    Rule(
        name="pytorchjob: the operator's RANK is the number of the node",
        cases=["pytorchjob", "pytorchjob-everything"],
        kept=_is_numbered("RANK"),
        spoil=each(containers_of, _fix_number),
    ),
    Rule(
        name="pytorchjob: MASTER_ADDR is the operator's",
        cases=OF["pytorchjob"],
        kept=lambda objects: all("MASTER_ADDR" not in env_of(container) for container in containers_of(objects)),
        spoil=each(containers_of, lambda container: container["env"].append({"name": "MASTER_ADDR", "value": "host"})),
    ),
    Rule(
        name="pytorchjob, mpijob: the restart policy stands at the replica",
        cases=[*OF["pytorchjob"], *OF["mpijob"]],
        kept=lambda objects: {replica["restartPolicy"] for replica in replicas_of(objects).values()} == {"Never"},
        spoil=lambda objects: next(iter(replicas_of(objects).values())).update(restartPolicy="OnFailure"),
    ),
    Rule(
        name="mpijob: nothing is tried again",
        cases=OF["mpijob"],
        kept=lambda objects: spec_of(objects)["runPolicy"]["backoffLimit"] == 0,
        spoil=set_to("runPolicy.backoffLimit", 6),
    ),
    Rule(
        # training-operator 1.7 to 1.9.3: kubeflow/trainer #3419, and the recording kill193-unfixed.
        name="pytorchjob: no backoffLimit, by which the operator deletes all pods at the first failure",
        cases=OF["pytorchjob"],
        kept=lambda objects: "backoffLimit" not in spec_of(objects)["runPolicy"],
        spoil=set_to("runPolicy.backoffLimit", 0),
    ),
    Rule(
        # The recording run-trainjob-mpi: with 2 there were two launchers.
        name="trainjob: under MPI the runtime says one, the number of launchers, and the TrainJob how many nodes",
        cases=["trainjob-mpi"],
        kept=lambda objects: (
            runtime_of(objects)["mlPolicy"]["numNodes"] == 1 and spec_of(objects)["trainer"]["numNodes"] == 2
        ),
        spoil=lambda objects: runtime_of(objects)["mlPolicy"].update(numNodes=2),
    ),
    Rule(
        name="mpijob: what stands in the template would be overridden, with a warning",
        cases=OF["mpijob"],
        kept=lambda objects: all("restartPolicy" not in spec for spec in pod_specs(objects)),
        spoil=each(pod_specs, lambda spec: spec.update(restartPolicy="Never")),
    ),
    Rule(
        name="pytorchjob, mpijob: pods that have ended keep their logs, others are ended",
        cases=[*OF["pytorchjob"], *OF["mpijob"]],
        kept=lambda objects: spec_of(objects)["runPolicy"]["cleanPodPolicy"] == "Running",
        spoil=set_to("runPolicy.cleanPodPolicy", "None"),
    ),
    Rule(
        name="pytorchjob: in the host's network each run has a port of its own",
        cases=["pytorchjob-everything"],
        kept=lambda objects: all(
            container["ports"][0]["containerPort"] == CASES["pytorchjob-everything"][1]().master_port
            and container["ports"][0]["name"] == "pytorchjob-port"
            for container in containers_of(objects)
        ),
        spoil=each(containers_of, lambda container: container["ports"][0].update(containerPort=23456)),
    ),
    Rule(
        name="the host's network still resolves names of the cluster",
        cases=[name for name in ALL if name.endswith("everything")],
        kept=lambda objects: all(
            spec["dnsPolicy"] == "ClusterFirstWithHostNet" for spec in pod_specs(objects) if "hostNetwork" in spec
        ),
        spoil=each(pod_specs, lambda spec: spec.update(hostNetwork=True, dnsPolicy="ClusterFirst")),
    ),
    Rule(
        # With five dots (dnsPolicy) gpu-01.example.org would be asked for as a Service of the namespace org first.
        name="the name of a host is asked for as it is before the search path",
        cases=[name for name in ALL if name.endswith("everything")],
        kept=lambda objects: all(
            {"name": "ndots", "value": "2"} in spec["dnsConfig"]["options"]
            for spec in pod_specs(objects)
            if "hostNetwork" in spec
        ),
        spoil=each(pod_specs, lambda spec: spec.update(hostNetwork=True, dnsConfig={"options": []})),
    ),
    Rule(
        # mpirun takes a host with an address of its own machine for that machine, and starts its ranks in the launcher.
        name="the launcher of MPI is not in the network of a machine, where a worker may be, and all others are",
        cases=[name for name in ALL if name.endswith("everything")],
        kept=lambda objects: all(
            spec.get("hostNetwork", False) == (pod["metadata"]["labels"]["app.kubernetes.io/component"] == "node")
            for pod, spec in zip(pods_of(objects), pod_specs(objects), strict=True)
        ),
        spoil=each(pod_specs, lambda spec: spec.update(hostNetwork=not spec.get("hostNetwork", False))),
    ),
    Rule(
        name="trainjob: there is a trainer, or nothing is injected",
        cases=OF["trainjob"],
        kept=lambda objects: spec_of(objects)["trainer"] == {"numNodes": 2, "numProcPerNode": 8},
        spoil=set_to("trainer", {}),
    ),
    Rule(
        name="trainjob: the runtime is the run's own",
        cases=OF["trainjob"],
        kept=lambda objects: (
            spec_of(objects)["runtimeRef"]
            == {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "trial-1"}
            and of_kind(objects, "TrainingRuntime")[0]["metadata"]["name"] == "trial-1"
        ),
        spoil=set_to("runtimeRef.kind", "ClusterTrainingRuntime"),
    ),
    Rule(
        name="trainjob: containers are called node",
        cases=OF["trainjob"],
        kept=lambda objects: {container["name"] for container in containers_of(objects)} == {"node"},
        spoil=each(containers_of, lambda container: container.update(name="pytorch")),
    ),
    Rule(
        name="trainjob: reserved variables are left to the controller",
        cases=OF["trainjob"],
        kept=lambda objects: (
            not any(
                name.startswith(("PET_", "OMPI_MCA_"))
                for container in containers_of(objects)
                for name in env_of(container)
            )
        ),
        spoil=each(containers_of, lambda container: container["env"].append({"name": "PET_NNODES", "value": "2"})),
    ),
    Rule(
        name="trainjob: the trainer is told by the label of its step",
        cases=["trainjob", "trainjob-everything"],
        kept=lambda objects: (
            [(job["name"], job["template"]["metadata"]["labels"]) for job in jobset_of(objects)["replicatedJobs"]]
            == [("node", {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})]
        ),
        spoil=lambda objects: jobset_of(objects)["replicatedJobs"][0].update(name="worker"),
    ),
    Rule(
        name="trainjob: number and master are what torchrun would be told",
        cases=["trainjob", "trainjob-everything"],
        kept=lambda objects: all(
            program_of(container)[1:4]
            == [
                "SEATRIAL_NODE_RANK=$(PET_NODE_RANK)",
                "MASTER_ADDR=$(PET_MASTER_ADDR)",
                "MASTER_PORT=$(PET_MASTER_PORT)",
            ]
            for container in containers_of(objects)
        ),
        spoil=each(containers_of, _fix_number),
    ),
    Rule(
        name="trainjob mpi: launcher and node, the launcher when the nodes are ready, and its end is the end",
        cases=["trainjob-mpi"],
        kept=lambda objects: (
            [job["name"] for job in jobset_of(objects)["replicatedJobs"]] == ["node", "launcher"]
            and jobset_of(objects)["replicatedJobs"][1]["dependsOn"] == [{"name": "node", "status": "Ready"}]
            and jobset_of(objects)["successPolicy"]["targetReplicatedJobs"] == ["launcher"]
            and runtime_of(objects)["mlPolicy"]["mpi"]["runLauncherAsNode"] is False
        ),
        spoil=lambda objects: (
            jobset_of(objects)["replicatedJobs"][1].pop("dependsOn")
            and jobset_of(objects)["replicatedJobs"][1].update(dependsOn=[])
        ),
    ),
    Rule(
        name="openshift arbitrary-uid: no user is asked for",
        cases=["job-arbitrary-uid"],
        kept=lambda objects: (
            not any(
                {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"]) for spec in pod_specs(objects)
            )
        ),
        spoil=each(pod_specs, lambda spec: spec["securityContext"].update(runAsUser=10001)),
    ),
    Rule(
        name="openshift custom-scc: launcher and workers have the account that may use it",
        cases=["mpijob-custom-scc"],
        kept=lambda objects: (
            {spec["serviceAccountName"] for spec in pod_specs(objects)}
            == {of_kind(objects, "RoleBinding")[0]["subjects"][0]["name"]}
            and of_kind(objects, "Role")[0]["rules"][0]["resourceNames"]
            == [of_kind(objects, "SecurityContextConstraints")[0]["metadata"]["name"]]
        ),
        spoil=lambda objects: pod_specs(objects)[0].update(serviceAccountName="default"),
    ),
]


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.name)
def test_rule_is_kept_and_the_wrong_way_is_found(rule: Rule) -> None:
    see(rule)
