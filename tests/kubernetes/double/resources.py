"""The kinds of objects in the double of a cluster, by all names that kubectl accepts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind."""

    kind: str
    api_version: str
    plural: str
    short: tuple[str, ...] = ()
    namespaced: bool = True
    operator: bool = False
    """It is there only where somebody has installed it."""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def full_name(self) -> str:
        """As kubectl prints it: ``job.batch``."""
        return f"{self.kind.lower()}.{self.group}" if self.group else self.kind.lower()

    @property
    def full_plural(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def words(self) -> set[str]:
        """What a person may type for it, in lower case."""
        one = self.kind.lower()
        version = self.api_version.rpartition("/")[2]
        long = {f"{word}{dot}.{self.group}" for word in (one, self.plural) for dot in ("", f".{version}")}
        return {one, self.plural, *self.short, *(long if self.group else ())}


def _of(kind: str, api_version: str, *short: str, namespaced: bool = True, operator: bool = False) -> Resource:
    ending = kind.lower()
    plural = f"{ending[:-1]}ies" if ending.endswith("y") else f"{ending.removesuffix('s')}s"
    return Resource(
        kind=kind, api_version=api_version, plural=plural, short=short, namespaced=namespaced, operator=operator
    )


_OPENSHIFT = "security.openshift.io/v1"
_RBAC = "rbac.authorization.k8s.io/v1"
RESOURCES = (
    _of("Pod", "v1", "po"),
    _of("Service", "v1", "svc"),
    _of("ConfigMap", "v1", "cm"),
    _of("Secret", "v1"),
    _of("Event", "v1", "ev"),
    _of("ServiceAccount", "v1", "sa"),
    _of("PersistentVolumeClaim", "v1", "pvc"),
    _of("Namespace", "v1", "ns", namespaced=False),
    _of("Node", "v1", "no", namespaced=False),
    _of("Job", "batch/v1"),
    _of("ResourceQuota", "v1", "quota"),
    _of("NetworkPolicy", "networking.k8s.io/v1", "netpol"),
    _of("Role", _RBAC),
    _of("RoleBinding", _RBAC),
    _of("CustomResourceDefinition", "apiextensions.k8s.io/v1", "crd", "crds", namespaced=False),
    _of("SecurityContextConstraints", _OPENSHIFT, "scc", namespaced=False, operator=True),
    _of("JobSet", "jobset.x-k8s.io/v1alpha2", operator=True),
    _of("PyTorchJob", "kubeflow.org/v1", operator=True),
    _of("MPIJob", "kubeflow.org/v2beta1", operator=True),
    _of("TrainJob", "trainer.kubeflow.org/v1alpha1", operator=True),
    _of("TrainingRuntime", "trainer.kubeflow.org/v1alpha1", operator=True),
    _of("ClusterTrainingRuntime", "trainer.kubeflow.org/v1alpha1", namespaced=False, operator=True),
)


def resource_named(word: str) -> Resource | None:
    """The kind that is meant by a word, in whatever case."""
    return next((resource for resource in RESOURCES if word.lower() in resource.words), None)
