"""Whether a model can be trained privately: every problem at once, and a repair where there is one.

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

from torch import Tensor, nn

from dpsgd.layers import UnsuitableModel
from dpsgd.validation.notes import NOTES, shared_parameters
from dpsgd.validation.places import Place, places
from dpsgd.validation.probe import PAST_NOISE, checked_examples, few, probe, probe_together, trial
from dpsgd.validation.problem import Problem
from dpsgd.validation.replacements import fix
from dpsgd.validation.rules import CHANGES_ITSELF, MIXES, RULES, Finding
from dpsgd.validation.whole import whole_model

__all__ = ["Problem", "UnsuitableModel", "fix", "problems", "validate"]


def problems(model: nn.Module, *, example_inputs: Tensor | None = None) -> tuple[Problem, ...]:
    """Everything that stands against private training, and notes on what does not.

    Serious problems come first. With three or more ``example_inputs`` (of the right shape and
    type; made-up ones will do) copies of the model are run as well, which finds custom layers that
    mix examples or keep state; give as many as a lot holds, for a layer may mix them only then. No
    problem hides another; where there is none, the gradient pass itself is tried on a copy, and
    what it refuses is listed too.

    Guarantees:
        * With no serious problem the modules named by the rules are absent. What a module of
          unknown type computes is not known from its name: give ``example_inputs``.
    """
    found = places(model)
    names = {place.name: place for place in found}
    serious = [(found[0], finding) for finding in whole_model(model)]
    serious += [(place, each) for place in found for rule in RULES for each in rule(place)]
    if example_inputs is not None:
        explained = {place.name for place, each in serious if each.what in CHANGES_ITSELF}
        examples = checked_examples(example_inputs, model=model)
        for name, each in probe(model, found, examples=few(examples)):
            said = each.what == MIXES or each.what.endswith(PAST_NOISE)
            if not (said and name in explained):
                serious.append((names[name], each))
        if not serious and len(examples) > len(few(examples)):
            more = probe_together(model, examples=examples)
            serious += [(names[name], each) for name, each in more]
        if not serious:
            tried = trial(model, examples=few(examples))
            serious += [(names[name], each) for name, each in tried]
    notes = [(place, each) for place in found for rule in NOTES for each in rule(place)]
    notes += [(names[name], each) for name, each in shared_parameters(model)]
    return (*_listed(serious, found, serious=True), *_listed(notes, found, serious=False))


def validate(model: nn.Module, *, example_inputs: Tensor | None = None) -> None:
    """Raises :class:`UnsuitableModel` with every serious problem; is silent where there is none.

    >>> from torch import nn
    >>> validate(nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.BatchNorm1d(8)))
    Traceback (most recent call last):
    ...
    dpsgd.layers.unsuitable.UnsuitableModel: the model cannot be trained privately as it is:
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
    findings: list[tuple[Place, Finding]], found: tuple[Place, ...], *, serious: bool
) -> Iterator[Problem]:
    order = {place.name: position for position, place in enumerate(found)}
    for place, each in sorted(findings, key=lambda pair: order[pair[0].name]):
        yield Problem(
            where=place.name,
            kind=place.kind,
            what=each.what,
            remedy=each.remedy,
            fixable=each.fixable,
            serious=serious,
        )
