"""Manifests: what `kubectl apply` is given, for each kind of object that can hold a job of ours.

Pure: a ``Workload`` in, objects out; no cluster is asked and no file is read. One file a kind; the pod is the same in
all of them (``pod.py``). Only the controller has use for it, so it does not travel.
"""
