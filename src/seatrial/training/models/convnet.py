"""A small convolutional net for images of any shape."""

from __future__ import annotations

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Three 3 x 3 convolutions, two of which halve the image, and one linear layer.

    About 30,000 parameters for 8 x 8 images. Without normalization and dropout each gradient is a sum over samples, so
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
        """Return the modules in the order of forward; a pipeline may cut between them."""
        return [*self.features, self.classifier]

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), without softmax, for images of shape (N, C, H, W)."""
        scores: Tensor = self.classifier(self.features(images))
        return scores
