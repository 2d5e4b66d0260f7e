"""Torch modules of one architecture trained together: m networks are one program.

Parameters are stacked, (m, …), and the module runs under ``vmap``. A step of the program is one
step of every teacher: its own batch, in its own order, with its own optimizer state. The stack is
on the current device (:mod:`pate.devices`); records stay in host memory and are copied in batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.devices import current_device
from pate.errors import PateError, TeacherError
from pate.teachers.placement import (
    device_of,
    largest_fitting,
    memory_key,
    memory_need,
    repeatable,
    seeded_torch,
    working_device,
)
from pate.teachers.torch_stack import check_separable, stacked_optimizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pate.teachers.torch_teacher import TorchTeacher

Shard = tuple[ArrayLike, ArrayLike]
Stack = dict[str, "torch.Tensor"]

MOST_NETWORKS = 64  # networks in one program, at most
STATE_BYTES = 256 * 2**20  # of parameters, gradients and optimizer state in one program


_LAZY_HOOKS = ("_initialize_hook", "_load_hook")


def architecture_key(module: nn.Module) -> Hashable:
    """Return a key, equal for modules that differ in values of parameters and buffers alone.

    Attributes that are no number, text, function or class are compared by identity: a module that
    holds one has a key of its own, and trains alone.
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
    if type(value).__module__ == "torch" and not hasattr(value, "detach"):  # a dtype, a device
        return str(value)
    return id(value)


def fit_family(
    teachers: Sequence[TorchTeacher | None], shards: Sequence[Shard | None]
) -> list[PateError | None]:
    """Train teachers of one :func:`architecture_key` as :meth:`TorchTeacher.fit` trains each.

    First weights, orders of records, batches and steps are the same, so the teachers are the same
    up to rounding. A batch is filled up to ``batch_size + 1`` records of weight 0; a teacher with
    fewer batches keeps its weights and optimizer state while others take a step. TeacherError is
    raised, and nothing changed but the sizes of lazy layers, if modules cannot run together: if the
    output for a record depends on others in the batch (BatchNorm), on chance (dropout) or on the
    past, if an operation may mix networks (:mod:`pate.teachers.torch_stack`), or if ``vmap`` does
    not support it.

    On a device with limited memory a program has as many networks as fit, halved each time that
    proves too many; then all start from scratch. OutOfMemory is raised if not even one fits.

    Guarantees:
        * Networks share no arithmetic: a change in shard j changes teacher j alone. Whether they
          run together follows from their architecture and the shape of records. All shapes
          follow from the recipe and the number of places in the group, none from shards; the place
          of a missing teacher is filled with a copy that takes no step. So the size of a shard
          does not even change the rounding of another teacher.
        * The number of networks in a program, which may change their rounding, is tried with
          made-up records and follows from the recipe and the device alone. A program uses the
          same memory for all shards: records stay in host memory, and every batch has the same
          shape.
    """
    found: list[PateError | None] = [None] * len(teachers)
    members: list[_Member | None] = [None] * len(teachers)
    for place, (teacher, shard) in enumerate(zip(teachers, shards, strict=True)):
        if teacher is None or shard is None:
            continue
        try:
            members[place] = _Member(teacher, *shard)
        except TeacherError as error:
            found[place] = error
    first = next((member for member in members if member is not None), None)
    if first is None:
        return found
    _check(first, members)
    shape = tuple(first.records.shape[1:])
    kind = memory_key(first.teacher.module, first.teacher.training, shape)
    for part, errors, stack in largest_fitting(
        lambda width: _programs(first, members, width), lambda: _widest(first), kind=("train", kind)
    ):  # only now: if one program had failed, all would start again, or train alone
        for place, failure in zip(part, errors, strict=True):
            found[place] = found[place] or failure
        _write_back([members[place] for place in part], stack)
    return found


Trained = tuple[range, list[PateError | None], Stack]  # of one program: places, errors, weights


