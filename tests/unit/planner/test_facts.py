"""Public quantities: as data are really divided, without opening them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate.datasets.loading import load
from pate.datasets.spec import DataSpec
from pate.errors import InvalidInput
from pate.planner.profile import Facts, public_facts, teacher_counts


@pytest.mark.parametrize(
    "given",
    [
        {"name": "digits"},
        {"name": "digits", "public": 300, "test": 300},
        {"name": "digits", "public": 100, "test": 50, "private": 400},
        {"name": "breast-cancer", "public": 150, "test": 100},
    ],
)
def test_named_sets_are_divided_as_when_loaded(given: dict[str, int], tmp_path: Path) -> None:
    spec = DataSpec.model_validate(given)
    splits = load(spec, root=tmp_path)
    facts = public_facts(spec)
    assert facts.queries == splits.public.records
    assert facts.records == splits.private.records
    assert facts.classes == splits.classes


def test_an_official_test_part() -> None:
    assert public_facts(DataSpec(name="mnist")) == Facts(records=60000, queries=9000, classes=10)
    spec = DataSpec(name="mnist", public=10000, public_from="training")
    assert public_facts(spec) == Facts(records=50000, queries=10000, classes=10)
    assert public_facts(DataSpec(name="mnist", private=0.5, public=0.5)).records == 30000
    assert public_facts(DataSpec(name="mnist", private=0.5, public=0.5)).queries == 4500


def test_own_data_are_as_given_or_unknown() -> None:
    spec = DataSpec(name="mine", source="nowhere.npz", public=30, test=30)
    for missing, rest in (
        ("--records", {"classes": 3}),
        ("--classes", {"records": 90}),
    ):
        with pytest.raises(InvalidInput, match=f"give it with {missing}"):
            public_facts(spec, **rest)
    assert public_facts(spec, records=90, classes=3) == Facts(records=90, queries=30, classes=3)
    with pytest.raises(InvalidInput, match="--classes is 1"):
        public_facts(spec, records=90, classes=1)


def test_numbers_of_teachers_leave_records_of_each_class() -> None:
    facts = Facts(records=1197, queries=300, classes=10)
    assert teacher_counts(facts, own=100) == [10, 25, 50, 100]
    assert teacher_counts(facts, own=5000) == [10, 25, 50]
    assert teacher_counts(Facts(records=8, queries=3, classes=2), own=4) == [4]
