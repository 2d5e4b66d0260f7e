"""Stacks of networks under ``vmap``: which modules may form one, and their optimizers.

Under ``vmap`` most operations work on a stack as on each of its members. Those that look up rows by
numbers from the records do not: an embedding reads, and trains, its neighbour's rows where a number
is out of range. So operations are allowed by name, and a module with any other trains alone.

The rules of SGD, Adam and AdamW are elementwise, so a stack takes the steps that each of its
members would take alone. torch's own optimizers count one step for all; here each member has its
own count and may skip a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pate.errors import TeacherError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pate.teachers.spec import Training


# Of aten, without the underscore of those that work in place. Left out on purpose: all that takes
# positions from a tensor (embedding, index, gather, scatter, take), hands a value to Python, looks
# across the batch, draws random numbers, or reads memory by strides (as_strided).
_PRODUCTS = "addmm addmv baddbmm bmm convolution dot linear matmul mm mv"
_ELEMENTWISE = (
    "abs add addcdiv addcmul ceil celu clamp clamp_max clamp_min cos div elu eq erf exp expm1 "
    "floor ge gelu gt hardsigmoid hardswish hardtanh le leaky_relu lerp log log1p log2 "
    "log_sigmoid_forward logical_and logical_not logical_or lt maximum minimum mish mul ne neg pow "
    "_prelu_kernel reciprocal relu round rsqrt rsub sigmoid sign silu sin softplus sqrt square sub "
    "tanh threshold where"
)
_SHAPES = (
    "alias cat clone constant_pad_nd detach expand flip lift_fresh permute pixel_shuffle "
    "reflection_pad1d reflection_pad2d repeat replication_pad1d replication_pad2d reshape "
    "_reshape_alias select slice split split_with_sizes squeeze stack t _to_copy transpose unbind "
    "unsqueeze _unsafe_view view"
)
_SUMS = (
    "_adaptive_avg_pool2d adaptive_avg_pool1d amax amin avg_pool1d avg_pool2d cumsum "
    "linalg_vector_norm _log_softmax logsumexp max_pool2d_with_indices mean native_group_norm "
    "native_layer_norm _softmax sum upsample_bilinear2d upsample_nearest2d var var_mean"
)
_MADE = "arange full full_like ones ones_like scalar_tensor zeros zeros_like"
APART = frozenset(" ".join([_PRODUCTS, _ELEMENTWISE, _SHAPES, _SUMS, _MADE]).split())


def require_apart(module: nn.Module, records: torch.Tensor) -> torch.Tensor:
    """What the module says of made-up records; raises unless its operations keep networks apart.

    Guarantees:
        Decided by the module and made-up records alone. A module that takes another path for other
        records asks for a value of them, which is not allowed either. Functions with a gradient of
        their own are refused: they may have a rule of their own for stacks, too.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    refused: list[TeacherError] = []

    class Listen(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func._schema.name
            if not _allowed(name):  # said before it runs: it may not bear made-up records
                refused.append(TeacherError(f"operation {name} may mix networks of a group"))
                raise refused[0]
            return func(*args, **(kwargs or {}))

    with torch.enable_grad(), Listen():  # type: ignore[no-untyped-call]
        said = module(records)
    if refused:  # the module took another way when its first one failed
        raise refused[0]
    if not isinstance(said, torch.Tensor) or _own_gradients(said):
        raise TeacherError("the module has a function with a gradient of its own, or no answer")
    return said.detach()


def _allowed(name: str) -> bool:
    """Whether an operation is one of torch's own, and on the list.

    >>> _allowed("aten::relu_"), _allowed("aten::embedding"), _allowed("mine::relu")
    (True, False, False)
    """
    home, _, operation = name.partition("::")
    return home == "aten" and (operation in APART or operation.removesuffix("_") in APART)


def _own_gradients(answer: torch.Tensor) -> bool:
    """Whether a ``torch.autograd.Function`` of the user's took part."""
    from torch.autograd.function import BackwardCFunction

    todo: list[Any] = [answer.grad_fn]
    known: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is None or node in known:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        known.add(node)
        todo += [each for each, _ in node.next_functions]
    return False


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
