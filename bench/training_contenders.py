"""The loops that bench/training.py compares: same model, same initial values, data, batch and optimizer, other hands.

Each is what its own documents recommend, written by somebody who wants it fast: wherever a loop may choose, the data
stand in memory as bytes and a batch is picked by one ``index_select``. Only the loops with a DataLoader load sample
by sample, since that is what they are here to show: one as so many examples do, with torchvision's MNIST and its
transforms, and one that has taken every detour out of that and keeps to tensors.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from seatrial.protocol.phase_page import PhaseWriter, create
from seatrial.training.models import build_model
from seatrial.training.recipe import Recipe
from seatrial.training.trainer import train

__all__ = ["BATCH_SIZE", "CONTENDERS", "Round", "Setting", "peak_mb"]

BATCH_SIZE = 64
"""Of each of the two ranks."""
_SHAPE, _NUM_CLASSES, _SEED = (1, 28, 28), 10, 1
_LR, _MOMENTUM, _WEIGHT_DECAY = 0.05, 0.9, 5e-4
_MEAN, _STD = 0.1307 * 255, 0.3081 * 255
_TEST_BATCH_SIZE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is to be trained."""

    model: str
    rank: int
    world_size: int
    folder: Path
    """With ``mnist/`` in it: four files in the format of MNIST."""
    warmup_steps: int
    num_steps: int
    """After the warm-up, and timed. All of it lies within one epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one rank found in one round."""

    seconds: float
    """Of the timed steps."""
    cpu_s: float
    """CPU time of this process, all threads, for the same steps: what other processes do to the machine tells less."""
    training_mb: float
    """Highest resident memory of the process up to the last step; 10**6 bytes."""
    accuracy: float
    """On the test part, after the last step, over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a loop in plain torch is made of."""

    model: nn.Module
    optimizer: Any
    backward: Callable[[Tensor], Any]
    batches: Iterator[tuple[Tensor, Tensor]]


def peak_mb() -> float:
    """Highest resident memory of this process so far, in 10**6 bytes, as Linux counts it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


# Ours


class _Stopwatch:
    """The trainer's watch: notes when the last step of the warm-up and the last one of all were done."""

    def __init__(self, setting: Setting) -> None:
        self._first, self._last = setting.warmup_steps - 1, setting.warmup_steps + setting.num_steps - 1
        self._began = self._cpu_began = self.seconds = self.cpu_s = self.training_mb = 0.0

    def on_start(self, start: object) -> None:
        pass

    def on_losses(self, step: int, loss: float) -> None:
        pass

    def on_step(self, step: int) -> None:
        if step == self._first:
            self._began, self._cpu_began = time.perf_counter(), time.process_time()
        elif step == self._last:
            self.seconds, self.cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu_began
            self.training_mb = peak_mb()

    def on_epoch(self, stats: object) -> None:
        pass

    def should_stop(self) -> bool:
        return False


def _seatrial(setting: Setting) -> Callable[[], Round]:
    phases = PhaseWriter(create())
    recipe = Recipe(
        workload="mnist",
        model=setting.model,
        max_steps=setting.warmup_steps + setting.num_steps,
        global_batch_size=BATCH_SIZE * setting.world_size,
        lr=_LR,
        momentum=_MOMENTUM,
        weight_decay=_WEIGHT_DECAY,
        schedule="constant",
        seed=_SEED,
    )

    def play() -> Round:
        stopwatch = _Stopwatch(setting)
        group = dist.group.WORLD
        assert group is not None
        outcome = train(
            recipe,
            recipe.data(setting.folder),
            device=torch.device("cpu"),
            group=group,
            phase=phases.write,
            callbacks=stopwatch,
        )
        return Round(
            seconds=stopwatch.seconds,
            cpu_s=stopwatch.cpu_s,
            training_mb=stopwatch.training_mb,
            accuracy=outcome.counts.accuracy,
        )

    return play


# Theirs


def _read(path: Path, header: str) -> Tensor:
    """The bytes after the header of a file in the format of MNIST."""
    with path.open("rb") as file:
        sizes = struct.unpack(header, file.read(struct.calcsize(header)))[1:]
        values = bytearray(path.stat().st_size - struct.calcsize(header))
        file.readinto(values)
    return torch.frombuffer(values, dtype=torch.uint8).view(sizes)


def _load(setting: Setting, part: str) -> tuple[Tensor, Tensor]:
    """Images, uint8 of (n, 1, 28, 28), and labels, int64."""
    images = _read(setting.folder / f"mnist/{part}-images-idx3-ubyte", ">4I")
    return images.unsqueeze(1), _read(setting.folder / f"mnist/{part}-labels-idx1-ubyte", ">2I").long()


def _new_model(setting: Setting) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = build_model(setting.model, _SHAPE, _NUM_CLASSES, _SEED)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=_LR, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY, nesterov=True
    )
    return model, optimizer


