"""Torch modules of one architecture trained together: m networks are one program.

Parameters are stacked, (m, …), and the module runs under ``vmap``. A step of the program is one
step of every teacher: its own batch, in its own order, with its own optimizer state.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import PateError
from pate.teachers.apart import require_apart
from pate.teachers.errors import TeacherError
from pate.teachers.stacked_optimizer import stacked_optimizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pate.teachers.torch_teacher import TorchTeacher

Shard = tuple[ArrayLike, ArrayLike]
Stack = dict[str, "torch.Tensor"]

TOGETHER = 64  # networks in one program, at most
STATE_BYTES = 256 * 2**20  # of parameters, gradients and optimizer state in one program


_LAZY_HOOKS = ("_initialize_hook", "_load_hook")


def likeness(module: nn.Module) -> Hashable:
    """Equal for modules that differ in the values of their parameters and buffers alone.

    What is neither a number, text, function nor class has an identity of its own: modules that
    hold such a thing are like no other, and train alone.
    """
    import torch

    internal = vars(torch.nn.Module()).keys()
    parts: list[Hashable] = []
    for name, part in module.named_modules():
        settings = {key: value for key, value in vars(part).items() if key not in internal}
        hooks = len(part._forward_hooks) + len(part._forward_pre_hooks) + len(part._backward_hooks)
        if isinstance(part, torch.nn.modules.lazy.LazyModuleMixin):  # its own, until it has a size
            hooks -= sum(settings.pop(key, None) is not None for key in _LAZY_HOOKS[:1])
            settings = {key: value for key, value in settings.items() if key not in _LAZY_HOOKS}
        parts.append((name, type(part), _frozen(settings), id(part) if hooks else None))
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        shape = None if torch.nn.parameter.is_lazy(tensor) else tuple(tensor.shape)
        parts.append((name, shape, str(tensor.dtype), tensor.device, tensor.requires_grad))
    return tuple(parts)


def _frozen(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value), *(_frozen(item) for item in value))
    if value is None or isinstance(value, (bool, int, float, str, bytes, type)):
        return type(value), value
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        return id(value)  # of a module or class; a closure is made anew each time
    if type(value).__module__ == "torch" and not hasattr(value, "detach"):  # a dtype, a device
        return str(value)
    return id(value)


def fit_together(
    teachers: Sequence[TorchTeacher | None], shards: Sequence[Shard | None]
) -> list[PateError | None]:
    """Trains teachers of one :func:`likeness` as :meth:`TorchTeacher.fit` does each.

    The same first weights, orders of records, batches and steps, so the same teachers up to
    rounding. A batch is filled up to ``batch_size + 1`` records of weight 0; a teacher with fewer
    batches keeps its weights and optimizer state while others take a step. Raises TeacherError
    where modules cannot run together: if what the module says of a record depends on others in the
    batch (BatchNorm), if it draws random numbers (dropout) or changes its buffers, if an operation
    is not known to keep networks apart (:mod:`pate.teachers.apart`), or if ``vmap`` cannot follow
    it. Nothing is changed then, but for lazy layers, which have their sizes.

    Guarantees:
        * Networks share no arithmetic: a change in shard j changes teacher j alone. Whether they
          run together follows from their architecture and the shape of records. All shapes
          follow from the recipe and the number of places in the group, none from shards; a
          missing teacher's place is filled with a copy that takes no step. So the size of a shard
          does not even change the rounding of another teacher.
    """
    found: list[PateError | None] = [None] * len(teachers)
    lanes: list[_Lane | None] = [None] * len(teachers)
    for place, (teacher, shard) in enumerate(zip(teachers, shards, strict=True)):
        if teacher is None or shard is None:
            continue
        try:
            lanes[place] = _Lane(teacher, *shard)
        except TeacherError as error:
            found[place] = error
    first = next((lane for lane in lanes if lane is not None), None)
    if first is None:
        return found
    _check(first, lanes)
    size = _together(first.teacher.module)
    trained = []
    for start in range(0, len(lanes), size):
        part = lanes[start : start + size]
        if any(part):
            errors, stack = _run(first, part)
            found[start : start + size] = [
                old or new for old, new in zip(found[start : start + size], errors, strict=True)
            ]
            trained.append((part, stack))
    for part, stack in trained:  # only now: if one program had failed, all would train alone
        _write_back(part, stack)
    return found


class _Lane:
    """One teacher of a group and its shard: what it is given, step after step."""

    def __init__(self, teacher: TorchTeacher, X: ArrayLike, y: ArrayLike) -> None:
        import torch

        self.teacher = teacher
        self.records, self.labels = teacher._shard(X, y)
        self.order = torch.Generator().manual_seed(teacher.seed)

    def order_of_epoch(self) -> NDArray[np.int64]:
        """The records in the order of the next epoch."""
        import torch

        return torch.randperm(len(self.labels), generator=self.order).numpy()


def _check(first: _Lane, lanes: Sequence[_Lane | None]) -> None:
    """Raises if these modules cannot be one program.

    Decided by made-up records and drawn weights: not by whose lane comes first.
    """
    import torch

    from pate.teachers.torch_teacher import seeded_torch

    shape = first.records.shape[1:]
    with seeded_torch(0):
        few, more = (torch.randn(n, *shape).to(first.records) for n in (3, 2))
    for lane in filter(None, lanes):
        if lane.records.shape[1:] != shape:
            raise TeacherError("the shards of the group differ in the shape of their records")
        with seeded_torch(lane.teacher.seed):
            lane.teacher._find_sizes(few)
    module = copy.deepcopy(first.teacher.module).train()
    with seeded_torch(0):
        _draw(module)
        before, made_of = _values(module), likeness(module)
        alone = require_apart(module, few)
        with torch.no_grad():
            beside = module(torch.cat([few, more]))[:3]
    same = torch.allclose(alone, beside, rtol=1e-3, atol=1e-3 * float(alone.abs().max()))
    kept = all(torch.equal(value, before[name]) for name, value in _values(module).items())
    if not same or not kept or likeness(module) != made_of:
        raise TeacherError("the module's answers depend on other records, chance or its past")


def _values(module: nn.Module) -> Stack:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value.detach().clone() for name, value in named}


def _draw(module: nn.Module) -> None:
    """Parameters and buffers of moderate size, the same for every module of one likeness."""
    import torch

    with torch.no_grad():
        for value in [*module.parameters(), *module.buffers()]:
            if not value.is_floating_point():
                continue
            if value.ndim > 1:
                drawn = torch.randn(value.shape) / max(1, value[0].numel()) ** 0.5
            else:  # scales and offsets: a scale near zero would hide what comes before it
                drawn = torch.rand(value.shape) + 0.5
            value.copy_(drawn)


def _run(first: _Lane, lanes: Sequence[_Lane | None]) -> tuple[list[PateError | None], Stack]:
    """Trains one program; the errors and the stack of trained parameters."""
    import torch

    spec = first.teacher.training
    # A missing teacher's place is filled: the shape of the program does not tell who is there.
    modules = [(lane or first).teacher.module.train() for lane in lanes]
    stack, buffers = _stacked(modules)
    trained = [value for value in stack.values() if value.requires_grad]
    if not trained:
        raise TeacherError(f"the module {type(modules[0]).__name__} has no parameters to train")
    step = stacked_optimizer(trained, spec)
    forward = _forward(first.teacher.module)
    batches = _Batches(lanes, size=spec.batch_size)
    errors: list[PateError | None] = [None] * len(lanes)
    for epoch in range(spec.epochs):
        totals = torch.zeros(len(lanes), dtype=torch.float64)
        for records, labels, weights in batches.epoch():
            active = weights.any(dim=1)
            logits = _checked(
                forward(stack, buffers, records), first.teacher, len(lanes), records.shape[1]
            )
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="none"
            )
            each = (losses.reshape(weights.shape) * weights).sum(dim=1)
            gradients = torch.autograd.grad(each.sum(), trained)
            step(gradients, active)
            totals += torch.where(active, each.detach(), 0.0).double().cpu()
        for place, fine in enumerate(torch.isfinite(totals).tolist()):
            if not fine and errors[place] is None:
                errors[place] = TeacherError(
                    f"the loss is not finite in epoch {epoch + 1}; lower 'lr'"
                )
    return errors, {name: value.detach() for name, value in stack.items()}


class _Batches:
    """The records of a group in one tensor, and the batches of each epoch in it."""

    def __init__(self, lanes: Sequence[_Lane | None], *, size: int) -> None:
        import torch

        self.lanes, self.size = lanes, size
        self.width = size + 1 if size > 1 else 1  # a record left over joins the batch before
        present = [lane for lane in lanes if lane is not None]
        self.records = torch.cat([lane.records for lane in present])
        self.labels = torch.cat([lane.labels for lane in present])

    def epoch(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Records (m, width, …), labels and weights (m, width), until the last one has ended."""
        import torch

        from pate.teachers.torch_teacher import cuts

        sizes = [len(lane.labels) if lane is not None else 0 for lane in self.lanes]
        batches = [cuts(size, self.size) if size else [] for size in sizes]
        shape = (max(map(len, batches)), len(self.lanes), self.width)
        rows, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        start = 0
        for place, lane in enumerate(self.lanes):
            if lane is None:
                continue
            # Its own records fill up: on others, such as zeros, a gradient might not exist.
            rows[:, place] = start
            order = lane.order_of_epoch() + start
            for number, cut in enumerate(batches[place]):
                count = cut.stop - cut.start
                rows[number, place, :count] = order[cut]
                weights[number, place, :count] = 1 / count
            start += sizes[place]
        device = self.records.device
        for where, weight in zip(torch.from_numpy(rows), torch.from_numpy(weights), strict=True):
            taken = where.to(device)
            yield self.records[taken], self.labels[taken], weight.to(device)


