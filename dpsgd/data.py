"""The training data, read by index: a whole lot at once where the data set allows it."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from dpsgd.sampling import IntArray
from pate._validate import check_whole
from pate.errors import InvalidInput


def as_records(dataset: Any, *, dtype: torch.dtype = torch.float32) -> Examples:
    """Return records of a pair of arrays, a ``TensorDataset`` or a map-style data set of pairs.

    Inputs that are not whole numbers are converted to ``dtype``, that of the model.
    """
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return _Whole(*dataset.tensors, dtype=dtype)
    if type(dataset) is Subset:  # a subclass may return something else
        return _Part(as_records(dataset.dataset, dtype=dtype), dataset.indices)
    if isinstance(dataset, (tuple, list)) and len(dataset) == 2:
        return _Whole(*dataset, dtype=dtype)
    if isinstance(dataset, Sized) and hasattr(dataset, "__getitem__"):
        return _OneByOne(dataset, dtype=dtype)
    raise InvalidInput(
        f"the data set is a {type(dataset).__name__}; give a pair of arrays (inputs, targets) or a "
        "map-style torch data set of such pairs: a lot is drawn by index"
    )


def optional_count(name: str, value: int | None) -> int | None:
    """Return a whole number from 1 on, or None; refuse anything else."""
    return None if value is None else check_whole(name, value, least=1)


def first_inputs(records: Examples, *, size: int, count: int = 4) -> Tensor | None:
    """Return inputs to try a model on: ``size`` of them, or ``count`` if that is more.

    The first ``count`` differ, and are made up if there are not enough different ones among the
    first records. The others repeat the first records: a model whose examples meet only in large
    batches is found by a large batch, whatever it holds. None if inputs are whole numbers, all
    alike: what else a model accepts cannot be known.
    """
    if not len(records):
        return None
    inputs, _ = records.take(np.arange(min(len(records), 16 * count)))
    others = (inputs != inputs[0]).flatten(1).any(1).nonzero().squeeze(1)
    if len(others) >= count - 1:
        few = torch.cat([inputs[:1], inputs[others[: count - 1]]])
    elif inputs.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        few = torch.randn((count, *inputs.shape[1:]), generator=generator, dtype=inputs.dtype)
    else:
        return None
    more = torch.arange(max(0, size - count)) % len(inputs)
    return torch.cat([few, inputs[more]])


@final
class _Whole:
    """A data set in memory; a lot is one look-up."""

    def __init__(self, inputs: Any, targets: Any, *, dtype: torch.dtype) -> None:
        self.inputs, self.targets = _tensor(inputs, dtype), _tensor(targets, dtype)
        if self.inputs.dim() == 0 or len(self.inputs) != len(self.targets):
            raise InvalidInput("the inputs and the targets of the data set differ in number")

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: IntArray) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the examples, in this order."""
        chosen = torch.from_numpy(indices).to(self.inputs.device)
        return self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)


@final
class _Part:
    """A subset of other records."""

    def __init__(self, whole: Examples, indices: Any) -> None:
        self.whole = whole
        self.indices = np.asarray(indices, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: IntArray) -> tuple[Tensor, Tensor]:
        return self.whole.take(self.indices[indices])


@final
class _OneByOne:
    """A data set that returns one example at a time."""

    def __init__(self, dataset: Any, *, dtype: torch.dtype) -> None:
        self.dataset = dataset
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: IntArray) -> tuple[Tensor, Tensor]:
        pairs = default_collate([self.dataset[index] for index in indices.tolist()])
        if not isinstance(pairs, (tuple, list)) or len(pairs) != 2:
            raise InvalidInput("an example of the data set is not a pair (input, target)")
        return _tensor(pairs[0], self.dtype), _tensor(pairs[1], self.dtype)


Examples = _Whole | _Part | _OneByOne


def _tensor(values: Any, dtype: torch.dtype) -> Tensor:
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise InvalidInput(f"the data set holds {array.dtype}; numbers are needed")
        # A copy of a read-only array (a memory map): torch has no read-only tensors.
        values = torch.from_numpy(array if array.flags.writeable else array.copy())
    tensor: Tensor = values
    return tensor.to(dtype) if tensor.is_floating_point() else tensor.long()
