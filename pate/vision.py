"""The import of torchvision, which also works beside a CPU-only torch.

The wheel of torchvision on PyPI is built for a CUDA torch. Beside a CPU-only torch its compiled
operators do not load, and ``import torchvision`` fails with "operator torchvision::nms does not
exist". Its Python parts (datasets, transforms, models) need no such operator, only that the two
schemas exist. :func:`mend_torchvision` lets any later import declare them, if the plain one fails.

The operators themselves have no implementation: calling ``torchvision.ops.nms`` raises.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[Any] = []  # a torch Library forgets its schemas when it is collected


def torchvision() -> ModuleType:
    """Import and return torchvision, beside any torch.

    >>> transforms = torchvision().transforms
    >>> type(transforms.ToTensor()).__name__
    'ToTensor'
    """
    mend_torchvision()
    return importlib.import_module("torchvision")


def mend_torchvision() -> None:
    """Let ``import torchvision`` succeed beside any torch from here on, in plug-ins too."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "torchvision" else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Another loader, which runs once more with the schemas if it fails for want of them."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
            for name in [name for name in sys.modules if name.startswith("torchvision.")]:
                del sys.modules[name]  # half imported
            _declare_schemas()
            self._loader.exec_module(module)


def _declare_schemas() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
