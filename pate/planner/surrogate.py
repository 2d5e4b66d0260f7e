"""A public data set in place of the private one: its teachers vote, and a student rehearses.

As many teachers as are planned learn from shards as large as the private ones will be, with the
recipe's encoder and teacher. Where the surrogate has fewer records than the private data, its
records are assigned again in another order, and teachers come to share records: they then agree
a little more than teachers with shards of their own would.

More labels or better ones: no formula decides which is worth more to a student. On a surrogate it
can be tried, because its votes and its truth are public: labels are drawn by the mechanism itself,
a model of the teachers' kind learns from them, and is tested on inputs that nobody voted on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting.ledger.known_records import known_ledgers
from pate.datasets.catalogue import CATALOGUE, named_set
from pate.datasets.content import content_digests
from pate.datasets.loading import load
from pate.datasets.own import find_file
from pate.datasets.spec import DataSpec
from pate.datasets.table import Splits
from pate.errors import InvalidInput, MissingFile, PateError, TeacherError
from pate.mechanisms import AggregateSpec, Plan, voting_mechanism
from pate.mechanisms.mechanism import IntArray
from pate.pipeline.recipe import Recipe
from pate.planner.profile import Profile
from pate.teachers.adapters import make
from pate.teachers.protocol import (
    Teacher,
    group_families,
    predict_labels,
    predict_many_labels,
    train,
    train_many,
)
from pate.teachers.spec import TeachersSpec, model_for, seed_for
from pate.votes import Votes

_POOL = 20_000  # records that teachers learn from, at most: more take long to encode
_LEDGERS = ("ledger", "dpsgd.ledger")  # of votes, and of training with noise
_NAME, _PUBLIC, _TEST = "surrogate", 0.3, 0.2  # of a file: shares to vote on and to test on
_GROUP = 256  # teachers that are in memory at once
_DRAWS = 3  # of labels, for each setting that is tried
_NONE = np.empty(0, dtype=np.int64)


def surrogate_splits(
    name: str, recipe: Recipe, *, root: Path, plugin_path: Path | None = None
) -> Splits:
    """Return the named set, or the records of a file, with columns as the recipe's ``[data]``.

    Guarantees:
        The private data set itself is refused: votes of its teachers would be private votes. It is
        recognised by its name, its file, and the digest by which its ledger is known; none of its
        files is opened for that.
    """
    refused = InvalidInput(
        f"{name} is the private data set, and planning on it would look at the private data; name "
        "another one, or use --accuracy"
    )
    if name == recipe.data.name:
        raise refused
    if not _is_file(name):
        try:
            named_set(name)
        except InvalidInput as error:
            raise InvalidInput(f"{error}; of your own data, give the path of a file") from None
        return load(DataSpec(name=name), root=root)
    given = recipe.data
    own = [part for part in (given.source, given.private_path) if part is not None]
    for each in own:
        with contextlib.suppress(MissingFile):  # then it is not this one
            if find_file(given, each, root).resolve() == Path(name).resolve():
                raise refused
    keys = ("label", "id", "group", "features", "categorical", "classes", "image_size")
    columns = {key: getattr(given, key) for key in keys} if given.own else {}
    spec = DataSpec(name=_NAME, source=name, public=_PUBLIC, test=_TEST, **columns)
    splits = load(spec, root=root, plugin_path=plugin_path)
    if _known_as(recipe, root) & {*_ledgers_of(name, splits, root=root)}:
        raise refused
    return splits


def _is_file(name: str) -> bool:
    looks_so = Path(name).exists() or Path(name).suffix != "" or Path(name).name != name
    return looks_so and name not in CATALOGUE


def _known_as(recipe: Recipe, root: Path) -> set[Path]:
    """Return the places of the ledgers of a recipe's data set."""
    return {(root / "ledgers" / f"{recipe.data.name}.{end}").resolve() for end in _LEDGERS}


def _ledgers_of(name: str, splits: Splits, *, root: Path) -> list[Path]:
    """Return the ledgers that are known for the records of a file."""
    spec = DataSpec(name=_NAME, source=name, public=_PUBLIC, test=_TEST)
    return known_ledgers(content_digests(spec, splits, root=root, draw_key=False))


def load_surrogate(
    name: str,
    recipe: Recipe,
    splits: Splits,
    *,
    most: int = 1,
    teachers: TeachersSpec | None = None,
    plugin_path: Path | None = None,
) -> Surrogate:
    """Return a set, encoded as in the recipe; the encoder is fitted on its public part.

    ``most`` of its records are kept, if that is more than usual. ``teachers`` take the place of
    the recipe's.
    """
    labels, truth, test_truth = splits.private.labels, splits.public.labels, splits.test.labels
    assert labels is not None and truth is not None and test_truth is not None  # noqa: PT018
    pool = np.random.default_rng(0).permutation(len(labels))[: max(_POOL, most)]
    parts = [splits.private.features[pool], splits.public.features, splits.test.features]
    recipe.encoder.require_categories(splits.categories)
    if recipe.encoder.steps:
        from pate.encoders.chain import fit_encoder

        chain = fit_encoder(
            recipe.encoder, parts[1], categories=splits.categories, plugin_path=plugin_path
        )
        parts = [chain.transform(part) for part in parts]
    return Surrogate(
        name=name,
        features=parts[0],
        labels=labels[pool],
        inputs=parts[1],
        truth=truth,
        test=parts[2],
        test_truth=test_truth,
        classes=splits.classes,
        spec=teachers or recipe.teachers,
        plugin_path=plugin_path,
    )


