"""What is worth knowing of a model that trains as it is."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsgd.validation.places import Place
from dpsgd.validation.rules import Finding, Rule


def _slow_path(place: Place) -> Iterator[Finding]:
    if place.is_slow_root and not isinstance(place.module, _BatchNorm):  # that must go anyway
        what = "this layer" if place.name else "the whole model"
        yield Finding(
            f"per-example gradients of {what} are materialised: slower",
            "nothing to do; built-in layers are faster",
        )


def _in_place(place: Place) -> Iterator[Finding]:
    if getattr(place.module, "inplace", False) is True:
        yield Finding("works in place", "nothing to do: the gradient pass turns this off")


def _frozen(place: Place) -> Iterator[Finding]:
    own = list(place.module.named_parameters(recurse=False))
    frozen = [name for name, parameter in own if not parameter.requires_grad]
    if frozen:
        which = "" if len(frozen) == len(own) else f" ({', '.join(frozen)})"
        yield Finding(f"frozen{which}: stays as it is, costs nothing", "nothing to do")


NOTES: tuple[Rule, ...] = (_slow_path, _in_place, _frozen)


def shared_parameters(model: nn.Module) -> Iterator[tuple[str, Finding]]:
    """Parameters with several names, each under the module of its first name.

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
