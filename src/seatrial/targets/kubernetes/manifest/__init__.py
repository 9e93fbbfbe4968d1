"""The objects of a cluster, rendered from a ``Workload``. Pure."""
