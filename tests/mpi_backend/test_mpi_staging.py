"""From tensors to memory that MPI can take and back. The CPU stands in for a device where ``direct`` is False."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seatrial.mpi_backend.staging import (
    check_equal_sizes,
    check_share,
    concatenated,
    copy_back,
    distribute,
    host_of,
    separated,
    starts,
)

TABLE = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    ("tensor", "direct", "itself"),
    [
        (TABLE, True, True),
        (TABLE, False, False),
        (TABLE.t(), True, False),
        (torch.complex(TABLE, TABLE).conj(), True, False),
        (torch.complex(TABLE, TABLE).conj().imag, True, False),
        (torch.empty(0, 3), True, True),
        (torch.tensor(5.0), True, True),
    ],
    ids=["as it is", "of a device", "transposed", "conjugate", "negative", "empty", "scalar"],
)
def test_what_mpi_gets_is_contiguous_and_holds_what_the_tensor_shows(
    tensor: Tensor, direct: bool, itself: bool
) -> None:
    host = host_of(tensor, direct=direct)
    assert (host is tensor) is itself
    assert host.is_contiguous()
    assert not host.is_conj()
    assert not host.is_neg()
    assert torch.equal(host, tensor)


def test_what_came_is_brought_back_in_the_shape_of_the_tensor() -> None:
    base = torch.zeros(3, 2)
    view = base.t()
    host = host_of(view, direct=True, filled=False)
    with torch.inference_mode():
        host.copy_(TABLE)
    copy_back(view, host)
    assert torch.equal(base, TABLE.t())


@pytest.mark.parametrize("inference", [False, True])
def test_leaves_and_inference_tensors_are_filled_like_others(inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = torch.zeros(2, 3, requires_grad=not inference)
        flipped = tensor.detach().t()
    copy_back(tensor, host_of(TABLE, direct=False))
    copy_back(flipped, host_of(TABLE.t(), direct=True))
    assert torch.equal(tensor.detach(), TABLE)
    assert tensor.grad_fn is None


def test_parts_are_joined_and_dealt_out_in_their_order() -> None:
    parts = [TABLE.t(), torch.empty(0), torch.tensor(9.0)]
    flat = concatenated(parts, direct=True)
    assert flat.tolist() == [0, 3, 1, 4, 2, 5, 9]
    received = [torch.zeros(2, 3).t(), torch.empty(0), torch.tensor(0.0)]
    distribute(flat, received)
    assert all(torch.equal(one, other) for one, other in zip(parts, received, strict=True))
    distribute(torch.empty(0), [])


def test_a_slice_of_the_output_is_copied_and_others_are_not() -> None:
    other = torch.zeros(6)
    assert separated(TABLE[0], TABLE).data_ptr() != TABLE.data_ptr()
    assert separated(TABLE, other) is TABLE


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"takes no torch.sparse_coo tensors; make it dense first"):
        host_of(TABLE.to_sparse(), direct=True)
    with pytest.raises(ValueError, match=r"all_gather: tensors of one size and type are needed; got \(2, 3\)"):
        check_equal_sizes("all_gather", [TABLE, torch.zeros(5)])
    with pytest.raises(ValueError, match=r"torch.float64"):
        check_equal_sizes("all_gather", [TABLE, TABLE.double()])
    with pytest.raises(ValueError, match=r"has 6 elements of torch.float32; 8 of torch.float32 are needed, 2 times"):
        check_share("all_gather_into_tensor", TABLE, torch.zeros(4), 2)
    assert starts([2, 0, 3]) == [0, 2, 2]
