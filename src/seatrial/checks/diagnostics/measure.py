"""Snapshots of a node's devices before the trial, between its steps and after it, and samples each second."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from seatrial.checks.diagnostics.params import Params
from seatrial.devices.kernel_log import KMSG
from seatrial.devices.node_state import NodeReader, mapped_libraries, window_between
from seatrial.devices.plain_json import to_json
from seatrial.devices.state import DeviceSample, NodeState, Vendor
from seatrial.rank.node_context import NodeContext

BEFORE, WINDOW, AFTER = "before", "window", "after"
"""Names of the facts: a ``NodeState``, a ``NodeWindow`` for each step, a ``NodeState``."""
_KERNEL_LOG = "SEATRIAL_KERNEL_LOG"
"""Names a file or device to read in place of /dev/kmsg, where a container has it elsewhere."""

_VENDORS: Mapping[str, Vendor] = {"cuda": "nvidia", "rocm": "amd"}


def measure(context: NodeContext, params: Params) -> None:
    """Take the first snapshot, and watch the devices from then on. Only one agent of each machine does that."""
    if not context.is_first_on_machine:
        return
    expected = _VENDORS.get(context.step["device"])
    reader = NodeReader(os.environ, expected=expected, kernel_log=os.environ.get(_KERNEL_LOG) or KMSG)
    before = reader.snapshot(topology=True)
    context.fact(BEFORE, to_json(before))
    if reader.readers:
        context.watcher = DeviceWatch(context=context, reader=reader, first=before)


@dataclass(slots=True, kw_only=True)
class DeviceWatch:
    """Watches the devices of a node until the end of the trial."""

    context: NodeContext
    reader: NodeReader
    first: NodeState
    """The snapshot at the beginning of the step."""
    step: tuple[str, str] = ("", "")
    """Check and stage; empty before the first step."""
    has_libraries: bool = False
    """Whether the libraries of the ranks were reported."""
    began: float = field(default_factory=time.monotonic)
    samples: defaultdict[str, list[DeviceSample]] = field(default_factory=lambda: defaultdict(list))

    def tick(self) -> None:
        """Take a sample of each device."""
        for uuid, sample in self.reader.samples().items():
            self.samples[uuid].append(sample)

    def begin(self, check: str, stage: str) -> None:
        """Close the step that ran, with a snapshot, and begin another one."""
        if (check, stage) != self.step:
            self._close()
            self.step = (check, stage)

    def end(self) -> None:
        """Close the last step, and report the last snapshot."""
        self.context.fact(AFTER, to_json(self._close(topology=True)))
        self.reader.close()

    def _close(self, *, topology: bool = False) -> NodeState:
        last = self.reader.snapshot(topology=topology)
        seconds = time.monotonic() - self.began
        window = window_between(*self.step, seconds, self.first, last, self.samples)
        # Once is enough: looking at every process of a node takes a while, and the next step has begun.
        libraries = () if self.has_libraries else mapped_libraries()
        self.has_libraries = self.has_libraries or bool(libraries)
        self.context.fact(WINDOW, to_json(replace(window, libraries=libraries)))
        self.first, self.began = last, time.monotonic()
        self.samples.clear()
        return last
