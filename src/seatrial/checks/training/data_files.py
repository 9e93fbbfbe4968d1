"""The files of a data set, before they are trained on: can each rank read them, and has each node the same content."""

from __future__ import annotations

import os

from seatrial.checks.training.params import Params, data_dir
from seatrial.errors import RequestError
from seatrial.probe.file_system import own_places
from seatrial.rank.context import Context
from seatrial.training.data import dataset_files

_DIGEST_BITS = 62
"""The part of a digest that ranks compare: it and its negative fit into 64 bits."""


def data_is_ready(context: Context, params: Params) -> bool:
    """Read the data, report its digest or its fault, and return whether all ranks can train on the same content.

    One rank of each node computes the digest, of the images and labels in memory: nodes may keep the files compressed
    or not. Raises RequestError where no rank has the data, which is then no fault of a node.
    """
    import torch
    import torch.distributed as dist

    from seatrial.training.data import find_workload
    from seatrial.training.digest import digest_state

    context.phase("read data")
    fault, digest = "", ""
    try:
        # The recipe comes later: one that cannot be trained is no fault of the files.
        data = find_workload(params.workload, num_samples=params.num_samples, data_dir=data_dir(params)).load()
        if context.local_rank == 0:
            parts = ("train_images", "train_labels", "test_images", "test_labels")
            digest = digest_state({part: getattr(data, part) for part in parts})
    except RequestError as error:
        fault = str(error)
    if fault or digest:
        folder = data_dir(params) or dataset_files.default_folder(os.environ)
        places = own_places(dataset_files.candidates(params.workload, folder))
        context.fact("data", {"fault": fault, "digest": digest, "places": places})
    failed = int(bool(fault))
    # The least and the largest of all digests, by one maximum; a rank without a digest changes neither.
    number = int(digest[:16], 16) >> (64 - _DIGEST_BITS) if digest else None
    bounds = [-(1 << _DIGEST_BITS)] * 2 if number is None else [number, -number]
    most = torch.tensor([failed, -failed, *bounds], dtype=torch.int64, device=context.device.torch)
    context.phase("compare data")
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=context.group)
    context.device.synchronize()
    any_failed, none_passed, largest, negative_least = most.tolist()
    if none_passed == -1:
        raise RequestError(fault)
    return not any_failed and largest == -negative_least
