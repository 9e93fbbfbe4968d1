"""torch, imported with a ``version.py`` that names CUDA, and with the double in place as soon as it is loaded."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Loader:
    """Torch's own loader; afterwards it puts the double in place."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        from cuda_double.install import install

        install(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder:
    """Finds torch where it is, with ``folder`` in front of its own: it holds the other ``version.py``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.submodule_search_locations is not None and spec.loader is not None:
            spec.submodule_search_locations.insert(0, os.path.join(self._folder, "torch"))
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


def install_finder(folder: str) -> None:
    """Make this process import the torch whose ``version.py`` is in ``folder/torch``."""
    sys.meta_path.insert(0, _Finder(folder))
