"""The last word: the gradient pass itself, on a copy of the model and a few examples.

It holds its gradients against ordinary differentiation of one example at a time, so whatever the
rules and the probe cannot see (a weight that is used in its layer and elsewhere, a tensor that is
changed in place) shows here. It stops at the first fault, so it is asked when there is no other.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from dpsgd.clipping import Flat
from dpsgd.gradients import ClippedGradients
from dpsgd.validation.rules import Finding
from dpsgd.validation.watching import same_chance, tensors
from pate.errors import PateError

_REMEDY = "change the model so that each example's gradient can be followed"


def refused(copied: nn.Module, examples: Tensor) -> Finding | None:
    """What the gradient pass has against the model; it changes ``grad`` of the copy it is given."""
    for parameter in copied.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings(), same_chance(copied):
        warnings.simplefilter("ignore")
        try:
            gradients = ClippedGradients(copied, _mixed_outputs)
            clipper = Flat(1.0).start(len(gradients.groups))
            targets = torch.zeros(len(examples), device=examples.device)
            gradients.add(examples, targets, clipper=clipper, step=0, scale=1.0)
        except PateError as error:
            return Finding(f"is refused by the gradient pass: {error}", _REMEDY)
        except Exception as error:  # the model is anybody's code
            return Finding(f"stops the gradient pass ({type(error).__name__})", _REMEDY)
    return None


def _mixed_outputs(output: Any, targets: Tensor) -> Tensor:
    """A loss that leans on every output differently, so that no layer's gradient cancels."""
    generator = torch.Generator().manual_seed(0)
    losses = torch.zeros(len(targets), device=targets.device)
    for each in tensors(output):
        if each.is_floating_point() and each.dim() and each.shape[0] == len(targets):
            weights = torch.randn(each.shape[1:], generator=generator).to(each)
            losses = losses + (each * weights).flatten(1).sum(1)
    return losses
