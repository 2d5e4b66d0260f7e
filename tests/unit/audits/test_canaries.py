"""Canaries in one run of PATE: what their scores may show, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pate.audits.canaries import KINDS, audit_pate, make_canaries
from pate.errors import InvalidInput
from pate.mechanisms import ConfidentGnmax, GaussianCounts, GaussianNoisyMax, LaplaceCounts

RNG = np.random.default_rng(0)
RECORDS = RNG.normal(size=(300, 4))
LABELS = (RECORDS[:, 0] > 0).astype(int) + (RECORDS[:, 1] > 0)
KNOWN = {"classes": 3, "delta": 1e-6, "insecure_seed": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_canaries_are_records_of_their_kind(kind):
    points = np.round(RECORDS, 3)
    made, labels = make_canaries(points, LABELS, count=50, classes=3, kind=kind, rng=RNG)
    assert made.shape == (50, 4)
    assert set(labels) <= {0, 1, 2}
    assert len(np.unique(made, axis=0)) == 50
    if kind == "mislabelled":
        own = {tuple(row): label for row, label in zip(points, LABELS, strict=True)}
        assert all(own[tuple(row)] != label for row, label in zip(made, labels, strict=True))


def test_an_input_is_a_canary_with_each_wrong_label():
    made, labels = make_canaries(RECORDS, LABELS, count=2 * len(RECORDS), classes=3, rng=RNG)
    own = {tuple(row): label for row, label in zip(RECORDS, LABELS, strict=True)}
    pairs = {(*row, label) for row, label in zip(made, labels, strict=True)}
    assert len(pairs) == 2 * len(RECORDS)
    assert all(own[pair[:-1]] != pair[-1] for pair in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_noised_table_shows_nearly_all_that_its_guarantee_allows(kind):
    found = audit_pate(
        RECORDS,
        LABELS,
        mechanism=LaplaceCounts(scale=1.0),
        canaries=300,
        kind=kind,
        confidence=0.999,
        **KNOWN,
    )
    claimed = found.values["claimed ε"]
    assert 0.3 * claimed < found.epsilon < claimed < found.largest_possible
    assert found.target == "noised table"


def test_public_inputs_are_cells_beside_the_canaries_own():
    """Records vote elsewhere; the canaries' own cells show as much as before."""
    mechanism = LaplaceCounts(scale=0.1)
    found = audit_pate(RECORDS, LABELS, mechanism=mechanism, public=RECORDS, kind="noise", **KNOWN)
    assert found.epsilon == found.largest_possible < found.values["claimed ε"]


@pytest.mark.parametrize("mechanism", [LaplaceCounts(scale=1.0), GaussianCounts(sigma=0.7)])
def test_what_may_be_published_follows_from_no_private_record(mechanism):
    """One seed, other private records: the same finding, to the last digit."""
    pool, public = (RECORDS, LABELS), RECORDS[:9]
    known = {"mechanism": mechanism, "canaries": 300, "pool": pool, "public": public, **KNOWN}
    others = np.random.default_rng(5).normal(size=(7000, 4)).round(1)
    found = [
        audit_pate(points, np.resize(labels, len(points)), **known).as_json()
        for points, labels in ((RECORDS, LABELS), (others, [1]), (RECORDS[:1].repeat(999, 0), [2]))
    ]
    assert found[0] == found[1] == found[2]
    assert not found[0]["publishable"]  # for it is seeded
    secret = known | {"insecure_seed": None}
    assert audit_pate(RECORDS, LABELS, **secret).publishable
    assert not audit_pate(RECORDS, LABELS, **secret | {"pool": None}).publishable


def test_gaussian_noise_on_a_table():
    known = {"mechanism": GaussianCounts(sigma=0.7), "canaries": 2000, "kind": "noise", **KNOWN}
    found = audit_pate(RECORDS, LABELS, **known)
    assert 0.25 * found.values["claimed ε"] < found.epsilon < found.values["claimed ε"]


def test_copies_of_a_canary_are_easier_to_find_and_count_as_many_records():
    known = {"mechanism": LaplaceCounts(scale=1.0), "canaries": 300, "kind": "noise", **KNOWN}
    one, three = (audit_pate(RECORDS, LABELS, copies=copies, **known) for copies in (1, 3))
    assert three.values["right guesses"] > one.values["right guesses"]
    assert 0 < three.epsilon < three.values["claimed ε"]
    assert three.largest_possible < one.largest_possible


@pytest.mark.parametrize(
    "mechanism",
    [GaussianNoisyMax(sigma=3.0), ConfidentGnmax(threshold=15.0, sigma1=5.0, sigma2=3.0)],
)
def test_labels_of_teachers_show_no_more_than_is_claimed(mechanism):
    found = audit_pate(RECORDS, LABELS, mechanism=mechanism, teachers=20, canaries=100, **KNOWN)
    assert 0 <= found.epsilon < found.values["claimed ε"]
    assert found.target == "released labels"


def test_a_student_is_attacked_by_its_confidences():
    known = {"mechanism": GaussianNoisyMax(sigma=1.0), "teachers": 10, "canaries": 100, **KNOWN}
    student = LogisticRegression().fit
    found = audit_pate(RECORDS, LABELS, student=student, **known)
    assert found.target == "student"
    assert found.epsilon < found.values["claimed ε"]
    with pytest.raises(InvalidInput, match="without predict_proba"):
        audit_pate(RECORDS, LABELS, student=lambda inputs, labels: object(), **known)


def test_few_canaries_are_refused():
    with pytest.raises(InvalidInput, match="4 canaries can show no ε"):
        audit_pate(RECORDS, LABELS, mechanism=LaplaceCounts(scale=1.0), canaries=4, **KNOWN)
    with pytest.raises(InvalidInput, match="601 mislabelled canaries need as many wrong labels"):
        audit_pate(RECORDS, LABELS, mechanism=LaplaceCounts(scale=1.0), canaries=601, **KNOWN)
