"""The lots of a training loop of one's own: recorded forward passes, noised backward passes.

A hook records a module's forward pass in a lot. Its outputs are tensors whose ``backward()``, and
that of a loss computed from them, clips, adds up and noises what the recorded layers contributed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dpsgd.backward_pass import Use
from dpsgd.noise import seeded_dropout
from dpsgd.plan import Spending
from dpsgd.step import PrivateStep, require_fitting
from dpsgd.validation import validate
from pate._format import format_epsilon
from pate.accounting import Guarantee
from pate.errors import BudgetExceeded, InvalidInput

_MEAN, _SUM = "mean", "sum"
REDUCTIONS = (_MEAN, _SUM)
_ROUNDING = 1e-5
_NUMBERED = {1: _MEAN, 2: _SUM}  # by torch's own numbers


@final
class Run:
    """The lots of one module: recorded forwards, noised backwards."""

    def __init__(
        self, step: PrivateStep, spending: Spending, *, reduction: str, seed: int | None
    ) -> None:
        self.steps = 0
        self.target: Guarantee | None = None
        self.planned = 0  # steps that the noise was computed for
        self._step, self._spending = step, spending
        self._reduction, self._seed = reduction, seed
        self._size: int | None = None  # of the current lot
        self._called = False  # in the current lot
        self._noised = False  # the gradients of the last lot
        self._uses: list[Use] | None = None  # recorded, and not yet differentiated
        self._outputs: list[Tensor] = []  # of the recorded pass
        self._parameters = [each for group in step.gradients.groups for each in group]
        self._output_type = type("PrivateOutput", (_Output,), {"_backward": staticmethod(self.add)})
        for parameter in self._parameters:
            parameter.grad = None
            parameter.register_hook(_refuse_gradient)  # type: ignore[no-untyped-call]
        run = self

        # Functions, not methods: a copy of the module must not copy the run.
        def enter(module: nn.Module, args: Any) -> None:
            if module is step.model:
                run._enter()

        def require_noised(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not run._noised:
                raise InvalidInput(
                    "optimizer.step() comes before loss.backward() of this lot; call backward() on "
                    "a loss that was computed from the module's output"
                )

        step.model.register_forward_pre_hook(enter, prepend=True)
        step.optimizer.register_step_pre_hook(require_noised)
        object.__setattr__(step.model, "_dpsgd_private", id(step.model))  # a copy is not private

    def cost(self, steps: int, *, delta: float | None = None) -> Guarantee:
        delta = self.target.delta if delta is None and self.target is not None else delta
        assert delta is not None
        return replace(self._spending, delta=delta).guarantee(steps)

    def require_unchanged(self) -> None:
        validate(self._step.model)
        require_fitting(self._step.model, self._step.optimizer)
        if not self._step.gradients.fits(self._step.model):
            raise InvalidInput(
                "the layers or the trained parameters of the module changed since make_private; "
                "make it private again, with a new engine"
            )

    def begin_lot(self, size: int) -> None:
        if self.target is not None and self.steps >= self.planned:
            needed = self.cost(self.steps + 1).epsilon
            if needed > self.target.epsilon:
                raise BudgetExceeded(
                    needed=needed,
                    spent=self.cost(self.steps).epsilon,
                    budget=self.target.epsilon,
                    why=f"one more lot would bring ε to {format_epsilon(needed)}, past the "
                    f"target {self.target.epsilon:.6g}; it was not returned",
                )
        self.end_lot()
        self.steps, self._size, self._noised = self.steps + 1, size, False

    def end_lot(self) -> None:
        self._size, self._uses, self._called = None, None, False

    def _enter(self) -> None:
        """Begin a forward pass, and end it in a hook that runs after those of the layers."""
        if not torch.is_grad_enabled():
            return
        module, training = self._step.model, self._step.model.training
        with contextlib.ExitStack() as opened:
            if training:
                self._require_first_pass()
                before = self._step.copies()
                opened.enter_context(seeded_dropout(self._seed, self.steps - 1))
                uses = opened.enter_context(self._step.gradients.recording())
            else:
                opened.enter_context(torch.no_grad())
            stack = opened.pop_all()

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            handle.remove()
            stack.close()
            if not training:
                return output
            self._step.require_unchanged(before)
            self._uses, self._outputs = uses, []
            wrapped = pytree.tree_map_only(Tensor, self._output, output)
            if not self._outputs and output is not None:
                raise InvalidInput(
                    f"the module returns a {type(output).__name__} without a tensor to train on; "
                    "return tensors, alone or in tuples, lists or dictionaries"
                )
            return wrapped

        handle = module.register_forward_hook(leave, always_call=True)

    def _require_first_pass(self) -> None:
        if self._size is None:
            raise InvalidInput(
                "the module runs in training mode outside a lot; iterate over the loader that "
                "make_private returned, and evaluate in model.eval()"
            )
        if self._called:
            raise InvalidInput(
                "the module runs twice in one lot; run it once, on all examples of the lot (and "
                "without gradients, under torch.no_grad(), for anything else)"
            )
        if torch.is_autocast_enabled():
            raise InvalidInput("autocast is on, and noise needs full precision; turn it off")
        self._called = True

    def _output(self, output: Tensor) -> Tensor:
        if output.requires_grad:
            self._outputs.append(output)
        return output.as_subclass(self._output_type)

    def add(self, loss: Tensor) -> None:
        """Leave in ``grad`` the noised sum of the lot's clipped gradients."""
        if self._uses is None or self._size is None:
            raise InvalidInput(
                "backward() runs a second time, or after its lot; call it once for each lot"
            )
        uses, outputs, examples = self._uses, self._outputs, max(1, self._size)
        self._uses, self._outputs = None, []
        if loss.numel() != 1:
            raise InvalidInput(
                f"the loss has shape {tuple(loss.shape)}; use .mean() or .sum() over them"
            )
        ends = {output.grad_fn for output in outputs}
        _require_reduction(loss, ends, examples=examples, reduction=self._reduction)
        _require_apart(loss, outputs, examples=examples, seed=self.steps)
        held = [parameter.grad for parameter in self._parameters]
        step, number = self._step, self.steps - 1
        try:
            step.fill_with_noise(number, noise_multiplier=self._spending.multiplier(number))
            if self._size:
                step.gradients.add_recorded(
                    uses,
                    loss,
                    examples=examples,
                    factor=examples if self._reduction == _MEAN else 1,
                    clipper=step.clipper,
                    step=number,
                    scale=1 / step.lot_size,
                )
        except BaseException:
            step.optimizer.zero_grad(set_to_none=True)
            raise
        step.clipper.end_lot(number, lot_size=step.lot_size, normal=step.noise.normal)
        for parameter, before in zip(self._parameters, held, strict=True):
            assert parameter.grad is not None
            parameter.grad = parameter.grad.clone() if before is None else before + parameter.grad
        self._noised = True


