"""How ranks can share the work of a step: the names of the strategies. Importing this loads no torch.

Read ``strategy.py`` next: the interface of a strategy, and ``find_strategy``. Each strategy is one file.
"""

STRATEGIES: dict[str, str] = {
    "ddp": "DistributedDataParallel: each rank holds the whole model, gradients are averaged",
    "dp": "DataParallel: one process drives all devices of its node",
    "fsdp": "fully_shard: parameters, gradients and optimizer state are spread over the ranks",
    "pipeline": "the model is cut into stages over two or more ranks, with DistributedDataParallel over the rest",
    "tensor": "layers are cut over two or more ranks, with fully_shard over the rest",
}
"""Name -> short description. ``strategies/<name>.py`` has the function ``build``; see ``strategy.Build``."""
