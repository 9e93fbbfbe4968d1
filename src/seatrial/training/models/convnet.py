"""A small convolutional net for images of any shape."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["ConvNet"]


class ConvNet(nn.Module):
    """Three 3 x 3 convolutions, two of which halve the image, and one linear layer.

    About 30,000 parameters for 8 x 8 images. No normalisation and no dropout: each gradient is a sum over samples, so
    any number of ranks computes the same step.
    """

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(64 * -(-height // 4) * -(-width // 4), num_classes)

    def blocks(self) -> list[nn.Module]:
        """What forward does, in order: where a pipeline may cut."""
        return [*self.features, self.classifier]

    def forward(self, images: Tensor) -> Tensor:
        """Class scores, without softmax."""
        scores: Tensor = self.classifier(self.features(images))
        return scores
