"""gpu_measurements.py speed|loop|snapshot: what seatrial measures on a GPU, beside the same without seatrial.

``tools/gpu_first_hour.sh`` runs it with ``src`` in PYTHONPATH. Each line that begins with RESULT is a figure. With
SMALL in the environment the sizes are those of a double, whose figures mean nothing: then no ratio fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seatrial.devices.node_state import NodeReader
from seatrial.devices.plain_json import to_json

IS_SMALL = bool(os.environ.get("SMALL"))
WITHIN = 0.03
"""Largest difference between our time of a call and that of a bare loop."""
SECONDS = 0.05 if IS_SMALL else 2.0


def main() -> int:
    """Run one of the measurements; return 1 where ours differs from the bare one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("speed", "loop", "snapshot"))
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.what == "speed":
        return measure_speed()
    if arguments.what == "loop":
        return measure_loop(arguments.model, arguments.batch_size, arguments.steps)
    return take_snapshots()


def measure_speed() -> int:
    """Time matrix products and copies with seatrial's function and with a bare loop, by turns."""
    import torch

    from seatrial.checks.shared.timing import timed
    from seatrial.rank.device import open_device

    device = open_device("rocm" if torch.version.hip else "cuda", 0, 4)
    size, count = (256, 1 << 20) if IS_SMALL else (8192, 1 << 30)
    worst = 0.0
    for name, work, call in _calls(torch, size, count):
        ours_s: list[float] = []
        bare_s: list[float] = []
        for _ in range(3):
            ours_s.append(timed(device, call, SECONDS)[0])
            bare_s.append(_bare(torch, call))
        ratio = min(ours_s) / min(bare_s)
        worst = max(worst, abs(ratio - 1))
        print(f"RESULT {name}: {work / min(ours_s):.2f}, bare {work / min(bare_s):.2f}, ratio {ratio:.4f}")
    return int(worst > WITHIN and not IS_SMALL)


def _calls(torch: Any, size: int, count: int) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Yield name with unit, work of one call in units of 1e12 operations or 1e9 bytes, and the call."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        left, right = (torch.randn((size, size), device="cuda").to(dtype) for _ in range(2))
        product = torch.empty((size, size), dtype=dtype, device="cuda")
        yield (
            f"{str(dtype).removeprefix('torch.')} product, TFLOP/s",
            2 * size**3 / 1e12,
            lambda left=left, right=right, product=product: torch.mm(left, right, out=product),  # type: ignore[misc]
        )
    on_device, also = (torch.zeros(count // 8, dtype=torch.int64, device="cuda") for _ in range(2))
    pinned = torch.zeros(count // 8, dtype=torch.int64, pin_memory=True)
    yield "copy in the device, GB/s", 2 * count / 1e9, lambda: also.copy_(on_device, non_blocking=True)
    yield "copy from the host, GB/s", count / 1e9, lambda: on_device.copy_(pinned, non_blocking=True)
    yield "copy to the host, GB/s", count / 1e9, lambda: pinned.copy_(on_device, non_blocking=True)


def _bare(torch: Any, call: Callable[[], object]) -> float:
    """Return the seconds of one call in a loop between two events."""
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    repeats = 5 if IS_SMALL else 100
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def measure_loop(name: str, batch_size: int, num_steps: int) -> int:
    """Print images/s of a plain loop: DataLoader with workers and pinned memory, the same model, SGD, float32."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from seatrial.training.models import build_model

    model = build_model(name, (3, 32, 32), 10, 1).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.rand(batch_size * 20, 3, 32, 32), torch.randint(0, 10, (batch_size * 20,))
    workers = 0 if IS_SMALL else 4  # a double's devices are not in forked processes
    loader = DataLoader(
        TensorDataset(images, labels),
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=not IS_SMALL,
        persistent_workers=workers > 0,
    )
    done, began, warm_up = 0, 0.0, max(2, num_steps // 10)
    while done < num_steps + warm_up:
        for batch, wanted in loader:
            if done == warm_up:
                torch.cuda.synchronize()
                began = time.perf_counter()
            scores = model(batch.to("cuda", non_blocking=True))
            loss = torch.nn.functional.cross_entropy(scores, wanted.to("cuda", non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
            if done == num_steps + warm_up:
                break
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    print(f"RESULT plain DataLoader loop: {batch_size * num_steps / seconds:.0f} images/s")
    return 0


def take_snapshots() -> int:
    """Write what the driver says of the devices, idle and under load, to OUT/snapshot-{idle,load}.json."""
    import torch

    out = Path(os.environ["OUT"])
    _snapshot(out / "snapshot-idle.json")
    size = 256 if IS_SMALL else 8192
    left = torch.randn((size, size), device="cuda").to(torch.bfloat16)
    until = time.monotonic() + (1 if IS_SMALL else 10)
    while time.monotonic() < until:
        for _ in range(50):
            torch.mm(left, left)
        torch.cuda.synchronize()
    load = subprocess.Popen(
        [sys.executable, __file__, "snapshot"], env={**os.environ, "OUT": str(out), "UNDER_LOAD": "1"}
    )
    while load.poll() is None:
        for _ in range(50):
            torch.mm(left, left)
        torch.cuda.synchronize()
    return load.returncode


def _snapshot(path: Path) -> None:
    found = to_json(NodeReader(os.environ).snapshot())
    path.write_text(json.dumps(found, indent=1))
    devices = found.get("devices", [])
    print(f"RESULT {path.name}: {found.get('source', '')}: {len(devices)} devices; {found.get('not_checked', {})}")
    for device in devices:
        print(f"RESULT {json.dumps(device)[:1500]}")
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        done = subprocess.run([tool, "-q", "-x"], capture_output=True, timeout=60, check=False)
        path.with_suffix(".xml.txt").write_bytes(done.stdout)


if __name__ == "__main__":
    if os.environ.get("UNDER_LOAD"):
        _snapshot(Path(os.environ["OUT"]) / "snapshot-load.json")
        sys.exit(0)
    sys.exit(main())
