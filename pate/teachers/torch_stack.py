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


# Of aten, without the underscore of in-place variants. Left out on purpose: operations that take
# positions from a tensor (embedding, index, gather, scatter, take), pass a value to Python, mix
# records of a batch, draw random numbers, or read memory by strides (as_strided).
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
SEPARABLE = frozenset(" ".join([_PRODUCTS, _ELEMENTWISE, _SHAPES, _SUMS, _MADE]).split())


def check_separable(module: nn.Module, records: torch.Tensor) -> torch.Tensor:
    """Return the module's output for made-up records; raise if an operation may mix networks.

    Guarantees:
        Decided by the module and made-up records alone. A module that takes another path for other
        records must read a value of them, which is not allowed either. Functions with a custom
        gradient are refused: they may have a custom rule for stacks, too.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    refused: list[TeacherError] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func._schema.name
            if not _allowed(name):  # raised before it runs: it may reject made-up records
                refused.append(TeacherError(f"operation {name} may mix networks of a group"))
                raise refused[0]
            return func(*args, **(kwargs or {}))

    with torch.enable_grad(), Watch():  # type: ignore[no-untyped-call]
        logits = module(records)
    if refused:  # the module caught the error and took another path
        raise refused[0]
    if not isinstance(logits, torch.Tensor) or _has_custom_gradients(logits):
        raise TeacherError("the module has a function with a custom gradient, or no output")
    return logits.detach()


def _allowed(name: str) -> bool:
    """Return whether an operation is one of torch's own, and on the list.

    >>> _allowed("aten::relu_"), _allowed("aten::embedding"), _allowed("mine::relu")
    (True, False, False)
    """
    home, _, operation = name.partition("::")
    return home == "aten" and (operation in SEPARABLE or operation.removesuffix("_") in SEPARABLE)


def _has_custom_gradients(output: torch.Tensor) -> bool:
    """Return whether a user's ``torch.autograd.Function`` was involved."""
    from torch.autograd.function import BackwardCFunction

    todo: list[Any] = [output.grad_fn]
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
    """Return a function ``step(gradients, active)`` that updates parameters (m, …) in place.

    ``active`` (m,), in host memory, marks the members that take the step; the others, and their
    state, do not change. A ``steady`` optimizer uses the same memory however many are active.
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
            # A copy of all, where memory is limited: the same however many are active.
            kept = [each.clone() for each in state] if steady or not everyone else []
            if spec.optimizer == "sgd":
                _sgd(parameter, first[number], gradient, spec)
            else:
                _adam(parameter, first[number], second[number], gradient, spec, taken)
            moves = active.to(parameter.device).reshape(-1, *[1] * (parameter.dim() - 1))
            for each, before in zip(state, kept, strict=False):
                each.copy_(torch.where(moves, each, before))

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
    steps = taken.clamp(min=1)  # members without a step are restored afterwards
    shape = (-1, *[1] * (parameter.dim() - 1))
    root = (1 - BETAS[1] ** steps).sqrt()
    size = spec.lr / (1 - BETAS[0] ** steps) * root
    change = square.sqrt().add_(_like(EPS * root, parameter).reshape(shape))
    torch.div(moment, change, out=change)
    parameter.addcmul_(change, _like(size, parameter).reshape(shape), value=-1)


def _like(counted: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return step counts in the parameter's type, then on its device: MPS has no float64."""
    return counted.to(parameter.dtype).to(parameter.device)
