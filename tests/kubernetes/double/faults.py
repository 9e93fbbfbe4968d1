"""Faults of the double of a cluster: the file ``faults.json`` in its folder, read at each use.

It holds a list of mappings, each with ``fault`` (its name) and:

    image-pull, unschedulable, never-ready      pods
    quota                                       pods: their creation is refused
    oom-killed, evicted, deleted                pods, after_log: when the log of one has this text; else once it runs
    evicted                                     late_s: its kubelet tells the reason so long after the end
    without                                     pods, variable: an operator does not add it
    api-silent                                  calls: no word to these, as "get pods *"; to all, if it is not told
    crd-absent                                  kind
    forbidden                                   verb, resource
    namespace-absent                            namespace
    logs-break                                  pods, lines or seconds: the stream of a log ends after so many
    unmounted                                   pods, volume: an operator does not mount it
    no-service                                  owner: nobody makes its Service
    no-sandbox                                  pods: their network cannot be set up
    node-silent                                 nodes: their kubelet no longer answers
    pod-security                                pods: the namespace enforces a level that refuses them
    no-operator                                 kind: its operator does not run
    slow                                        calls, seconds: kubectl takes so long (plug-ins, VPN)
    log-rotation                                pods, bytes: the kubelet begins another file after so many
    limit-range                                 pods: a LimitRange refuses them

``pods`` is a pattern of their names, ``*`` if it is not told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

FILE = "faults.json"
NAMES = (
    *("image-pull", "unschedulable", "never-ready", "quota", "oom-killed", "evicted", "deleted", "without"),
    *("api-silent", "crd-absent", "forbidden", "namespace-absent", "logs-break", "unmounted"),
    *("no-service", "no-sandbox", "node-silent", "pod-security", "no-operator", "slow"),
    *("log-rotation", "limit-range"),
)


class Faults:
    """The file, as it is now."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE

    def all(self, name: str, **given: str) -> Iterator[dict[str, Any]]:
        """Those of a name whose fields fit: patterns, or the field is not told."""
        assert name in NAMES, name
        try:
            told = json.loads(self._file.read_text())
        except FileNotFoundError:
            return
        for fault in told:
            if fault["fault"] == name and all(fnmatchcase(value, fault.get(key, "*")) for key, value in given.items()):
                yield fault

    def any(self, name: str, **given: str) -> bool:
        return any(True for _ in self.all(name, **given))
