"""Replacements for modules that mix examples.

BatchNorm becomes GroupNorm (Wu and He 2018), which normalises within one example. The number of
groups is the largest that divides the channels, is at most 32 (theirs), and leaves no group so
small that its values are normalised away: at least two channels for images. ``BatchNorm1d`` may
act on plain vectors, where a group of two features would keep nothing but a sign; its groups have
at least 16, or there is one group, which is LayerNorm over the features.
"""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from dpsgd.validation.modules import ModuleInfo, module_infos, owns_trainable
from pate.errors import InvalidInput

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
