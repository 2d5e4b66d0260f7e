"""The import of torchvision, which also works beside a CPU-only torch.

The wheel of torchvision on PyPI is built for a CUDA torch. Beside a CPU-only torch its compiled
operators do not load, and ``import torchvision`` fails with "operator torchvision::nms does not
exist". Its Python parts (datasets, transforms, models) need no such operator, only that the two
schemas exist. :func:`torchvision` declares them, and only if the plain import fails.

The operators themselves have no implementation: calling ``torchvision.ops.nms`` raises.
"""

from __future__ import annotations

import importlib
import sys
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
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _forget_half_imported()
    _declare_schemas()
    return importlib.import_module("torchvision")


def _declare_schemas() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)


def _forget_half_imported() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
