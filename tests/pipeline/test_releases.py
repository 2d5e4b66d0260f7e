"""A release and its payment belong together: whatever crashes, repeats or runs beside it."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest

from pate.accounting import (
    Guarantee,
    LaplaceNoisyMaxAnswer,
    Ledger,
    ReleasePlan,
    Repeated,
    compose,
)
from pate.accounting.events import tally
from pate.accounting.ledger.terms import moment_for

CONFIDENT = {
    "mechanism": "confident",
    "scale": None,
    "threshold": 3.0,
    "sigma1": 4.0,
    "sigma2": 4.0,
    "queries": 12,
}


SULKY = """
import centroids
import numpy as np


class Sulky(centroids.Centroids):
    def fit(self, X, y):
        if not np.array_equal(y, np.arange(len(y)) % 3):  # as it is tried before the charge
            raise ValueError("no")
        return super().fit(X, y)
"""


def charged(project: Any, kind: str = "labels") -> list[dict[Any, int]]:
    with Ledger.open(project.ledger) as ledger:
        return [tally(c.events) for c in ledger.charges() if c.release.startswith(kind)]


def pending(project: Any) -> list[Any]:
    return list((project.run_folder / "private" / "pending-labels").glob("*/manifest.json"))


def lose_the_charge(project: Any) -> None:
    """As a crash between the draw and its charge leaves things: drawn, unpaid, unpublished."""
    project.ledger.unlink()
    shutil.rmtree(project.run_folder / "released")


def test_an_unpaid_draw_does_not_ride_on_the_payment_of_another(project: Any) -> None:
    project.call_run(stage="aggregate")
    lose_the_charge(project)
    project.call_run("--out", "runs/beside", stage="aggregate")  # draws and pays for itself
    refused = project.call_run(stage="aggregate", code=3)
    assert "already paid for this release" in refused.stderr
    assert not list(project.run_folder.glob("released/aggregate/*"))
    project.call_run("--spend", stage="aggregate")
    assert len(charged(project)) == 2  # two draws, two payments


def test_a_crash_before_the_charge_goes_on_with_the_same_answer(project: Any) -> None:
    project.call_run(stage="aggregate")
    (file,) = project.run_folder.glob("private/pending-labels/*/labels.npy")
    drawn = np.load(file)
    lose_the_charge(project)
    project.call_run(stage="aggregate")
    np.testing.assert_array_equal(np.load(project.path("aggregate") / "labels.npy"), drawn)
    assert len(charged(project)) == 1


def test_a_removed_publication_comes_back_as_it_was(project: Any) -> None:
    project.write(aggregate=CONFIDENT | {"answers": 4})
    project.call_run(stage="aggregate")
    labels = np.load(project.path("aggregate") / "labels.npy")
    shutil.rmtree(project.run_folder / "released" / "aggregate")
    project.call_run(stage="aggregate")
    np.testing.assert_array_equal(np.load(project.path("aggregate") / "labels.npy"), labels)
    assert len(charged(project)) == 1


def test_a_refused_charge_drops_the_draw(project: Any) -> None:
    project.write(privacy={"budget": 3.0, "sanitise": False})
    refused = project.call_run("--set", "aggregate.queries=30", stage="aggregate", code=3)
    assert "past the budget" in refused.stderr
    assert pending(project) == []
    assert charged(project) == []


def test_what_is_charged_is_the_plan(project: Any) -> None:
    project.call_run()
    plan = project.json("aggregate", "plan.json")
    ((counts,),) = [charged(project)]
    assert sum(counts.values()) == plan["queries"] == 12


def test_the_printed_guarantee_covers_the_sanitised_figure(project: Any) -> None:
    project.call_run()
    costs = project.json("account", "guarantees.json")
    assert costs["sanitised"] is not None
    with Ledger.open(project.ledger) as ledger:
        events = [event for charge in ledger.charges() for event in charge.events]
    everything = compose(events).guarantee(delta=1e-3)
    assert costs["guarantee"]["epsilon"] == pytest.approx(everything.epsilon, rel=1e-12)
    assert costs["guarantee"]["epsilon"] > costs["plan"]["improved"]["epsilon"]


def test_interactive_labels_are_paid_for_before_a_student_sees_them(project: Any) -> None:
    project.plugin("sulky", SULKY)
    project.write(
        aggregate=CONFIDENT | {"mechanism": "interactive", "rounds": 2},
        student={"model": "sulky:Sulky"},
    )
    failed = project.call_run(stage="aggregate", code=2)
    assert "student" in failed.stderr
    assert len(charged(project)) == 1  # whatever the failure tells was paid for
    (labels,) = project.run_folder.glob("private/round/*/labels.npy")
    drawn = labels.read_bytes()
    project.call_run(stage="aggregate", code=2)  # goes on with what was drawn and paid for
    assert [
        file.read_bytes() for file in project.run_folder.glob("private/round/*/labels.npy")
    ] == [drawn]
    assert len(charged(project)) == 1
    shutil.rmtree(project.run_folder / "private" / "begun-labels")
    again = project.call_run(stage="aggregate", code=3)  # and a new draw is not free
    assert "--spend" in again.stderr


def test_seeded_noise_has_a_ledger_of_its_own(project: Any) -> None:
    project.call_run("--insecure-seed", "1")
    assert not project.ledger.exists()
    assert project.ledger.with_name("tiny.not-private.ledger").exists()


def test_a_run_keeps_to_its_ledger(project: Any) -> None:
    project.call_run(stage="aggregate")
    (project.folder / "elsewhere").mkdir()
    moved = project.call_run("--data-root", "elsewhere", "--set", "aggregate.scale=5.0", code=2)
    assert "belongs to the data and ledger" in moved.stderr


def test_sanitised_again_only_for_money(project: Any) -> None:
    project.call_run()
    project.call_run("--set", "privacy.doubt=0.2")
    assert len(charged(project, "sanitised")) == 1
    project.call_run("--set", "privacy.doubt=0.3", "--spend")
    assert len(charged(project, "sanitised")) == 2


def test_a_figure_that_is_lost_names_no_place_in_what_is_released(project: Any) -> None:
    project.call_run()
    shutil.rmtree(project.run_folder / "private" / "pending-sanitised")
    shutil.rmtree(project.run_folder / "released" / "account")
    project.call_run()
    assert "--spend" in project.json("account", "guarantees.json")["why_not"]
    for file in (project.run_folder / "released").rglob("*.json"):
        assert project.ledger.name not in file.read_text()


def test_labels_are_not_lost_where_the_sanitised_figure_does_not_fit(project: Any) -> None:
    labels = [Repeated(LaplaceNoisyMaxAnswer(scale=2.0), 12)]

    def cost(events: list[Any], moment: float) -> float:
        return compose(events, [moment]).guarantee(delta=1e-3).epsilon

    def fits_labels_only(budget: float) -> bool:
        moment = moment_for(Guarantee(epsilon=budget, delta=1e-3))
        figure = ReleasePlan.default(order=moment + 1).event
        return cost(labels, moment) <= budget < cost([*labels, figure], moment)

    budget = next(b for b in np.arange(4.0, 40.0, 0.1) if fits_labels_only(float(b)))
    project.write(privacy={"budget": float(budget)})
    project.call_run()
    costs = project.json("account", "guarantees.json")
    assert costs["sanitised"] is None
    assert "does not cover its price" in costs["why_not"]


def test_a_number_of_private_records_needs_a_shuffle(project: Any) -> None:
    project.write(data={"private": 80})
    refused = project.call_run(stage="partition", code=2)
    assert "data.private is a number of records" in refused.stderr
    project.write(data={"private": 80}, partition={"method": "shuffle"})
    project.call_run(stage="partition")


def test_another_number_of_classes_trains_anew(project: Any) -> None:
    project.write(data={"classes": ["0", "1", "2"]})
    project.call_run(stage="teach")
    before = project.artifacts("teacher")
    project.write(data={"classes": ["0", "1", "2", "3"]})
    project.call_run(stage="vote")
    assert not before & (project.artifacts("teacher") - before)
    assert len(project.artifacts("teacher")) == 2 * len(before)


def test_an_extended_release_prints_what_covers_it(project: Any) -> None:
    """The plan grew after answers were seen, so its own best λ is not covered: the ledger's is."""
    project.call_run("--set", "privacy.sanitise=false")
    before = project.artifacts("aggregate")
    project.call_run("--set", "privacy.sanitise=false", "--set", "aggregate.queries=20")
    (name,) = project.artifacts("aggregate") - before
    plan = project.in_the_open("aggregate", name) / "plan.json"
    printed = json.loads(plan.read_text())["guarantee"]["epsilon"]
    with Ledger.open(project.ledger) as ledger:
        assert printed == ledger.guarantee().epsilon
        events = [event for charge in ledger.charges() for event in charge.events]
    assert printed >= compose(events).guarantee(delta=1e-3).epsilon


