"""Does a CPU gain by images and filters that lie as NHWC? One process, one thread; writes results/layouts.json.

    python bench/layouts.py [ROUNDS]

A step is forward, backward and optimizer on random images. Told is the CPU time of a step in NHWC as a multiple of that
in NCHW: the median of the ratios of neighbours in time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from harness import alternately, write_result
from torch.nn.functional import cross_entropy

from seatrial.training.models import build_model

ROUNDS = 12
STEPS = {
    ("convnet", (1, 8, 8)): 100,
    ("convnet", (1, 28, 28)): 20,
    ("convnet", (3, 32, 32)): 15,
    ("resnet18", (1, 8, 8)): 2,
    ("resnet18", (3, 32, 32)): 1,
}
BATCH_SIZE = 32


def subject(model_name: str, shape: tuple[int, int, int], layout: torch.memory_format) -> Callable[[], float]:
    """Seconds of CPU time of some steps."""
    model = build_model(model_name, shape, 10, 1).to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, fused=True)
    images = torch.randn(BATCH_SIZE, *shape).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (BATCH_SIZE,))

    def steps() -> float:
        started = time.process_time()
        for _ in range(STEPS[model_name, shape]):
            cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time() - started

    return steps


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)
    told = {}
    for model_name, shape in STEPS:
        layouts = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
        subjects = {name: subject(model_name, shape, layout) for name, layout in layouts.items()}
        for steps in subjects.values():
            steps()
        found = alternately(subjects, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
        each = sorted(nhwc / nchw for nchw, nhwc in zip(found["NCHW"], found["NHWC"], strict=True))
        name = f"{model_name} on {'x'.join(map(str, shape))}"
        told[name] = {
            "median": round(statistics.median(each), 3),
            "least": round(each[0], 3),
            "most": round(each[-1], 3),
        }
        print(name, told[name])
    write_result("layouts", "python bench/layouts.py", {"CPU time of a step: NHWC / NCHW": told})


if __name__ == "__main__":
    main()