def _resident(setting: Setting, images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches out of memory, each rank its part of a permutation that is the same on all."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(_SEED))
    own = order[setting.rank :: setting.world_size].contiguous()
    for indices in own.split(BATCH_SIZE):
        yield images.index_select(0, indices).float().sub_(_MEAN).div_(_STD), labels.index_select(0, indices)


def _test(setting: Setting, model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Accuracy: each rank a part, the counts added up."""
    own = torch.arange(setting.rank, len(images), setting.world_size)
    num_correct = torch.zeros((), dtype=torch.int64)
    with torch.inference_mode():
        for indices in own.split(_TEST_BATCH_SIZE):
            scores = model(images.index_select(0, indices).float().sub_(_MEAN).div_(_STD))
            num_correct += (scores.argmax(1) == labels.index_select(0, indices)).sum()
    dist.all_reduce(num_correct)
    return int(num_correct) / len(images)


def _in_plain_torch(
    prepare: Callable[[Setting, Tensor, Tensor], Callable[[], _Parts]],
) -> Callable[[Setting], Callable[[], Round]]:
    """A contender out of what makes its parts: the loop that everybody writes, and its timing."""

    def contender(setting: Setting) -> Callable[[], Round]:
        images, labels = _load(setting, "train")
        test_images, test_labels = _load(setting, "t10k")
        new_parts = prepare(setting, images, labels)

        def play() -> Round:
            parts = new_parts()
            model, optimizer, backward = parts.model, parts.optimizer, parts.backward
            assert any(isinstance(module, DistributedDataParallel) for module in model.modules()), "not distributed"

            def steps(count: int) -> None:
                for batch, targets in islice(parts.batches, count):
                    loss = cross_entropy(model(batch), targets)
                    optimizer.zero_grad()
                    backward(loss)
                    optimizer.step()

            steps(setting.warmup_steps)
            dist.barrier()
            began, cpu_began = time.perf_counter(), time.process_time()
            steps(setting.num_steps)
            seconds, cpu_s, training_mb = time.perf_counter() - began, time.process_time() - cpu_began, peak_mb()
            assert next(parts.batches, None) is not None, "the epoch was too short"
            accuracy = _test(setting, model, test_images, test_labels)
            return Round(seconds=seconds, cpu_s=cpu_s, training_mb=training_mb, accuracy=accuracy)

        return play

    return contender


def _hand_written(setting: Setting, images: Tensor, labels: Tensor) -> Callable[[], _Parts]:
    def new_parts() -> _Parts:
        model, optimizer = _new_model(setting)
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return _Parts(
            model=wrapped,
            optimizer=optimizer,
            backward=torch.Tensor.backward,
            batches=_resident(setting, images, labels),
        )

    return new_parts


def _accelerate(setting: Setting, images: Tensor, labels: Tensor) -> Callable[[], _Parts]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == setting.world_size

    def new_parts() -> _Parts:
        accelerator.free_memory()
        model, optimizer = accelerator.prepare(*_new_model(setting))
        return _Parts(
            model=model,
            optimizer=optimizer,
            backward=accelerator.backward,
            batches=_resident(setting, images, labels),
        )

    return new_parts


def _fabric(setting: Setting, images: Tensor, labels: Tensor) -> Callable[[], _Parts]:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import TorchElasticEnvironment

    fabric = Fabric(accelerator="cpu", devices=setting.world_size, strategy="ddp", plugins=TorchElasticEnvironment())
    fabric.launch()
    assert fabric.world_size == setting.world_size

    def new_parts() -> _Parts:
        model, optimizer = fabric.setup(*_new_model(setting))
        return _Parts(
            model=model,
            optimizer=optimizer,
            backward=fabric.backward,
            batches=_resident(setting, images, labels),
        )

    return new_parts


class _Samples(Dataset[tuple[Tensor, int]]):
    """Sample by sample, each transformed by itself, without the detour by an image of PIL."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._images[index].float().sub_(_MEAN).div_(_STD), int(self._labels[index])


def _torchvision(setting: Setting, images: Tensor, labels: Tensor) -> Any:
    """Its own reader of the same files, an image of PIL a sample, ToTensor and Normalize."""
    from torchvision import datasets, transforms

    steps = [transforms.ToTensor(), transforms.Normalize((_MEAN / 255,), (_STD / 255,))]
    return datasets.MNIST(str(setting.folder), train=True, transform=transforms.Compose(steps))


def _lean(setting: Setting, images: Tensor, labels: Tensor) -> Any:
    return _Samples(images, labels)


def _loader(
    dataset: Callable[[Setting, Tensor, Tensor], Any], num_workers: int
) -> Callable[[Setting, Tensor, Tensor], Callable[[], _Parts]]:
    def prepare(setting: Setting, images: Tensor, labels: Tensor) -> Callable[[], _Parts]:
        samples = dataset(setting, images, labels)

        def new_parts() -> _Parts:
            model, optimizer = _new_model(setting)
            sampler = DistributedSampler(samples, setting.world_size, setting.rank, seed=_SEED)
            loader = DataLoader(samples, batch_size=BATCH_SIZE, sampler=sampler, num_workers=num_workers)
            return _Parts(
                model=DistributedDataParallel(model),
                optimizer=optimizer,
                backward=torch.Tensor.backward,
                batches=iter(loader),
            )

        return new_parts

    return prepare


CONTENDERS: dict[str, Callable[[Setting], Callable[[], Round]]] = {
    "seatrial": _seatrial,
    "hand-written": _in_plain_torch(_hand_written),
    "hand-written again": _in_plain_torch(_hand_written),
    "accelerate": _in_plain_torch(_accelerate),
    "lightning-fabric": _in_plain_torch(_fabric),
    "DataLoader, torchvision": _in_plain_torch(_loader(_torchvision, 0)),
    "DataLoader, torchvision, 2 workers": _in_plain_torch(_loader(_torchvision, 2)),
    "DataLoader, lean": _in_plain_torch(_loader(_lean, 0)),
}
"""Name -> what readies a rank, and gives what it does each round. The third tells how far two equals are apart."""
