"""Rules on the modules of a model that is trained privately: one small rule per problem.

A rule looks at one module and at nothing it computes, so no problem hides another.

Guarantees:
    * DP-SGD (Abadi et al. 2016, Algorithm 1) bounds what one example adds to the sum of gradients.
      That bound holds only if an example's gradient depends on no other example, and if nothing
      but the noised sum changes the model. Every rule here names a module that breaks one of the
      two, or whose gradients cannot be computed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from dpsgd.backward_pass import find_sites, learn_arguments, trace_pass
from dpsgd.validation.modules import (
    ModuleInfo,
    active_dropout,
    can_become_group_norm,
    owns_trainable,
)
from pate.errors import PateError


class Finding(NamedTuple):
    """The result of a rule for a module."""

    what: str
    remedy: str
    fixable: bool = False


Rule = Callable[[ModuleInfo], Iterator[Finding]]

MIXES = "mixes the examples of a batch"
TRACKS = "keeps running statistics of private examples"
RENORMS = "rescales the rows that a batch uses (max_norm)"
POWER = "changes its buffers in every training pass (spectral_norm)"
CHANGES_ITSELF = frozenset({MIXES, TRACKS, RENORMS, POWER})  # a probe need not report it again

_NEVER_CALLED = (nn.ParameterList, nn.ParameterDict)
_COPIES = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def _batch_norm(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if not isinstance(module, _BatchNorm):
        return
    if info.kept_in_eval and not owns_trainable(module):
        if module.running_mean is None:
            yield Finding(
                MIXES,
                "it has no running statistics and takes those of the batch even when frozen; give "
                "it some (track_running_stats=True, then public training), or use GroupNorm",
            )
        return  # otherwise these are public statistics that no call can change
    if can_become_group_norm(module):
        yield Finding(MIXES, "dpsgd.fix(model) replaces it by GroupNorm", fixable=True)
    elif _uninitialised(module):
        yield Finding(MIXES, "use GroupNorm, or give it a size first and call dpsgd.fix(model)")
    else:
        yield Finding(MIXES, "take it out: one feature alone cannot be normalised per example")


def _tracking_instance_norm(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if isinstance(module, _InstanceNorm) and module.track_running_stats and not info.kept_in_eval:
        yield Finding(TRACKS, "dpsgd.fix(model) turns track_running_stats off", fixable=True)


def _embedding(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return
    if module.max_norm is not None:  # also where it is frozen, and in evaluation mode
        yield Finding(RENORMS, "dpsgd.fix(model) turns max_norm off", fixable=True)
    if owns_trainable(module) and module.scale_grad_by_freq:
        yield Finding(
            "scales gradients by how often a batch holds a word (scale_grad_by_freq)",
            "dpsgd.fix(model) turns it off",
            fixable=True,
        )
    if owns_trainable(module) and module.sparse:
        yield Finding(
            "makes sparse gradients, which leave most rows without noise",
            "dpsgd.fix(model) turns sparse off",
            fixable=True,
        )


def _spectral_norm(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if info.kept_in_eval:
        return
    old = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
    new = parametrize.is_parametrized(module) and any(
        isinstance(part, _SpectralNorm)
        for parts in module.parametrizations.children()  # type: ignore[union-attr]
        for part in parts.children()
    )
    if old or new:
        yield Finding(POWER, "take spectral_norm off; clipping bounds the gradient already")


def _never_called(info: ModuleInfo) -> Iterator[Finding]:
    if not info.is_slow_root or not isinstance(info.module, _NEVER_CALLED):
        return
    yield Finding(
        "holds trainable parameters but is never called on the examples",
        "register the parameters on the module that uses them",
    )


def _recurrent(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if not isinstance(module, RECURRENT) or info.slow_root is None:
        return
    if not runs_per_example(module):
        yield Finding(
            "has no per-example gradients: it cannot be run one example at a time",
            "write its steps with nn.Linear, or use attention or convolutions",
        )


def _sequence_first(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if not isinstance(module, nn.RNNBase | nn.MultiheadAttention) or info.slow_root is None:
        return
    if not module.batch_first:
        yield Finding(
            "takes the sequence, not the examples, along the first dimension",
            "make it with batch_first=True",
        )


def _dropout_on_slow_path(info: ModuleInfo) -> Iterator[Finding]:
    if info.slow_root is None or info.kept_in_eval:
        return
    if active_dropout(info.module):
        around = "" if info.is_slow_root else f" of {info.slow_root or 'the model'}"
        yield Finding(
            f"has dropout inside the per-example pass{around}",
            "dpsgd.fix(model) sets it to 0",
            fixable=True,
        )
    if isinstance(info.module, nn.RReLU):
        yield Finding("draws random slopes, which torch.func.vmap cannot run", "use nn.LeakyReLU")


def _uninitialised_parameters(info: ModuleInfo) -> Iterator[Finding]:
    if _uninitialised(info.module):
        yield Finding(
            "has parameters without a size yet", "run the model once on one made-up example first"
        )


def _number_format(info: ModuleInfo) -> Iterator[Finding]:
    trained = [p for p in info.module.parameters(recurse=False) if p.requires_grad]
    formats = {p.dtype for p in trained} - {torch.float32, torch.float64}
    for dtype in sorted(formats, key=str):
        name = str(dtype).removeprefix("torch.")
        yield Finding(
            f"has trainable parameters of type {name}, which cannot hold clipped sums and noise",
            "use real parameters" if dtype.is_complex else "call model.float() first",
        )


def _wrapper(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if isinstance(module, _COPIES):
        yield Finding("runs copies of the model", "hand over the model inside (.module)")
    if isinstance(module, torch.jit.ScriptModule):
        yield Finding("is compiled (torch.jit)", "hand over the model before it is compiled")
    elif type(module).__module__ == "torch._dynamo.eval_frame":  # importing it takes seconds
        yield Finding("is compiled (torch.compile)", "hand over the model before it is compiled")


def _uninitialised(module: nn.Module) -> bool:
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return any(is_lazy(tensor) for tensor in own)


RULES: tuple[Rule, ...] = (
    _batch_norm,
    _tracking_instance_norm,
    _embedding,
    _spectral_norm,
    _never_called,
    _recurrent,
    _sequence_first,
    _dropout_on_slow_path,
    _uninitialised_parameters,
    _number_format,
    _wrapper,
)


def _slow_path(info: ModuleInfo) -> Iterator[Finding]:
    if info.is_slow_root and not isinstance(info.module, _BatchNorm):  # reported as serious anyway
        what = "this layer" if info.name else "the whole model"
        yield Finding(
            f"per-example gradients of {what} are materialised: slower",
            "nothing to do; built-in layers are faster",
        )


def _in_place(info: ModuleInfo) -> Iterator[Finding]:
    if getattr(info.module, "inplace", False) is True:
        yield Finding("works in place", "nothing to do: the gradient pass turns this off")


def _frozen(info: ModuleInfo) -> Iterator[Finding]:
    own = list(info.module.named_parameters(recurse=False))
    frozen = [name for name, parameter in own if not parameter.requires_grad]
    if frozen:
        which = "" if len(frozen) == len(own) else f" ({', '.join(frozen)})"
        yield Finding(f"frozen{which}: stays as it is, costs nothing", "nothing to do")


NOTES: tuple[Rule, ...] = (_slow_path, _in_place, _frozen)


def shared_parameters(model: nn.Module) -> Iterator[tuple[str, Finding]]:
    """Yield parameters with several names, each under the module of its first name.

    >>> encoder, decoder = nn.Linear(3, 3), nn.Linear(3, 3)
    >>> decoder.weight = encoder.weight
    >>> [(where, found.what) for where, found in shared_parameters(nn.Sequential(encoder, decoder))]
    [('0', 'shares its weight with 1.weight')]
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for first, *others in names.values():
        if others:
            where, _, own = first.rpartition(".")
            yield (
                where,
                Finding(
                    f"shares its {own} with {', '.join(others)}",
                    "nothing to do: the gradients of all uses are added before clipping",
                ),
            )


