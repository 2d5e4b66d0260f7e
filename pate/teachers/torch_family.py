"""Torch modules of one architecture trained together: m networks are one program.

Parameters are stacked, (m, …), and the module runs under ``vmap``. A step of the program is one
step of every teacher: its own batch, in its own order, with its own optimizer state. The stack is
on the current device (:mod:`pate.devices`); records stay in host memory, and batches go there.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.devices import current_device
from pate.errors import PateError, TeacherError
from pate.teachers.placement import (
    device_of,
    fitting,
    kind_of,
    need_of,
    repeatable,
    seeded_torch,
    workplace,
)
from pate.teachers.torch_stack import require_apart, stacked_optimizer

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

    On a device with a limit as many networks make a program as its free memory can hold, and half
    as many each time that proves too many; then all begin anew. How many they are changes no more
    than rounding (nothing, for linear layers on the processor). OutOfMemory is raised where not
    even one fits.

    Guarantees:
        * Networks share no arithmetic: a change in shard j changes teacher j alone. Whether they
          run together follows from their architecture and the shape of records. All shapes
          follow from the recipe and the number of places in the group, none from shards; a
          missing teacher's place is filled with a copy that takes no step. So the size of a shard
          does not even change the rounding of another teacher.
        * How many networks make a program, which may change their rounding, is tried with made-up
          records and follows from the recipe and the device alone. What a program takes of the
          device is the same for all shards: records wait in host memory, and every batch has the
          same shape.
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
    shape = tuple(first.records.shape[1:])
    kind = kind_of(first.teacher.module, first.teacher.training, shape)
    for part, errors, stack in fitting(
        lambda width: _programs(first, lanes, width), lambda: _widest(first), kind=("train", kind)
    ):  # only now: if one program had failed, all would begin anew, or train alone
        for place, failure in zip(part, errors, strict=True):
            found[place] = found[place] or failure
        _write_back([lanes[place] for place in part], stack)
    return found


Trained = tuple[range, list[PateError | None], Stack]  # of one program: places, errors, weights


def _programs(first: _Lane, lanes: Sequence[_Lane | None], width: int) -> list[Trained]:
    """Trains all lanes, so many at a time; no teacher is changed yet."""
    places = [range(len(lanes))[start : start + width] for start in range(0, len(lanes), width)]
    with repeatable():
        return [
            (part, *_run(first, [lanes[place] for place in part]))
            for part in places
            if any(lanes[place] for place in part)
        ]


class _Lane:
    """One teacher of a group and its shard: what it is given, step after step."""

    def __init__(self, teacher: TorchTeacher, X: ArrayLike, y: ArrayLike) -> None:
        import torch

        self.teacher = teacher
        self.records, self.labels = teacher._shard(X, y)
        self.order = torch.Generator()
        self.begin()

    def begin(self) -> None:
        """The next epoch is the first; also if a program before was not finished."""
        self.order.manual_seed(self.teacher.seed)

    def order_of_epoch(self) -> NDArray[np.int64]:
        """The records in the order of the next epoch."""
        import torch

        return torch.randperm(len(self.labels), generator=self.order).numpy()


def _check(first: _Lane, lanes: Sequence[_Lane | None]) -> None:
    """Raises if these modules cannot be one program.

    Decided by made-up records and drawn weights: not by whose lane comes first.
    """
    import torch

    shape = first.records.shape[1:]
    with seeded_torch(0):
        few, more = (torch.randn(n, *shape).to(device_of(first.teacher.module)) for n in (3, 2))
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
    """Trains one program; the errors and the stack of trained parameters, in host memory."""
    import torch

    spec = first.teacher.training
    # A missing teacher's place is filled: the shape of the program does not tell who is there.
    program = _Program(first, [(lane or first).teacher.module.train() for lane in lanes])
    batches = _Batches(lanes, size=spec.batch_size)
    errors: list[PateError | None] = [None] * len(lanes)
    for epoch in range(spec.epochs):
        fine = torch.ones(len(lanes), dtype=torch.bool, device=program.place)
        for records, labels, weights in batches.epoch():
            fine &= torch.isfinite(program.step(records, labels, weights))
        for place, each in enumerate(fine.cpu().tolist()):
            if not each and errors[place] is None:
                errors[place] = TeacherError(
                    f"the loss is not finite in epoch {epoch + 1}; lower 'lr'"
                )
    return errors, program.weights()


def _try_out(first: _Lane, networks: int) -> None:
    """One step of a program with made-up records, of which nothing is kept.

    Whether the device can hold it is found out before any shard is used.
    """
    import torch

    records = _width(first.teacher.training.batch_size)
    program = _Program(first, [first.teacher.module.train()] * networks)
    program.step(
        torch.zeros(networks, records, *first.records.shape[1:]),
        torch.zeros(networks, records, dtype=torch.int64),
        torch.zeros(networks, records),
    )


class _Program:
    """Networks of one architecture, stacked, where they work."""

    def __init__(self, first: _Lane, modules: Sequence[nn.Module]) -> None:
        self.teacher, self.networks = first.teacher, len(modules)
        spec, device = first.teacher.training, current_device()
        if limited := device.kind != "cpu":
            need = need_of(first.teacher.module, spec, tuple(first.records.shape[1:]))
            device.claim(need.together(len(modules), records=_width(spec.batch_size)))
        self.home, self.place = device_of(first.teacher.module), workplace(first.teacher.module)
        self._stack, self._buffers = _stacked(modules, self.place)
        self._trained = [value for value in self._stack.values() if value.requires_grad]
        if not self._trained:
            raise TeacherError(f"the module {type(modules[0]).__name__} has no parameters to train")
        self._optimize = stacked_optimizer(self._trained, spec, steady=limited)
        self._forward = _forward(first.teacher.module)

    def step(
        self, records: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """One step of those that have a weight; the losses (m,), 0 for the others."""
        import torch

        active = weights.any(dim=1)
        records, labels, weights = (each.to(self.place) for each in (records, labels, weights))
        logits = _checked(
            self._forward(self._stack, self._buffers, records),
            self.teacher,
            self.networks,
            records.shape[1],
        )
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none"
        )
        each = (losses.reshape(weights.shape) * weights).sum(dim=1)
        self._optimize(torch.autograd.grad(each.sum(), self._trained), active)
        return torch.where(active.to(self.place), each.detach(), 0.0)

    def weights(self) -> Stack:
        return {name: value.detach().to(self.home) for name, value in self._stack.items()}


class _Batches:
    """The records of a group in one tensor of host memory, and the batches of each epoch in it."""

    def __init__(self, lanes: Sequence[_Lane | None], *, size: int) -> None:
        import torch

        self.lanes, self.size, self.width = lanes, size, _width(size)
        present = [lane for lane in lanes if lane is not None]
        for lane in present:
            lane.begin()
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
        for where, weight in zip(torch.from_numpy(rows), torch.from_numpy(weights), strict=True):
            yield self.records[where], self.labels[where], weight


def _width(size: int) -> int:
    """Of a batch: a record left over joins the batch before."""
    return size + 1 if size > 1 else 1


def _stacked(modules: Sequence[nn.Module], place: torch.device) -> tuple[Stack, Stack]:
    from torch.func import stack_module_state

    stack, buffers = stack_module_state(list(modules))
    moved = {
        name: value.detach().to(place).requires_grad_(value.requires_grad)
        for name, value in stack.items()
    }
    return moved, {name: value.to(place) for name, value in buffers.items()}


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


def _widest(first: _Lane) -> int:
    """How many networks make one program; known from the architecture and the device alone.

    Tried at full width also for a group with fewer places: else it would matter later which group
    came first.
    """
    module, spec = first.teacher.module, first.teacher.training
    each = sum(p.numel() * p.element_size() for p in module.parameters())
    width = int(max(1, min(TOGETHER, STATE_BYTES // (5 * max(1, each)))))
    free = current_device().free_memory()
    if free is None:
        return width
    shape = tuple(first.records.shape[1:])
    room = need_of(module, spec, shape).widest(free, records=_width(spec.batch_size))

    def tried(width: int) -> int:
        with repeatable():
            _try_out(first, width)
        return width

    return fitting(tried, lambda: min(width, room), kind=("try", kind_of(module, spec, shape)))


def _write_back(lanes: Sequence[_Lane | None], stack: Stack) -> None:
    import torch

    with torch.no_grad():
        for place, lane in enumerate(lanes):
            if lane is not None:
                for name, parameter in lane.teacher.module.named_parameters():
                    parameter.copy_(stack[name][place])
                lane.teacher.module.eval()
