"""The files of a data set, before they are trained on: can each rank read them, and do all have the same content."""

from __future__ import annotations

import os

from seatrial.checks.training.params import Params, data_dir
from seatrial.errors import RequestError
from seatrial.probe.file_system import own_places
from seatrial.rank.context import Context
from seatrial.training.data import Workload, dataset_files, find_workload

_DIGEST_BITS = 62
"""The part of a digest that ranks compare: it and its negative fit into 64 bits."""


def compared_data(context: Context, params: Params) -> Workload | None:
    """Read the data, report its digest or its fault, and return it in memory; None: not all ranks have the same.

    The answer of the comparison is a fact as well: nobody can train where it denies the words of all digests.

    Another user of a shared folder can exchange the files for the moment in which one rank reads them, so each rank
    compares what it has read itself, and nothing is read again. The digest is that of the images and labels: nodes may
    keep the files compressed or not.

    Raises RequestError where no rank has the data, which is then no fault of a node.
    """
    import torch
    import torch.distributed as dist

    from seatrial.training.digest import digest_state

    context.phase("read data")
    workload, fault, digest, images = None, "", "", list[int]()
    try:
        # The recipe comes later: one that cannot be trained is no fault of the files.
        workload = find_workload(params.workload, num_samples=params.num_samples, data_dir=data_dir(params)).in_memory()
    except RequestError as error:
        fault = str(error)
    else:
        data, images = workload.load(), [workload.num_train, workload.num_test]
        parts = ("train_images", "train_labels", "test_images", "test_labels")
        digest = digest_state({part: getattr(data, part) for part in parts})
    folder = data_dir(params) or dataset_files.default_folder(os.environ)
    places = own_places(dataset_files.candidates(params.workload, folder))
    context.fact("data", {"fault": fault, "digest": digest, "images": images, "places": places})
    failed = int(bool(fault))
    # The least and the largest of all digests, by one maximum; a rank without a digest changes neither.
    number = int(digest[:16], 16) >> (64 - _DIGEST_BITS) if digest else None
    bounds = [-(1 << _DIGEST_BITS)] * 2 if number is None else [number, -number]
    most = torch.tensor([failed, -failed, *bounds], dtype=torch.int64, device=context.device.torch)
    context.phase("compare data")
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=context.group)
    context.device.synchronize()
    any_failed, none_passed, largest, negative_least = most.tolist()
    is_same = largest == -negative_least and not any_failed
    context.fact("data_compared", {"same": is_same})
    if none_passed == -1 and fault:
        raise RequestError(fault)
    return workload if is_same else None
