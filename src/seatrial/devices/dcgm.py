"""The JSON of ``dcgmi diag -j``: of DCGM 4 (``DCGM Diagnostic``) and of DCGM 1.7 to 3 (``DCGM GPU Diagnostic``).

Forms: NVIDIA/DCGM testing/python3/dcgm_diag_schema.json, nvvs/include/NvvsJsonStrings.h, nvvs/tests/JsonResultTests.cpp
(Apache-2.0). Severities: dcgmlib/dcgm_errors.h, ``dcgmErrorSeverity_t``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.devices.handed import (
    MOST_DEVICES,
    MOST_LINES,
    MOST_RESULTS,
    HandedFile,
    HandedResult,
    Verdict,
    entries,
    json_object,
    mapping,
    name_text,
    text,
    whole,
)
from seatrial.util.text import as_name, quoted

_NEW, _OLD = "DCGM Diagnostic", "DCGM GPU Diagnostic"
_STATUS = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "skipped": "skip", "notrun": "skip"}
_BROKEN, _HARMLESS = (2, 4, 6), (1, 5)
"""Isolate, triage, reset; monitor, configuration. 0 and 3 say nothing of how grave it is."""
_GRAVEST_FIRST: tuple[Verdict, ...] = ("broken", "warning", "not checked")
_DEPLOYMENT = "deployment"
"""Category of the tests of software and configuration."""
_ABOUT_DEVICES = ("page retirement/row remap",)
"""Tests of that category that are about the device all the same."""
_TEST_NAME = re.compile(r"[A-Za-z/_-]{1,20}(?: [A-Za-z/_-]{1,20}){0,4}")
"""``Permissions and OS Blocks``; longer ones are quoted, since they may be a sentence."""
_NO_SERIAL = re.compile(r"|<<<.*>>>|\[?N/A\]?|0|Unknown|Not Supported", re.IGNORECASE)


def parse(content: bytes) -> HandedFile | None:
    """Return what the diagnostics said. None: not of this form. Raises ValueError: damaged, or in other words."""
    document = json_object(content)
    if document is None:
        if b'"DCGM ' in content and b"Diagnostic" in content:
            raise ValueError("its JSON is cut or damaged")
        return None
    is_new = _NEW in document
    if not is_new and _OLD not in document:
        return None
    root = mapping(document[_NEW if is_new else _OLD], _NEW if is_new else _OLD)
    metadata = mapping(document.get("metadata", {}), "metadata") if is_new else {**document, **root}
    if error := root.get("runtime_error") or document.get("runtime_error"):
        raise ValueError(f"the diagnostics ended with an error: {quoted(text(error, 'runtime_error'))}")
    if "test_categories" not in root:
        raise ValueError("it has no results")
    seen = _Seen()
    for category in entries(root["test_categories"], "test_categories"):
        if category is not None:
            seen.category(mapping(category, "category"), is_new=is_new)
    if not seen.count:
        raise ValueError("it has no results")
    serials = _new_serials(document) if is_new else _old_serials(metadata)
    gpus = {*seen.gpus, *map(int, serials)}
    if len(gpus) > MOST_DEVICES:
        raise ValueError(f"it names more than {MOST_DEVICES:,} devices")
    version = name_text(metadata.get("version", ""), "version").strip()
    return HandedFile(
        form=f"DCGM diagnostics {as_name(version)}" if version else "DCGM diagnostics",
        driver=name_text(metadata.get("Driver Version Detected", ""), "Driver Version Detected"),
        serials=serials,
        gpus=tuple(sorted(gpus)),
        passed=seen.passed,
        results=seen.gravest(),
    )


class _Seen:
    """The results of all tests."""

    def __init__(self) -> None:
        self.results: list[HandedResult] = []
        self.gpus: set[int] = set()
        self.passed = 0
        self.count = 0
        """Results, passed and others."""
        self.verdicts = Counter[Verdict]()

    def gravest(self) -> tuple[HandedResult, ...]:
        """Return all results, or as many of them as a file may have: those that are broken first."""
        if (count := self.verdicts.total()) <= MOST_RESULTS:
            return tuple(self.results)
        ordered = sorted(self.results, key=lambda result: _GRAVEST_FIRST.index(result.verdict))[: MOST_RESULTS - 1]
        rest = HandedResult(verdict="not checked", what=f"{count - len(ordered)} more results of DCGM")
        return (*ordered, rest)

    def category(self, category: Mapping[str, Any], *, is_new: bool) -> None:
        is_deployment = text(category.get("category"), "category").lower() == _DEPLOYMENT
        for test in entries(category.get("tests"), "tests"):
            if test is None:
                continue
            name = text(mapping(test, "test").get("name"), "name of a test")
            if not name:
                raise ValueError("a test has no name")
            is_setting = is_deployment and name.lower() not in _ABOUT_DEVICES
            name = name if _TEST_NAME.fullmatch(name) else as_name(name)
            num_results, counted = self.verdicts.total(), self.count
            for result in entries(test.get("results"), f"results of {name}"):
                if result is not None:
                    self.result(name, mapping(result, "result"), is_setting=is_setting, is_new=is_new)
            summary = test.get("test_summary")
            # A test may fail as a whole without a device to blame.
            if summary is not None and self.verdicts.total() == num_results:
                passed, has_results = self.passed, self.count > counted
                self._add(name, mapping(summary, "test_summary"), (None,), is_setting=is_setting)
                self.passed = passed if has_results else self.passed

    def result(self, name: str, result: Mapping[str, Any], *, is_setting: bool, is_new: bool) -> None:
        gpus: tuple[int | None, ...]
        if is_new:
            number = whole(result.get("entity_id"), f"entity_id of {name}")
            is_gpu = text(result.get("entity_group"), "entity_group").upper() == "GPU"
            gpus = (number,) if is_gpu else (None,)
        else:
            gpus = tuple(_gpu_numbers(result.get("gpu_ids", result.get("gpu_id")), name)) or (None,)
        self.gpus |= {gpu for gpu in gpus if gpu is not None}
        self._add(name, result, gpus, is_setting=is_setting)

    def _add(self, name: str, result: Mapping[str, Any], gpus: tuple[int | None, ...], *, is_setting: bool) -> None:
        word = text(result.get("status"), f"status of {name}")
        status = _STATUS.get("".join(word.lower().split()))
        if status is None:
            raise ValueError(f"the test {name} has the unknown status {word!r}")
        self.count += 1
        if status == "pass":
            self.passed += 1
            return
        severities, warnings = _warnings(result.get("warnings"))
        lines = warnings[:MOST_LINES]
        lines += [line for line in _lines(result.get("info")) if line not in lines]
        verdict: Verdict = "not checked" if status == "skip" else "warning"
        if status == "fail":
            is_harmless = bool(severities) and all(severity in _HARMLESS for severity in severities)
            is_grave = any(severity in _BROKEN for severity in severities)
            verdict = "broken" if is_grave or not (is_harmless or is_setting) else "warning"
        words = {"skip": f"DCGM skipped the test {name}", "fail": f"failed the test {name} of DCGM"}
        what = words.get(status, f"has a warning of the test {name} of DCGM")
        for gpu in gpus:
            self.verdicts[verdict] += 1
            if self.verdicts[verdict] <= MOST_RESULTS:
                self.results.append(HandedResult(verdict=verdict, what=what, gpu=gpu, lines=tuple(lines[:MOST_LINES])))


def _warnings(value: object) -> tuple[list[int], list[str]]:
    """Return severities and texts: objects in new versions, texts in old ones."""
    severities, lines = [], []
    for warning in entries(value, "warnings") if isinstance(value, list) else [] if value is None else [value]:
        if isinstance(warning, str):
            lines.append(text(warning, "warning"))
            continue
        one = mapping(warning, "warning")
        lines.append(text(one.get("warning", ""), "warning"))
        if (severity := one.get("error_severity")) is not None:
            severities.append(whole(severity, "error_severity"))
    return severities, lines


def _lines(value: object) -> list[str]:
    return [text(line, "info") for line in (value if isinstance(value, list) else [] if value is None else [value])]


def _gpu_numbers(value: object, name: str) -> Iterator[int]:
    for part in value.split(",") if isinstance(value, str) else [] if value is None else [value]:
        yield whole(part, f"gpu_ids of {name}")


def _new_serials(document: Mapping[str, Any]) -> dict[str, str]:
    serials = {}
    for group in entries(document.get("entity_groups", []), "entity_groups"):
        if text(mapping(group, "entity_group").get("entity_group"), "entity_group").upper() != "GPU":
            continue
        for entity in entries(group.get("entities"), "entities"):
            number = whole(mapping(entity, "entity").get("entity_id"), "entity_id")
            serial = name_text(entity.get("serial_num", ""), "serial_num").strip()
            if not _NO_SERIAL.fullmatch(serial):
                serials[str(number)] = serial
    return serials


def _old_serials(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = metadata.get("GPU Device Serials")
    if found is None or isinstance(found, list):  # a list has no numbers: nobody knows which ones it lacks
        return {}
    serials = {whole(gpu, "GPU Device Serials"): name_text(serial, "serial").strip() for gpu, serial in
               mapping(found, "GPU Device Serials").items()}  # fmt: skip
    return {str(gpu): serial for gpu, serial in serials.items() if not _NO_SERIAL.fullmatch(serial)}
