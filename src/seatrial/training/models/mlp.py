"""A perceptron with one hidden layer."""

from __future__ import annotations

import math

from torch import Tensor, nn


class Mlp(nn.Module):
    """The flattened image, 128 units, the classes: 784-128-10 and 101,770 parameters for images of 28 x 28.

    Initial values as in torch.nn.Linear: uniform within 1 / sqrt(inputs).
    """

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(math.prod(shape), 128)
        self.relu = nn.ReLU()
        self.classifier = nn.Linear(128, num_classes)

    def blocks(self) -> list[nn.Module]:
        """Return the modules in the order of forward; a pipeline may cut between them."""
        return [self.flatten, self.hidden, self.relu, self.classifier]

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), without softmax, for images of shape (N, C, H, W)."""
        scores: Tensor = self.classifier(self.relu(self.hidden(self.flatten(images))))
        return scores

    def tensor_plan(self) -> dict[str, str]:
        """Return the plan for tensor parallelism; see ``strategies.tensor.Cuttable``."""
        return {"hidden": "columns", "classifier": "rows"}
