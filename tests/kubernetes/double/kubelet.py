"""The kubelet of the double of a cluster: it runs the containers of scheduled pods and reports their state.

Not done as a kubelet does it: a probe of a TCP port looks whether somebody listens there instead of connecting, other
kinds of probes are not known, limits of CPU hold nobody back, and those of memory only in podman's containers.
"""

from __future__ import annotations

import math
import subprocess
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from kubernetes.double.dns import resolv_conf
from kubernetes.double.names import hosts_file
from kubernetes.double.networks import Networks
from kubernetes.double.pods import World, phase
from kubernetes.double.policies import rules_of
from kubernetes.double.recorded import KUBELET
from kubernetes.double.sandbox import Container, Mount, Sandbox
from kubernetes.double.store import Object, condition, now
from kubernetes.double.volumes import NotYetError, environment, make_volume, memory_bytes, quantity_bytes

_RESTART_S = 10.0
_PHASE_S = 1.1
"""A pod whose container has ended stays in phase Running for so long (recordings: 1.0 to 1.3 s)."""
_MOST_LINE = 16_384
"""Longer lines are kept in parts, as container runtimes do it."""


def log_file(folder: Path, pod: Object, container: str) -> Path:
    """Lines of ``TIME F text``, or P for a line that goes on."""
    return folder / "pods" / str(pod["metadata"]["uid"]) / f"{container}.log"