class _Output(Tensor):
    """An output of a private module, or what was computed from it: a loss."""

    _backward: Callable[[Tensor], None]

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        if gradient is not None or retain_graph or create_graph or inputs is not None:
            raise InvalidInput(
                "backward() of a private loss takes no arguments: a lot is differentiated once"
            )
        type(self)._backward(self.as_subclass(Tensor))


def _refuse_gradient(gradient: Tensor) -> NoReturn:
    raise InvalidInput(
        "a gradient reaches a parameter past clipping and noise; compute the loss from the "
        "module's output alone, in training mode, in a lot of the loader (for a penalty on the "
        "weights use weight_decay of the optimiser)"
    )


def _require_reduction(loss: Tensor, ends: set[Any], *, examples: int, reduction: str) -> None:
    """Refuse a loss that does not add up the examples as announced.

    A mean over anything but a fixed number of values for each example (class weights, ignored
    labels, a mask) would let an example scale the gradients of the others. The nodes between the
    loss and the module's outputs show most of that; a divisor that the loop computes does not.
    """
    nodes: dict[Any, None] = {}
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes and node not in ends:
            nodes[node] = None
            waiting.extend(following for following, _ in node.next_functions)
    if any(hasattr(node, "variable") for node in nodes):  # a parameter, not through the module
        _refuse_gradient(loss)
    kinds = {node: kind for node in nodes if (kind := _reduction_of(node)) is not None}
    for node, kind in kinds.items():
        if kind != reduction:
            raise InvalidInput(
                f'the loss has a {kind} over the examples, and loss_reduction is "{reduction}"; '
                f'give loss_reduction="{kind}", or use a {reduction} alone'
            )
        if kind == _MEAN and not _fixed_divisor(node, examples):
            raise InvalidInput(
                "the loss is a mean whose divisor depends on the examples of a lot (class weights, "
                'ignored labels or a mask); use reduction="sum" and loss_reduction="sum"'
            )
    if not kinds:
        raise InvalidInput(
            "the loss does not add up the examples in a way that can be checked; end it with "
            ".mean() or .sum() over them"
        )


def _require_apart(loss: Tensor, outputs: list[Tensor], *, examples: int, seed: int) -> None:
    """Refuse a loss in which one example's output changes another's gradient (contrastive losses).

    The examples are split at random: second derivatives across the split must be zero.
    """
    outputs = [each for each in outputs if each.dim() and len(each) == examples]
    if examples < 2 or not outputs:
        return
    generator = torch.Generator().manual_seed(seed)
    one = torch.rand(examples, generator=generator).argsort().to(loss.device) < (examples + 1) // 2
    first = torch.autograd.grad(loss, outputs, create_graph=True, allow_unused=True)
    weights = [torch.rand(each.shape, generator=generator).to(each) + 0.5 for each in outputs]
    total = sum(
        (gradient * weight)[one].sum()
        for gradient, weight in zip(first, weights, strict=True)
        if gradient is not None and gradient.requires_grad
    )
    if not isinstance(total, Tensor):
        return  # linear in the outputs
    try:
        second = torch.autograd.grad(total, outputs, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        raise InvalidInput(
            "the loss cannot be differentiated twice, which shows whether it looks at each example "
            "on its own; use dpsgd.Trainer(loss=…)"
        ) from error
    for each in second:
        if each is not None:
            sizes = each.detach().abs().flatten(1).amax(1).nan_to_num(0.0, 0.0)
            if float(sizes[~one].max()) > _ROUNDING * float(sizes.max()):
                raise InvalidInput(
                    "the loss of an example changes with the others in its lot; use a loss that "
                    "looks at each example on its own"
                )


def _reduction_of(node: Any) -> str | None:
    """Return the reduction over the first dimension that a node of autograd's graph is."""
    name = node.name().removesuffix("Backward0").removesuffix("Backward1")
    if name not in ("Mean", "Sum"):
        return _NUMBERED.get(getattr(node, "_saved_reduction", 0))
    dims = getattr(node, "_saved_dim", None)  # none: over all of them
    first = (0, 2**64 - len(node._saved_self_sym_sizes))  # autograd stores −1 as 2⁶⁴ − 1
    return name.lower() if not dims or any(dim in first for dim in dims) else None


def _fixed_divisor(node: Any, examples: int) -> bool:
    if hasattr(node, "_saved_total_weight"):  # of nll_loss, behind every cross entropy
        fixed = node._saved_weight is None
        return fixed and bool(node._saved_total_weight == node._saved_target.numel())
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    values = node._saved_self.numel() if sizes is None else math.prod(sizes)
    return bool(values % examples == 0)
