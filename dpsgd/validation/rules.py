"""What must not be in a model that is trained privately: one small rule per matter.

A rule looks at one module and at nothing it computes, so all rules can speak at once and no problem
hides another.

Guarantees:
    * DP-SGD (Abadi et al. 2016, Algorithm 1) bounds what one example adds to the sum of gradients.
      That bound holds only if an example's gradient depends on no other example, and if nothing
      but the noised sum changes the model. Every rule here names a module that breaks one of the
      two, or whose gradients cannot be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from dpsgd.validation.places import Place, owns_trainable
from dpsgd.validation.recurrent import RECURRENT, runs_per_example
from dpsgd.validation.replacements import active_dropout, can_become_group_norm


class Finding(NamedTuple):
    """What a rule says of a module."""

    what: str
    remedy: str
    fixable: bool = False


Rule = Callable[[Place], Iterator[Finding]]

MIXES = "mixes the examples of a batch"
TRACKS = "keeps running statistics of private examples"
RENORMS = "rescales the rows that a batch uses (max_norm)"
POWER = "changes its buffers in every training pass (spectral_norm)"
CHANGES_ITSELF = frozenset({MIXES, TRACKS, RENORMS, POWER})  # a probe need not say it again

_NEVER_CALLED = (nn.ParameterList, nn.ParameterDict)
_COPIES = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def _batch_norm(place: Place) -> Iterator[Finding]:
    module = place.module
    if not isinstance(module, _BatchNorm):
        return
    if place.kept_in_eval and not owns_trainable(module):
        if module.running_mean is None:
            yield Finding(
                MIXES,
                "it has no running statistics and takes those of the batch even when frozen; give "
                "it some (track_running_stats=True, then public training), or use GroupNorm",
            )
        return  # else public statistics that no call can change
    if can_become_group_norm(module):
        yield Finding(MIXES, "dpsgd.fix(model) replaces it by GroupNorm", fixable=True)
    elif _uninitialised(module):
        yield Finding(MIXES, "use GroupNorm, or give it a size first and call dpsgd.fix(model)")
    else:
        yield Finding(MIXES, "take it out: one feature alone cannot be normalised per example")


def _tracking_instance_norm(place: Place) -> Iterator[Finding]:
    module = place.module
    if isinstance(module, _InstanceNorm) and module.track_running_stats and not place.kept_in_eval:
        yield Finding(TRACKS, "dpsgd.fix(model) turns track_running_stats off", fixable=True)


def _embedding(place: Place) -> Iterator[Finding]:
    module = place.module
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


def _spectral_norm(place: Place) -> Iterator[Finding]:
    module = place.module
    if place.kept_in_eval:
        return
    old = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
    new = parametrize.is_parametrized(module) and any(
        isinstance(part, _SpectralNorm)
        for parts in module.parametrizations.children()  # type: ignore[union-attr]
        for part in parts.children()
    )
    if old or new:
        yield Finding(POWER, "take spectral_norm off; clipping bounds the gradient already")


def _never_called(place: Place) -> Iterator[Finding]:
    if not place.is_slow_root or not isinstance(place.module, _NEVER_CALLED):
        return
    yield Finding(
        "holds trainable parameters but is never called on the examples",
        "register the parameters on the module that uses them",
    )


def _recurrent(place: Place) -> Iterator[Finding]:
    module = place.module
    if not isinstance(module, RECURRENT) or place.slow_root is None:
        return
    if not runs_per_example(module):
        yield Finding(
            "has no per-example gradients: it cannot be run one example at a time",
            "write its steps with nn.Linear, or use attention or convolutions",
        )


def _sequence_first(place: Place) -> Iterator[Finding]:
    module = place.module
    if not isinstance(module, nn.RNNBase | nn.MultiheadAttention) or place.slow_root is None:
        return
    if not module.batch_first:
        yield Finding(
            "takes the sequence, not the examples, along the first dimension",
            "make it with batch_first=True",
        )


def _dropout_on_slow_path(place: Place) -> Iterator[Finding]:
    if place.slow_root is None or place.kept_in_eval:
        return
    if active_dropout(place.module):
        around = "" if place.is_slow_root else f" of {place.slow_root or 'the model'}"
        yield Finding(
            f"has dropout inside the per-example pass{around}",
            "dpsgd.fix(model) sets it to 0",
            fixable=True,
        )
    if isinstance(place.module, nn.RReLU):
        yield Finding("draws random slopes, which torch.func.vmap cannot run", "use nn.LeakyReLU")


def _uninitialised_parameters(place: Place) -> Iterator[Finding]:
    if _uninitialised(place.module):
        yield Finding(
            "has parameters without a size yet", "run the model once on one made-up example first"
        )


def _number_format(place: Place) -> Iterator[Finding]:
    trained = [p for p in place.module.parameters(recurse=False) if p.requires_grad]
    formats = {p.dtype for p in trained} - {torch.float32, torch.float64}
    for dtype in sorted(formats, key=str):
        name = str(dtype).removeprefix("torch.")
        yield Finding(
            f"has trainable parameters of type {name}, which cannot hold clipped sums and noise",
            "use real parameters" if dtype.is_complex else "call model.float() first",
        )


def _wrapper(place: Place) -> Iterator[Finding]:
    module = place.module
    if isinstance(module, _COPIES):
        yield Finding("runs copies of the model", "hand over the model inside (.module)")
    if isinstance(module, torch.jit.ScriptModule):
        yield Finding("is compiled (torch.jit)", "hand over the model before it is compiled")
    elif type(module).__module__ == "torch._dynamo.eval_frame":  # its import takes seconds
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
