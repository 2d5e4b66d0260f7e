"""Kernel ridge: soft labels count as they are, weights matter, and it survives saving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pate.errors import TeacherError
from pate.students.kernel_ridge import KernelRidge
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, train_student
from pate.teachers.persist import load, save

SPEC = StudentSpec(model="kernel-ridge")


def rings() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=200)
    angles = rng.uniform(0, 2 * np.pi, size=200)
    radius = 1.0 + 2 * labels + rng.normal(scale=0.1, size=200)
    points = radius[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return points.astype(np.float32), labels


def test_it_separates_what_no_line_separates() -> None:
    points, labels = rings()
    model = KernelRidge(classes=2).fit(points[:100], labels[:100])
    assert (model.predict(points[100:]) == labels[100:]).all()
    table = model.predict_proba(points[100:])
    assert np.allclose(table.sum(axis=1), 1)
    assert (table >= 0).all()


def test_it_solves_its_equations() -> None:
    """Against the formula, with distances computed one by one."""
    points, labels = rings()
    weights = np.linspace(0.2, 1.0, 200)
    model = KernelRidge(classes=2, width=0.5, alpha=0.3).fit(points, labels, weights)
    squares = ((points[:, None].astype(float) - points) ** 2).sum(axis=2)
    kernel = np.exp(-squares / (0.5 * squares.mean()))
    targets = np.eye(2)[labels]
    wanted = np.linalg.solve(kernel + np.diag(0.3 / weights), targets - targets.mean(axis=0))
    assert np.allclose(model.coefficients, wanted, atol=1e-3)


def test_a_student_learns_soft_labels_and_not_their_class_alone() -> None:
    points, labels = rings()
    soft = np.full((200, 2), 0.45)
    soft[np.arange(200), labels] = 0.55
    data = StudentData(inputs=points, rows=np.arange(200), labels=labels, soft=soft, classes=2)
    unsure = train_student(SPEC, data).predict_proba(points)  # type: ignore[attr-defined]
    assert 0.5 < unsure.max(axis=1).mean() < 0.6


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_units_of_the_features_do_not_matter(factor: float) -> None:
    points, labels = rings()
    one, other = (KernelRidge(classes=2).fit(n * points, labels) for n in (1, factor))
    assert np.allclose(one.predict_proba(points), other.predict_proba(factor * points), atol=1e-3)


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    points, labels = rings()
    model = KernelRidge(classes=2).fit(points, labels)
    save(model, tmp_path)
    again = load(tmp_path, SPEC.as_model(), classes=2, seed=0)
    assert np.array_equal(again.predict_proba(points), model.predict_proba(points))  # type: ignore[attr-defined]


def test_a_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TeacherError, match="does not exist"):
        KernelRidge(classes=2).fit([[0.0], [1.0]], [0, 2])
