"""Answers of the double of a cluster to kubectl: words in, text and exit code out.

Texts of refusals are those of kubectl 1.32 and of the API server, as far as programs read them. Objects of the built-in
kinds are not held against a schema here (tests/kubernetes/test_schemas.py does that); custom resources are, where the
operators' schemas are at hand.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml
from kubernetes.double.arguments import Arguments, RefusedError, parse
from kubernetes.double.logs import log_lines
from kubernetes.double.pods import World
from kubernetes.double.resources import Resource, resource_named
from kubernetes.double.store import Object
from kubernetes.schemas import find_schemas, problems

from seatrial.targets.kubernetes.manifest.render import merged

Output = Iterator[tuple[str, str]]
"""("out" or "err", text), in the order in which it is said. The exit code is 1 where RefusedError is raised."""
_WAIT_S = 30.0
_USER = "tester"
_CACHE_S = 0.3


class Api:
    """One at a time, under the lock of the cluster, but for those that wait."""

    def __init__(self, world: World, folder: Path, lock: threading.Lock, default_namespace: str) -> None:
        self._world, self._folder, self._lock, self._default = world, folder, lock, default_namespace

    def answer(self, words: Sequence[str], stdin: str) -> Output:
        """Raises RefusedError."""
        told = parse(words)
        verbs = {
            "apply": self._apply,
            "create": self._create,
            "patch": self._patch,
            "get": self._get,
            "delete": self._delete,
            "logs": self._logs,
            "wait": self._wait,
            "auth": self._auth,
        }
        if told.verb not in verbs:
            raise RefusedError(f'error: unknown command "{told.verb}" for the double of kubectl')
        return verbs[told.verb](told, stdin)

    def _namespace(self, told: Arguments) -> str:
        return told.one("namespace") or self._default

    def _resource(self, word: str) -> Resource:
        found = resource_named(word)
        if found is None or self._is_absent(found):
            raise RefusedError(f'error: the server doesn\'t have a resource type "{word}"')
        return found

    def _is_absent(self, resource: Resource) -> bool:
        """Nobody has installed what brings this kind."""
        if resource.group == _OPENSHIFT and not self._world.openshift:
            return True
        return resource.operator and self._world.faults.any("crd-absent", kind=resource.kind)

    def _see_that_one_may(self, verb: str, resource: Resource, namespace: str, name: str = "") -> None:
        """Raises RefusedError where a fault forbids it, or the namespace is not there."""
        if self._world.faults.any("forbidden", verb=verb, resource=resource.plural):
            quoted = f' "{name}"' if name and verb != "create" else ""
            raise RefusedError(
                f"Error from server (Forbidden): {resource.full_plural}{quoted} is forbidden: User"
                f' "{_USER}" cannot {verb} resource "{resource.plural}" in API group "{resource.group}" in the'
                f' namespace "{namespace}"'
            )

    # apply

    def _create(self, told: Arguments, stdin: str) -> Output:
        """Like ``apply``, but a name that exists is refused, and each object is printed as one JSON document
        (kubectl ``pkg/cmd/create/create.go``: PrintObj inside of the visitor)."""
        return self._apply(told, stdin, create=True)

    def _patch(self, told: Arguments, stdin: str) -> Output:
        """A merge patch: of metadata, as a run does it, or of the spec, as Kueue does it."""
        (word,) = told.words
        kind, _, name = word.partition("/")
        resource = self._resource(kind)
        with self._lock:
            self._see_that_one_may("patch", resource, self._namespace(told), name)
            known = self._world.store.get(resource.kind, self._namespace(told), name)
            if known is None:
                raise RefusedError(f'Error from server (NotFound): {resource.full_plural} "{name}" not found')
            patch = json.loads(told.one("patch") or "{}")
            assert patch.keys() <= {"metadata", "spec"}, patch
            if patch.get("metadata", {}).pop("uid", known["metadata"]["uid"]) != known["metadata"]["uid"]:
                raise RefusedError(f'Error from server (Conflict): {resource.full_plural} "{name}": uid mismatch')
            known.update(merged({key: known[key] for key in patch}, patch))
            self._world.store.touch(known)
        yield "out", f"{resource.full_name}/{name} patched\n"

    def _apply(self, told: Arguments, stdin: str, *, create: bool = False) -> Output:
        file = told.one("filename")
        if file is None:
            raise RefusedError("error: must specify one of -f and -k")
        text = stdin if file == "-" else Path(file).read_text()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        things: list[Object] = []
        for document in yaml.load_all(text, Loader=loader):
            if document is not None:
                things += document["items"] if document.get("kind") == "List" else [document]
        if not things:
            raise RefusedError("error: no objects passed to apply")
        dry, made, refusals = told.one("dry-run") == "server", [], []
        # kubectl builds all objects before it sends one.
        for thing in things:
            self._see_that_it_is_known(thing)
        with self._lock:
            for thing in things:
                try:
                    made.append(self._applied(thing, told, dry=dry, create=create))
                except RefusedError as refusal:
                    refusals.append(str(refusal))
        shape = told.one("output")
        if shape == "json" and made:
            single = len(things) == 1 or create
            for shown in [thing for thing, _ in made] if single else [_listed([thing for thing, _ in made])]:
                yield "out", json.dumps(shown, indent=4) + "\n"
        else:
            for thing, word in made:
                name = f"{self._resource(thing['kind']).full_name}/{thing['metadata']['name']}"
                yield "out", f"{name}\n" if shape == "name" else f"{name} {word}{' (server dry run)' * dry}\n"
        if refusals:
            raise RefusedError("\n".join(refusals))

    def _see_that_it_is_known(self, thing: Object) -> None:
        resource = resource_named(thing["kind"])
        if resource is None or resource.api_version != thing["apiVersion"] or self._is_absent(resource):
            place = thing["metadata"].get("namespace", "")
            raise RefusedError(
                f'error: resource mapping not found for name: "{thing["metadata"]["name"]}" namespace: "{place}" from'
                f' "STDIN": no matches for kind "{thing["kind"]}" in version "{thing["apiVersion"]}"\n'
                "ensure CRDs are installed first"
            )

    def _applied(self, thing: Object, told: Arguments, *, dry: bool, create: bool) -> tuple[Object, str]:
        store, resource = self._world.store, self._resource(thing["kind"])
        place, name = thing["metadata"].get("namespace"), thing["metadata"]["name"]
        namespace = place or self._namespace(told)
        if told.one("namespace") not in (None, "", namespace):
            asked = told.one("namespace")
            raise RefusedError(
                f'error: the namespace from the provided object "{place}" does not match the namespace "{asked}". You'
                f" must pass '--namespace={place}' to perform this operation."
            )
        self._see_that_one_may("create", resource, namespace, name)
        if resource.namespaced and (
            store.get("Namespace", "", namespace) is None
            or self._world.faults.any("namespace-absent", namespace=namespace)
        ):
            raise RefusedError(
                f'Error from server (NotFound): error when creating "STDIN": namespaces "{namespace}" not found'
            )
        wrong = problems(thing) if resource.operator and find_schemas() and resource.group != _OPENSHIFT else []
        if wrong:
            raise RefusedError(
                f'Error from server (BadRequest): error when creating "STDIN": {thing["kind"]} in version'
                f' "{thing["apiVersion"].rpartition("/")[2]}" cannot be handled as a {thing["kind"]}: strict decoding'
                f" error: {'; '.join(wrong)}"
            )
        self._see_that_the_webhook_lets_it(thing, namespace)
        known = store.get(thing["kind"], namespace, name)
        if known is not None and create:
            raise RefusedError(
                f'Error from server (AlreadyExists): error when creating "STDIN": {resource.full_plural} "{name}"'
                " already exists"
            )
        if known is not None:
            self._see_that_one_may("patch", resource, namespace, name)
            return self._changed(known, thing, dry=dry)
        if dry:
            return {**thing, "metadata": {**thing["metadata"], "namespace": namespace, "uid": "dry-run"}}, "created"
        return store.add({"status": {}, **thing} if resource.operator else thing, namespace), "created"

    def _changed(self, known: Object, thing: Object, *, dry: bool) -> tuple[Object, str]:
        """Metadata can be changed; what else a run makes is immutable in a cluster, too, or not looked at again."""
        wanted = {key: value for key, value in thing.items() if key not in ("metadata", "stringData", "status")}
        if any(known.get(key) != value for key, value in wanted.items()):
            name = thing["metadata"]["name"]
            raise RefusedError(f'The {thing["kind"]} "{name}" is invalid: spec: Invalid value: field is immutable')
        metadata = {**known["metadata"], **thing["metadata"]}
        if metadata == known["metadata"]:
            return known, "unchanged"
        if not dry:
            known["metadata"].update(thing["metadata"])
            self._world.store.touch(known)
        return {**known, "metadata": metadata}, "configured"

    def _see_that_the_webhook_lets_it(self, thing: Object, namespace: str) -> None:
        """Trainer's: raises RefusedError for a TrainJob whose runtime is not there."""
        if thing["kind"] != "TrainJob":
            return
        reference = thing["spec"]["runtimeRef"]
        kind = reference.get("kind", "ClusterTrainingRuntime")
        runtime = self._world.store.get(kind, namespace, reference["name"])
        # The webhook reads a cache that learns of a new runtime some 300 ms later (NVIDIA/aicr #1669).
        if runtime is None or self._world.first_seen(runtime, "created") < _CACHE_S:
            raise RefusedError(
                'Error from server (Forbidden): error when creating "STDIN": admission webhook'
                ' "validator.trainjob.trainer.kubeflow.org" denied the request: spec.RuntimeRef: Invalid value:'
                f' {json.dumps(reference)}: {kind} "{reference["name"]}" not found: specified runtime must be created'
                " before the TrainJob is created"
            )

    # get, delete, wait

    def _chosen(self, told: Arguments, words: Sequence[str]) -> tuple[list[tuple[Resource, str, Object | None]], bool]:
        """(kind, name, object) of all that is meant; and whether one was asked for by its name."""
        namespace, store = self._namespace(told), self._world.store
        if not words:
            raise RefusedError("error: You must specify the type of resource to get.")
        if "/" in words[0]:
            pairs = [(self._resource(kind), name) for kind, _, name in (word.partition("/") for word in words)]
        else:
            pairs = [(self._resource(kind), name) for kind in words[0].split(",") for name in words[1:] or [""]]
        found: list[tuple[Resource, str, Object | None]] = []
        for resource, name in pairs:
            place = namespace if resource.namespaced else ""
            verb = told.verb if told.verb == "delete" else "get" if name else "list"
            self._see_that_one_may(verb, resource, namespace, name)
            if name:
                found.append((resource, name, store.get(resource.kind, place, name)))
                continue
            wide = None if told.flag("all-namespaces") else place
            for thing in store.each(resource.kind, wide, told.labels()):
                if all(_at(thing, path) == value for path, value in told.fields()):
                    found.append((resource, thing["metadata"]["name"], thing))
        return found, any(name for _, name in pairs)

    def _get(self, told: Arguments, stdin: str) -> Output:
        if told.one("raw"):
            yield from self._get_raw(told)
            return
        with self._lock:
            found, by_name = self._chosen(told, told.words)
            for resource, name, thing in found:
                if thing is None and not told.flag("ignore-not-found"):
                    raise RefusedError(f'Error from server (NotFound): {resource.full_plural} "{name}" not found')
            things = [(resource, thing) for resource, _, thing in found if thing is not None]
            shape = told.one("output")
            if shape == "json":
                if by_name and len(found) == 1:
                    text = json.dumps(things[0][1], indent=4) if things else ""
                else:
                    text = json.dumps(_listed([thing for _, thing in things]), indent=4)
            elif shape == "name":
                text = "\n".join(f"{resource.full_name}/{thing['metadata']['name']}" for resource, thing in things)
            elif shape in (None, "", "wide"):
                rows = [f"{thing['metadata']['name']:<50} {_state(thing)}" for _, thing in things]
                text = "\n".join([f"{'NAME':<50} STATUS", *rows]) if rows else ""
            else:
                raise RefusedError(f'error: unable to match a printer suitable for the output format "{shape}"')
        if not things and not by_name and shape not in ("json", "name"):
            yield "err", f"No resources found in {self._namespace(told)} namespace.\n"
        if text:
            yield "out", f"{text}\n"

    def _get_raw(self, told: Arguments) -> Output:
        """By a path of the API, whose namespace counts alone: ``pkg/rawhttp/raw.go`` of kubectl copies the answer as it
        comes (io.Copy), in pieces that end within lines."""
        parts = urlsplit(told.one("raw") or "")
        match = re.fullmatch(r"/api/v1/namespaces/([^/]+)/(?:(pods|events)|pods/([^/]+)/log)", parts.path)
        if match is None:
            raise RefusedError("Error from server (NotFound): the server could not find the requested resource")
        namespace, plural, name = (part and unquote(part) for part in match.groups())
        options = {"namespace": namespace}
        for key, value in parse_qsl(parts.query):
            options[_QUERY[key]] = value
        if name:
            for _, text in self._logs(Arguments(verb="logs", words=(name,), options=_log_options(options)), ""):
                half = len(text) // 2
                yield from (("out", part) for part in (text[:half], text[half:]))
            return
        with self._lock:
            found, _ = self._chosen(Arguments(verb="get", words=(plural,), options=options), [plural])
            things = [_in_list(thing) for _, _, thing in found if thing is not None]
        kind = f"{self._resource(plural).kind}List"
        yield "out", json.dumps({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": things})

    def _delete_raw(self, told: Arguments, stdin: str) -> Output:
        """By a path of the API, with DeleteOptions: kubectl's ``pkg/rawhttp/raw.go`` sends them as they are."""
        path = urlsplit(told.one("raw") or "").path
        match = re.fullmatch(r"/(api|apis/[^/]+)/[^/]+/(?:namespaces/([^/]+)/)?([^/]+)/([^/]+)", path)
        if match is None or told.one("filename") != "-":
            raise RefusedError("Error from server (NotFound): the server could not find the requested resource")
        group, namespace, plural, name = match.groups()
        group = group.partition("/")[2]
        resource = self._resource(f"{plural}.{group}" if group else plural)
        options = json.loads(stdin)
        assert resource.namespaced == (namespace is not None), path
        assert options.keys() <= {"apiVersion", "kind", "preconditions", "propagationPolicy", "gracePeriodSeconds"}
        # A Job would leave its pods otherwise (batch/v1: OrphanDependents).
        assert options["propagationPolicy"] == "Background"
        with self._lock:
            self._see_that_one_may("delete", resource, namespace or "", name)
            thing = self._world.store.get(resource.kind, namespace or "", name)
            if thing is None:
                raise RefusedError(f'Error from server (NotFound): {resource.full_plural} "{name}" not found')
            metadata, wanted = thing["metadata"], options["preconditions"]["uid"]
            if wanted != metadata["uid"]:
                raise RefusedError(
                    f'Error from server (Conflict): Operation cannot be fulfilled on {resource.full_plural} "{name}":'
                    f" the UID in the precondition ({wanted}) does not match the UID in record ({metadata['uid']}). The"
                    " object might have been deleted and then recreated"
                )
            if resource.kind == "Pod" and (grace := options.get("gracePeriodSeconds")) is not None:
                metadata["deletionGracePeriodSeconds"] = grace
            self._world.store.drop(thing)
        yield "out", json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _delete(self, told: Arguments, stdin: str) -> Output:
        if told.one("raw"):
            yield from self._delete_raw(told, stdin)
            return
        words = list(told.words)
        if told.one("filename") == "-":
            for document in yaml.safe_load_all(stdin):
                words.append(f"{document['kind']}/{document['metadata']['name']}")
        missing, gone = [], []
        with self._lock:
            found, _ = self._chosen(told, words)
            for resource, name, thing in found:
                if thing is not None:
                    if resource.kind == "Pod" and (grace := told.one("grace-period")) is not None:
                        thing["metadata"]["deletionGracePeriodSeconds"] = int(grace)
                    self._world.store.drop(thing)
                    gone.append((resource, name, thing["metadata"]["uid"]))
                elif not told.flag("ignore-not-found"):
                    missing.append(f'Error from server (NotFound): {resource.full_plural} "{name}" not found')
        for resource, name, _ in gone:
            yield "out", f'{resource.full_name} "{name}" deleted\n'
        until = time.monotonic() + _WAIT_S
        while told.one("wait") != "false" and self._is_any_left({uid for _, _, uid in gone}):
            if time.monotonic() > until:
                raise RefusedError("error: timed out waiting for the condition")
            time.sleep(0.1)
        if missing:
            raise RefusedError("\n".join(missing))

    def _is_any_left(self, uids: set[str]) -> bool:
        with self._lock:
            return any(thing["metadata"]["uid"] in uids for thing in self._world.store)

    def _wait(self, told: Arguments, stdin: str) -> Output:
        until = time.monotonic() + float((told.one("timeout") or f"{_WAIT_S}s").rstrip("s"))
        aim = told.one("for") or ""
        while True:
            with self._lock:
                found, _ = self._chosen(told, told.words)
                met = [_is_met(thing, aim) for _, _, thing in found]
            if found and all(met):
                for resource, name, _ in found:
                    yield "out", f"{resource.full_name}/{name} {'deleted' if aim == 'delete' else 'condition met'}\n"
                return
            if any(thing is None for _, _, thing in found):
                resource, name, _ = found[0]
                raise RefusedError(f'Error from server (NotFound): {resource.full_plural} "{name}" not found')
            if time.monotonic() > until:
                raise RefusedError(f"error: timed out waiting for the condition on {' '.join(told.words)}")
            time.sleep(0.1)

    # logs, auth

    def _logs(self, told: Arguments, stdin: str) -> Output:
        if "selector" in told.options:
            yield from self._logs_of_selected(told)
            return
        with self._lock:
            name = told.words[0].removeprefix("pod/").removeprefix("pods/") if told.words else ""
            self._see_that_one_may("get", self._resource("pods"), self._namespace(told), name)
            pod = self._world.store.get("Pod", self._namespace(told), name)
            if pod is None:
                raise RefusedError(f'Error from server (NotFound): pods "{name}" not found')
        yield from log_lines(self._world, self._folder, self._lock, pod, told)

    def _logs_of_selected(self, told: Arguments) -> Output:
        """One after the other, ten lines each if nothing else is said; the first error ends it (kubectl, logs.go)."""
        with self._lock:
            self._see_that_one_may("list", self._resource("pods"), self._namespace(told), "")
            pods = self._world.store.each("Pod", self._namespace(told), told.labels())
        for pod in pods:
            spec = pod["spec"]
            every = [*spec.get("initContainers", ()), *spec["containers"]]
            for container in every if told.flag("all-containers") else spec["containers"][:1]:
                options = {"tail": "10", **told.options, "container": container["name"]}
                try:
                    yield from log_lines(self._world, self._folder, self._lock, pod, replace(told, options=options))
                except RefusedError as error:
                    if not told.flag("ignore-errors"):
                        raise
                    yield "out", f"error: {error}\n"

    def _auth(self, told: Arguments, stdin: str) -> Output:
        if told.words[:1] != ("can-i",) or len(told.words) < 3:
            raise RefusedError("error: you must specify two arguments: verb resource or verb resource/resourceName.")
        verb, word = told.words[1], told.words[2].partition("/")[0]
        resource = resource_named(word)
        if resource is None or self._is_absent(resource):
            yield "err", f"Warning: the server doesn't have a resource type '{word}'\n\n"
        elif self._world.faults.any("forbidden", verb=verb, resource=resource.plural):
            yield "out", "no\n"
            raise RefusedError("")
        yield "out", "yes\n"


_OPENSHIFT = "security.openshift.io"
_QUERY = {
    "labelSelector": "selector",
    "fieldSelector": "field-selector",
    "container": "container",
    "timestamps": "timestamps",
    "follow": "follow",
    "sinceTime": "since-time",
}
"""Options of a request -> those of kubectl."""


def _log_options(options: dict[str, str]) -> dict[str, str]:
    """Raises RefusedError as the API server does: it takes no first container of several (``LogLocation`` in
    pkg/registry/core/pod/strategy.go), and no other times than those of RFC 3339 (``Time.UnmarshalQueryParameter``)."""
    since = options.get("since-time", "2026-01-01T00:00:00Z")
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", since):
        raise RefusedError(f'Error from server (BadRequest): parsing time "{since}" as "2006-01-02T15:04:05Z07:00"')
    if "container" not in options:
        raise RefusedError("Error from server (BadRequest): a container name must be specified")
    return options


def _in_list(thing: Object) -> Object:
    """An object in a list of the API server: it has no kind and version (``TypeMeta`` is that of the list), but the
    managedFields that kubectl leaves out of what it prints itself (``ShowManagedFields`` in json_yaml_flags.go)."""
    left = {key: value for key, value in thing.items() if key not in ("kind", "apiVersion")}
    managed = [{"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {}}}]
    return {**left, "metadata": {**thing["metadata"], "managedFields": managed}}


def _listed(things: list[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": things}


def _at(thing: Object, path: str) -> str:
    node: Any = thing
    for part in path.split("."):
        node = node.get(part, "") if isinstance(node, dict) else ""
    return str(node)


def _state(thing: Object) -> str:
    status = thing.get("status", {})
    held = [known["type"] for known in status.get("conditions", ()) if known["status"] == "True"]
    return str(status.get("reason") or status.get("phase") or (held[-1] if held else ""))


def _is_met(thing: Object | None, aim: str) -> bool:
    if aim == "delete":
        return thing is None
    kind, _, value = aim.removeprefix("condition=").partition("=")
    conditions = [] if thing is None else thing.get("status", {}).get("conditions", ())
    return any(
        known["type"].lower() == kind.lower() and known["status"].lower() == (value or "true").lower()
        for known in conditions
    )
