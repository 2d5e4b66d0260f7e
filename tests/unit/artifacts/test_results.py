"""Typed results: what is saved is loaded again, and what is damaged is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pate.accounting import (
    Conversion,
    GaussianNoisyMaxAnswer,
    Guarantee,
    Neighbours,
    Repeated,
    compose,
    event_to_json,
)
from pate.artifacts import Level, Store, StoreError
from pate.artifacts.results import (
    LABELS,
    ChargeNote,
    ClassCount,
    Costs,
    Evaluation,
    Labels,
    PrivateCosts,
    PublicLabels,
    SanitisedGuarantee,
    StatedGuarantee,
    StatedPlan,
    charge_name,
    is_seeded,
    load_reference,
    save_reference,
)
from pate.metrics import Share

EVENTS = (Repeated(GaussianNoisyMaxAnswer(sigma=40.0), 3),)
STATED = StatedGuarantee.of(compose(EVENTS).guarantee(delta=1e-5))
SANITISED = SanitisedGuarantee(
    epsilon=0.5,
    delta=1e-5,
    moment=7.0,
    publishable=True,
    neighbours="add-remove",
    conversion="improved",
    confidence=0.99,
    price=0.1,
)
BY_CONVERSION = {each.value: STATED for each in Conversion}
COSTS = Costs(
    guarantee=STATED,
    protects="one record",
    randomness="private",
    odometer={name: replace(each, publishable=False) for name, each in BY_CONVERSION.items()},
    plan=BY_CONVERSION,
    composition=None,
    why_not="not asked for",
)
SHARE = Share(accuracy=0.9, low=0.8, high=0.95, records=30)


@pytest.fixture
def kept(tmp_path):
    """Saves something as an artifact of a stage, and opens that."""
    store = Store(root=tmp_path)

    def keep(save, *, stage="aggregate", level=Level.PRIVATE):
        with store.draft(stage, "f" * 64, level=level) as draft:
            save(draft)
        return store.open(stage, "f" * 64)

    return keep


def some_labels():
    return Labels(
        asked=np.array([4, 2, 9]),
        answered=np.array([4, 9]),
        labels=np.array([1, 0]),
        kept=np.array([2]),
        kept_labels=np.array([2]),
        events=EVENTS,
        plan=StatedPlan(queries=5, answers=3, events=EVENTS, guarantee=STATED),
        randomness="private",
        family="abc",
    )


def test_labels_come_back_as_they_were_and_are_stated_of_records(kept):
    labels = some_labels()
    found = Labels.load(kept(labels.save))
    assert found.rows.tolist() == [4, 9, 2]
    assert found.row_labels.tolist() == [1, 0, 2]
    assert (found.events, found.plan) == (labels.events, labels.plan)
    assert (found.family, found.extended, found.seeded, found.protects) == ("abc", False, False, "")
    stated = found.stated(neighbours=Neighbours.ADD_REMOVE, protects="one record")
    assert stated.plan.guarantee == replace(STATED, neighbours="add-remove")
    assert stated.protects == "one record"


def test_seeded_noise_shows_without_reading_a_file(kept):
    artifact = kept(replace(some_labels(), randomness="seeded").save)
    assert is_seeded(artifact)
    assert Labels.load(artifact).seeded


@pytest.mark.parametrize("costs", [COSTS, replace(COSTS, sanitised=SANITISED, why_not=None)])
def test_costs_come_back_as_they_were(kept, costs):
    assert Costs.load(kept(costs.save, stage="account")) == costs


@pytest.mark.parametrize(
    "costs",
    [PrivateCosts(guarantees=BY_CONVERSION), PrivateCosts(guarantees={}, why_not="chosen")],
)
def test_private_costs_come_back_as_they_were(kept, costs):
    assert PrivateCosts.load(kept(costs.save)) == costs


def test_evaluations_come_back_as_they_were(kept):
    evaluation = Evaluation(
        student=SHARE,
        classes=(ClassCount(name="cat", records=20, right=18, predicted=19),),
        confusion=((18, 2), (1, 9)),
        agreement=None,
        labels=SHARE,
    )
    assert Evaluation.load(kept(evaluation.save, stage="evaluate")) == evaluation
    public = PublicLabels(student=None, labels=12)
    assert PublicLabels.load(kept(public.save, stage="evaluate-public-labels")) == public
    reference = kept(lambda draft: save_reference(draft, SHARE), stage="evaluate-reference")
    assert load_reference(reference) == SHARE


def test_a_charge_note_names_its_charge(kept):
    note = ChargeNote(
        kind=LABELS,
        made_from="f" * 64,
        name="random",
        study="sweep x",
        events=EVENTS,
        extends="labels before",
        sources=("a", "b"),
        settings=("c",),
        builds_on=("labels before",),
        recipe="d",
    )
    assert ChargeNote.load(kept(note.save, stage="pending-labels")) == note
    assert note.release == f"labels {'f' * 40} random"
    assert note.release.startswith(charge_name(LABELS, note.made_from))
    begun = kept(lambda draft: note.save(draft, begun=True), stage="begun-labels")
    assert json.loads((begun.path / "charge.json").read_text()) == {
        "name": "random",
        "study": "sweep x",
        "recipe": "d",
    }
    assert ChargeNote.load(begun).release == note.release


def test_a_note_of_an_earlier_version_is_read(kept):
    earlier = {"name": "n", "events": [event_to_json(each) for each in EVENTS], "extends": None}
    artifact = kept(lambda draft: draft.save_json("charge.json", earlier), stage="pending-labels")
    note = ChargeNote.load(artifact)
    assert (note.name, note.events, note.study, note.sources) == ("n", EVENTS, None, ())


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"guarantee": 3}', '{"guarantee": {}, "sanitised": null}']
)
def test_a_damaged_file_is_named(kept, text):
    artifact = kept(lambda draft: (draft.path / "guarantees.json").write_text(text))
    with pytest.raises(StoreError, match=r"guarantees\.json is damaged; remove its folder"):
        Costs.load(artifact)


def test_a_guarantee_keeps_its_caveats():
    stated = StatedGuarantee.of(Guarantee(epsilon=1.0, delta=1e-5, caveats=("seeded",)))
    assert not stated.publishable
    assert StatedGuarantee.from_json(json.loads(json.dumps(stated.as_json()))) == stated