def whole_model(model: nn.Module) -> Iterator[Finding]:
    """Yield the problems of the model as a whole.

    >>> [finding.what for finding in whole_model(nn.Flatten())]
    ['has no trainable parameter']
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield Finding("has no trainable parameter", "leave requires_grad on for some of them")
    devices = {str(tensor.device) for tensor in [*model.parameters(), *model.buffers()]}
    if len(devices) > 1:
        yield Finding(f"is spread over {', '.join(sorted(devices))}", "move it to one device")
    elif devices == {"meta"}:
        yield Finding("is on the meta device, without values", "build it on a real device")


RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def runs_per_example(layer: nn.Module) -> bool:
    """Return True if ``torch.func.vmap`` can compute a recurrent layer's per-example gradients.

    With torch 2.13 on the CPU it can for a plain ``LSTM`` (any depth, both directions, by a slow
    batching rule); an LSTM with ``proj_size``, ``RNN``, ``GRU`` and all cells stop at an in-place
    operation. Rather than a list that goes out of date, a tiny layer of the kind is put through the
    gradient pass once. A subclass is treated as the torch layer that it derives from.

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
        warnings.simplefilter("ignore")  # a slow batching rule still works
        try:
            sites = find_sites(layer)
            learn_arguments(layer, sites, examples)
            trace_pass(layer, sites, total, examples, torch.zeros(2))
        except (PateError, RuntimeError):
            return False
    return True
