"""How fast the reference training is, against loops that others would write; 2 processes on the CPU, MNIST's shapes.

    python bench/training.py [ROUNDS [MODEL...]]     15 rounds of mlp and convnet; about 12 minutes

Compared are seatrial's trainer, a hand-written loop over DistributedDataParallel, Hugging Face accelerate, Lightning
Fabric, and the loop of many examples, a DataLoader that transforms sample by sample: with torchvision and, leaner,
without (training_contenders.py). All train the same model from the same initial values on the same data with the same
batch, optimizer and number of threads. Each has two processes of its own, which live through all rounds and sleep while
others are measured. In a round each trains anew, one contender after the other, and the order turns round from round to
round: what loads the machine meanwhile hits all alike. A ratio is taken within a round, since its two measurements are
neighbours in time; told are the median of these and their quartiles. The hand-written loop takes part twice: how far it
is from itself is what noise does.

A first round is not counted. In it the C library gives the memory of each step back and takes it anew: 1,200 to 4,600
page faults a step of the convnet, as chance has it, and none once an evaluation has freed larger blocks.

accelerate, Lightning Fabric and torchvision are no part of what seatrial is developed with, so they get an environment
of their own:

    python -m venv .venv-bench
    .venv-bench/bin/pip install -c constraints.txt . accelerate lightning-fabric torchvision
    .venv-bench/bin/python bench/training.py

or, to go without a second torch, with ``pip install --no-deps`` for each of accelerate, lightning-fabric,
lightning-utilities, numpy, psutil, safetensors, huggingface_hub, tqdm, torchvision, pillow, and a file
``.venv-bench/lib/python3.*/site-packages/torch.pth`` with one line: the site-packages folder that has torch. What
cannot be imported is left out, and the result says so. So does it of ResNet-18 on a GPU, which this bench does not
measure yet.

Writes bench/results/training.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import alternately, write_result

_ROUNDS = 15
_WORLD_SIZE, _BATCH_SIZE = 2, 64
_NUM_TRAIN, _NUM_TEST = 60_000, 4_000
_WARMUP_STEPS = 20
_STEPS = {"mlp": 400, "convnet": 80}
"""Model -> timed steps of a round: about a second."""
_OURS, _REFERENCE = "seatrial", "hand-written"
_NEEDS = {
    "accelerate": "accelerate",
    "lightning-fabric": "lightning_fabric",
    "DataLoader, torchvision": "torchvision",
    "DataLoader, torchvision, 2 workers": "torchvision",
}
_GOALS = {"hand-written": 0.97, "accelerate": 1.0, "lightning-fabric": 1.0, "DataLoader, torchvision": 1.5}
_MEMORY_GOAL = 1.1
_CONTENDERS = (
    "seatrial",
    "hand-written",
    "accelerate",
    "lightning-fabric",
    "hand-written again",
    "DataLoader, torchvision",
    "DataLoader, torchvision, 2 workers",
    "DataLoader, lean",
)
_LOWEST_ACCURACY = 0.9


class Contender:
    """The ranks of one loop. A context: they are ended with it."""

    def __init__(self, name: str, model: str, folder: Path) -> None:
        self.name = name
        self.answers: list[list[dict[str, Any]]] = []
        """By round, by rank; the first round is not counted."""
        self._num_samples = _STEPS[model] * _BATCH_SIZE * _WORLD_SIZE
        setting = {"model": model, "folder": str(folder), "warmup_steps": _WARMUP_STEPS, "num_steps": _STEPS[model]}
        self._command = [sys.executable, str(Path(__file__).with_name("training_rank.py")), name, json.dumps(setting)]
        self._command.append(str(folder / f"{model} {name}".replace(" ", "-")))
        self._ranks: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Contender:
        for rank in range(_WORLD_SIZE):
            told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": _WORLD_SIZE, "LOCAL_WORLD_SIZE": _WORLD_SIZE}
            words = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, "GROUP_RANK": 0, "OMP_NUM_THREADS": 1}
            environ = {**os.environ, **{key: str(value) for key, value in {**told, **words}.items()}}
            # Ranks of one machine meet on its loopback, whatever its name resolves to.
            environ["GLOO_SOCKET_IFNAME"] = "lo"
            pipe = subprocess.PIPE
            self._ranks.append(subprocess.Popen(self._command, env=environ, stdin=pipe, stdout=pipe, text=True))
        return self

    def __exit__(self, *failure: object) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()

    def samples_per_s(self) -> float:
        """Play one round. Raises RuntimeError when a rank ends, or has trained something else."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
        found = []
        for rank in self._ranks:
            assert rank.stdout is not None
            line = rank.stdout.readline()
            if not line:
                raise RuntimeError(f"a rank of {self.name} ended in the middle; what it said stands above")
            found.append(json.loads(line))
        if any(one["accuracy"] < _LOWEST_ACCURACY or one["threads"] != 1 for one in found):
            raise RuntimeError(f"{self.name} did not train what was asked for: {found}")
        self.answers.append(found)
        return self._num_samples / max(one["seconds"] for one in found)


