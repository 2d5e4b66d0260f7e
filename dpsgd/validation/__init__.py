"""Checks of a model before private training: every problem at once, with a fix where one exists.

>>> from torch import nn
>>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
>>> for problem in problems(model):
...     print("serious" if problem.serious else "note", "|", problem)
serious | 1 (BatchNorm2d): mixes the examples of a batch; dpsgd.fix(model) replaces it by GroupNorm
note | 2 (ReLU): works in place; nothing to do: the gradient pass turns this off
>>> validate(fix(model))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from dpsgd.layers import UnsuitableModel
from dpsgd.validation.probe import PAST_NOISE, checked_examples, few, probe, probe_together, trial
from dpsgd.validation.rules import (
    CHANGES_ITSELF,
    MIXES,
    RULES,
    Finding,
    ModuleInfo,
    fix,
    module_infos,
    notes,
    shared_parameters,
    shared_positions,
    whole_model,
)

__all__ = ["Problem", "UnsuitableModel", "fix", "problems", "validate"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding about one module of a model, as returned by :func:`problems`.

    A serious problem would break the guarantee or the training, and stops it. The others are
    notes: the model trains as it is.

    Parameters
    ----------
    where : str
        The dotted name of the module; '' is the model itself.
    kind : str
        The name of the module's type.
    what : str
        The finding.
    remedy : str
        What to do about it.
    fixable : bool, default=False
        True if :func:`fix` repairs it.
    serious : bool, default=False
        True if the model cannot be trained privately as it is.

    >>> print(Problem(where="0", kind="ReLU", what="works in place", remedy="nothing to do"))
    0 (ReLU): works in place; nothing to do
    """

    where: str
    kind: str
    what: str
    remedy: str
    fixable: bool = False
    serious: bool = False

    def __str__(self) -> str:
        return f"{self.where or 'the model'} ({self.kind}): {self.what}; {self.remedy}"


def problems(model: nn.Module, *, example_inputs: Tensor | None = None) -> tuple[Problem, ...]:
    """Return everything that prevents private training of a model, and notes on what does not.

    No problem hides another. Where there is none that :func:`fix` leaves, the gradient pass itself
    is tried on a (repaired) copy, and its errors are listed too.

    Parameters
    ----------
    model : torch.nn.Module
        The model to check; it is not changed.
    example_inputs : torch.Tensor, optional
        Three or more inputs of the right shape and type; made-up ones will do. Copies of the model
        are run on them, which finds custom layers that mix examples or keep state. Give as many as
        a lot holds: a layer may mix examples only then.

    Returns
    -------
    tuple of Problem
        Serious problems first, each kind in the order of the model's modules.

    Guarantees:
        With no serious problem the modules named by the rules are absent. What a module of unknown
        type computes is not known from its name: give ``example_inputs``.

    >>> from torch import nn
    >>> [problem.what for problem in problems(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))]
    ['mixes the examples of a batch']
    """
    infos = module_infos(model)
    by_name = {info.name: info for info in infos}
    serious = [(infos[0], finding) for finding in whole_model(model)]
    serious += [(info, each) for info in infos for rule in RULES for each in rule(info)]
    if example_inputs is not None:
        explained = {info.name for info, each in serious if each.what in CHANGES_ITSELF}
        examples = checked_examples(example_inputs, model=model)
        for name, each in probe(model, infos, examples=few(examples)):
            repeats = each.what == MIXES or each.what.endswith(PAST_NOISE)
            if not (repeats and name in explained):
                serious.append((by_name[name], each))
        if not serious and len(examples) > len(few(examples)):
            more = probe_together(model, examples=examples)
            serious += [(by_name[name], each) for name, each in more]
        if all(each.fixable for _, each in serious):
            repaired = fix(model) if serious else model
            serious += [(infos[0], each) for each in trial(repaired, examples=few(examples))]
    remarks = [(info, each) for info in infos for each in notes(info)]
    if example_inputs is None:
        remarks += [(info, each) for info in infos for each in shared_positions(info)]
    remarks += [(by_name[name], each) for name, each in shared_parameters(model)]
    return (*_listed(serious, infos, serious=True), *_listed(remarks, infos, serious=False))


def validate(model: nn.Module, *, example_inputs: Tensor | None = None) -> None:
    """Raise an error that lists every serious problem of a model; do nothing if there is none.

    Parameters
    ----------
    model : torch.nn.Module
        The model to check; it is not changed.
    example_inputs : torch.Tensor, optional
        As in :func:`problems`.

    Raises
    ------
    UnsuitableModel
        If the model has a serious problem.

    >>> from torch import nn
    >>> validate(nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.BatchNorm1d(8)))
    Traceback (most recent call last):
    ...
    dpsgd.layers.trace.UnsuitableModel: the model cannot be trained privately as it is:
      0 (Embedding): makes sparse gradients, which leave most rows without noise; dpsgd.fix(model) \
turns sparse off
      2 (BatchNorm1d): mixes the examples of a batch; dpsgd.fix(model) replaces it by GroupNorm
    """
    serious = [each for each in problems(model, example_inputs=example_inputs) if each.serious]
    if serious:
        lines = [f"  {each}" for each in serious]
        raise UnsuitableModel(
            "\n".join(["the model cannot be trained privately as it is:", *lines])
        )


def _listed(
    findings: list[tuple[ModuleInfo, Finding]], infos: tuple[ModuleInfo, ...], *, serious: bool
) -> Iterator[Problem]:
    order = {info.name: position for position, info in enumerate(infos)}
    for info, each in sorted(findings, key=lambda pair: order[pair[0].name]):
        yield Problem(
            where=info.name,
            kind=type(info.module).__name__,
            what=each.what,
            remedy=each.remedy,
            fixable=each.fixable,
            serious=serious,
        )
