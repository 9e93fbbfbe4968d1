"""A script for torch.distributed.launch: --local_rank as an argument, the rest from the environment."""

from __future__ import annotations

import argparse
import os

import torch.distributed as dist
from toy_training import train  # type: ignore[import-not-found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    if options.local_rank != int(os.environ["LOCAL_RANK"]) or options.epochs != 3:
        raise SystemExit(f"--local_rank={options.local_rank} --epochs={options.epochs}")
    dist.init_process_group("gloo")
    train()


if __name__ == "__main__":
    main()
