"""A double of a cluster for one attempt: the answers of a script in place of kubectl, and its calls."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream
from kubernetes.kubectl_script_double import EVENTS, LOGS, PODS, log_of, scripted
from kubernetes.test_pods import pod
from kubernetes.workloads import workload

from seatrial.errors import SeatrialError
from seatrial.targets.job import Job, Processes
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.attempt import Attempt
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.kubernetes_target import PodsDetail
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.run_log import RunLog
from seatrial.targets.kubernetes.wait_limits import WaitLimits

WORKLOAD = workload(nproc_per_node=1, gpus_per_node=1)
OBJECTS = manifest("job", WORKLOAD)
JOB_PATH = "/apis/batch/v1/namespaces/ml/jobs/trial-1"
INDEX = "batch.kubernetes.io/job-completion-index"
UNSCHEDULABLE = [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available."}
]


OWNED = [{"apiVersion": "batch/v1", "kind": "Job", "name": "trial-1", "uid": "u-Job", "controller": True}]
ITS_LOG_ENDS = (log_of("trial-1-1-x"), "echo 2026-01-01T00:00:00.5Z its last line")


def waiting(number: int, **changes: Any) -> dict[str, Any]:
    text = {"spec__nodeName": "", "status__conditions": UNSCHEDULABLE, "metadata__ownerReferences": OWNED, **changes}
    return pod(f"trial-1-{number}-x", metadata__labels={INDEX: str(number)}, **text)


def running(number: int, suffix: str = "x", owners: Any = OWNED) -> dict[str, Any]:
    status = {"phase": "Running", "containerStatuses": [{"name": "seatrial", "ready": True, "state": {"running": {}}}]}
    name, labels = f"trial-1-{number}-{suffix}", {INDEX: str(number)}
    return pod(name, metadata__labels=labels, metadata__ownerReferences=owners, status=status)


def listed_in_turn(lists: list[list[dict[str, Any]]], folder: Path) -> tuple[str, str]:
    """Return the answer of a cluster that lists its pods so, one list after the other; the last one stays."""
    for number, pods in enumerate(lists):
        (folder / f"list{number}").write_text(json.dumps({"items": pods}))
    at, last = shlex.quote(str(folder)), len(lists) - 1
    count = f"n=$(cat {at}/turn 2>/dev/null || echo 0); echo $((n < {last} ? n + 1 : {last})) > {at}/turn"
    return PODS, f"if [ -e {at}/deleted ]; then cat {at}/none; else {count}; cat {at}/list$n; fi"


class Cluster:
    """A cluster as a script in place of kubectl: its answers, and its calls."""

    def __init__(self, folder: Path, pods: list[dict[str, Any]], *more: tuple[str, str], **limits: float) -> None:
        self.folder = folder
        self.printed: list[str] = []
        self.signals: list[int] = []
        self.events: list[dict[str, Any]] = []
        for name, content in (("pods", {"items": pods}), ("none", {"items": []})):
            (folder / name).write_text(json.dumps(content))
        created = [
            {**thing, "metadata": {**thing["metadata"], "uid": f"u-{thing['kind']}", "namespace": "ml"}}
            for thing in OBJECTS
        ]
        # kubectl create prints one document for each object, and not a list.
        (folder / "workload").write_text(json.dumps(created[-1]))
        (folder / "others").write_text("\n".join(map(json.dumps, created[:-1])))
        (folder / "all").write_text(json.dumps({"kind": "List", "items": created}))
        at = shlex.quote(str(folder))
        program = scripted(
            folder,
            *more,
            (
                "'create -f - -o json'*",
                f"for n in 1 2 3; do [ -e {at}/sent-$n ] || break; done; cat > {at}/sent-$n;"
                f" if [ $n = 1 ]; then cat {at}/workload; else cat {at}/others; fi",
            ),
            ("'get job.batch/trial-1 --ignore-not-found'*", f"cat {at}/workload"),
            ("'get job.batch/trial-1 '*'-o json'*", f"cat {at}/all"),
            ("delete*", f"cat >> {at}/options; touch {at}/deleted"),
            (PODS, f"if [ -e {at}/deleted ]; then cat {at}/none; else cat {at}/pods; fi"),
            (EVENTS, f"cat {at}/none"),
            (LOGS, "sleep 20"),
        )
        self.kubectl = Kubectl(program=program, namespace=None)
        detail = PodsDetail(
            workload=WORKLOAD,
            kubectl=self.kubectl,
            under_mpi=False,
            min_hosts=None,
            queue_timeout_s=60.0,
            keep=False,
        )
        self.job = Job(
            run="run-1",
            target="job",
            nodes=2,
            nproc_per_node=1,
            device="cpu",
            backend="gloo",
            python="python3",
            env={},
            plan=Stream().plan,
            detail=detail,
        )
        self.limits = WaitLimits(**{"queue_s": 60.0, **limits})

    def attempt(self, min_hosts: int | None = None) -> Attempt:
        return self.attempt_at(replace(self.job, detail=replace(self.job.detail, min_hosts=min_hosts)))

    def attempt_at(self, job: Processes) -> Attempt:
        run = {"kind": "run", "run": "run-1", "src": "conductor", "seq": 0, "t": 1.0, "job": {}}
        self.run_log = RunLog(run, self.folder, self.events.append, lambda message: None)
        return Attempt(
            objects=AppliedObjects(self.kubectl, "job", OBJECTS),
            job=job,
            limits=self.limits,
            run_log=self.run_log,
            folder=self.folder,
            signals=self.signals,
            print_line=self.printed.append,
        )

    def error(self, min_hosts: int | None = None) -> SeatrialError:
        """Return the error of an attempt that cannot end; everything is deleted after it."""
        attempt = self.attempt(min_hosts)
        try:
            with pytest.raises(SeatrialError) as raised:
                attempt.run()
        finally:
            assert attempt.cleanup(keep=False) == []
        assert self.deletes()
        return raised.value

    def deletes(self) -> list[str]:
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith("delete")]
