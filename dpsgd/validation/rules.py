"""Rules on the modules of a model that is trained privately, and repairs of those that break one.

A rule looks at one module and at nothing it computes, so no problem hides another. Three things
decide how a module is treated: whether an enclosing module keeps it in evaluation mode for good,
whether the gradient pass knows its type, and, if not, which module is handed as a whole to
``torch.func.vmap`` (the slow path).

Guarantees:
    DP-SGD (Abadi et al. 2016, Algorithm 1) bounds what one example adds to the sum of gradients.
    That bound holds only if an example's gradient depends on no other example, and if nothing but
    the noised sum changes the model. Every rule here names a module that breaks one of the two, or
    whose gradients cannot be computed.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from dpsgd.backward_pass import find_sites, learn_arguments, trace_pass
from dpsgd.layers import rule_for
from pate.errors import InvalidInput, PateError

MIXES = "mixes the examples of a batch"
TRACKS = "keeps running statistics of private examples"
RENORMS = "rescales the rows that a batch uses (max_norm)"
POWER = "changes its buffers in every training pass (spectral_norm)"
EXPAND = (
    "give each example positions of its own: torch.arange(length).expand(len(inputs), -1), which "
    "models of Hugging Face take as position_ids="
)
CHANGES_ITSELF = frozenset({MIXES, TRACKS, RENORMS, POWER})  # a probe need not report it again

_MOST_GROUPS = 32
_LEAST_IN_GROUP = 2
_LEAST_IN_GROUP_OF_VECTORS = 16


class Finding(NamedTuple):
    """The result of a rule for a module."""

    what: str
    remedy: str
    fixable: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleInfo:
    """A module under its first name; a shared module has one entry."""

    name: str
    module: nn.Module
    kept_in_eval: bool  # inside dpsgd.public.Frozen under all its names
    is_site: bool  # the gradient pass records the calls of this module
    slow_root: str | None  # the site without a rule that this module is, or is part of

    @property
    def is_slow_root(self) -> bool:
        """True if the module is handed to ``vmap`` as a whole."""
        return self.slow_root == self.name

    @property
    def public_statistics(self) -> bool:
        """True for a normalisation that is frozen with whatever statistics it has."""
        return self.kept_in_eval and not _owns_trainable(self.module)


def module_infos(model: nn.Module) -> tuple[ModuleInfo, ...]:
    """Return one entry for every module, in order of registration."""
    compiled = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    # Compiled modules hide their parameters, so the gradient pass cannot inspect them.
    sites = {} if compiled else {id(site.module): site.name for site in find_sites(model)}
    slow = {
        id(part): sites[id(module)]
        for module in model.modules()
        if id(module) in sites and not _has_rule(module)
        for part in module.modules()
    }
    named = dict(model.named_modules(remove_duplicate=False))  # a parent comes before its parts
    kept: dict[str, bool] = {}
    found: dict[int, ModuleInfo] = {}
    for name, module in named.items():
        parent = name.rpartition(".")[0]
        kept[name] = name != "" and (kept[parent] or _freezes(named[parent]))
        earlier = found.get(id(module))
        found[id(module)] = ModuleInfo(
            name=earlier.name if earlier else name,
            module=module,
            kept_in_eval=kept[name] and (earlier is None or earlier.kept_in_eval),
            is_site=id(module) in sites,
            slow_root=slow.get(id(module)),
        )
    return tuple(found.values())


def _owns_trainable(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def _has_rule(module: nn.Module) -> bool:
    # A lazy layer turns into another type at its first call.
    return rule_for(module) is not None or getattr(module, "cls_to_become", None) is not None


def _freezes(module: nn.Module) -> bool:
    # By name, so that the module that defines the wrapper is not loaded.
    kinds = type(module).__mro__
    return any((k.__module__, k.__name__) == ("dpsgd.public", "Frozen") for k in kinds)


def _uninitialised(module: nn.Module) -> bool:
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return any(is_lazy(tensor) for tensor in own)


# --- rules ----------------------------------------------------------------------------------------


def _normalisation(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if isinstance(module, _InstanceNorm) and module.track_running_stats and not info.kept_in_eval:
        yield Finding(TRACKS, "dpsgd.fix(model) turns track_running_stats off", fixable=True)
    if not isinstance(module, _BatchNorm):
        return
    if info.public_statistics:  # which no call can change
        if module.running_mean is None:
            yield Finding(
                MIXES,
                "it has no running statistics and takes those of the batch even when frozen; give "
                "it some (track_running_stats=True, then public training), or use GroupNorm",
            )
    elif _can_become_group_norm(module):
        yield Finding(MIXES, "dpsgd.fix(model) replaces it by GroupNorm", fixable=True)
    elif _uninitialised(module):
        yield Finding(MIXES, "use GroupNorm, or give it a size first and call dpsgd.fix(model)")
    else:
        yield Finding(MIXES, "take it out: one feature alone cannot be normalised per example")


def _embedding(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return
    if module.max_norm is not None:  # also where it is frozen, and in evaluation mode
        yield Finding(RENORMS, "dpsgd.fix(model) turns max_norm off", fixable=True)
    if _owns_trainable(module) and module.scale_grad_by_freq:
        yield Finding(
            "scales gradients by how often a batch holds a word (scale_grad_by_freq)",
            "dpsgd.fix(model) turns it off",
            fixable=True,
        )
    if _owns_trainable(module) and module.sparse:
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


def _slow_path(info: ModuleInfo) -> Iterator[Finding]:
    module = info.module
    if info.slow_root is None:
        return
    if info.is_slow_root and isinstance(module, nn.ParameterList | nn.ParameterDict):
        yield Finding(
            "holds trainable parameters but is never called on the examples",
            "register the parameters on the module that uses them",
        )
    if isinstance(module, nn.RNNBase | nn.RNNCellBase) and not runs_per_example(module):
        yield Finding(
            "has no per-example gradients: it cannot be run one example at a time",
            "write its steps with nn.Linear, or use attention or convolutions",
        )
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and not module.batch_first:
        yield Finding(
            "takes the sequence, not the examples, along the first dimension",
            "make it with batch_first=True",
        )
    if info.kept_in_eval:
        return
    if _active_dropout(module):
        around = "" if info.is_slow_root else f" of {info.slow_root or 'the model'}"
        yield Finding(
            f"has dropout inside the per-example pass{around}",
            "dpsgd.fix(model) sets it to 0",
            fixable=True,
        )
    if isinstance(module, nn.RReLU):
        yield Finding("draws random slopes, which torch.func.vmap cannot run", "use nn.LeakyReLU")


def _tensors(info: ModuleInfo) -> Iterator[Finding]:
    if _uninitialised(info.module):
        yield Finding(
            "has parameters without a size yet", "run the model once on one made-up example first"
        )
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
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        yield Finding("runs copies of the model", "hand over the model inside (.module)")
    if isinstance(module, torch.jit.ScriptModule):
        yield Finding("is compiled (torch.jit)", "hand over the model before it is compiled")
    elif type(module).__module__ == "torch._dynamo.eval_frame":  # importing it takes seconds
        yield Finding("is compiled (torch.compile)", "hand over the model before it is compiled")


Rule = Callable[[ModuleInfo], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    _normalisation,
    _embedding,
    _spectral_norm,
    _slow_path,
    _tensors,
    _wrapper,
)


def notes(info: ModuleInfo) -> Iterator[Finding]:
    """Yield remarks on a module that trains as it is."""
    module = info.module
    if info.is_slow_root and not isinstance(module, _BatchNorm):  # reported as serious anyway
        what = "this layer" if info.name else "the whole model"
        yield Finding(
            f"per-example gradients of {what} are materialised: slower",
            "nothing to do; built-in layers are faster",
        )
    if getattr(module, "inplace", False) is True:
        yield Finding("works in place", "nothing to do: the gradient pass turns this off")
    own = list(module.named_parameters(recurse=False))
    frozen = [name for name, parameter in own if not parameter.requires_grad]
    if frozen:
        which = "" if len(frozen) == len(own) else f" ({', '.join(frozen)})"
        yield Finding(f"frozen{which}: stays as it is, costs nothing", "nothing to do")


def shared_positions(info: ModuleInfo) -> Iterator[Finding]:
    """Yield a remark on positions that a model keeps for all its examples, as BERT does."""
    positions = getattr(info.module, "position_ids", None)
    if isinstance(positions, Tensor) and positions.dim() == 2 and len(positions) == 1:
        what = "may embed positions that all examples share (position_ids)"
        yield Finding(what, f"give example_inputs to be sure; if it does, {EXPAND}")


def shared_parameters(model: nn.Module) -> Iterator[tuple[str, Finding]]:
    """Yield parameters with several names, each under the module of its first name."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for first, *others in names.values():
        if others:
            where, _, own = first.rpartition(".")
            what = f"shares its {own} with {', '.join(others)}"
            remedy = "nothing to do: the gradients of all uses are added before clipping"
            yield where, Finding(what, remedy)


