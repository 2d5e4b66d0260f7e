"""Every module of a model, with what the rules need to know of its surroundings.

Three things decide how a module is treated: whether an enclosing module keeps it in evaluation
mode for good, whether the gradient pass knows its type, and, if not, which module is handed as a
whole to ``torch.func.vmap`` (the slow path).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from dpsgd.backward_pass import find_sites
from dpsgd.layers import rule_for
from pate.errors import InvalidInput


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
    def kind(self) -> str:
        """The name of the module's type."""
        return type(self.module).__name__

    @property
    def is_slow_root(self) -> bool:
        """True if the module is handed to ``vmap`` as a whole."""
        return self.slow_root == self.name


def module_infos(model: nn.Module) -> tuple[ModuleInfo, ...]:
    """Return one entry for every module, in order of registration.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.PReLU())
    >>> [(info.name, info.is_site, info.slow_root) for info in module_infos(model)]
    [('', False, None), ('0', True, None), ('1', True, '1')]
    """
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


def owns_trainable(module: nn.Module) -> bool:
    """Return True if a trained parameter is registered on the module itself."""
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def _has_rule(module: nn.Module) -> bool:
    # A lazy layer turns into another type at its first call.
    return rule_for(module) is not None or getattr(module, "cls_to_become", None) is not None


def _freezes(module: nn.Module) -> bool:
    # By name, so that the module that defines the wrapper is not loaded.
    kinds = type(module).__mro__
    return any((k.__module__, k.__name__) == ("dpsgd.public", "Frozen") for k in kinds)


_MOST_GROUPS = 32
_LEAST_IN_GROUP = 2
_LEAST_IN_GROUP_OF_VECTORS = 16


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


def can_become_group_norm(module: _BatchNorm) -> bool:
    """Return True if a GroupNorm in its place would let anything through."""
    alone = isinstance(module, nn.BatchNorm1d) and module.num_features == 1
    return not alone and module.num_features > 0 and not _sizeless(module)


def active_dropout(module: nn.Module) -> bool:
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
        spared = info.kept_in_eval and not owns_trainable(module)
        return module if spared or not can_become_group_norm(module) else _group_norm(module)
    if isinstance(module, _InstanceNorm) and not info.kept_in_eval:
        _stop_tracking(module)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.max_norm = None
        module.scale_grad_by_freq = module.sparse = False
    if info.slow_root is not None and not info.kept_in_eval and active_dropout(module):
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
    """Return the largest number of equal groups, at most 32, of ``least`` channels or more.

    >>> [group_count(channels, least=2) for channels in (1, 6, 7, 20, 32, 64, 512)]
    [1, 3, 1, 10, 16, 32, 32]
    """
    counts = range(min(_MOST_GROUPS, channels // least), 0, -1)
    return next((count for count in counts if channels % count == 0), 1)


def _stop_tracking(module: _InstanceNorm) -> None:
    module.track_running_stats = False
    module.running_mean = module.running_var = module.num_batches_tracked = None


def _sizeless(module: nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in [*module.parameters(), *module.buffers()])