@dataclass
class _Run:
    """What the kubelet knows of a pod."""

    pod: Object
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    readers: dict[str, list[threading.Thread]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    """Exit codes, as a shell tells them."""
    restarts: dict[str, int] = field(default_factory=dict)
    again_at: dict[str, float] = field(default_factory=dict)
    waits: tuple[str, str] | None = None
    """What containers that were never started wait for: (reason, message)."""
    started_at: dict[str, str] = field(default_factory=dict)
    ended_at: float | None = None
    """When its last container ended (``time.monotonic``)."""
    finished_at: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    """Why all was killed: OOMKilled, Evicted, DeadlineExceeded."""
    message: str = ""
    phase_s: float = _PHASE_S
    began: float = 0.0
    kill_at: float | None = None
    is_ending: bool = False
    """Whether its containers have got SIGTERM."""
    removed: bool = False


class Kubelet:
    """Of all nodes."""

    def __init__(
        self,
        world: World,
        sandbox: Sandbox,
        networks: Networks,
        folder: Path,
        environ: dict[str, str],
        *,
        owner: bool,
    ) -> None:
        self._world, self._sandbox, self._networks = world, sandbox, networks
        self._folder, self._environ, self._owner = folder, environ, owner
        self._runs: dict[str, _Run] = {}

    def tick(self) -> None:
        """One look at all pods that have a node."""
        for pod in self._world.store.each("Pod"):
            if "nodeName" not in pod["spec"]:
                continue
            uid = pod["metadata"]["uid"]
            run = self._runs.setdefault(uid, _Run(pod=pod, folder=self._folder / "pods" / uid))
            if not run.began:
                run.began = time.monotonic()
                run.folder.mkdir(parents=True)
                self._describe(run)
            self._look(run)
        self._write_hosts()
        for run in self._runs.values():
            if run.processes and not run.removed:
                self._networks.filter(run.pod, rules_of(self._world.store, run.pod))

    def end(self) -> None:
        """Kill all."""
        for run in self._runs.values():
            self._kill(run)
        for run in self._runs.values():
            for process in run.processes.values():
                process.wait(timeout=10)
            for reader in (each for pair in run.readers.values() for each in pair):
                reader.join(timeout=5)

    def _look(self, run: _Run) -> None:
        pod, store = run.pod, self._world.store
        if run.removed:
            return
        self._collect(run)
        if self._world.faults.any("node-silent", nodes=pod["spec"]["nodeName"]):
            self._mark_silent(run)
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._see_to_the_end(run)
            return
        if phase(pod) in ("Succeeded", "Failed"):
            return
        if phase(pod) == "Running":
            self._strike(run)
            deadline_s = pod["spec"].get("activeDeadlineSeconds")
            if deadline_s is not None and time.monotonic() - run.began > deadline_s:
                self._fail(run, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        if not run.reason:
            run.waits = None
            try:
                self._start_next(run)
            except NotYetError as wait:
                run.waits = reason, message = wait.args
                store.event(pod, "Warning", "FailedMount" if reason == "ContainerCreating" else "Failed", message)
        self._describe(run)

    def _mark_silent(self, run: _Run) -> None:
        """Do as the node controller after 40 s without a kubelet, which the test does not wait for: only the condition
        Ready changes (the recording kubelet-stop-job)."""
        if phase(run.pod) == "Running":
            condition(run.pod, "Ready", False, "")
            self._world.store.event(run.pod, "Warning", "NodeNotReady", "Node is not ready")
            self._world.store.touch(run.pod)

    def _start_next(self, run: _Run) -> None:
        """Init containers one after the other, then all others."""
        pod, spec = run.pod, run.pod["spec"]
        if self._world.faults.any("no-sandbox", pods=pod["metadata"]["name"]):
            # The recording no-sandbox: the state of the container says nothing, the event has it all.
            message = (
                "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox"
                ' "1": plugin type="bridge" failed (add): failed to find plugin "bridge" in path [/usr/lib/cni]'
            )
            self._world.store.event(pod, "Warning", "FailedCreatePodSandBox", message)
            self._world.store.held.add(pod["metadata"]["uid"])
            return
        if self._world.faults.any("image-pull", pods=pod["metadata"]["name"]):
            self._refuse_image(run)
            return
        for container in spec.get("initContainers", ()):
            name = container["name"]
            if run.ended.get(name) != 0:
                self._start_unless_running(run, container)
                return
        condition(pod, "Initialized", True, "PodCompleted")
        for container in spec["containers"]:
            self._start_unless_running(run, container)

    def _refuse_image(self, run: _Run) -> None:
        image = run.pod["spec"]["containers"][0]["image"]
        why = "rpc error: code = NotFound desc = failed to pull and unpack image: not found"
        failed = f'Failed to pull image "{image}": {why}'
        self._world.store.event(run.pod, "Warning", "Failed", failed)
        early = self._world.first_seen(run.pod, "pull") < 1
        back_off = ("ImagePullBackOff", f'Back-off pulling image "{image}"')
        run.waits = ("ErrImagePull", failed) if early else back_off

    def _start_unless_running(self, run: _Run, container: Object) -> None:
        name, policy = container["name"], run.pod["spec"].get("restartPolicy", "Always")
        if name in run.processes:
            return
        if name in run.ended:
            if policy == "Never" or (policy == "OnFailure" and run.ended[name] == 0):
                return
            wait_s = _RESTART_S * 2 ** run.restarts.get(name, 0)
            if time.monotonic() < run.again_at.setdefault(name, time.monotonic() + wait_s):
                return
            run.again_at.pop(name)
            run.restarts[name] = run.restarts.get(name, 0) + 1
            del run.ended[name]
        process = self._sandbox.start(self._resolved(run, container))
        self._world.store.held.add(run.pod["metadata"]["uid"])
        run.processes[name] = process
        run.started_at[name] = now()
        log = log_file(self._folder, run.pod, name)
        # Streams are put together by whole lines, as container runtimes do it.
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        run.readers[name] = [threading.Thread(target=_keep_log, args=(stream, log), daemon=True) for stream in streams]
        for reader in run.readers[name]:
            reader.start()
        self._world.store.event(run.pod, "Normal", "Started", f"Started container {name}")

    def _resolved(self, run: _Run, container: Object) -> Container:
        pod, store, name = run.pod, self._world.store, container["name"]
        status = pod["status"]
        if "podIP" not in status:
            status["podIP"] = self._networks.address(pod)
            status["podIPs"] = [{"ip": status["podIP"]}]
            self._world.first_seen(pod, "address")
            (run.folder / "hosts").touch()
            self._write_hosts()
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        mounts = []
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            claims, place = self._folder / "claims", run.folder / "volumes"
            source = make_volume(store, pod, volume, place, claims, owner=self._owner)
            fixed = not {"configMap", "secret", "projected"}.isdisjoint(volume)
            read_only, size = fixed or mount.get("readOnly", False), memory_bytes(volume)
            mounts.append(Mount(source=source, target=mount["mountPath"], read_only=read_only, memory_bytes=size))
        hostname = pod["spec"].get("hostname") or pod["metadata"]["name"]
        if pod["spec"].get("hostNetwork"):
            hostname = pod["spec"]["nodeName"]
        command, environ = environment(store, pod, container, {**self._environ, "HOSTNAME": hostname, **KUBELET})
        if not command:
            raise NotYetError("CreateContainerError", "no command specified")
        shared, own = pod["spec"].get("securityContext", {}), container.get("securityContext", {})
        uid = own.get("runAsUser", shared.get("runAsUser"))
        is_root = (self._sandbox.image_uid if uid is None else uid) == 0
        if is_root and own.get("runAsNonRoot", shared.get("runAsNonRoot")):
            raise NotYetError("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
        group = shared.get("fsGroup")
        # ClusterFirst means the DNS of the node where a pod is in its network.
        is_of_host = pod["spec"].get("hostNetwork") and pod["spec"].get("dnsPolicy") != "ClusterFirstWithHostNet"
        scratch = run.folder / f"of-{name}"
        scratch.mkdir(exist_ok=True)
        return Container(
            pod=pod,
            name=name,
            image=container["image"],
            hostname=hostname,
            command=command,
            environ=environ,
            folder=container.get("workingDir", "/"),
            mounts=mounts,
            hosts_file=run.folder / "hosts",
            resolv_conf="" if is_of_host else resolv_conf(pod),
            scratch=scratch,
            uid=uid,
            gid=own.get("runAsGroup", shared.get("runAsGroup")),
            groups=[*([] if group is None else [group]), *shared.get("supplementalGroups", ())],
            drops_capabilities="ALL" in own.get("capabilities", {}).get("drop", ()),
            may_escalate=own.get("allowPrivilegeEscalation", True),
            read_only_root=own.get("readOnlyRootFilesystem", False),
            memory_bytes=quantity_bytes(container.get("resources", {}).get("limits", {}).get("memory")),
        )

    def _collect(self, run: _Run) -> None:
        for name, process in list(run.processes.items()):
            code = process.poll()
            if code is not None:
                for reader in run.readers[name]:
                    reader.join(timeout=5)
                if self._sandbox.was_out_of_memory(process):
                    run.reason = "OOMKilled"
                del run.processes[name]
                run.ended[name] = 128 - code if code < 0 else code
                run.finished_at[name], run.ended_at = now(), time.monotonic()

    def _strike(self, run: _Run) -> None:
        """Faults that were planted for a pod that runs; each strikes once."""
        pod = run.pod
        for fault, reason, message in (
            ("oom-killed", "OOMKilled", ""),
            ("evicted", "Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 57Mi."),
            ("deleted", "", ""),
        ):
            for planted in self._world.faults.all(fault, pods=pod["metadata"]["name"]):
                logs = [log_file(self._folder, pod, container["name"]) for container in pod["spec"]["containers"]]
                text = "".join(log.read_text(errors="replace") for log in logs if log.exists())
                if planted.get("after_log", "") not in text or run.reason:
                    continue
                if fault == "deleted":
                    self._world.store.drop(pod)
                elif fault == "evicted":
                    self._world.store.event(pod, "Warning", "Evicted", message)
                    run.phase_s = planted.get("late_s", _PHASE_S)
                    self._fail(run, reason, message)
                else:
                    run.reason = reason
                    self._kill(run)

    def _fail(self, run: _Run, reason: str, message: str) -> None:
        run.reason, run.message = reason, message
        self._kill(run)

    def _kill(self, run: _Run) -> None:
        for process in run.processes.values():
            self._sandbox.kill(process)

    def _see_to_the_end(self, run: _Run) -> None:
        grace_s = run.pod["metadata"].get(
            "deletionGracePeriodSeconds", run.pod["spec"].get("terminationGracePeriodSeconds", 30)
        )
        run.kill_at = min(run.kill_at or math.inf, time.monotonic() + grace_s)
        if not run.is_ending:
            run.is_ending = True
            for process in run.processes.values():
                self._sandbox.terminate(process)
        elif time.monotonic() > run.kill_at:
            self._kill(run)
        self._describe(run)
        # A kubelet that tries to make a sandbox goes on for the whole grace (kubernetes-real: 61 to 76 s after Ctrl-C).
        tries = self._world.faults.any("no-sandbox", pods=run.pod["metadata"]["name"]) and not run.ended
        if not run.processes and not (tries and time.monotonic() < run.kill_at):
            run.removed = True
            self._networks.remove(run.pod)
            self._world.store.held.discard(run.pod["metadata"]["uid"])
            self._world.store.forget(run.pod)

    def _describe(self, run: _Run) -> None:
        """Status of the pod, out of what became of its containers."""
        pod, status = run.pod, run.pod["status"]
        before = repr(status)
        status.setdefault("startTime", now())
        status["hostIP"] = "10.78.0.1"
        for word, key in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
            if word in pod["spec"]:
                status[key] = [self._container_status(run, container) for container in pod["spec"][word]]
        names = [container["name"] for container in pod["spec"]["containers"]]
        inits = [container["name"] for container in pod["spec"].get("initContainers", ())]
        policy = pod["spec"].get("restartPolicy", "Always")
        codes = [run.ended[name] for name in names if name in run.ended]
        is_late = run.ended_at is not None and time.monotonic() - run.ended_at < run.phase_s
        is_late = is_late and "deletionTimestamp" not in pod["metadata"]
        init_failed = policy == "Never" and any(run.ended.get(name, 0) != 0 for name in inits)
        if is_late:
            pass
        elif run.message and not run.processes:
            # mergePodStatus (pkg/kubelet/status/status_manager.go): phase, reason and message stay as they were until
            # no container can run any more.
            status.update(phase="Failed", reason=run.reason, message=run.message)
        elif init_failed:
            status["phase"] = "Failed"
        elif len(codes) == len(names) and (policy == "Never" or (policy == "OnFailure" and not any(codes))):
            status["phase"] = "Failed" if any(codes) else "Succeeded"
        elif any(name in run.processes or name in run.ended for name in names):
            status["phase"] = "Running"
        ready = bool(names) and all(told["ready"] for told in status["containerStatuses"])
        condition(pod, "ContainersReady", ready, "" if ready else "ContainersNotReady")
        condition(pod, "Ready", ready, "" if ready else "ContainersNotReady")
        if repr(status) != before:
            self._world.store.touch(pod)

    def _container_status(self, run: _Run, container: Object) -> Object:
        name = container["name"]
        state: dict[str, Any]
        if name in run.processes:
            state = {"running": {"startedAt": run.started_at[name]}}
        elif name in run.ended:
            code = run.ended[name]
            reason = "OOMKilled" if run.reason == "OOMKilled" else "Error" if code else "Completed"
            ended = {
                "exitCode": code,
                "reason": reason,
                "containerID": f"double://{name}",
                "finishedAt": run.finished_at.get(name, now()),
            }
            state = {"terminated": ended}
            if name in run.again_at:
                state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
        else:
            reason, message = run.waits or ("PodInitializing" if run.processes else "ContainerCreating", "")
            state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        return {
            "name": name,
            "image": container["image"],
            "ready": name in run.processes and self._is_ready(run, container),
            "started": name in run.processes,
            "restartCount": run.restarts.get(name, 0),
            "state": state,
        }

    def _is_ready(self, run: _Run, container: Object) -> bool:
        if self._world.faults.any("never-ready", pods=run.pod["metadata"]["name"]):
            return False
        probe = container.get("readinessProbe")
        if probe is None:
            return True
        return self._networks.listens(run.pod, probe["tcpSocket"]["port"])

    def _write_hosts(self) -> None:
        for run in self._runs.values():
            file = run.folder / "hosts"
            if file.exists() and not run.removed:
                text = hosts_file(self._world.store, run.pod)
                # In place: it is mounted in the containers. At no time empty: somebody may look for a name in it.
                if file.read_text() != text:
                    with open(file, "r+") as there:
                        there.write(text)
                        there.truncate()


def _keep_log(stream: IO[bytes], log: Path) -> None:
    with open(log, "ab", buffering=0) as file, stream:
        while part := stream.readline(_MOST_LINE):
            ends = part.endswith(b"\n")
            stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            file.write(f"{stamp} {'F' if ends else 'P'} ".encode() + part.rstrip(b"\n") + b"\n")