def write_data(folder: Path) -> None:
    """Images that can be learned, in the files and the format of MNIST: so all contenders read the same bytes."""
    import torch

    from seatrial.training.data.synthetic import make_images

    (folder / "mnist").mkdir()
    (folder / "MNIST").mkdir()
    (folder / "MNIST/raw").symlink_to("../mnist")  # where torchvision looks
    for part, count, seed in (("train", _NUM_TRAIN, 1), ("t10k", _NUM_TEST, 2)):
        images, labels = make_images((1, 28, 28), count, seed=seed, num_classes=10)
        # Dark as those of MNIST are, since all bring them to mean 0 with MNIST's own measurements.
        pixels = bytearray(images.numel())
        torch.frombuffer(pixels, dtype=torch.uint8).copy_((images.flatten().short() - 95).clamp(min=0))
        header = struct.pack(">4I", 0x803, count, 28, 28)
        (folder / f"mnist/{part}-images-idx3-ubyte").write_bytes(header + pixels)
        header = struct.pack(">2I", 0x801, count)
        (folder / f"mnist/{part}-labels-idx1-ubyte").write_bytes(header + bytes(labels.tolist()))


def compare(model: str, names: Sequence[str], rounds: int, folder: Path) -> dict[str, Any]:
    """All contenders with one model."""
    with ExitStack() as ended:
        contenders = [ended.enter_context(Contender(name, model, folder)) for name in names]
        for one in contenders:
            one.samples_per_s()
        speeds = alternately({one.name: partial(one.samples_per_s) for one in contenders}, rounds)
    peaks = {one.name: _peaks(one) for one in contenders}
    cpu_s = {one.name: [sum(rank["cpu_s"] for rank in found) for found in one.answers[1:]] for one in contenders}
    found = {
        name: {
            "samples_per_s": _spread(speeds[name], 1),
            "cpu_ms_a_step_and_rank": round(500 * statistics.median(cpu_s[name]) / _STEPS[model], 3),
            **peaks[name],
            "accuracy": statistics.median(row[0]["accuracy"] for row in one.answers),
        }
        for name, one in zip(names, contenders, strict=True)
    }
    ours = speeds[_OURS]
    against = {
        name: {**_spread([mine / other for mine, other in zip(ours, speeds[name], strict=True)], 4), **_goal(name)}
        for name in names
        if name != _OURS
    }
    work = {
        name: _spread([mine / other for mine, other in zip(cpu_s[_OURS], cpu_s[name], strict=True)], 4)
        for name in names
        if name != _OURS
    }
    noise = [one / two for one, two in zip(speeds["hand-written again"], speeds[_REFERENCE], strict=True)]
    memory = {
        key: round(peaks[_OURS][key] / peaks[_REFERENCE][key], 4) for key in ("training_mb", "with_evaluation_mb")
    }
    return {
        "steps_a_round": _STEPS[model],
        "contenders": found,
        "samples_per_s: seatrial / other": against,
        "CPU time of a step: seatrial / other": work,
        "samples_per_s: hand-written again / hand-written": _spread(noise, 4),
        "peak memory: seatrial / hand-written": {**memory, "goal": f"<= {_MEMORY_GOAL}"},
    }


def _peaks(contender: Contender) -> dict[str, float]:
    """Of the rank that took most, in 10**6 bytes: after one training, as those who train have one."""
    return {
        "training_mb": round(max(one["training_mb"] for one in contender.answers[0]), 1),
        "with_evaluation_mb": round(max(one["peak_mb"] for one in contender.answers[0]), 1),
    }


def _goal(name: str) -> dict[str, str]:
    return {"goal": f">= {_GOALS[name]}"} if name in _GOALS else {}


def _spread(values: Sequence[float], digits: int) -> dict[str, float]:
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    named = {"median": median, "quartile 1": lower, "quartile 3": upper, "least": min(values), "most": max(values)}
    return {name: round(value, digits) for name, value in named.items()}


def main() -> None:
    """Measure and write the result."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else _ROUNDS
    models = sys.argv[2:] or list(_STEPS)
    missing = [name for name, module in _NEEDS.items() if importlib.util.find_spec(module) is None]
    names = [name for name in _CONTENDERS if name not in missing]
    measurements: dict[str, Any] = {
        "load_1_min_before": round(os.getloadavg()[0], 2),
        "rounds": rounds,
        "processes": _WORLD_SIZE,
        "threads_per_process": 1,
        "batch_size_per_process": _BATCH_SIZE,
        "versions": {
            module: metadata.version(module) for name, module in sorted(_NEEDS.items()) if name not in missing
        },
        "not measured": [*(f"{name}: it is not installed" for name in missing), "resnet18 on cifar10's shapes: no GPU"],
    }
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for model in models:
            measurements[model] = compare(model, names, rounds, Path(folder))
            print(json.dumps({model: measurements[model]}, indent=1), flush=True)
    write_result("training", " ".join(["python bench/training.py", *sys.argv[1:]]), measurements)


if __name__ == "__main__":
    main()
