"""What can be found out before anything is paid for: a model and a loss on a few examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from dpsgd.clipping import Clipper
from dpsgd.comparing import COMPARED, without_chance
from dpsgd.gradients import ClippedGradients
from dpsgd.losses import Loss, cross_entropy
from dpsgd.records import Records
from pate.errors import InvalidInput, PateError


def look_first(
    model: nn.Module,
    gradients: ClippedGradients,
    records: Records,
    *,
    loss: Loss,
    clipper: Clipper,
    noise_multiplier: float,
    device: torch.device,
) -> None:
    """Refuses, in one sentence, what would stop the first step after it was charged.

    What torch says of a failure can hold a label or a value, so it is not passed on.
    """
    clipper.noise_stds(0, noise_multiplier)
    if not len(records):  # allowed where their number is private
        return
    try:
        inputs, targets = records.take(np.arange(min(COMPARED, len(records))))
        inputs, targets = inputs.to(device), targets.to(device)
        if loss is cross_entropy and not targets.is_floating_point():
            _require_classes(model, records, inputs)
        gradients.check(inputs, targets)
    except PateError:
        raise
    except Exception as error:  # anybody's model, loss and data set
        raise InvalidInput(
            f"the model or the loss fails on the first examples ({type(error).__name__}); try "
            "loss(model(inputs), targets) on a few of them: classes are whole numbers from 0 on, "
            "and a loss returns one number for each example"
        ) from None


def _require_classes(model: nn.Module, records: Records, inputs: torch.Tensor) -> None:
    labels = getattr(records, "targets", None)  # where all are in memory
    if labels is None:
        return
    with without_chance(model, training=False), torch.no_grad():
        classes = model(inputs).shape[1]
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InvalidInput(
            f"the model has {classes} outputs, and not all labels are among 0 … {classes - 1}"
        )
