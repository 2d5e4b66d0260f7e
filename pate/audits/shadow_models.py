"""Shadow models: trained like the target on random halves of records whose membership is known.

They show an attacker what a model of this kind does at a record it has seen, and at one it has not.
Networks of one architecture, and linear models, train together as one program; any other training,
such as a whole PATE pipeline from teachers to student, is a function ``fit(X, y, seed)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from pate._validate import check_whole
from pate.audits.predictions import Labelled, Predict, check_labels, confidences
from pate.ensemble import Model
from pate.errors import InvalidInput
from pate.teachers.protocol import group_families, train_many

Fit = Callable[[Any, Any, int], Predict]  # records, labels, seed → predict_proba
Shard = tuple[NDArray[Any], NDArray[np.int64]]

_LEAST_SIDE = 2  # shadows with each record, and without it


class FitMany(Protocol):
    """A training that makes several models at once."""

    def fit_many(self, shards: Sequence[Shard], seeds: Sequence[int]) -> list[Predict]:
        """Return ``predict_proba`` of a model for each shard."""
        ...  # pragma: no cover


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelFit:
    """The training of a model that :class:`pate.PATEClassifier` takes as a teacher.

    Parameters
    ----------
    model : str, class, callable, estimator or torch.nn.Module
        The model: "ridge", "logistic", a class or factory, or an object that is copied.
    classes : int
        The number of classes.
    settings : mapping, optional
        Keys of a recipe's model, such as ``epochs``, ``batch_size``, ``lr`` of a torch module.

    >>> X, y = np.array([[0.0], [0.1], [1.0], [0.9]]), np.array([0, 0, 1, 1])
    >>> (predict,) = ModelFit(model="ridge", classes=2).fit_many([(X, y)], [0])
    >>> predict(X).argmax(axis=1)
    array([0, 0, 1, 1])
    """

    model: Any
    classes: int
    settings: Mapping[str, Any] | None = None

    def fit_many(self, shards: Sequence[Shard], seeds: Sequence[int]) -> list[Predict]:
        """Train models of one kind together where they can be."""
        kind = Model.of(self.model, self.settings)
        models = [kind.build(classes=self.classes, seed=seed) for seed in seeds]
        for family in group_families(models):
            errors = train_many(
                [models[place] for place in family],
                [shards[place] for place in family],
                seeds=[seeds[place] for place in family],
                private=False,
            )
            for error in filter(None, errors):
                raise error
        return [_Confidences(model=model, classes=self.classes) for model in models]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Confidences:
    model: Any
    classes: int

    def __call__(self, X: Any) -> Any:
        table = confidences(self.model, X)
        missing = self.classes - table.shape[1]  # the last classes, if a shadow never saw them
        return np.pad(table, ((0, 0), (0, missing))) if missing > 0 else table


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shadows:
    """The predictions of shadow models for members, others and a population, in this order.

    Parameters
    ----------
    probabilities : ndarray of shape (n_shadows, n_records, n_classes)
        What each shadow predicts for each record.
    included : ndarray of bool, shape (n_shadows, n_records)
        The records each shadow was trained on.
    labels : ndarray of shape (n_records,)
        The records' labels.
    members, others : int
        The numbers of records that the target was and was not trained on; the rest are the
        population, which the target was not trained on either and which is not judged.
    """

    probabilities: NDArray[np.float32]
    included: NDArray[np.bool_]
    labels: NDArray[np.int64]
    members: int
    others: int

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def trained_on(self) -> NDArray[np.bool_]:
        """The records that some shadow was trained on."""
        return np.asarray(self.included.any(axis=0))

    def pick_target(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.bool_], Shadows]:
        """Return a shadow's predictions and its records, and all other shadows.

        Each shadow may serve as a target against the rest: many targets judge many more records,
        which low false positive rates need.
        """
        rest = np.arange(len(self)) != number
        others = Shadows(
            probabilities=self.probabilities[rest],
            included=self.included[rest],
            labels=self.labels,
            members=self.members,
            others=self.others,
        )
        return self.probabilities[number], self.included[number], others


def train_shadows(
    fit: Fit | FitMany,
    members: Labelled,
    others: Labelled,
    *,
    population: Labelled | None = None,
    online: bool = True,
    count: int = 64,
    seed: int = 0,
    batch: int = 64,
) -> Shadows:
    """Train shadow models, each record in or out of each by a fair coin.

    Parameters
    ----------
    fit : callable or object with ``fit_many``
        The training of the target: ``fit(X, y, seed)`` returns ``predict_proba``. Use
        :class:`ModelFit` for networks and linear models, which train together.
    members, others : pair of arrays
        The records to be judged, with their labels. Coins do not depend on which of them a record
        is among.
    population : pair of arrays, optional
        More records of the attacker, with labels. Required where not ``online``.
    online : bool
        Train shadows on the judged records too. Otherwise on the population alone, once for any
        number of records to judge: the attack is cheaper and weaker.
    count : int
        The number of shadows; 4 or more.
    seed : int
        Seeds the coins and the trainings.
    batch : int
        The most shadows trained at once.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 5)); y = np.arange(40) % 2
    >>> shadows = train_shadows(ModelFit(model="ridge", classes=2), (X[:20], y[:20]),
    ...                         (X[20:], y[20:]), count=8)
    >>> shadows.probabilities.shape, int(shadows.included.sum(axis=0).min()) >= 2
    ((8, 40, 2), True)
    """
    check_whole("count", count, least=2 * _LEAST_SIDE)
    parts = [members, others, *([] if population is None else [population])]
    records = np.concatenate([np.asarray(X) for X, _ in parts])
    labels = np.concatenate([np.asarray(y) for _, y in parts])
    check_labels(labels, records=len(records))
    sizes = [len(np.asarray(y)) for _, y in parts]
    if not online and population is None:
        raise InvalidInput(
            "offline shadows are trained on a population; give population=, or online=True"
        )
    pool = np.arange(len(records) if online else sizes[2])
    pool += 0 if online else sizes[0] + sizes[1]
    if len(pool) < 4:
        raise InvalidInput(f"shadows would be trained on {len(pool)} records; give more")
    included = np.zeros((count, len(records)), dtype=bool)
    included[:, pool] = _coins(np.random.default_rng(seed), count, len(pool))
    states = np.random.SeedSequence(seed).generate_state(count)
    answers: list[NDArray[np.float32]] = []
    for start in range(0, count, batch):
        numbers = range(count)[start : start + batch]
        shards = [(records[included[n]], labels[included[n]]) for n in numbers]
        seeds = [int(states[n]) for n in numbers]
        if hasattr(fit, "fit_many"):
            models = fit.fit_many(shards, seeds)
        else:
            models = [fit(X, y, each) for (X, y), each in zip(shards, seeds, strict=True)]
        answers += [confidences(model, records, labels).astype(np.float32) for model in models]
    return Shadows(
        probabilities=np.stack(answers),
        included=included,
        labels=labels,
        members=sizes[0],
        others=sizes[1],
    )


def _coins(rng: np.random.Generator, count: int, records: int) -> NDArray[np.bool_]:
    """Toss a coin for each shadow and record, again where too few shadows are on a side."""
    coins = rng.random((count, records)) < 0.5
    while True:
        heads = coins.sum(axis=0)
        again = (heads < _LEAST_SIDE) | (heads > count - _LEAST_SIDE)
        if not again.any():
            return coins
        coins[:, again] = rng.random((count, int(again.sum()))) < 0.5
