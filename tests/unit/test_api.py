"""The public names: which there are, that each is documented, and that runs work from Python."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re

import numpy as np
import pytest

import pate
from pate.errors import BudgetExceeded, InvalidInput

EXPORTED = {
    "AggregatedVotes", "BudgetExceeded", "Callback", "ConfidentGnmax", "Ensemble", "GaussianCounts",
    "GaussianNoisyMax", "LaplaceCounts", "RecordVotes", "count_record_votes", "make_cells",
    "audit", "label_inputs", "make_components", "smooth_counts",
    "Guarantee", "GumbelNoisyMax", "InteractiveGnmax", "InvalidInput", "LaplaceNoisyMax", "Ledger",
    "PATEClassifier", "PateError", "Run", "TrainedRun", "Votes", "aggregate_votes", "compare",
    "Comparison", "compose", "forget",
    "load_student", "open_run", "plan", "release", "run", "secure_generator", "sweep",
    "train_teachers", "verify", "vote",
}  # fmt: skip
pytestmark = pytest.mark.xdist_group("api")  # one run for most of them
FUNCTIONS = sorted(name for name in EXPORTED if inspect.isfunction(getattr(pate, name)))


def test_the_exports_are_these_and_listed_once():
    assert set(pate.__all__) - {"__version__"} == EXPORTED
    assert len(pate.__all__) == len(set(pate.__all__))
    assert set(pate.__all__) <= set(dir(pate))
    for name in EXPORTED:  # type checkers see the same names
        assert re.search(rf"import {name} as {name}\n", inspect.getsource(pate)), name


def test_no_module_takes_the_name_of_an_export():
    """Once it is imported, a submodule would stand in the place of the function."""
    modules = {each.name for each in pkgutil.iter_modules(pate.__path__)}
    assert not modules & EXPORTED


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_of_a_function_is_documented(name):
    function = getattr(pate, name)
    text = inspect.getdoc(function) or ""
    for argument in inspect.signature(function).parameters.values():
        shown = f"**{argument.name}" if argument.kind is argument.VAR_KEYWORD else argument.name
        listed = rf"(?m)^(\w+, )*{re.escape(shown)}(, \w+)*( :.*)?$"
        assert re.search(listed, text), f"pate.{name}: {shown} is not documented"
    assert "Returns\n-------" in text, name


@pytest.mark.parametrize("kind", [pate.PATEClassifier, pate.PATEClassifier.fit])
def test_every_argument_of_the_estimator_is_documented(kind):
    for argument in inspect.signature(kind).parameters:
        assert argument == "self" or f"{argument} : " in (inspect.getdoc(kind) or ""), argument


def test_a_user_with_votes_needs_three_lines():
    labels = np.random.default_rng(0).integers(10, size=(250, 20))
    votes = pate.Votes.from_labels(labels, classes=10)
    answer = pate.GaussianNoisyMax(sigma=40).release(votes, rng=pate.secure_generator())
    stated = pate.compose(answer.events).guarantee(delta=1e-5)
    assert len(answer.labels) == 20
    assert 0 < stated.epsilon < 2
    assert stated.publishable


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1], "a row for each teacher"),
        ([[0.5, 1]], "fractions"),
        ([["a", "b"]], "not numbers"),
        ([[0, 3]], "beyond the 3 classes"),
        ([[0, -1]], "negative label"),
    ],
)
def test_votes_refuse_what_is_no_label(labels, words):
    with pytest.raises(InvalidInput, match=words):
        pate.Votes.from_labels(labels, classes=3)
    counts = pate.Votes.from_labels([[0, -1], [1, 1]], classes=3, abstentions=True).counts
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0]]


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def settings(place):
    quick = {
        "teachers.count": 20,
        "teachers.model": "ridge",
        "teachers.params": {},
        "privacy.sanitise": False,
    }
    return {"set": quick, "engine": "serial", "data_root": place, "out": place / "d"}


@pytest.fixture(scope="module")
def done(settings):
    return pate.run("digits-teachers", **settings)


def test_a_notebook_shows_a_guarantee_rounded_up_and_whether_it_may_be_published():
    shown = pate.Guarantee(epsilon=1.0001, delta=1e-5)._repr_html_()
    assert "ε = 1.01 at δ = 1e-5 (moderate)" in shown
    assert "may be published" in shown
    seeded = pate.Guarantee(
        epsilon=1.0, delta=0, caveats=("seeded <noise>: not private",)
    )._repr_html_()
    assert "NOT PRIVATE" in seeded
    assert "may be published" not in seeded
    assert "&lt;noise&gt;" in seeded
    owners = pate.Guarantee(epsilon=0.12345, delta=1e-5, data_dependent=True)._repr_html_()
    assert "0.12" not in owners
    assert "do not publish" in owners


def test_a_notebook_shows_a_run(done, settings, place):
    shown = done._repr_html_()
    assert "may be published" in shown
    assert "100 of 100 queries" in shown
    assert "one record added" in shown
    unfinished = pate.run(
        "digits-teachers", **settings | {"out": place / "half"}, until="data", insecure_seed=0
    )
    assert unfinished._repr_html_() is None


def test_a_run_has_what_was_released(done, place):
    assert done.folder == place / "d"
    assert done.recipe.teachers.count == 20
    assert done.guarantee.publishable
    assert done.guarantee.neighbours.value == "add-remove"
    assert len(done.labels.labels) == len(done.labels.answered) == 100 == len(done.labels.asked)
    assert 0 <= done.evaluation.student.accuracy <= 1
    said = done.student.predict(np.zeros((2, 8, 8)))
    assert said.shape == (2,)
    assert done.report(place / "page.html").read_text().startswith("<!")
    assert "PRIVATE" not in repr(done)


def test_a_run_resumes_and_pays_once(done, settings, place, capsys):
    again = pate.run("digits-teachers", **settings, verbose=True)
    assert (again.labels.labels == done.labels.labels).all()
    assert "running" not in capsys.readouterr().out
    with pate.Ledger.open(place / "ledgers" / "digits.ledger") as ledger:
        assert sum(each.release.startswith("labels") for each in ledger.charges()) == 1


def test_a_run_is_opened_again_by_its_folder(done):
    opened = pate.open_run(done.folder)
    assert opened.guarantee == done.guarantee
    assert (opened.labels.labels == done.labels.labels).all()


def test_a_release_is_verified_and_its_student_loaded(done, place):
    made = pate.release(done, place / "given")
    assert made.epsilon == done.guarantee.epsilon
    checked = pate.verify(place / "given")
    assert checked.ok, checked.problems
    assert checked.epsilon == pytest.approx(made.epsilon)
    student = pate.load_student(place / "given")
    assert len(student.predict(np.zeros((2, 8, 8)))) == 2
    assert callable(pate.release)  # also after its modules were imported


def test_seeded_runs_are_marked(settings, place):
    seeded = pate.run("digits-teachers", **settings | {"out": place / "seeded"}, insecure_seed=1)
    assert not seeded.guarantee.publishable
    assert "not private" in seeded.guarantee.caveats[-1]
    assert "NOT PRIVATE" in repr(seeded)


def test_a_point_of_a_sweep_notes_that_its_epsilon_is_not_that_of_the_study(
    settings, place, monkeypatch
):
    monkeypatch.setattr("pate.studies.sweep.plot_sweep", lambda *_: None)
    given = settings | {"out": place / "swept", "data_root": place / "own"}
    pate.sweep("digits-teachers", over={"aggregate.scale": [5, 10]}, **given)
    point = pate.open_run(place / "swept", data_root=place / "own")
    assert any("2" in note and "together" in note for note in point.guarantee.notes), (
        point.guarantee
    )


def test_a_run_may_stop_at_a_stage(settings, place):
    early = pate.run("digits-teachers", **settings | {"out": place / "early"}, until="partition")
    with pytest.raises(InvalidInput, match="is not there yet"):
        _ = early.labels


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"recipe": "digts"}, "did you mean digits"),
        ({"set": {"teachers.cuont": 3}}, "count"),
        ({"set": "teachers.count=3"}, "set"),
        ({"until": "vte"}, "the stages are"),
        ({"engine": "fast"}, "fast"),
        ({"plugin_path": "/nowhere"}, "nothing at --plugin-path"),
    ],
)
def test_mistakes_are_one_sentence(settings, arguments, words, place):
    given = {"recipe": "digits-teachers"} | settings | {"out": place / "mistake"} | arguments
    with pytest.raises(InvalidInput, match=words) as caught:
        pate.run(given.pop("recipe"), **given)
    assert "\n" not in str(caught.value)


def test_a_budget_holds_across_runs_and_classifiers(tmp_path):
    """Runs and a classifier that is given the same ledger pay from one budget."""
    out, book = tmp_path / "run", tmp_path / "ledgers" / "digits.ledger"
    settings = {"teachers.count": 20, "aggregate.queries": 5, "privacy.budget": 6.0,
                "privacy.sanitise": False}  # fmt: skip
    pate.run(
        "digits-teachers",
        set=settings,
        engine="serial",
        data_root=tmp_path,
        out=out,
        until="account",
    )
    X = np.random.default_rng(0).normal(size=(200, 2))
    clf = pate.PATEClassifier(teachers=20, epsilon=19.9, queries=20, delta=1e-4)
    with pytest.raises(BudgetExceeded, match="nothing was charged"):
        clf.fit(X, X[:, 0] > 0, public=X[:30] + 0.5, ledger=book)
    with pate.Ledger.open(book) as ledger:
        assert len(ledger.charges()) == 1


def test_value_types_cannot_be_changed(done):
    with pytest.raises(dataclasses.FrozenInstanceError):
        done.guarantee.epsilon = 0.0