def test_a_release_is_not_extended_beside_votes_of_another_partition(project: Any) -> None:
    """The ledger's figure would be said of one record more or less, and a shuffle has no such."""
    project.write(partition={"method": "shuffle"})
    project.call_run("--out", "runs/shuffled", stage="aggregate")
    project.write(aggregate={"queries": 6})
    project.call_run(stage="aggregate")
    project.write()
    project.call_run("--spend", stage="aggregate")
    plans = [
        json.loads(file.read_text())
        for file in (project.run_folder / "released" / "aggregate").glob("*/plan.json")
    ]
    assert sorted(plan["queries"] for plan in plans) == [6, 12]
    for plan in plans:
        own = compose([Repeated(LaplaceNoisyMaxAnswer(scale=2.0), plan["queries"])])
        assert plan["guarantee"]["epsilon"] == own.guarantee(delta=1e-3).epsilon
        assert plan["guarantee"]["neighbours"] == "add-remove"


def test_an_unpaid_draw_is_not_extended(project: Any) -> None:
    project.call_run(stage="aggregate")
    lose_the_charge(project)
    project.call_run("--set", "aggregate.queries=20", stage="aggregate")
    ((counts,),) = [charged(project)]
    assert sum(counts.values()) == 20  # all of them: nothing was known


