"""A small GPT over characters, in the shape of minGPT with DDP: overrides as of hydra, workers of a DataLoader.

``char_gpt.py trainer.max_epochs=1 data.workers=2``
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

_TEXT = "The quick brown fox jumps over the lazy dog. " * 40
_LETTERS = sorted(set(_TEXT))
_BLOCK = 16


class Characters(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Blocks of the text, and the same one character later."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.tensor([_LETTERS.index(letter) for letter in _TEXT[index : index + _BLOCK + 1]])
        return numbers[:-1], numbers[1:]


class Gpt(torch.nn.Module):
    """Two layers of a Transformer with a causal mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(len(_LETTERS), width)
        self.place = torch.nn.Parameter(torch.zeros(_BLOCK, width))
        layer = torch.nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2)
        self.head = torch.nn.Linear(width, len(_LETTERS))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next characters."""
        mask = torch.nn.Transformer.generate_square_subsequent_mask(_BLOCK)
        return self.head(self.layers(self.embedding(numbers) + self.place, mask=mask, is_causal=True))


def main() -> None:
    settings = {"trainer.max_epochs": "1", "model.width": "16", "data.workers": "0"}
    settings |= dict(word.split("=", 1) for word in sys.argv[1:])
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = Characters()
    loader = DataLoader(
        data, batch_size=16, sampler=DistributedSampler(data), num_workers=int(settings["data.workers"])
    )
    model = DistributedDataParallel(Gpt(int(settings["model.width"])))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(int(settings["trainer.max_epochs"])):
        for numbers, following in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(numbers).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    assert losses[-1] < losses[0], losses
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()} is RANK {os.environ['RANK']}, {len(losses)} steps",
        flush=True,
    )
    dist.destroy_process_group()
    # As in snapshot_ddp.py.
    os._exit(0)


if __name__ == "__main__":
    main()
