"""One rank of one loop that bench/training.py compares: it waits for a line, plays a round, tells what it found.

    python bench/training_rank.py CONTENDER SETTING-JSON MEETING-FILE

Who it is stands in the environment as torchrun sets it, which Lightning Fabric and accelerate read for themselves.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from training_contenders import CONTENDERS, Setting, peak_mb

_TIMEOUT = timedelta(minutes=30)
"""The group must outlive the rounds of the others."""


def main() -> None:
    """Play rounds until standard input ends."""
    # What libraries print must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    name, setting, meeting = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", _TIMEOUT, world_size, rank)
    folder = Path(setting.pop("folder"))
    play = CONTENDERS[name](Setting(rank=rank, world_size=world_size, folder=folder, **setting))
    for _ in sys.stdin:
        found = play()
        told = {**asdict(found), "peak_mb": peak_mb(), "threads": torch.get_num_threads()}
        print(json.dumps(told), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
