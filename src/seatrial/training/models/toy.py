"""The smallest model that can be trained: for trying things out."""

from __future__ import annotations

import math

from torch import Tensor, nn


class Toy(nn.Module):
    """Two linear layers with 10 units between them, on the flattened image: the toy model of PyTorch's DDP tutorials.

    On ``synthetic-10x1x1-5`` it has 10-10-5 units and 165 parameters. Initial values as in torch.nn.Linear: uniform
    within 1 / sqrt(inputs).
    """

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.net1 = nn.Linear(math.prod(shape), 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, num_classes)

    def blocks(self) -> list[nn.Module]:
        """Return the modules in the order of forward; a pipeline may cut between them."""
        return [self.flatten, self.net1, self.relu, self.net2]

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), without softmax, for images of shape (N, C, H, W)."""
        scores: Tensor = self.net2(self.relu(self.net1(self.flatten(images))))
        return scores

    def tensor_plan(self) -> dict[str, str]:
        """Return the plan for tensor parallelism; see ``strategies.tensor.Cuttable``."""
        return {"net1": "columns", "net2": "rows"}
