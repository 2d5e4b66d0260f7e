"""What is known of a data set without opening it: records, public inputs, classes."""

from __future__ import annotations

from dataclasses import dataclass

from pate.datasets.catalogue import CATALOGUE, NamedSet
from pate.datasets.spec import DataSpec
from pate.errors import InvalidInput

_ROUND = (10, 25, 50, 100, 250, 500, 1000, 2000, 4000, 8000)
_OF_EACH_CLASS = 2  # records of each class that a teacher should see, on average
_SPREAD = 20  # the most teachers of a grid over the fewest


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The public quantities a plan may rest on.

    Guarantees:
        The number of private records comes from the catalogue, which is public for a named set,
        or from the user, who thereby makes it public. No file of the data set is opened.
    """

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
    """The facts of a recipe's data: as given, else as the catalogue has them.

    >>> public_facts(DataSpec(name="mnist"))
    Facts(records=60000, queries=9000, classes=10)
    >>> public_facts(DataSpec(name="digits", public=300, test=300), records=1000)
    Facts(records=1000, queries=300, classes=10)
    """
    known = _own(data) if data.own else _named(data, CATALOGUE[data.name])
    found: dict[str, int] = {}
    for name, option, given in (
        ("records", "--records", records),
        ("queries", "--public", queries),
        ("classes", "--classes", classes),
    ):
        value = known[name] if given is None else given
        if value is None:
            raise InvalidInput(
                f"how many {_WORDS[name]} {data.name} has is not known without opening it; "
                f"say so with {option}"
            )
        if value < _LEAST[name]:
            raise InvalidInput(f"{option} is {value}; it must be {_LEAST[name]} or more")
        found[name] = value
    return Facts(**found)


_WORDS = {"records": "private records", "queries": "public inputs", "classes": "classes"}
_LEAST = {"records": 2, "queries": 1, "classes": 2}


def _own(data: DataSpec) -> dict[str, int | None]:
    return {
        "records": data.private if isinstance(data.private, int) else None,
        "queries": data.public if isinstance(data.public, int) else None,
        "classes": None if data.classes is None else len(data.classes),
    }


def _named(data: DataSpec, named: NamedSet) -> dict[str, int | None]:
    """As :func:`pate.datasets.load` divides the set; the default roles make up its test part."""
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
    """Numbers of teachers worth a look, with the recipe's ``own`` among them.

    >>> teacher_counts(Facts(records=60000, queries=9000, classes=10), own=250)
    [100, 250, 500, 1000, 2000]
    """
    most = facts.records // (_OF_EACH_CLASS * facts.classes)
    fitting = [count for count in _ROUND if count <= most]
    fitting = [count for count in fitting if count * _SPREAD >= max(fitting)]
    return sorted({*fitting, own} if own <= facts.records else fitting) or [2]