def _programs(first: _Member, members: Sequence[_Member | None], width: int) -> list[Trained]:
    """Train all members, ``width`` at a time; no teacher is changed yet."""
    places = [range(len(members))[start : start + width] for start in range(0, len(members), width)]
    with repeatable():
        return [
            (part, *_run(first, [members[place] for place in part]))
            for part in places
            if any(members[place] for place in part)
        ]


class _Member:
    """One teacher of a group, its shard and its order of records."""

    def __init__(self, teacher: TorchTeacher, X: ArrayLike, y: ArrayLike) -> None:
        import torch

        self.teacher = teacher
        self.records, self.labels = teacher._shard(X, y)
        self.order = torch.Generator()
        self.begin()

    def begin(self) -> None:
        """Restart at the first epoch; an earlier program may not have finished."""
        self.order.manual_seed(self.teacher.seed)

    def order_of_epoch(self) -> NDArray[np.int64]:
        """Return the order of records in the next epoch."""
        import torch

        return torch.randperm(len(self.labels), generator=self.order).numpy()


def _check(first: _Member, members: Sequence[_Member | None]) -> None:
    """Raise if these modules cannot form one program.

    Decided by made-up records and random weights, not by which member comes first.
    """
    import torch

    shape = first.records.shape[1:]
    with seeded_torch(0):
        few, more = (torch.randn(n, *shape).to(device_of(first.teacher.module)) for n in (3, 2))
    for member in filter(None, members):
        if member.records.shape[1:] != shape:
            raise TeacherError("the shards of the group differ in the shape of their records")
        with seeded_torch(member.teacher.seed):
            member.teacher._find_sizes(few)
    module = copy.deepcopy(first.teacher.module).train()
    with seeded_torch(0):
        _draw(module)
        before, made_of = _values(module), architecture_key(module)
        alone = check_separable(module, few)
        with torch.no_grad():
            beside = module(torch.cat([few, more]))[:3]
    same = torch.allclose(alone, beside, rtol=1e-3, atol=1e-3 * float(alone.abs().max()))
    kept = all(torch.equal(value, before[name]) for name, value in _values(module).items())
    if not same or not kept or architecture_key(module) != made_of:
        raise TeacherError("the module's output depends on other records, chance or its past")


def _values(module: nn.Module) -> Stack:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value.detach().clone() for name, value in named}


def _draw(module: nn.Module) -> None:
    """Set random parameters and buffers of moderate size, equal for every module of one key."""
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


def _run(first: _Member, members: Sequence[_Member | None]) -> tuple[list[PateError | None], Stack]:
    """Train one program; return errors and the stack of trained parameters, in host memory."""
    import torch

    spec = first.teacher.training
    # A missing teacher's place is filled: the shape of the program does not depend on it.
    program = _Program(first, [(member or first).teacher.module.train() for member in members])
    batches = _Batches(members, size=spec.batch_size)
    errors: list[PateError | None] = [None] * len(members)
    for epoch in range(spec.epochs):
        finite = torch.ones(len(members), dtype=torch.bool, device=program.place)
        for records, labels, weights in batches.epoch():
            finite &= torch.isfinite(program.step(records, labels, weights))
        for place, each in enumerate(finite.cpu().tolist()):
            if not each and errors[place] is None:
                errors[place] = TeacherError(
                    f"the loss is not finite in epoch {epoch + 1}; lower 'lr'"
                )
    return errors, program.weights()


def _try_out(first: _Member, networks: int) -> None:
    """Run one step of a program with made-up records, to see whether the device can hold it."""
    import torch

    records = _width(first.teacher.training.batch_size)
    program = _Program(first, [first.teacher.module.train()] * networks)
    program.step(
        torch.zeros(networks, records, *first.records.shape[1:]),
        torch.zeros(networks, records, dtype=torch.int64),
        torch.zeros(networks, records),
    )