def _stacked(modules: Sequence[nn.Module]) -> tuple[Stack, Stack]:
    from torch.func import stack_module_state

    stack, buffers = stack_module_state(list(modules))
    return dict(stack), dict(buffers)


def _forward(module: nn.Module) -> Callable[[Stack, Stack, torch.Tensor], Any]:
    """All networks at once, each on records of its own."""
    from torch.func import functional_call, vmap

    def one(parameters: Stack, buffers: Stack, records: torch.Tensor) -> Any:
        return functional_call(module, (parameters, buffers), (records,))

    forward: Callable[[Stack, Stack, torch.Tensor], Any] = vmap(one, randomness="error")
    return forward


def _checked(logits: Any, teacher: TorchTeacher, networks: int, records: int) -> torch.Tensor:
    if tuple(getattr(logits, "shape", ())) != (networks, records, teacher.classes):
        raise TeacherError("the module does not return logits of shape (records, classes)")
    return logits  # type: ignore[no-any-return]


def _together(module: nn.Module) -> int:
    """How many networks make one program; known from the architecture alone."""
    each = sum(p.numel() * p.element_size() for p in module.parameters())
    return int(max(1, min(TOGETHER, STATE_BYTES // (5 * max(1, each)))))


def _write_back(lanes: Sequence[_Lane | None], stack: Stack) -> None:
    import torch

    with torch.no_grad():
        for place, lane in enumerate(lanes):
            if lane is not None:
                for name, parameter in lane.teacher.module.named_parameters():
                    parameter.copy_(stack[name][place])
                lane.teacher.module.eval()
