"""Which modules may run as one program: those whose every operation keeps networks apart.

Under ``vmap`` most operations work on a stack as on each of its members. Those that look up rows by
numbers from the records do not: an embedding reads, and trains, its neighbour's rows where a number
is out of range. So operations are allowed by name, and a module with any other trains alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pate.teachers.errors import TeacherError

if TYPE_CHECKING:
    import torch
    from torch import nn

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
