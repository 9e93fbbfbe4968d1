"""A digest of all parameters and buffers: replicas that are equal bit for bit have equal digests."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping

from torch import Tensor, nn

__all__ = ["digest", "digest_state"]


def digest(model: nn.Module) -> str:
    """SHA-256, in hex, over names, types, shapes and raw bits: NaNs and the sign of zero count."""
    return digest_state(model.state_dict())


def digest_state(state: Mapping[str, Tensor]) -> str:
    """The digest of the model with that state dict."""
    total = hashlib.sha256()
    for name, tensor in state.items():
        values = tensor.detach().cpu().contiguous()
        total.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        size_bytes = values.numel() * values.element_size()
        if size_bytes:
            # The memory itself: torch hands out bytes only through numpy, which need not be there.
            total.update((ctypes.c_char * size_bytes).from_address(values.data_ptr()))
    return total.hexdigest()
