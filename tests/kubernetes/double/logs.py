"""Logs of pods in the double of a cluster, as kubectl shows and follows them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kubernetes.double.arguments import Arguments, RefusedError
from kubernetes.double.kubelet import log_file
from kubernetes.double.pods import World
from kubernetes.double.store import Object

_LOOK_S = 0.1


def log_lines(
    world: World, folder: Path, lock: threading.Lock, pod: Object, told: Arguments
) -> Iterator[tuple[str, str]]:
    """The lines of a container of a pod. Raises RefusedError where it never ran."""
    spec = pod["spec"]
    names = [each["name"] for each in (*spec["containers"], *spec.get("initContainers", ()))]
    name = told.one("container") or names[0]
    pod_name = pod["metadata"]["name"]
    if name not in names:
        raise RefusedError(f"error: container {name} is not valid for pod {pod_name}")
    file = log_file(folder, pod, name)
    if not file.exists():
        raise RefusedError(
            f'Error from server (BadRequest): container "{name}" in pod "{pod_name}" is waiting to start:'
            f" {_why(pod, name)}"
        )
    tail, since = told.one("tail"), told.one("since-time") or ""
    follow = told.flag("follow")
    breaks = list(world.faults.all("logs-break", pods=pod_name)) if follow else []
    most = min((fault["lines"] for fault in breaks if "lines" in fault), default=None)
    seconds = min((fault["seconds"] for fault in breaks if "seconds" in fault), default=math.inf)
    rotations = [fault["bytes"] for fault in world.faults.all("log-rotation", pods=pod_name)]
    # Who asks gets the newest file only (kubelet, ReadLogs); who follows goes on in the next one. The kubelet begins
    # one every 10 MiB (containerLogMaxSize), which is too much for a test.
    begin = max((file.stat().st_size // size * size for size in rotations), default=0)
    until = time.monotonic() + seconds
    lines, said = _entries(file, world, lock, pod, name, follow=follow, until=until, begin=begin), 0
    if tail not in (None, "-1"):
        there = file.read_text(errors="replace").count("\n")
        skipped = max(0, there - int(tail or 0))
    else:
        skipped = 0
    for stamp, text in lines:
        if skipped:
            skipped -= 1
            continue
        # As the API server does it: whole seconds count.
        if stamp[:19] < since[:19]:
            continue
        if said == most:
            return
        said += 1
        yield "out", f"{stamp} {text}" if told.flag("timestamps") else text


def _why(pod: Object, name: str) -> str:
    for status in (*pod["status"].get("containerStatuses", ()), *pod["status"].get("initContainerStatuses", ())):
        if status["name"] == name and "waiting" in status["state"]:
            return str(status["state"]["waiting"]["reason"])
    return "ContainerCreating"


def _entries(
    file: Path, world: World, lock: threading.Lock, pod: Object, name: str, *, follow: bool, until: float, begin: int
) -> Iterator[tuple[str, str]]:
    """(time, text) of each line, or part of one."""
    with open(file, "rb") as log:
        log.seek(begin)
        if begin:
            log.readline()
        rest = b""
        while True:
            runs = follow and _runs(world, lock, pod, name)
            rest += log.read()
            *whole, rest = rest.split(b"\n")
            for line in whole:
                stamp, ending, text = line.split(b" ", 2)
                yield stamp.decode(), text.decode(errors="replace") + ("\n" if ending == b"F" else "")
            if not runs or time.monotonic() > until:
                return
            time.sleep(_LOOK_S)


def _runs(world: World, lock: threading.Lock, pod: Object, name: str) -> bool:
    with lock:
        if world.store.get("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]) is not pod:
            return False
        statuses = (*pod["status"].get("containerStatuses", ()), *pod["status"].get("initContainerStatuses", ()))
        return any(status["name"] == name and "running" in status["state"] for status in statuses)
