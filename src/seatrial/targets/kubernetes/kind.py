"""A kind of workload: everything that the rest of the package must know about it, as data and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from seatrial.targets.option import Option

if TYPE_CHECKING:
    from seatrial.targets.kubernetes.manifest.workload import Object, Workload

SpecFields = Callable[[str], tuple[Sequence[str], str]]
"""Name of a CustomResourceDefinition -> the fields in the spec of its resource in this cluster, and the error if they
cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator that a cluster needs for a kind."""

    release: str
    """Its name and its oldest supported release, as a person searches for it."""
    api_kinds: tuple[str, ...]
    """The kinds of object that it adds to the API, the workload's first; the API server names one of them in its error
    when the operator is missing."""
    instead: str
    """The options to use in a cluster without it."""


def _no_files(workload: Workload) -> Mapping[str, bytes]:
    return {}


def _never(kind_options: Mapping[str, Any]) -> bool:
    return False


def _accept(workload: Workload) -> None:
    pass


def _as_typed(workload: Workload, spec_fields: SpecFields | None) -> Workload:
    return workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of workload. Each file in ``kinds`` defines one, called ``KIND``.

    For example, a kind without further options::

        KIND = Kind(
            name="examplejob",
            order=60,
            help="an ExampleJob",
            operator=Operator(release="Example 1.0", api_kinds=("ExampleJob",), instead="another target"),
            index_label="example.com/index",
            render=_render,
            longest_name=_longest_name,
        )
    """

    name: str
    """The word after ``--on``, and the name of the file."""
    order: int
    """Position in --help, ascending."""
    help: str
    """A few words for --help."""
    operator: Operator | None
    """None: Kubernetes itself runs this kind."""
    index_label: str
    """Label or annotation with the index of a pod, as the controller that creates the pods writes it."""
    render: Callable[[Workload], list[Object]]
    """Returns the objects of this kind; the workload is the last one."""
    longest_name: Callable[[Workload], str]
    """Returns the longest name of a pod that the cluster derives from the name of the run."""
    owners: tuple[str, ...] = ()
    """The kinds between the workload and its pods, as kubectl names them: the workload owns a ``job.batch``, and that
    the pods. Default: the workload owns its pods itself."""
    container: str = "seatrial"
    """Name of the container that runs seatrial. Others, such as proxies, may stand beside it, and even before it."""
    role_label: str | None = None
    """Label with the role of a pod, if each role counts its pods from 0; None: there is one role."""
    nodes_before: Mapping[str, int] = field(default_factory=dict)
    """Role in lower case -> number of nodes before the first one of that role. Default: 0."""
    files: Callable[[Workload], Mapping[str, bytes]] = _no_files
    """Returns the files that its pods need beside the bundle: name -> content."""
    takes_host_ports: bool = False
    """Whether its pods reserve a port, so that in the host network no two fit on one node."""
    restart_label: str = ""
    """Label with the number of restarts before the creation of a pod, if it restarts all pods together when one fails
    (``--max-restarts``); empty: it does not."""
    needs_objects_first: bool = False
    """Whether the API server refuses the workload while its other objects are missing, as they are in a dry run."""
    options: tuple[Option, ...] = ()
    """The options of this kind beside those of all kinds; their values are in ``Workload.kind_options``."""
    under_mpi: Callable[[Mapping[str, Any]], bool] = _never
    """Returns whether mpirun starts the ranks from a launcher pod, given the values of ``options``."""
    mpi_options: str = ""
    """The options with which mpirun starts the ranks; empty: it never does."""
    resolve: Callable[[Workload, SpecFields | None], Workload] = _as_typed
    """Fills in what depends on the cluster. Without ``SpecFields`` (a dry run) no cluster is asked."""
    validate: Callable[[Workload], None] = _accept
    """Raises RequestError for a workload that this kind cannot hold."""

    def with_defaults(self, workload: Workload) -> Workload:
        """Return the workload with a value for each option of this kind."""
        values = {option.name: workload.kind_options.get(option.name, option.default) for option in self.options}
        return replace(workload, kind_options=values)