def test_a_damaged_answer_is_not_given_again(project: Any) -> None:
    project.call_run(stage="aggregate")
    (file,) = project.run_folder.glob("private/pending-labels/*/labels.npy")
    whole = file.read_bytes()
    file.write_bytes(whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])
    refused = project.call_run("--set", "aggregate.queries=20", stage="aggregate", code=2)
    assert "damaged or changed" in refused.stderr


def test_an_extension_needs_the_charge_it_builds_on(project: Any) -> None:
    project.call_run(stage="aggregate")
    project.call_run("--set", "aggregate.queries=20", stage="aggregate")
    lose_the_charge(project)
    refused = project.call_run("--set", "aggregate.queries=20", stage="aggregate", code=2)
    assert "lacks the charge that this answer builds on" in refused.stderr
    assert not list(project.run_folder.glob("released/aggregate/*"))


def relations(value: Any) -> set[str]:
    """Every neighbouring relation that a released file claims."""
    if not isinstance(value, dict):
        return set()
    own = {value["neighbours"]} if "neighbours" in value else set()
    return own.union(*(relations(each) for each in value.values()))


@pytest.mark.parametrize(
    ("method", "expected"), [("hash", "add-remove"), ("shuffle", "replace-one")]
)
def test_every_released_figure_names_the_relation_that_the_partition_gives(
    project: Any, method: str, expected: str
) -> None:
    project.write(partition={"method": method})
    project.call_run()
    costs = project.json("account", "guarantees.json")
    assert costs["sanitised"] is not None
    for report in (costs, project.json("aggregate", "plan.json")):
        assert relations(report) == {expected}
    assert not any(each["publishable"] for each in costs["odometer"].values())
