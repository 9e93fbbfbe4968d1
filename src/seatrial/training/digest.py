"""A digest of all parameters and buffers: replicas with equal bits have equal digests."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping

from torch import Tensor, nn


def digest(model: nn.Module) -> str:
    """Return the SHA-256, in hex, over names, types, shapes and raw bits of a model; NaNs and the sign of zero
    count."""
    return digest_state(model.state_dict())


def digest_state(state: Mapping[str, Tensor]) -> str:
    """Return the digest of the model with this state dict."""
    total = hashlib.sha256()
    for name, tensor in state.items():
        values = tensor.detach().cpu().contiguous()
        total.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        size_bytes = values.numel() * values.element_size()
        if size_bytes:
            # Read the memory directly: torch gives bytes only through NumPy, which may not be installed.
            total.update((ctypes.c_char * size_bytes).from_address(values.data_ptr()))
    return total.hexdigest()
