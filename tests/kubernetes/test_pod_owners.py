"""Which pods are of a run: against what real operators write, and against who copies labels and names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes.recordings_of_clusters import objects, recording
from kubernetes.test_pods import pod

from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import CallResult
from seatrial.targets.kubernetes.pod_owners import PodOwners, event_object

_RECORDED = [
    *(("run-job", "job"), ("job-1node", "job"), ("kubelet-stop-job", "job"), ("image-absent", "job")),
    *(("run-jobset", "jobset"), ("kill-run-jobset", "jobset")),
    *(("run-pytorchjob", "pytorchjob"), ("kill193-unfixed", "pytorchjob"), ("run-pytorchjob-restricted", "pytorchjob")),
    *(("run-mpijob", "mpijob"), ("kill-run-mpijob", "mpijob"), ("resume-mpijob", "mpijob")),
    *(("run-trainjob", "trainjob"), ("dns-trainjob-1", "trainjob"), ("run-trainjob-mpi", "trainjob")),
]
_WORKLOADS = {
    "job": "Job",
    "jobset": "JobSet",
    "pytorchjob": "PyTorchJob",
    "mpijob": "MPIJob",
    "trainjob": "TrainJob",
}


def owner(kind: str, name: str, uid: str, **changes: Any) -> dict[str, Any]:
    version = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}.get(kind, "example.com/v1")
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True, **changes}


def thing(kind: str, name: str, uid: str, *owners: dict[str, Any]) -> dict[str, Any]:
    version = owner(kind, name, uid)["apiVersion"]
    metadata = {"name": name, "uid": uid, "ownerReferences": list(owners)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def answer(*things: dict[str, Any]) -> CallResult:
    return CallResult(code=0, out=json.dumps({"kind": "List", "items": things}) if things else "", err="")


def learn(owners: PodOwners, pods: list[Any], there: list[Any]) -> list[str]:
    """Ask a cluster with these objects until nothing is left to ask for. Returns the questions."""
    asked: list[str] = []
    for _ in range(10):
        names = owners.question(pods)
        if not names:
            return asked
        asked += names
        named = [each for each in there if any(name.endswith(f"/{each['metadata']['name']}") for name in names)]
        kinds = {name.partition(".")[0] for name in names}
        owners.take_answer(answer(*(each for each in named if each["kind"].lower() in kinds)))
    raise AssertionError(f"it asks for ever: {names}")


@pytest.mark.parametrize(("name", "kind"), _RECORDED)
def test_all_pods_of_a_real_operator_belong_to_their_workload(name: str, kind: str) -> None:
    pods = objects(name, "Pod")
    (workload,) = [each["metadata"] for each in objects(name, _WORKLOADS[kind])]
    owners = PodOwners(workload["name"], KINDS[kind].owners)
    owners.take_workload(workload["uid"])
    questions = learn(owners, pods, recording(name)["objects_when_first_seen"])
    assert pods
    assert owners.owned(pods) == pods
    assert owners.foreign(pods) == []
    assert len(questions) <= {"job": 0, "pytorchjob": 0, "jobset": 1, "mpijob": 1, "trainjob": 3}[kind]


@pytest.mark.parametrize(("name", "kind"), _RECORDED)
def test_a_user_who_may_not_get_the_owners_sees_the_same_pods(name: str, kind: str) -> None:
    pods = objects(name, "Pod")
    (workload,) = [each["metadata"] for each in objects(name, _WORKLOADS[kind])]
    owners = PodOwners(workload["name"], KINDS[kind].owners)
    owners.take_workload(workload["uid"])
    if owners.question(pods):
        said = 'Error from server (Forbidden): jobs.batch "a" is forbidden: User "me" cannot get resource "jobs"'
        owners.take_answer(CallResult(code=1, out="", err=said))
    assert owners.owned(pods) == pods


_OURS = [thing("TrainJob", "r", "u-1"), thing("JobSet", "r", "u-2", owner("TrainJob", "r", "u-1"))]
_OURS.append(thing("Job", "r-node-0", "u-3", owner("JobSet", "r", "u-2")))
_THEIRS = [thing("JobSet", "r-b", "v-2"), thing("Job", "r-c", "v-3", owner("JobSet", "r-b", "v-2"))]


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [owner("Job", "r-node-0", "u-3", controller=False)],
        [owner("Job", "r-node-0", "another")],
        [owner("Job", "r-c", "v-3")],
        # The uid of a real one under another name: it is not gone for that.
        [owner("Job", "r-c", "u-2")],
        [owner("ReplicaSet", "r-node-0", "u-3")],
        [owner("Job", "other-node-0", "w-3")],
        [owner("Job", "r-node-0 --all", "w-4")],
        [owner("Secret", "r", "w-5", apiVersion="v1")],
        "damaged",
        [None, {"controller": True}, {"controller": True, "uid": 3}],
    ],
)
def test_pods_of_others(owners: Any) -> None:
    ours = pod("r-node-0-0-a", metadata__ownerReferences=[owner("Job", "r-node-0", "u-3")])
    theirs = pod("r-node-0-0-b", metadata__ownerReferences=owners)
    known = PodOwners("r", KINDS["trainjob"].owners)
    known.take_workload("u-1")
    asked = learn(known, [theirs, ours], [*_OURS, *_THEIRS])
    assert known.owned([theirs, ours]) == [ours]
    assert set(asked) <= {
        "job.batch/r-node-0",
        "job.batch/r-c",
        "jobset.jobset.x-k8s.io/r",
        "jobset.jobset.x-k8s.io/r-b",
    }


def test_before_the_answer_a_pod_is_nobodys() -> None:
    ours = pod("r-node-0-0-a", metadata__ownerReferences=[owner("Job", "r-node-0", "u-3")])
    known = PodOwners("r", KINDS["jobset"].owners)
    known.take_workload("u-2")
    assert known.question([ours]) == ["job.batch/r-node-0"]
    known.take_answer(CallResult(code=1, out="", err="Unable to connect to the server: EOF"))
    assert (known.owned([ours]), known.foreign([ours])) == ([], [])
    assert known.question([ours]) == ["job.batch/r-node-0"]
    # The Job is gone before its pod: what waits for the end of the pods still counts it.
    known.take_answer(answer())
    assert (known.owned([ours]), known.foreign([ours]), known.possible([ours])) == ([], [], [ours])


def test_many_strangers_delay_no_pod_of_ours() -> None:
    strangers = [
        pod(
            f"r-{number}",
            metadata__ownerReferences=[owner("Job", f"r-{number}", f"s-{number}")],
            metadata__creationTimestamp="2026-01-01T00:00:01Z",
        )
        for number in range(100)
    ]
    ours = pod("r-node-0-0-a", metadata__ownerReferences=[owner("Job", "r-node-0", "u-3")])
    ours["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    known = PodOwners("r", KINDS["jobset"].owners)
    known.take_workload("u-2")
    assert known.question([*strangers, ours])[0] == "job.batch/r-node-0"
    assert len(known.question([*strangers, ours])) == 16


def event(kind: str, name: str, uid: str) -> dict[str, Any]:
    return {"involvedObject": {key: owner(kind, name, uid)[key] for key in ("apiVersion", "kind", "name", "uid")}}


def test_a_neighbor_s_object_that_is_named_like_ours_is_not_of_the_run() -> None:
    """Its refusal by the cluster would end a run that waits in a queue."""
    owners = PodOwners("trial-1", ("job.batch",))
    owners.take_workload("ours")
    child = event("Job", "trial-1-node-0", "child")
    neighbors = event("Job", "trial-1-node-9", "neighbor's")
    made = [objects for objects in map(event_object, (child, neighbors)) if objects is not None]
    assert not owners.is_about_run(neighbors)
    asked = learn(
        owners,
        made,
        [
            thing("Job", "trial-1-node-0", "child", owner("JobSet", "trial-1", "ours")),
            thing("Job", "trial-1-node-9", "neighbor's"),
        ],
    )
    assert sorted(asked) == ["job.batch/trial-1-node-0", "job.batch/trial-1-node-9"]
    assert owners.is_about_run(child)
    assert not owners.is_about_run(neighbors)
    assert owners.is_about_run(event("JobSet", "trial-1", "ours"))
    assert owners.is_about_run({"involvedObject": {"uid": "ours"}})
    assert not owners.is_about_run(event("JobSet", "trial-1", "of an earlier run"))
    assert owners.is_about_run({"involvedObject": {"name": "trial-1"}})
    for nonsense in ({}, {"involvedObject": 3}, {"involvedObject": {"uid": 3}}, None):
        assert owners.is_about_run(nonsense)


def test_events_keep_no_pod_waiting_for_its_owner() -> None:
    owners = PodOwners("r", KINDS["jobset"].owners)
    owners.take_workload("u-jobset")
    events = [
        {
            "lastTimestamp": "1970-01-01T00:00:00Z",
            "involvedObject": {"apiVersion": "batch/v1", "kind": "Job", "name": f"r-{number}", "uid": f"u-{number}"},
        }
        for number in range(100)
    ]
    ours = pod("r-node-0-0-x", metadata__ownerReferences=[owner("Job", "r-node-0", "u-job")])
    names = owners.question([ours], map(event_object, events))
    assert (names[0], len(names)) == ("job.batch/r-node-0", 16)


def test_a_name_that_no_object_can_have_is_not_asked_for() -> None:
    owners = PodOwners("r", KINDS["jobset"].owners)
    owners.take_workload("u-jobset")
    about = {"apiVersion": "batch/v1", "kind": "Job", "uid": "u", "name": "r-" + "a" * 131_072}
    assert owners.question([], [event_object({"involvedObject": about})]) == []
