"""Public facts of a data set, and consensus profiles: votes of k teachers as they might fall.

In the simple model each input has a share p of teachers that are right about it, drawn from a Beta
distribution whose mean is the accuracy of one teacher: most inputs are easy, some are hard for
everybody. Half of the wrong votes fall on one class, and the others on any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.accounting.moments import FloatArray
from pate.datasets.catalogue import CATALOGUE, NamedSet
from pate.datasets.spec import DataSpec
from pate.errors import InvalidInput
from pate.mechanisms.noisy_max import gaussian_win_chances

_ROUND = (10, 25, 50, 100, 250, 500, 1000, 2000, 4000, 8000)  # numbers of teachers
_OF_EACH_CLASS = 2  # records of each class that a teacher should see, on average
_SPAN = 20  # the most teachers of a grid over the fewest
_UNKNOWN = {"records": "private records", "queries": "public inputs", "classes": "classes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The public quantities that a plan may rest on."""

    records: int  # private ones
    queries: int  # public inputs
    classes: int


def public_facts(
    data: DataSpec,
    *,
    records: int | None = None,
    queries: int | None = None,
    classes: int | None = None,
) -> Facts:
    """Return the facts of a recipe's data: as given, else as the catalogue has them.

    Guarantees:
        The number of private records comes from the catalogue, which is public for a named set,
        or from the user, who thereby makes it public. No file of the data set is opened.

    >>> public_facts(DataSpec(name="mnist"))
    Facts(records=60000, queries=9000, classes=10)
    >>> public_facts(DataSpec(name="digits", public=300, test=300), records=1000)
    Facts(records=1000, queries=300, classes=10)
    """
    known = _own(data) if data.own else _named(data, CATALOGUE[data.name])
    found: dict[str, int] = {}
    unknown: dict[str, str] = {}
    for name, option, given, least in (
        ("records", "--records", records, 2),
        ("queries", "--public", queries, 1),
        ("classes", "--classes", classes, 2),
    ):
        value = known[name] if given is None else given
        if value is None:
            unknown[_UNKNOWN[name]] = option
            continue
        if value < least:
            raise InvalidInput(f"{option} is {value}; it must be {least} or more")
        found[name] = value
    if unknown:
        raise InvalidInput(
            f"how many {' and '.join(unknown)} {data.name} has is not known without opening it; "
            f"give it with {' and '.join(unknown.values())}"
        )
    return Facts(**found)


def _own(data: DataSpec) -> dict[str, int | None]:
    return {
        "records": data.private if isinstance(data.private, int) else None,
        "queries": data.public if isinstance(data.public, int) else None,
        "classes": None if data.classes is None else len(data.classes),
    }


def _named(data: DataSpec, named: NamedSet) -> dict[str, int | None]:
    """Divide as :func:`pate.datasets.load` does; default roles make up the set's test part."""
    held_out = named.public + named.test
    training = named.records - held_out if named.official_test else named.records
    public, test = data.public or named.public, data.test or named.test
    if named.official_test and data.public_from == "test":
        queries, left = _amount(public, of=held_out - _amount(test, of=held_out)), training
    elif named.official_test:
        queries = _amount(public, of=training)
        left = training - queries
    else:
        rest = training - _amount(test, of=training)
        queries = _amount(public, of=rest)
        left = rest - queries
    private = left if data.private is None else min(left, _amount(data.private, of=left))
    return {"records": private, "queries": queries, "classes": len(named.class_names)}


def _amount(amount: int | float, *, of: int) -> int:
    return amount if isinstance(amount, int) else round(amount * of)


def teacher_counts(facts: Facts, *, own: int) -> list[int]:
    """Return numbers of teachers worth considering, with the recipe's ``own`` among them.

    >>> teacher_counts(Facts(records=60000, queries=9000, classes=10), own=250)
    [100, 250, 500, 1000, 2000]
    """
    most = facts.records // (_OF_EACH_CLASS * facts.classes)
    fitting = [count for count in _ROUND if count <= most]
    fitting = [count for count in fitting if count * _SPAN >= max(fitting)]
    return sorted({*fitting, own} if own <= facts.records else fitting) or [2]


# --- profiles -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """Votes on inputs whose class is known. PUBLIC: none of it comes from the private data."""

    counts: NDArray[np.int64]  # (inputs, classes); every row sums to the number of teachers
    truth: NDArray[np.int64]  # (inputs,)

    @property
    def teachers(self) -> int:
        return int(self.counts[0].sum())

    @property
    def classes(self) -> int:
        return int(self.counts.shape[1])

    @property
    def inputs(self) -> int:
        return int(self.counts.shape[0])

    def first(self, inputs: int) -> Profile:
        """Return the first so many inputs."""
        return Profile(counts=self.counts[:inputs], truth=self.truth[:inputs])

    @property
    def teacher_accuracy(self) -> float:
        """The accuracy of one teacher, on average."""
        right = self.counts[np.arange(self.inputs), self.truth]
        return float(right.mean()) / self.teachers

    @property
    def plurality_accuracy(self) -> float:
        """The accuracy of the plurality without noise; ties count by the share of the truth.

        >>> Profile(counts=np.array([[3, 1], [2, 2]]), truth=np.array([0, 1])).plurality_accuracy
        0.75
        """
        largest = self.counts == self.counts.max(axis=1, keepdims=True)
        right = largest[np.arange(self.inputs), self.truth] / largest.sum(axis=1)
        return float(right.mean())