class _Program:
    """Networks of one architecture, stacked on their working device."""

    def __init__(self, first: _Member, modules: Sequence[nn.Module]) -> None:
        self.teacher, self.networks = first.teacher, len(modules)
        spec = first.teacher.training
        self.home, self.place = (
            device_of(first.teacher.module),
            working_device(first.teacher.module),
        )
        self._stack, self._buffers = _stacked(modules, self.place)
        self._trained = [value for value in self._stack.values() if value.requires_grad]
        if not self._trained:
            raise TeacherError(f"the module {type(modules[0]).__name__} has no parameters to train")
        limited = current_device().kind != "cpu"
        self._optimize = stacked_optimizer(self._trained, spec, steady=limited)
        self._forward = _forward(first.teacher.module)

    def step(
        self, records: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Take one step of members with a weight; return the losses (m,), 0 for the others."""
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
    """The records of a group in one tensor in host memory, and the batches of each epoch."""

    def __init__(self, members: Sequence[_Member | None], *, size: int) -> None:
        import torch

        self.members, self.size, self.width = members, size, _width(size)
        present = [member for member in members if member is not None]
        for member in present:
            member.begin()
        self.records = torch.cat([member.records for member in present])
        self.labels = torch.cat([member.labels for member in present])

    def epoch(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield records (m, width, …), labels and weights (m, width) until all batches are used."""
        import torch

        from pate.teachers.torch_teacher import batch_slices

        sizes = [len(member.labels) if member is not None else 0 for member in self.members]
        batches = [batch_slices(size, self.size) if size else [] for size in sizes]
        shape = (max(map(len, batches)), len(self.members), self.width)
        rows, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        start = 0
        for place, member in enumerate(self.members):
            if member is None:
                continue
            # Padded with its own records: on others, such as zeros, a gradient might not exist.
            rows[:, place] = start
            order = member.order_of_epoch() + start
            for number, cut in enumerate(batches[place]):
                count = cut.stop - cut.start
                rows[number, place, :count] = order[cut]
                weights[number, place, :count] = 1 / count
            start += sizes[place]
        for where, weight in zip(torch.from_numpy(rows), torch.from_numpy(weights), strict=True):
            yield self.records[where], self.labels[where], weight


def _width(size: int) -> int:
    """Return the width of a batch: a single record left over joins the batch before."""
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
    """Return a function that runs all networks at once, each on its own records."""
    from torch.func import functional_call, vmap

    def one(parameters: Stack, buffers: Stack, records: torch.Tensor) -> Any:
        return functional_call(module, (parameters, buffers), (records,))

    forward: Callable[[Stack, Stack, torch.Tensor], Any] = vmap(one, randomness="error")
    return forward


def _checked(logits: Any, teacher: TorchTeacher, networks: int, records: int) -> torch.Tensor:
    if tuple(getattr(logits, "shape", ())) != (networks, records, teacher.classes):
        raise TeacherError("the module does not return logits of shape (records, classes)")
    return logits  # type: ignore[no-any-return]


def _widest(first: _Member) -> int:
    """Return how many networks form one program, by the architecture and the device alone.

    Tried at full width also for a group with fewer places: otherwise the order of groups would
    matter.
    """
    module, spec = first.teacher.module, first.teacher.training
    each = sum(p.numel() * p.element_size() for p in module.parameters())
    width = int(max(1, min(MOST_NETWORKS, STATE_BYTES // (5 * max(1, each)))))
    free = current_device().free_memory()
    if free is None:
        return width
    shape = tuple(first.records.shape[1:])
    room = memory_need(module, spec, shape).widest(free, records=_width(spec.batch_size))

    def tried(width: int) -> int:
        with repeatable():
            _try_out(first, width)
        return width

    return largest_fitting(
        tried, lambda: min(width, room), kind=("try", memory_key(module, spec, shape))
    )


def _write_back(members: Sequence[_Member | None], stack: Stack) -> None:
    import torch

    with torch.no_grad():
        for place, member in enumerate(members):
            if member is not None:
                for name, parameter in member.teacher.module.named_parameters():
                    parameter.copy_(stack[name][place])
                member.teacher.module.eval()
