"""A perceptron with one hidden layer."""

from __future__ import annotations

import math

from torch import Tensor, nn

__all__ = ["Mlp"]


class Mlp(nn.Module):
    """The flattened image, 128 units, the classes: 784-128-10 and 101,770 parameters for images of 28 x 28.

    Initial values as torch.nn.Linear draws them: uniform within 1 / sqrt(inputs).
    """

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(math.prod(shape), 128)
        self.relu = nn.ReLU()
        self.classifier = nn.Linear(128, num_classes)

    def blocks(self) -> list[nn.Module]:
        """What forward does, in order: where a pipeline may cut."""
        return [self.flatten, self.hidden, self.relu, self.classifier]

    def forward(self, images: Tensor) -> Tensor:
        """Class scores, without softmax."""
        scores: Tensor = self.classifier(self.relu(self.hidden(self.flatten(images))))
        return scores

    def tensor_plan(self) -> dict[str, str]:
        """For tensor parallelism."""
        return {"hidden": "columns", "classifier": "rows"}
