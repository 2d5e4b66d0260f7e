"""Every module of a model, with what the rules need to know of its surroundings.

Three things decide how a module is treated: whether an enclosing module keeps it in evaluation
mode for good, whether the gradient pass knows its type, and, if not, which module is handed as a
whole to ``torch.func.vmap`` (the slow path).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from dpsgd.layers import rule_for
from dpsgd.recording import find_sites


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
