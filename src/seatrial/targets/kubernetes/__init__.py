"""Pods of a Kubernetes or OpenShift cluster."""
