"""The contract of a mechanism, run over all built-in ones and over one defined here."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from pate._validate import check_noise
from pate.accounting import (
    LaplaceNoisyMaxAnswer,
    Ledger,
    compose,
    event_from_json,
    event_to_json,
    laplace_total,
)
from pate.accounting.events import tally
from pate.accounting.guarantee import Guarantee
from pate.accounting.plan_guarantee import guarantee_of_plan
from pate.accounting.smooth import lnmax_cost
from pate.errors import InvalidInput
from pate.mechanisms import (
    MECHANISMS,
    AggregateSpec,
    ConfidentGnmax,
    GaussianNoisyMax,
    GumbelNoisyMax,
    InteractiveGnmax,
    LaplaceNoisyMax,
    insecure_generator,
    make_mechanism,
    noisy_max,
    secure_generator,
)
from pate.mechanisms.noisy_max import NoisyMax, laplace_win_chances, noisy_argmax
from pate.planner.forecast import Budget
from pate.votes import Votes

TEACHERS, CLASSES = 100, 5

KEYS = {
    "lnmax": {"scale": 10.0},
    "gnmax": {"sigma": 10.0},
    "gumbel": {"scale": 10.0},
    "confident": {"threshold": 60.0, "sigma1": 20.0, "sigma2": 10.0},
    "interactive": {"threshold": 30.0, "sigma1": 20.0, "sigma2": 10.0, "keep": 0.8},
    "widened": {"scale": 5.0, "width": 2.0},
}
CHECKED = ("confident", "interactive")
ANSWER = {
    "lnmax": "LaplaceNoisyMaxAnswer",
    "gumbel": "GumbelNoisyMaxAnswer",
    "widened": "LaplaceNoisyMaxAnswer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedNoisyMax(NoisyMax):
    """Laplace noisy-max with ``width`` times the noise: one more mechanism with its own key."""

    name: ClassVar[str] = "widened"
    title: ClassVar[str] = "Widened-LNMax"
    calibrated: ClassVar[str | None] = "scale"

    scale: float
    width: float = 3.0

    def __post_init__(self):
        check_noise("scale", self.scale)
        check_noise("width", self.width)

    @property
    def _wide(self):
        return self.scale * self.width

    @property
    def answer_event(self):
        return LaplaceNoisyMaxAnswer(scale=self._wide)

    def answers(self, counts, rng):
        return noisy_argmax(counts, noise=lambda shape: rng.laplace(scale=self._wide, size=shape))

    def data_dependent_cost(self, counts, *, moments=None, answered=None, baseline=None):
        return laplace_total(counts, scale=self._wide, moments=moments)

    def sensitive_cost(self, counts, *, order, teachers, answered=None, baseline=None):
        return lnmax_cost(counts, scale=self._wide, order=order, teachers=teachers)

    def formula(self):
        return f"answer = argmaxⱼ (nⱼ + {self.width:g} Lap({self.scale:g}))"

    def settings(self):
        return f"b {self.scale:g} × {self.width:g}"

    def win_chances(self, leads):
        return laplace_win_chances(leads, self._wide)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(MECHANISMS, WidenedNoisyMax.name, WidenedNoisyMax)


def spec_of(name):
    return AggregateSpec(mechanism=name, **KEYS[name])


def some_votes(queries=400, seed=5):
    rng = np.random.default_rng(seed)
    right = rng.binomial(TEACHERS, rng.uniform(0.3, 1.0, size=queries))
    rest = rng.multinomial(TEACHERS - right, [1 / (CLASSES - 1)] * (CLASSES - 1))
    counts = np.column_stack([right, rest])
    return Votes(counts=rng.permuted(counts, axis=1))


def some_student(queries, seed=6):
    return np.random.default_rng(seed).dirichlet([0.3] * CLASSES, size=queries)


@pytest.fixture(params=KEYS)
def name(request):
    return request.param


@pytest.fixture
def mechanism(name):
    return make_mechanism(spec_of(name))


def release(mechanism, votes, *, seed=0, **options):
    if isinstance(mechanism, InteractiveGnmax):
        options.setdefault("student", some_student(votes.queries))
    return mechanism.release(votes, rng=insecure_generator(seed), **options)


def counted(events):
    return Counter({type(event).__name__: count for event, count in tally(events).items()})


def test_the_recipe_makes_the_mechanism_it_names(name, mechanism):
    kinds = {
        "lnmax": LaplaceNoisyMax,
        "gnmax": GaussianNoisyMax,
        "gumbel": GumbelNoisyMax,
        "confident": ConfidentGnmax,
        "interactive": InteractiveGnmax,
        "widened": WidenedNoisyMax,
    }
    assert type(mechanism) is kinds[name]
    for field in dataclasses.fields(mechanism):
        assert getattr(mechanism, field.name) == getattr(spec_of(name), field.name)


@pytest.mark.parametrize("most_answers", [None, 0, 1, 37, 10_000])
@pytest.mark.parametrize("block", [1, 64, 1 << 17])
def test_a_release_is_well_formed_and_its_events_are_what_happened(
    name, mechanism, most_answers, block, monkeypatch
):
    monkeypatch.setattr(noisy_max, "BLOCK", block)
    votes = some_votes()
    given = release(mechanism, votes, most_answers=most_answers)
    cap = votes.queries if most_answers is None else min(most_answers, votes.queries)

    assert given.labels.dtype == given.answered.dtype == given.kept.dtype == np.int64
    assert len(given.labels) == len(given.answered) <= cap
    assert given.labels.min(initial=0) >= 0
    assert given.labels.max(initial=0) < CLASSES
    assert np.all(np.diff(given.answered) > 0)
    assert given.answered.max(initial=-1) < given.asked <= votes.queries

    happened = counted(given.events)
    assert happened.pop(ANSWER.get(name, "GaussianNoisyMaxAnswer"), 0) == len(given.answered)
    if name in CHECKED:
        assert happened.pop("ThresholdCheck", 0) == given.asked
        if len(given.answered) == cap:  # full: the last thing looked at was the last answer
            assert given.asked == given.answered.max(initial=-1) + 1
        else:
            assert given.asked == votes.queries
    else:
        assert given.asked == len(given.answered) == cap
        assert np.array_equal(given.answered, np.arange(cap))
    assert not happened


def test_events_survive_json_and_stay_within_the_caps(mechanism):
    votes = some_votes()
    given = release(mechanism, votes, most_answers=50)
    assert given.events
    assert tuple(event_from_json(event_to_json(event)) for event in given.events) == given.events
    caps = tally(mechanism.caps(queries=votes.queries, answers=50))
    spent = tally(given.events)
    assert spent.keys() <= caps.keys()
    assert all(count <= caps[event] for event, count in spent.items())


def test_caps_hold_however_the_votes_fall(mechanism):
    """Unanimous, split and random votes: none makes more happen than the caps say."""
    unanimous = np.tile([TEACHERS, 0, 0, 0, 0], (60, 1))
    split = np.full((60, CLASSES), TEACHERS // CLASSES)
    for counts in (unanimous, split, some_votes(60).counts):
        for answers in (1, 20, 60):
            caps = tally(mechanism.caps(queries=60, answers=answers))
            for seed in range(5):
                given = release(mechanism, Votes(counts=counts), most_answers=answers, seed=seed)
                assert all(caps[event] >= count for event, count in tally(given.events).items())


def test_a_plan_ledger_takes_the_charge(mechanism, tmp_path):
    votes = some_votes()
    caps = mechanism.caps(queries=votes.queries, answers=50)
    budget = Guarantee(epsilon=compose(caps).guarantee(delta=1e-5).epsilon * 1.001, delta=1e-5)
    with Ledger.open(tmp_path / "ledger.db", budget=budget, plan=caps) as ledger:
        given = release(mechanism, votes, most_answers=50)
        ledger.charge(given.events, release="labels")
        assert ledger.spent().epsilon <= ledger.guarantee().epsilon <= budget.epsilon


@pytest.mark.parametrize("block", [7, 1 << 17])
def test_without_noise_to_speak_of_the_plurality_answers(name, block, monkeypatch):
    monkeypatch.setattr(noisy_max, "BLOCK", block)
    spec = spec_of(name)
    quiet = {
        key: 1e-6
        for key in ("scale", "sigma", "sigma1", "sigma2")
        if getattr(spec, key) is not None
    } | ({"width": 1.0} if name == "widened" else {})
    if name in CHECKED:
        quiet["threshold"] = spec.threshold - 0.5  # between whole numbers: no check is a toss-up
    mechanism = make_mechanism(AggregateSpec(**{**spec.model_dump(), **quiet}))
    votes = some_votes()
    counts = 2 * votes.counts + np.arange(CLASSES)  # sums still agree; then break ties
    top = np.sort(counts, axis=1)
    counts = counts[top[:, -1] > top[:, -2]]
    student = some_student(len(counts))
    votes = Votes(counts=counts)
    given = release(mechanism, votes, **({"student": student} if name == "interactive" else {}))
    assert np.array_equal(given.labels, counts[given.answered].argmax(axis=1))
    if name not in CHECKED:
        expected = np.arange(len(counts))
    elif name == "confident":
        expected = np.flatnonzero(counts.max(axis=1) >= 60)
    else:
        lead = np.maximum(0, np.floor((counts - votes.teachers * student).max(axis=1)))
        expected = np.flatnonzero(lead >= 30)
    assert len(expected) > 0
    assert np.array_equal(given.answered, expected)


def test_what_a_seed_gave_it_gives_again_and_another_does_not(mechanism):
    votes = some_votes()
    first, again, other = (release(mechanism, votes, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.answered, again.answered)
    assert np.array_equal(first.labels, again.labels)
    assert not (
        np.array_equal(first.answered, other.answered)
        and np.array_equal(first.labels, other.labels)
    )


def test_secure_randomness_works_and_no_global_state_is_touched(mechanism):
    before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    votes = some_votes()
    options = {"student": some_student(votes.queries)}
    if not isinstance(mechanism, InteractiveGnmax):
        options = {}
    one = mechanism.release(votes, rng=secure_generator(), **options)
    two = mechanism.release(votes, rng=secure_generator(), **options)
    assert not (
        np.array_equal(one.answered, two.answered) and np.array_equal(one.labels, two.labels)
    )
    after = np.random.get_state(legacy=False)["state"]["key"]  # noqa: NPY002
    assert np.array_equal(before, after)


def test_an_unpaid_release_shows_no_label(mechanism):
    text = repr(release(mechanism, some_votes()))
    assert "array" not in text
    assert "events" in text


def test_votes_are_left_as_they_were(mechanism):
    votes = some_votes()
    copy = votes.counts.copy()
    votes.counts.setflags(write=False)  # a memory-mapped file is read-only too
    release(mechanism, votes)
    assert np.array_equal(votes.counts, copy)


def test_nothing_asked_costs_nothing(mechanism):
    empty = Votes(counts=np.empty((0, CLASSES), dtype=np.int64))
    given = release(mechanism, empty, **_student_for(mechanism, 0))
    assert (given.asked, given.events, len(given.labels)) == (0, (), 0)
    given = release(mechanism, some_votes(), most_answers=0)
    assert (given.asked, given.events, len(given.labels)) == (0, (), 0)
    assert mechanism.caps(queries=0, answers=0) == ()


def _student_for(mechanism, queries):
    if isinstance(mechanism, InteractiveGnmax):
        return {"student": np.empty((queries, CLASSES))}
    return {}


@pytest.mark.parametrize(
    "counts",
    [
        np.array([1, 2, 3]),
        np.array([[1], [2]]),
        np.array([[0.5, 1.5]]),
        np.array([[-7731, 3]]),
        np.array([[True, False]]),
        np.ones((2, 2, 2), dtype=np.int64),
    ],
)
def test_what_is_not_votes_is_refused_without_showing_it(mechanism, counts):
    with pytest.raises(InvalidInput) as caught:
        mechanism.release(Votes(counts=counts), rng=insecure_generator(0))
    assert "7731" not in str(caught.value)


@pytest.mark.parametrize("most_answers", [-1, 1.5, True, "3"])
def test_a_bad_number_of_answers_is_refused(mechanism, most_answers):
    with pytest.raises(InvalidInput, match="most_answers"):
        release(mechanism, some_votes(), most_answers=most_answers)
    with pytest.raises(InvalidInput, match="answers"):
        mechanism.caps(queries=5, answers=-1)
    with pytest.raises(InvalidInput, match="queries"):
        mechanism.caps(queries=-1, answers=5)


def test_a_mechanism_is_a_value(name, mechanism):
    assert mechanism == make_mechanism(spec_of(name))
    assert hash(mechanism) == hash(make_mechanism(spec_of(name)))
    field = dataclasses.fields(mechanism)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(mechanism, field, 1.0)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), 1e10, 1e-10, True, "40"])
def test_noise_out_of_range_is_refused_by_name(name, mechanism, bad):
    for field in dataclasses.fields(mechanism):
        if field.name.startswith(("scale", "sigma")):
            with pytest.raises(InvalidInput, match=rf"^{field.name} is .* votes"):
                dataclasses.replace(mechanism, **{field.name: bad})


def test_every_built_in_key_is_a_documented_field_of_the_recipe(monkeypatch):
    monkeypatch.delitem(MECHANISMS, "widened")
    fields = AggregateSpec.model_fields
    for kind in MECHANISMS.values():
        for key in kind.required_keys() + kind.optional_keys():
            assert fields[key].description, key
        assert kind.calibrated is None or kind.calibrated in kind.required_keys()


def test_costs_from_votes_stay_below_those_of_the_caps(mechanism):
    counts = some_votes().counts
    everything = np.ones(len(counts), dtype=bool)
    dependent = mechanism.data_dependent_cost(counts, answered=everything)
    caps = compose(mechanism.caps(queries=len(counts), answers=len(counts)))
    assert np.all(dependent.values <= caps.values * (1 + 1e-9))
    assert dependent.data_dependent
    assert np.all(dependent.values > 0)


def test_chances_describe_what_happens(name, mechanism):
    """Over many draws: how often a query is answered, and how often with the class that leads."""
    votes = some_votes(60)
    chances = mechanism.answer_chances(votes.counts)
    winners = votes.counts.argmax(axis=1)
    leads = np.array(
        [row[w] - np.delete(row, w) for row, w in zip(votes.counts, winners, strict=True)]
    )
    right = mechanism.win_chances(leads.astype(float))
    answered, won, trials = np.zeros(60), np.zeros(60), 400
    for seed in range(trials):
        given = mechanism.release(votes, rng=insecure_generator(seed))
        answered[given.answered] += 1
        won[given.answered] += given.labels == winners[given.answered]
    error = 5 * np.sqrt(0.25 / trials)
    assert np.abs(answered / trials - chances).max() < error
    often = answered > trials / 2
    assert np.abs(won[often] / answered[often] - right[often]).max() < error * 2**0.5


def test_noise_for_a_budget_is_the_least_that_fits(mechanism):
    if mechanism.calibrated is None:
        return

    def epsilon(noise):
        made = type(mechanism)(**{mechanism.calibrated: noise})
        return guarantee_of_plan(
            made.caps(queries=50, answers=50), delta=1e-5, adaptive=False
        ).epsilon

    least = Budget(epsilon=1.5, delta=1e-5).least_noise(type(mechanism), 50)
    assert epsilon(least) <= 1.5 < epsilon(least * 0.999)


def test_a_students_predictions_are_refused_where_they_would_be_ignored(mechanism):
    if mechanism.uses_student:
        return
    with pytest.raises(InvalidInput, match="takes no student's predictions"):
        mechanism.release(some_votes(), rng=insecure_generator(0), student=some_student(400))


def test_the_keys_of_a_registered_mechanism_are_checked_like_any_other():
    made = AggregateSpec(mechanism="widened", scale=5, width=4)
    assert make_mechanism(made) == WidenedNoisyMax(scale=5.0, width=4.0)
    assert AggregateSpec(**json.loads(made.model_dump_json())) == made
    with pytest.raises(ValueError, match='"lnmax" takes no width; its keys are scale'):
        AggregateSpec(mechanism="lnmax", scale=5.0, width=4.0)
    with pytest.raises(ValueError, match="width is -1"):
        AggregateSpec(mechanism="widened", scale=5.0, width=-1.0)
    with pytest.raises(ValueError, match='"widened" needs scale; its keys are scale and, if you'):
        AggregateSpec(mechanism="widened", width=2.0)


def test_one_registration_takes_a_mechanism_from_recipe_to_verified_release(project):
    """Recipe, plan, labels, account, report, card and verification, with no code but its own."""
    tree = {"model": "sklearn.tree:DecisionTreeClassifier", "params": {"max_depth": 3}}
    recipe = project.write(aggregate={"mechanism": "widened", "width": 2.5}, student=tree)
    public = ("--records", "90", "--classes", "3", "--accuracy", "0.8", "--teachers", "6")
    planned = project.call("plan", recipe, "--epsilon", "4", "--mechanism", "widened", *public)
    assert "widened with b " in planned.stdout

    project.call_run()
    events = project.json("aggregate", "events.json")
    assert [event_from_json(text) for text in events] == list(
        WidenedNoisyMax(scale=2.0, width=2.5).caps(queries=12, answers=12)
    )
    paid = compose([event_from_json(text) for text in events]).guarantee(delta=1e-3)
    assert project.json("account", "guarantees.json")["plan"]["improved"]["epsilon"] == paid.epsilon

    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    (page,) = project.run_folder.glob("**/report.html")
    assert "Widened-LNMax" in page.read_text()
    assert "2.5 Lap(2)" in page.read_text()

    project.call("release", "runs/tiny", "out", "--plugin-path", "plugins")
    out = project.folder / "out"
    assert "LaplaceNoisyMaxAnswer(scale=5.0), count=12" in (out / "MODEL_CARD.md").read_text()
    assert json.loads((out / "release.json").read_text())["recipe"]["aggregate"]["width"] == 2.5
    project.call("verify", "out")

    project.write(aggregate={"mechanism": "widened", "width": 3.5}, student=tree)
    refused = project.call_run(code=3)  # its own key counts: that is another release
    assert "with other settings" in refused.stderr