def whole_model(model: nn.Module) -> Iterator[Finding]:
    """Yield the problems of the model as a whole."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield Finding("has no trainable parameter", "leave requires_grad on for some of them")
    devices = {str(tensor.device) for tensor in [*model.parameters(), *model.buffers()]}
    if len(devices) > 1:
        yield Finding(f"is spread over {', '.join(sorted(devices))}", "move it to one device")
    elif devices == {"meta"}:
        yield Finding("is on the meta device, without values", "build it on a real device")


def runs_per_example(layer: nn.Module) -> bool:
    """Return True if ``torch.func.vmap`` can compute a recurrent layer's per-example gradients.

    That depends on torch's version (an ``LSTM`` runs, a ``GRU`` stops at an in-place operation), so
    a tiny layer of the kind is put through the gradient pass once. A subclass is treated as the
    torch layer that it derives from.
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


# --- repairs --------------------------------------------------------------------------------------


def fix(model: nn.Module) -> nn.Module:
    """Return a copy of the model in which unsuitable modules are replaced, where possible.

    BatchNorm becomes GroupNorm with the same affine weights and biases; its running statistics are
    lost, so a trained model must be trained further. InstanceNorm stops tracking statistics,
    embeddings lose ``max_norm``, ``scale_grad_by_freq`` and ``sparse``, and dropout on the slow
    path is set to 0. Make the optimiser from the returned model: one made earlier holds the
    parameters of the old one.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is not changed.

    Returns
    -------
    torch.nn.Module
        The copy. Problems without a replacement remain: see :func:`dpsgd.problems`.

    Raises
    ------
    InvalidInput
        If the model cannot be copied.

    >>> from torch import nn
    >>> norm = fix(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))[1]
    >>> type(norm).__name__, norm.num_groups, norm.num_channels
    ('GroupNorm', 32, 64)
    """
    try:
        fixed = copy.deepcopy(model)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"a model of type {type(model).__name__} cannot be copied; take off weight_norm hooks "
            "and run lazy layers once, then call dpsgd.fix again"
        ) from error
    new = {id(info.module): _replaced(info) for info in module_infos(fixed)}
    for module in list(fixed.modules()):
        for name, child in list(module._modules.items()):  # named_children skips second names
            if child is not None:
                setattr(module, name, new[id(child)])
    return new[id(fixed)]


