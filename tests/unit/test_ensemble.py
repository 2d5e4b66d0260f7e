"""Teachers over arrays: one record more or less changes one teacher, whatever it holds."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

import pate
from pate.ensemble import Records, _families, _ids
from pate.errors import InvalidInput
from pate.record_votes import count_record_votes, group_names, make_cells
from pate.teachers.adapters import make
from pate.teachers.spec import ModelSpec

RNG = np.random.default_rng(5)
X = RNG.integers(0, 9, size=(300, 3))
Y = (X.sum(axis=1) > 12).astype(int)
U = RNG.integers(0, 9, size=(40, 3)).astype(float)


def counts(records, labels, **settings):
    ensemble = pate.train_teachers(
        "ridge", records, labels, teachers=60, classes=[0, 1], random_state=0, **settings
    )
    return pate.vote(ensemble, U).counts


@pytest.mark.parametrize("record", [[1, 2, 1], [1, 2, 0.5], [1, 2, 2.0**60], [-0.0, 1e-300, 3]])
def test_one_record_moves_one_vote(record):
    """A fraction among whole numbers makes numpy store all of them as doubles."""
    before = counts(X.tolist(), Y.tolist())
    after = counts([*X.tolist(), record], [*Y.tolist(), 0])
    assert np.abs(after - before).sum(axis=1).max() <= 2
    assert np.abs(after - before).max() <= 1


@pytest.mark.parametrize("record", ["a", "a much longer text", 0.5])
def test_one_cell_changes_no_other_records_name(record):
    rows = [[f"c{a}", int(b)] for a, b, _ in X]
    labels = Y.astype(np.int64)
    before = _ids(Records.of(np.array(rows, dtype=object)).array, labels)
    more = np.array([*rows, [record, 0.5]], dtype=object)
    assert _ids(Records.of(more).array, np.append(labels, 0))[:-1] == before
    texts = [[str(a), str(b)] for a, b in rows]
    before = _ids(Records.of(texts).array, labels)
    assert _ids(Records.of([*texts, [str(record), "x"]]).array, np.append(labels, 0))[:-1] == before


def test_records_of_equal_names_are_equal():
    rows = np.array([[1, "a"], [1.0, "a"], [True, "a"], ["1", "a"]], dtype=object)
    array = Records.of(rows).array
    names = _ids(array, np.zeros(4, dtype=np.int64))
    assert [each.partition("-")[0] == names[0] for each in names] == [True, True, True, False]
    assert [type(each) for each in array[:3, 0]] == [float] * 3


def test_whole_numbers_and_doubles_are_one_owner_and_missing_ones_are_refused():
    people = np.arange(300) // 3
    assert group_names(people, 300) == group_names(people.astype(float), 300)
    assert group_names(people.tolist(), 300) == group_names([*map(str, people)], 300)
    with pytest.raises(InvalidInput, match="missing"):
        counts(X, Y, groups=[*people[:-1].tolist(), float("nan")])


def test_a_name_that_is_a_number_and_a_text_has_one_teacher_and_casts_no_votes():
    """As two users, or as one, somebody's removal could bring in a vote of the other."""
    rows, labels = np.array([[0.0], [1.0], [2.0], [0.0], [2.0]]), np.array([0, 1, 0, 1, 1])
    who = np.array([1, "1", "ann", np.int64(1), np.str_("1")], dtype=object)
    given = {"cells": make_cells([[0.0], [1.0], [2.0]]), "classes": 2, "per_user": 1}
    assert group_names(who, 5) == ["1", "1", "ann", "1", "1"]
    with pytest.raises(InvalidInput, match="one name both as a number and as a text"):
        count_record_votes(rows, labels, groups=who, **given)
    mixed = np.array([1, 1.0, "ann", np.int64(2), "bob"], dtype=object)
    assert count_record_votes(rows, labels, groups=mixed, **given).counts.sum() == 4


def test_a_family_keeps_all_places_of_its_group():
    def network(width):
        params = {"hidden": [width]}
        return make(ModelSpec(model="pate.students.networks:Mlp", params=params), classes=2, seed=0)

    teachers = [network(4), network(4), network(8)]
    whole, absent = list(_families(teachers)), list(_families([*teachers[:2], None]))
    assert [list(each) for each in whole] == [[0, 1, 2], [0, 1, 2]]
    assert [list(each) for each in absent] == [[0, 1, 2]]
    assert [place for place, each in whole[0].items() if each is not None] == [0, 1]


def test_votes_show_no_counts():
    votes = pate.Votes(counts=np.array([[123, 45]]))
    assert "123" not in repr(votes)


def test_strings_reach_estimators_that_take_them():
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rows = np.array([[f"c{a}", f"d{b}"] for a, b, _ in X])
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), DecisionTreeClassifier())
    ensemble = pate.train_teachers(model, rows, Y, teachers=5, classes=[0, 1], random_state=0)
    assert pate.vote(ensemble, rows[:7]).counts.sum(axis=1).tolist() == [5] * 7
