"""A profile from another, public data set: its own teachers vote on its own public inputs.

As many teachers as are planned learn from shards as large as the private ones will be, with the
recipe's encoder and teacher. Where the surrogate has fewer records than the private data, its
records are dealt out again in another order, and teachers come to share records: they then agree
a little more than teachers with shards of their own would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets import DataSpec, load
from pate.datasets.catalogue import named_set
from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.planner.profile import Profile
from pate.teachers import TeachersSpec, make, model_for, predict_labels, seed_for, train

_INPUTS = 2000  # voted on, at most: enough for every mean in a plan
_GROUP = 256  # teachers that are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surrogate:
    """A public data set in the place of the private one."""

    name: str
    features: NDArray[Any]  # of the records that teachers learn from
    labels: NDArray[np.int64]
    inputs: NDArray[Any]  # features of the inputs that are voted on
    truth: NDArray[np.int64]
    classes: int


def load_surrogate(
    name: str, recipe: Recipe, *, root: Path, plugin_path: Path | None = None
) -> Surrogate:
    """The named set, encoded as the recipe says; the encoder is fitted on its public part.

    Guarantees:
        The private data set itself is refused: votes of its teachers would be private votes.
    """
    named = named_set(name)
    if name == recipe.data.name:
        raise InvalidInput(
            f"{name} is the private data set, and planning on it would look at the private data; "
            "name another one, or use --accuracy"
        )
    splits = load(DataSpec(name=named.name), root=root)
    truth, labels = splits.public.labels, splits.private.labels
    assert truth is not None  # of every named set
    assert labels is not None
    features, inputs = _encoded(
        recipe, splits.private.features, splits.public.features, plugin_path
    )
    return Surrogate(
        name=name,
        features=features,
        labels=labels,
        inputs=inputs[:_INPUTS],
        truth=truth[:_INPUTS],
        classes=splits.classes,
    )


def _encoded(
    recipe: Recipe, records: NDArray[Any], inputs: NDArray[Any], plugin_path: Path | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    if not getattr(recipe.encoder, "steps", None):
        return records, inputs
    from pate.encoders import fit_encoder

    chain = fit_encoder(recipe.encoder, inputs, plugin_path=plugin_path)
    return chain.transform(records), chain.transform(inputs[:_INPUTS])


def surrogate_profile(
    surrogate: Surrogate,
    spec: TeachersSpec,
    *,
    teachers: int,
    records: int,
    equal: bool = False,
    plugin_path: Path | None = None,
) -> Profile:
    """Votes of so many teachers, with ``records`` dealt out among them as the recipe would.

    ``equal`` is for shards of one size (a shuffle); a hash makes them as even as chance does.
    """
    wanted = spec.model_copy(update={"count": teachers})
    rng = np.random.default_rng(teachers)
    sizes = _sizes(records, teachers, rng, equal=equal)
    if sizes.max() > len(surrogate.labels):
        raise InvalidInput(
            f"{teachers} teachers of {records} records learn from up to {sizes.max()} each, and "
            f"{surrogate.name} has {len(surrogate.labels)} in all; plan for more teachers"
        )
    counts = np.zeros((len(surrogate.truth), surrogate.classes), dtype=np.int64)
    rows = np.arange(len(counts))
    for group in _dealt(len(surrogate.labels), sizes, rng):
        for said in _predictions(surrogate, wanted, group, plugin_path):
            counts[rows, said] += 1
    return Profile(counts=counts, truth=surrogate.truth)


Group = list[tuple[int, NDArray[np.int64]]]  # teachers by their number, with their records


def _sizes(
    records: int, teachers: int, rng: np.random.Generator, *, equal: bool
) -> NDArray[np.int64]:
    if equal:
        return np.bincount(np.arange(records) % teachers, minlength=teachers)
    drawn = rng.multinomial(records, np.full(teachers, 1 / teachers))
    return np.maximum(drawn, 1).astype(np.int64)


def _dealt(pool: int, sizes: NDArray[np.int64], rng: np.random.Generator) -> Iterator[Group]:
    """Records for each teacher from shuffled decks; a teacher never gets one record twice."""
    deck = rng.permutation(pool)
    group: Group = []
    for number, size in enumerate(map(int, sizes)):
        if len(deck) < size:
            fresh = rng.permutation(pool)
            deck = np.concatenate([deck, fresh[~np.isin(fresh, deck)], fresh[np.isin(fresh, deck)]])
        group.append((number, deck[:size]))
        deck = deck[size:]
        if len(group) == _GROUP:
            yield group
            group = []
    if group:
        yield group


def _predictions(
    surrogate: Surrogate, spec: TeachersSpec, group: Group, plugin_path: Path | None
) -> Iterator[NDArray[np.int64]]:
    made = [
        make(
            model_for(spec, number),
            classes=surrogate.classes,
            seed=seed_for(spec, number),
            plugin_path=plugin_path,
        )
        for number, _ in group
    ]
    for teacher, (_, own) in zip(made, group, strict=True):
        train(teacher, surrogate.features[own], surrogate.labels[own], private=False)
        yield predict_labels(teacher, surrogate.inputs, classes=surrogate.classes, private=False)
