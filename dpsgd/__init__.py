"""DP-SGD: any torch model and optimiser, trained with noise and accounted for.

>>> import torch, dpsgd
>>> model = torch.nn.Linear(4, 2)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
>>> data = torch.randn(200, 4), torch.zeros(200, dtype=torch.long)
>>> trainer = dpsgd.Trainer(model, optimizer, dataset=data, lot_size=20,
...                         max_grad_norm=1.0, noise_multiplier=1.1, delta=1e-3)
>>> guarantee = trainer.fit(epochs=2).epsilon()
>>> round(guarantee.epsilon, 2), guarantee.publishable
(2.23, True)

``guarantee.neighbours`` names the relation for which it holds: ``zero-out`` (one record's
contribution removed; the number of records is public), or ``add-remove`` where a public
``Trainer(records=…)`` takes the place of the true number. With ``Trainer(groups=…)`` it is about
all records of one user: ``user-zero-out`` or ``user-add-remove``.

Names are loaded when they are first used: ``import dpsgd`` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsgd.clipping import AdaptiveQuantile as AdaptiveQuantile
    from dpsgd.clipping import Automatic as Automatic
    from dpsgd.clipping import Flat as Flat
    from dpsgd.clipping import PerLayer as PerLayer
    from dpsgd.curves import Row as Row
    from dpsgd.curves import write_curve as write_curve
    from dpsgd.models import TemperedSigmoid as TemperedSigmoid
    from dpsgd.pca import PrivatePCA as PrivatePCA
    from dpsgd.private import make_private as make_private
    from dpsgd.schedules import Constant as Constant
    from dpsgd.schedules import Exponential as Exponential
    from dpsgd.schedules import Linear as Linear
    from dpsgd.schedules import Piecewise as Piecewise
    from dpsgd.trainer import Trainer as Trainer
    from dpsgd.validation import fix as fix
    from dpsgd.validation import problems as problems
    from dpsgd.validation import validate as validate

_HOMES = {
    "AdaptiveQuantile": "dpsgd.clipping",
    "Automatic": "dpsgd.clipping",
    "Constant": "dpsgd.schedules",
    "Exponential": "dpsgd.schedules",
    "Flat": "dpsgd.clipping",
    "Linear": "dpsgd.schedules",
    "PerLayer": "dpsgd.clipping",
    "Piecewise": "dpsgd.schedules",
    "PrivatePCA": "dpsgd.pca",
    "Row": "dpsgd.curves",
    "TemperedSigmoid": "dpsgd.models",
    "Trainer": "dpsgd.trainer",
    "fix": "dpsgd.validation",
    "make_private": "dpsgd.private",
    "problems": "dpsgd.validation",
    "validate": "dpsgd.validation",
    "write_curve": "dpsgd.curves",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpsgd' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
