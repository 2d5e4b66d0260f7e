"""Whether recurrent layers have per-example gradients, asked of the torch at hand.

``torch.func.vmap`` differentiates few of them: with torch 2.13 on the CPU a plain ``LSTM`` runs
(any depth, both directions, by a slow batching rule); an LSTM with ``proj_size``, ``RNN``, ``GRU``
and all cells stop at an in-place operation. The gradient pass may ask for more, such as examples
along the first dimension of every output, the last states of the layer included. Rather than a list
that ages, a tiny layer of the kind is put through the gradient pass once.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from dpsgd.recording import find_sites, learn_arguments, trace_pass
from pate.errors import PateError

RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def runs_per_example(layer: nn.Module) -> bool:
    """Whether per-example gradients of a torch recurrent layer can be had.

    A subclass is judged by the torch layer that it derives from.

    >>> runs_per_example(nn.GRUCell(3, 4)) == runs_per_example(nn.GRUCell(5, 6))
    True
    """
    kind = next(k for k in type(layer).__mro__ if k.__module__ == nn.RNNBase.__module__)
    return _tried(kind, projected=getattr(layer, "proj_size", 0) > 0)


@functools.cache
def _tried(kind: type[nn.Module], *, projected: bool) -> bool:
    options: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
    if issubclass(kind, nn.RNNBase):
        options |= {"batch_first": True} | ({"proj_size": 1} if projected else {})
    with torch.random.fork_rng(devices=[]):  # initial weights draw from the global generator
        layer = kind(2, 2, **options)
    examples = torch.ones((2, 3, 2) if issubclass(kind, nn.RNNBase) else (2, 2))

    def total(output: Any, targets: Tensor) -> Tensor:
        first = output[0] if isinstance(output, tuple) else output
        return torch.as_tensor(first).flatten(1).sum(1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a slow batching rule is still one that works
        try:
            sites = find_sites(layer)
            learn_arguments(layer, sites, (examples,), len(examples))
            trace_pass(layer, sites, total, (examples,), torch.zeros(2))
        except (PateError, RuntimeError):
            return False
    return True
