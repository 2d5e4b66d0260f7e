"""ridge and logistic: the right solution, alone or in a family, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, Ridge

from pate.errors import InvalidInput, TeacherError
from pate.teachers import linear as linear_module
from pate.teachers.adapters import make
from pate.teachers.linear import LogisticTeacher, RidgeTeacher
from pate.teachers.spec import ModelSpec

SHAPES = [(40, 70), (60, 9), (25, 25)]  # fewer records than features, more, as many
EXACT = {"tol": 1e-9, "max_iter": 2000}


def shard(records, features, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(records) % classes
    centres = np.random.default_rng(99).normal(size=(classes, features))
    scale = 5 / (1 + np.arange(features))
    X = (centres[y] + rng.normal(size=(records, features))) * scale + 3
    return X.astype(np.float32), y


def unit(X):
    """The mean squared distance of a record from the mean."""
    X = X.astype(np.float64)
    return np.square(X - X.mean(axis=0)).sum() / len(X)


@pytest.mark.parametrize(("records", "features"), SHAPES)
@pytest.mark.parametrize("alpha", [1e-4, 0.05, 3.0])
def test_ridge_is_ridge_regression_on_indicators(records, features, alpha):
    X, y = shard(records, features)
    teacher = RidgeTeacher(classes=4, alpha=alpha).fit(X, y)
    reference = Ridge(alpha=alpha * unit(X)).fit(X.astype(np.float64), np.eye(4)[y])
    np.testing.assert_allclose(teacher.weights, reference.coef_.T, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(teacher.intercept, reference.intercept_, rtol=2e-6, atol=2e-6)
    queries = shard(50, features, seed=1)[0]
    np.testing.assert_allclose(
        teacher.decision(queries), reference.predict(queries.astype(np.float64)), atol=2e-5
    )


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_alpha_means_the_same_in_any_unit(factor):
    X, y = shard(40, 70)
    one = RidgeTeacher(classes=4).fit(X.astype(np.float64), y)
    other = RidgeTeacher(classes=4).fit(X.astype(np.float64) * factor, y)
    np.testing.assert_allclose(other.weights * factor, one.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("records", "features"), SHAPES)
@pytest.mark.parametrize("alpha", [1e-3, 0.03, 1.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_logistic_is_that_of_scikit_learn(records, features, alpha, classes):
    X, y = shard(records, features, classes)
    teacher = LogisticTeacher(classes=classes, alpha=alpha, **EXACT).fit(X, y)
    strength = 1 / (alpha * unit(X))
    reference = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-12)
    reference.fit(X.astype(np.float64), y)
    weights, intercept = reference.coef_, reference.intercept_
    if classes == 2:  # one difference there, two columns here
        weights = np.concatenate([-weights, weights]) / 2
        intercept = np.concatenate([-intercept, intercept]) / 2
    np.testing.assert_allclose(teacher.weights.T, weights, rtol=1e-5, atol=2e-6)
    # only differences of intercepts matter to probabilities
    found = teacher.intercept - teacher.intercept.mean()
    np.testing.assert_allclose(found, intercept - intercept.mean(), rtol=1e-5, atol=1e-5)
    queries = shard(200, features, classes, seed=1)[0]
    np.testing.assert_array_equal(teacher.predict(queries), reference.predict(queries))


def test_the_default_tolerance_is_enough_to_predict_alike():
    data = load_digits()
    X, y, queries = data.data[:240], data.target[:240], data.data[240:]
    loose = LogisticTeacher(classes=10).fit(X, y).predict(queries)
    exact = LogisticTeacher(classes=10, **EXACT).fit(X, y).predict(queries)
    assert (loose == exact).mean() > 0.99


@pytest.mark.parametrize("teacher", [RidgeTeacher, LogisticTeacher])
def test_digits_are_learned(teacher):
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    X, y = data.images[order], data.target[order]
    small = teacher(classes=10).fit(X[:240], y[:240])
    assert (small.predict(X[240:]) == y[240:]).mean() > 0.88


@pytest.fixture
def ragged():
    sizes = [30, 1, 30, 77, 2, 30, 31, 77, 12]
    return [shard(n, 40, seed=number) for number, n in enumerate(sizes)]


@pytest.mark.parametrize("cls", [RidgeTeacher, LogisticTeacher])
@pytest.mark.parametrize("stack_bytes", [1, 2 * 30 * 40 * 8, 2**30])
def test_a_family_is_the_same_to_the_last_bit_as_its_members_alone(
    cls, stack_bytes, ragged, monkeypatch
):
    monkeypatch.setattr(linear_module, "STACK_BYTES", stack_bytes)
    together = [cls(classes=4) for _ in ragged]
    assert cls.fit_many(together, ragged) == [None] * len(ragged)
    for teacher, (X, y) in zip(together, ragged, strict=True):
        alone = cls(classes=4).fit(X, y)
        np.testing.assert_array_equal(teacher.weights, alone.weights)
        np.testing.assert_array_equal(teacher.intercept, alone.intercept)
        assert teacher.weights.base is None  # it keeps no stack in memory


@pytest.mark.parametrize("cls", [RidgeTeacher, LogisticTeacher])
def test_a_shard_changes_one_teacher(cls, ragged):
    before = [cls(classes=4) for _ in ragged]
    cls.fit_many(before, ragged)
    changed = list(ragged)
    changed[2] = (ragged[2][0][1:], ragged[2][1][1:])  # one record less: another size, too
    after = [cls(classes=4) for _ in ragged]
    cls.fit_many(after, changed)
    same = [np.array_equal(a.weights, b.weights) for a, b in zip(before, after, strict=True)]
    assert same == [place != 2 for place in range(len(ragged))]


@pytest.mark.parametrize("cls", [RidgeTeacher, LogisticTeacher])
def test_votes_of_a_family_are_those_of_its_members(cls, ragged, monkeypatch):
    teachers = [cls(classes=4) for _ in ragged]
    cls.fit_many(teachers, ragged)
    queries = shard(300, 40, seed=50)[0]
    monkeypatch.setattr(linear_module, "SCORE_BYTES", 4 * 4 * len(ragged) * 37)
    said = cls.predict_many(teachers, queries)
    for teacher, labels in zip(teachers, said, strict=True):
        np.testing.assert_array_equal(labels, teacher.predict(queries))
    missing = [None if place in (0, 4) else teacher for place, teacher in enumerate(teachers)]
    np.testing.assert_array_equal(
        np.delete(cls.predict_many(missing, queries), [0, 4], axis=0),
        np.delete(said, [0, 4], axis=0),
    )


@pytest.mark.parametrize("cls", [RidgeTeacher, LogisticTeacher])
def test_classes_a_shard_never_saw_are_never_predicted(cls):
    X, y = shard(40, 6)
    teacher = cls(classes=6).fit(X[y != 1], y[y != 1])
    assert np.isneginf(teacher.intercept).tolist() == [False, True, False, False, True, True]
    far = 1e4 * np.random.default_rng(0).normal(size=(3000, 6))
    assert set(teacher.predict(far)) == {0, 2, 3}


@pytest.mark.parametrize("cls", [RidgeTeacher, LogisticTeacher])
def test_shards_of_one_class_one_record_or_no_differences(cls):
    queries = np.random.default_rng(0).normal(size=(20, 3))
    for X, y in [
        (queries[:1], [2]),
        (queries[:9], [2] * 9),
        (np.ones((3, 3)), [2, 2, 0]),
    ]:
        teacher = cls(classes=4).fit(X, y)
        assert set(teacher.predict(queries)) == {2}


@pytest.mark.parametrize("cls", [RidgeTeacher, LogisticTeacher])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_bad_shard_is_one_teachers_failure(cls, bad, ragged):
    shards = list(ragged)
    X = shards[2][0].astype(np.float64)
    X[3, 3] = bad
    shards[2] = (X, shards[2][1])
    shards[5] = (shards[5][0], shards[5][1] + 31337)
    teachers = [cls(classes=4) for _ in shards]
    errors = cls.fit_many(teachers, shards)
    assert [place for place, error in enumerate(errors) if error is not None] == [2, 5]
    assert isinstance(errors[2], TeacherError)
    assert "finite" in str(errors[2])
    assert "31337" not in str(errors[5])
    alone = cls(classes=4).fit(*ragged[0])
    np.testing.assert_array_equal(teachers[0].weights, alone.weights)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_nothing(threads, ragged):
    from threadpoolctl import threadpool_limits

    def fitted():
        teachers = [RidgeTeacher(classes=4) for _ in ragged]
        RidgeTeacher.fit_many(teachers, ragged)
        return teachers

    with threadpool_limits(limits=threads, user_api="blas"):
        found = fitted()
    for one, other in zip(found, fitted(), strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("ridge", {"alpha": 0}, "alpha is 0; it must be a finite number above zero"),
        ("ridge", {"alpha": "much"}, "alpha is 'much'"),
        ("ridge", {"alpha": True}, "alpha is True"),
        ("ridge", {"alpah": 1}, "alpah"),
        ("logistic", {"tol": -1.0}, "tol is -1.0"),
        ("logistic", {"max_iter": 0}, "max_iter is 0; it must be a whole number"),
        ("rigde", {}, "built in are 'logistic' and 'ridge'"),
    ],
)
def test_what_is_refused(name, params, message):
    with pytest.raises(InvalidInput, match=message):
        make(ModelSpec(model=name, params=params), classes=3, seed=0)


def test_short_names():
    assert type(make(ModelSpec(model="ridge"), classes=3, seed=0)) is RidgeTeacher
    given = make(ModelSpec(model="logistic", params={"alpha": 2}), classes=3, seed=0)
    assert (type(given), given.alpha, given.classes) == (LogisticTeacher, 2.0, 3)
