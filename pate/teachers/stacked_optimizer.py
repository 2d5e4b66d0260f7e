"""torch's SGD, Adam and AdamW for stacked parameters, where only some of the stack take a step.

The rules are elementwise, so a stack takes the steps each of its members would take alone. torch's
own optimizers count one step for all; here each member has its own count and may stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from pate.teachers.spec import Training

Step = Callable[[Sequence["torch.Tensor"], "torch.Tensor"], None]

MOMENTUM = 0.9
BETAS = (0.9, 0.999)
EPS = 1e-8


def stacked_optimizer(
    parameters: Sequence[torch.Tensor], spec: Training, *, steady: bool = False
) -> Step:
    """A function ``step(gradients, active)`` that changes parameters (m, …) in place.

    ``active`` (m,), in host memory, says which members take the step; the others, and their state,
    stay as they are. A ``steady`` optimizer takes the same memory however many they are.
    """
    import torch

    with torch.no_grad():
        first = [torch.zeros_like(p) for p in parameters]
        second = [torch.zeros_like(p) for p in parameters] if spec.optimizer != "sgd" else []
        taken = torch.zeros(len(parameters[0]), dtype=torch.float64)

    @torch.no_grad()
    def step(gradients: Sequence[torch.Tensor], active: torch.Tensor) -> None:
        everyone = bool(active.all())
        taken.add_(active)
        for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            state = [parameter, first[number], *second[number : number + 1]]
            kept: list[torch.Tensor] = []
            if steady:
                kept = [each.clone() for each in state]
            elif not everyone:
                kept = [each[~active] for each in state]
            if spec.optimizer == "sgd":
                _sgd(parameter, first[number], gradient, spec)
            else:
                _adam(parameter, first[number], second[number], gradient, spec, taken)
            for each, before in zip(state, kept, strict=False):
                if steady:
                    moves = active.to(each.device).reshape(-1, *[1] * (each.dim() - 1))
                    each.copy_(torch.where(moves, each, before))
                else:
                    each[~active] = before

    return step


def _sgd(
    parameter: torch.Tensor, moment: torch.Tensor, gradient: torch.Tensor, spec: Training
) -> None:
    if spec.weight_decay:
        gradient = gradient.add(parameter, alpha=spec.weight_decay)
    moment.mul_(MOMENTUM).add_(gradient)
    parameter.add_(moment, alpha=-spec.lr)


def _adam(
    parameter: torch.Tensor,
    moment: torch.Tensor,
    square: torch.Tensor,
    gradient: torch.Tensor,
    spec: Training,
    taken: torch.Tensor,
) -> None:
    import torch

    if spec.weight_decay and spec.optimizer == "adam":
        gradient = gradient.add(parameter, alpha=spec.weight_decay)
    elif spec.weight_decay:
        parameter.mul_(1 - spec.lr * spec.weight_decay)
    moment.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    steps = taken.clamp(min=1)  # who has taken none is put back as it was
    shape = (-1, *[1] * (parameter.dim() - 1))
    root = (1 - BETAS[1] ** steps).sqrt()
    size = spec.lr / (1 - BETAS[0] ** steps) * root
    change = square.sqrt().add_(_like(EPS * root, parameter).reshape(shape))
    torch.div(moment, change, out=change)
    parameter.addcmul_(change, _like(size, parameter).reshape(shape), value=-1)


def _like(counted: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """First of the parameter's type, then on its device: MPS has no double numbers."""
    return counted.to(parameter.dtype).to(parameter.device)
