"""A digest of all parameters and buffers: replicas that are equal bit for bit have equal digests."""

from __future__ import annotations

import ctypes
import hashlib

from torch import nn

__all__ = ["digest"]


def digest(model: nn.Module) -> str:
    """SHA-256, in hex, over names, types, shapes and raw bits: NaNs and the sign of zero count."""
    total = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        values = tensor.detach().cpu().contiguous()
        total.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        size_bytes = values.numel() * values.element_size()
        if size_bytes:
            # The memory itself: torch hands out bytes only through numpy, which need not be there.
            total.update((ctypes.c_char * size_bytes).from_address(values.data_ptr()))
    return total.hexdigest()
