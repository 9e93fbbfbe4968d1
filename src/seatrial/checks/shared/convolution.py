"""A convolution whose exact answer is known, forward and backward."""

from __future__ import annotations

from typing import Any

from seatrial.rank.device import Device

_LARGEST = 8
"""Images, weights and gradients are integers in [-8, 8]."""
_SIZES = {"cpu": (8, 32, 16), "cuda": (32, 64, 32)}
"""Images, channels, height and width. No sum of products, however ordered, exceeds 64 x 32 x 32 x 32 = 2**21."""
_SPREAD = 2
"""Padding and dilation of the kernel. Fast transforms (Winograd, Fourier), which round, need neighboring pixels; the
remaining algorithms multiply and add, which is exact for integers below 2**24 in float32, with TF32 too."""
_SHOWN = 4


def count_wrong_convolution(device: Device, seed: int) -> tuple[int, list[str]]:
    """Return the number of wrong elements of one convolution, in its output and its three gradients.

    The device computes in float32, through the same module and backward as a training; the host computes the answer in
    float64 by plain functions. Returns also the first wrong elements in words.
    """
    import torch
    from torch.nn.functional import conv2d

    num_images, channels, side = _SIZES[device.type]
    generator = torch.Generator().manual_seed(seed)

    def integers(*shape: int) -> Any:
        return torch.randint(-_LARGEST, _LARGEST + 1, shape, generator=generator).double()

    images, upstream = (integers(num_images, channels, side, side) for _ in range(2))
    weight, bias = integers(channels, channels, 3, 3), integers(channels)
    exact_inputs = [tensor.requires_grad_() for tensor in (images, weight, bias)]
    answer = conv2d(images, weight, bias, padding=_SPREAD, dilation=_SPREAD)
    expected = [answer, *torch.autograd.grad(answer, exact_inputs, upstream)]

    layer = torch.nn.Conv2d(channels, channels, 3, padding=_SPREAD, dilation=_SPREAD)
    layer.load_state_dict({"weight": weight.detach().float(), "bias": bias.detach().float()})
    layer.to(device.torch)
    inputs = images.detach().float().to(device.torch).requires_grad_()
    output = layer(inputs)
    output.backward(upstream.float().to(device.torch))
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    results = [output, inputs.grad, gradients["weight"], gradients["bias"]]

    count, places = 0, list[str]()
    for name, result, right in zip(("output", "image", "weight", "bias"), results, expected, strict=True):
        values = result.detach().cpu().double()
        different = values != right.detach()
        count += int(different.sum())
        for index in different.nonzero()[: _SHOWN - len(places)].tolist():
            places.append(f"{name} {index} is {values[tuple(index)]:.9g}, not {right[tuple(index)]:.9g}")
    return count, places