def right_with_gaussian(profile: Profile, sigma: float) -> FloatArray:
    """Return Pr[GNMax answers with the truth], for each input.

    >>> profile = Profile(counts=np.array([[70, 30]]), truth=np.array([0]))
    >>> round(float(right_with_gaussian(profile, 40.0)[0]), 4)  # Φ(40 / (40·√2))
    0.7602
    """
    return gaussian_win_chances(leads(profile), sigma)


def leads(profile: Profile) -> FloatArray:
    """Return the lead of the truth over every other class, in votes, (inputs, classes − 1)."""
    others = np.ones(profile.counts.shape, dtype=bool)
    rows = np.arange(profile.inputs)
    others[rows, profile.truth] = False
    ahead = profile.counts[rows, profile.truth][:, None] - profile.counts
    return ahead[others].reshape(profile.inputs, -1).astype(np.float64)


# Both so that plurality and consensus come out as linear teachers of Fashion-MNIST have them.
SPREAD = 2.0  # α + β of the Beta distribution: the smaller, the more inputs are easy or hopeless
RIVAL = 0.5  # of the wrong votes, the share of the wrong class that tempts most
_EXPONENT = 0.5  # a teacher's error falls with shard ** −0.5, where one accuracy is all we know
_INPUTS = 2000


def simulated(
    *, teachers: int, accuracy: float, classes: int, inputs: int = _INPUTS, seed: int = 0
) -> Profile:
    """Return votes of ``teachers`` that are right with probability ``accuracy`` on average.

    >>> profile = simulated(teachers=250, accuracy=0.8, classes=10)
    >>> round(profile.teacher_accuracy, 2), profile.plurality_accuracy > 0.8
    (0.8, True)
    """
    if not 1 / classes < accuracy < 1:
        raise InvalidInput(
            f"--accuracy {accuracy:g} must be below 1 and above {1 / classes:g}, which guessing "
            f"among {classes} classes reaches"
        )
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=inputs)
    right = rng.beta(SPREAD * accuracy, SPREAD * (1 - accuracy), size=inputs)
    wrong = 1 - right
    rival = (truth + rng.integers(1, classes, size=inputs)) % classes
    others = 1 - RIVAL if classes > 2 else 0.0
    shares = np.repeat((wrong * others / max(1, classes - 2))[:, None], classes, axis=1)
    rows = np.arange(inputs)
    shares[rows, rival] = wrong * (1 - others)
    shares[rows, truth] = right
    shares /= shares.sum(axis=1, keepdims=True)
    return Profile(counts=rng.multinomial(teachers, shares).astype(np.int64), truth=truth)


def parse_accuracies(texts: Sequence[str], *, own: int) -> dict[int, float]:
    """Read ``["0.8"]`` at the recipe's ``own`` teachers, or ``["100=0.9", "1000=0.7"]`` at any.

    >>> parse_accuracies(["0.8"], own=250), parse_accuracies(["100=0.9", "1000=0.7"], own=250)
    ({250: 0.8}, {100: 0.9, 1000: 0.7})
    """
    known: dict[int, float] = {}
    for text in texts:
        count, equals, value = text.rpartition("=")
        try:
            known[int(count) if equals else own] = float(value)
        except ValueError:
            raise InvalidInput(
                f"--accuracy {text} is neither a share such as 0.8 nor one for a number of "
                "teachers such as 500=0.8"
            ) from None
    if any(count < 1 or not 0 < share < 1 for count, share in known.items()):
        raise InvalidInput(f"--accuracy {' '.join(texts)}: accuracies lie between 0 and 1")
    return known


def accuracy_at(teachers: int, known: Mapping[int, float], *, classes: int) -> float:
    """Return one teacher's accuracy among so many, from accuracies at other numbers.

    Between two known numbers log error is linear in log k; beyond them, and where only one is
    known, the error grows with the square root of k, as it falls with that of a shard's records.

    >>> round(accuracy_at(1000, {250: 0.9}, classes=10), 2)
    0.8
    """
    counts = sorted(known)
    errors = [math.log(1 - known[count]) for count in counts]
    if teachers <= counts[0]:
        error = errors[0] + _EXPONENT * math.log(teachers / counts[0])
    elif teachers >= counts[-1]:
        error = errors[-1] + _EXPONENT * math.log(teachers / counts[-1])
    else:
        error = float(np.interp(math.log(teachers), np.log(counts), errors))
    worst = 1 - 1.05 / classes  # a little better than guessing
    return 1 - min(math.exp(error), worst)