def used_as_private(name: str, splits: Splits, *, root: Path) -> bool:
    """Return whether a ledger shows that something was released from this set as private data."""
    if _is_file(name):
        return bool(_ledgers_of(name, splits, root=root))
    return any((root / "ledgers" / f"{name}.{end}").exists() for end in _LEDGERS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surrogate:
    """A public data set in the place of the private one, with the recipe's teachers. PUBLIC."""

    name: str
    features: NDArray[Any]  # of the records that teachers learn from
    labels: NDArray[np.int64]
    inputs: NDArray[Any]  # features of the inputs that are voted on
    truth: NDArray[np.int64]
    test: NDArray[Any]  # features of inputs that nobody votes on
    test_truth: NDArray[np.int64]
    classes: int
    spec: TeachersSpec
    plugin_path: Path | None = None

    def profile(self, *, teachers: int, records: int, equal: bool = False) -> Profile:
        """Return the votes of so many teachers, with ``records`` assigned as in the recipe.

        ``equal`` is for shards of one size (a shuffle); a hash makes them as even as chance does.
        """
        rng = np.random.default_rng(teachers)
        if equal:
            sizes = np.bincount(np.arange(records) % teachers, minlength=teachers)
        else:
            drawn = rng.multinomial(records, np.full(teachers, 1 / teachers))
            sizes = np.maximum(drawn, 1)
        if sizes.max() > len(self.labels):
            raise InvalidInput(
                f"{teachers} teachers of {records} records learn from up to {sizes.max()} each, "
                f"and {self.name} has {len(self.labels)} in all; plan for more teachers"
            )
        spec = self.spec.model_copy(update={"count": teachers})
        counts = np.zeros((len(self.truth), self.classes), dtype=np.int64)
        rows = np.arange(len(counts))
        shards = list(enumerate(_assigned(len(self.labels), sizes.tolist(), rng)))
        for start in range(0, teachers, _GROUP):
            for predicted in self._predictions(spec, shards[start : start + _GROUP]):
                counts[rows, predicted] += 1
        return Profile(counts=counts, truth=self.truth)

    def rehearse(self, profile: Profile, setting: AggregateSpec, plan: Plan) -> float | None:
        """Return a student's accuracy, averaged over draws; None where there are too few inputs.

        ``profile`` holds the votes on all inputs of the surrogate.
        """
        if plan.queries > len(self.truth):
            return None
        mechanism = voting_mechanism(setting)
        reached = []
        for draw in range(_DRAWS):
            rng = np.random.default_rng([draw, profile.teachers])  # the votes are public
            order = rng.permutation(profile.inputs)
            asked = order[: plan.queries]
            release = mechanism.release(
                Votes(counts=profile.counts[asked]), rng=rng, most_answers=plan.answers
            )
            if len(release.labels):
                rows = asked[release.answered]
                reached.append(self.taught(rows, release.labels, order[plan.queries :]))
        return float(np.mean(reached)) if reached else None

    def taught(self, rows: IntArray, labels: IntArray, unasked: IntArray = _NONE) -> float:
        """Return the accuracy of a model of these labels, on test and unasked inputs."""
        student = self._make(self.spec, 0)
        train(student, self.inputs[rows], labels, private=False)
        inputs = np.concatenate([self.inputs[unasked], self.test])
        truth = np.concatenate([self.truth[unasked], self.test_truth])
        predicted = predict_labels(student, inputs, classes=self.classes, private=False)
        return float((predicted == truth).mean())

    def _predictions(
        self, spec: TeachersSpec, group: list[tuple[int, IntArray]]
    ) -> Iterator[IntArray]:
        """Train teachers, given by their number and records, and yield each one's labels."""
        made = [self._make(spec, number) for number, _ in group]
        for family in group_families(made):
            kin = [made[place] for place in family]
            rows = [group[place][1] for place in family]
            shards = [(self.features[each], self.labels[each]) for each in rows]
            for error in train_many(kin, shards, private=False):
                if error is not None:
                    raise error
            for predicted in predict_many_labels(
                kin, self.inputs, classes=self.classes, private=False
            ):
                if predicted is None or isinstance(predicted, PateError):
                    raise predicted or TeacherError("a teacher of the surrogate cast no vote")
                yield predicted

    def _make(self, spec: TeachersSpec, number: int) -> Teacher:
        return make(
            model_for(spec, number),
            classes=self.classes,
            seed=seed_for(spec, number),
            plugin_path=self.plugin_path,
        )


def _assigned(pool: int, sizes: list[int], rng: np.random.Generator) -> Iterator[IntArray]:
    """Yield each teacher's records from shuffled decks; a teacher never gets one record twice."""
    deck = rng.permutation(pool)
    for size in sizes:
        if len(deck) < size:
            fresh = rng.permutation(pool)
            held = np.isin(fresh, deck)
            deck = np.concatenate([deck, fresh[~held], fresh[held]])
        yield deck[:size]
        deck = deck[size:]
