"""ResNet-18 for small images."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu


class ResNet18(nn.Module):
    """The network of He et al. 2015 (arXiv:1512.03385) with a stem for small images: one 3 x 3 convolution at full
    size, no max-pool. 11,173,962 parameters for images of 3 channels and 10 classes.

    With the ImageNet stem, 7 x 7 with stride 2 and a max-pool, an image of 32 x 32 is reduced to 8 x 8 before the first
    block, which lowers accuracy. Initial values: convolutions normal with variance 2 / (outputs x kernel), as in
    arXiv:1502.01852; BatchNorm 1 and 0; the last layer as in torch.nn.Linear.
    """

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.stage1 = _stage(64, 64, stride=1)
        self.stage2 = _stage(64, 128, stride=2)
        self.stage3 = _stage(128, 256, stride=2)
        self.stage4 = _stage(256, 512, stride=2)
        self.classifier = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), without softmax, for images of shape (N, C, H, W)."""
        features = relu(self.norm(self.stem(images)))
        features = self.stage4(self.stage3(self.stage2(self.stage1(features))))
        scores: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return scores


def _stage(in_channels: int, out_channels: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(_Block(in_channels, out_channels, stride), _Block(out_channels, out_channels, 1))


class _Block(nn.Module):
    """Two convolutions and the shortcut around them: the identity, or a 1 x 1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm2(self.conv2(relu(self.norm1(self.conv1(images)))))
        added: Tensor = relu(features + self.shortcut(images))
        return added