def _can_become_group_norm(module: _BatchNorm) -> bool:
    """Return True if a GroupNorm in its place would let anything through."""
    alone = isinstance(module, nn.BatchNorm1d) and module.num_features == 1
    return not alone and module.num_features > 0 and not _uninitialised(module)


def _active_dropout(module: nn.Module) -> bool:
    """Return True if the module itself drops values in training mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _replaced(info: ModuleInfo) -> nn.Module:
    """Return the replacement of a module; often the module itself, perhaps reconfigured."""
    module = info.module
    if isinstance(module, _BatchNorm):
        keep = info.public_statistics or not _can_become_group_norm(module)
        return module if keep else _group_norm(module)
    if isinstance(module, _InstanceNorm) and not info.kept_in_eval:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.max_norm = None
        module.scale_grad_by_freq = module.sparse = False
    if info.slow_root is not None and not info.kept_in_eval and _active_dropout(module):
        setattr(module, "p" if isinstance(module, _DropoutNd) else "dropout", 0.0)
    return module


def _group_norm(module: _BatchNorm) -> nn.GroupNorm:
    vectors = isinstance(module, nn.BatchNorm1d)
    least = _LEAST_IN_GROUP_OF_VECTORS if vectors else _LEAST_IN_GROUP
    channels = module.num_features
    new = nn.GroupNorm(group_count(channels, least=least), channels, eps=module.eps, affine=False)
    new.affine = module.affine
    new.weight, new.bias = module.weight, module.bias  # the same parameters, frozen or shared
    return new.train(module.training)


def group_count(channels: int, *, least: int) -> int:
    """Return the largest number of equal groups, at most 32, of ``least`` channels or more."""
    counts = range(min(_MOST_GROUPS, channels // least), 0, -1)
    return next((count for count in counts if channels % count == 0), 1)
