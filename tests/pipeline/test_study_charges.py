"""Runs of a study: every charge is marked, none needs a word, and ``ledger show`` adds them up."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpsgd.training
from dpsgd.recipe import DpsgdRecipe as TrainingRecipe
from dpsgd.runs import plan_run
from pate._format import describe_neighbours, format_cost, format_epsilon
from pate.accounting import Event, LaplaceNoisyMaxAnswer, Ledger, Neighbours, Repeated, compose
from pate.accounting.ledger.data_ledger import open_data_ledger
from pate.accounting.ledger.study_costs import NOT_PLANNED, combined_guarantee, study_cost
from pate.api import make_options, prepare_run
from pate.errors import BudgetExceeded, SpendNeeded
from pate.recipes.read import read_recipe
from pate.releases.verify import verify as verify_release


def study_costs(ledger, **more):
    names = dict.fromkeys(study for charge in ledger.charges() for study in charge.studies)
    return tuple(study_cost(ledger, name, **more) for name in names)


STUDY = "sweep tiny"
ADD = Neighbours.ADD_REMOVE
INTERACTIVE = {
    "mechanism": "interactive",
    "scale": None,
    "threshold": 3.0,
    "sigma1": 4.0,
    "sigma2": 4.0,
    "rounds": 2,
}
TRAINING = """\
kind = "dpsgd"
[data]
name = "tiny"
source = "tiny.npz"
public = 30
test = 30
accept_unprotected = true
[model]
hidden = []
[training]
epochs = 1
lot_size = 20
learning_rate = 0.5
[privacy]
noise_multiplier = 2.0
delta = 1e-3
"""


def run(project: Any, *settings: str, study: str | None = STUDY, until: str = "account",
        spend: bool = False, out: str | None = None,
        plugins: str = "plugins") -> list[str]:  # fmt: skip
    """One point: the recipe with some settings, as part of a study."""
    with contextlib.chdir(project.folder):
        made = prepare_run(
            "tiny.toml",
            set=list(settings),
            out=project.folder / (out or "runs/tiny"),
            options=make_options(
                engine="serial", plugin_path=project.folder / plugins, spend=spend
            ),
        )
        options = dataclasses.replace(made.options, study=study, data_root=project.folder / "data")
        return dataclasses.replace(made, options=options).execute(until=until)


def votes_of(scale: float, queries: int = 12) -> list[Event]:
    """What a release of the tiny recipe costs."""
    return [Repeated(LaplaceNoisyMaxAnswer(scale=scale), queries)]


def plan(path: Path, *releases: list[Event], neighbours: Neighbours) -> None:
    """Writes the plan of the study into a ledger, as a sweep or a comparison does."""
    moment = compose(event for each in releases for event in each).guarantee(delta=1e-3).moment
    with open_data_ledger(
        path, budget=None, delta=1e-3, neighbours=neighbours, moment=moment
    ) as ledger:
        steps = neighbours is Neighbours.ADD_REMOVE
        protects = "zero-out" if steps else "add-remove"
        ledger.plan_study(STUDY, releases, protects=describe_neighbours(protects))


def plan_votes(project: Any, *scales: float) -> None:
    plan(project.ledger, *map(votes_of, scales), neighbours=Neighbours.REPLACE_ONE)


def charges(project: Any, kind: str = "labels") -> list[Any]:
    with Ledger.open(project.ledger) as ledger:
        return [charge for charge in ledger.charges() if charge.release.startswith(kind)]


def asked(project: Any) -> dict[int, np.ndarray]:
    """Released labels, by how many there are."""
    found = project.run_folder.glob("released/aggregate/*/labels.npy")
    return {len(labels): labels for labels in map(np.load, found)}


def test_points_need_no_consent_and_are_tagged(project: Any) -> None:
    run(project)
    run(project, "aggregate.scale=3.0")
    run(project, "aggregate.queries=20")
    with Ledger.open(project.ledger) as ledger:
        tags = [charge.studies for charge in ledger.charges()]
    assert tags == [(STUDY,)] * 6  # labels and a sanitised figure each
    assert run(project, "aggregate.scale=3.0") == []  # found done, also later without the study
    assert run(project, "aggregate.scale=3.0", study=None) == []
    assert len(charges(project)) == 3


def test_outside_a_study_consent_is_needed_as_before(project: Any) -> None:
    run(project)
    with pytest.raises(SpendNeeded, match="with other settings"):
        run(project, "aggregate.scale=3.0", study=None)
    run(project, "aggregate.scale=3.0", study=None, spend=True)
    assert [charge.studies for charge in charges(project)] == [(STUDY,), ()]


def test_interactive_points_are_tagged_too(project: Any) -> None:
    project.write(aggregate=INTERACTIVE)
    run(project, until="aggregate")
    run(project, "aggregate.threshold=4.0", until="aggregate")
    assert [charge.studies for charge in charges(project)] == [(STUDY,)] * 2


@pytest.mark.parametrize("aggregate", [{}, INTERACTIVE], ids=["at once", "in rounds"])
def test_a_lost_answer_needs_consent_in_a_study_too(project: Any, aggregate: Any) -> None:
    project.write(aggregate=aggregate)
    run(project, until="aggregate")
    shutil.rmtree(project.run_folder)
    with pytest.raises(SpendNeeded, match="already paid for this release"):
        run(project, until="aggregate")
    assert len(charges(project)) == 1
    run(project, until="aggregate", spend=True)
    assert len(charges(project)) == 2


def test_points_draw_their_own_answers(project: Any) -> None:
    """More answers with the same noise: a run goes on with what is known; a point does not."""
    run(project, "aggregate.queries=12", study=None)
    run(project, "aggregate.queries=20", study=None)
    first, second = charges(project)
    assert [sum(e.count for e in each.events) for each in (first, second)] == [12, 8]
    np.testing.assert_array_equal(asked(project)[20][:12], asked(project)[12])
    run(project, "aggregate.queries=25")
    point = charges(project)[-1]
    assert sum(each.count for each in point.events) == 25
    assert point.studies == (STUDY,)


@pytest.mark.parametrize("aggregate", [{}, INTERACTIVE], ids=["at once", "in rounds"])
def test_a_draw_keeps_the_tag_of_the_study_it_was_made_for(
    project: Any, aggregate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that ends between a draw and its charge; a run by itself then goes on with it."""

    def stop(*words: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    project.write(aggregate=aggregate)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "charge", stop)
        with pytest.raises(KeyboardInterrupt):
            run(project, until="aggregate")
    assert charges(project) == []
    run(project, study=None, until="aggregate")
    assert [charge.studies for charge in charges(project)] == [(STUDY,)]


def test_a_study_that_resumes_a_draw_tags_it(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*words: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "charge", stop)
        with pytest.raises(KeyboardInterrupt):
            run(project, study=None, until="aggregate")
    run(project, until="aggregate")
    assert [charge.studies for charge in charges(project)] == [(STUDY,)]


def test_a_study_stops_at_the_budget(project: Any) -> None:
    project.write(privacy={"budget": 20.0, "sanitise": False})
    run(project, "aggregate.scale=4.0")
    with pytest.raises(BudgetExceeded):
        run(project, "aggregate.scale=0.5")
    assert [charge.studies for charge in charges(project)] == [(STUDY,)]


def read_training(project: Any, noise: float) -> TrainingRecipe:
    (project.folder / "training.toml").write_text(TRAINING)
    with contextlib.chdir(project.folder):
        settings = [f"privacy.noise_multiplier={noise}"]
        return read_recipe("training.toml", settings, TrainingRecipe)[1]


def train(project: Any, noise: float, study: str | None) -> None:
    recipe = read_training(project, noise)
    with contextlib.chdir(project.folder):
        options = dpsgd.training.TrainingOptions(
            data_root=project.folder / "data", study=study, report=lambda text: None
        )
        dpsgd.training.train(recipe, project.folder / "runs" / "tiny" / "dpsgd", options)


def plan_lots(project: Any, *noises: float) -> None:
    """Writes down what models with such noise cost, by 90 private records."""
    plans = [plan_run(read_training(project, noise), records=90) for noise in noises]
    plan(steps_of(project), *(list(each.events) for each in plans), neighbours=ADD)


def steps_of(project: Any) -> Path:
    return project.ledger.with_name("tiny.dpsgd.ledger")


def test_ledger_show_adds_up_studies_of_both_methods(project: Any) -> None:
    project.write(privacy={"sanitise": False})
    run(project, study=None)
    before = project.call("ledger", "show", "runs/tiny").stdout
    assert "study" not in before.lower()
    plan_votes(project, 3.0, 4.0)
    run(project, "aggregate.scale=3.0")
    run(project, "aggregate.scale=4.0")
    alone = project.call("ledger", "show", "runs/tiny").stdout
    assert "to publish both" not in alone
    plan_lots(project, 2.0, 3.0)
    train(project, 2.0, STUDY)
    train(project, 3.0, STUDY)  # no word needed in the same folder
    with pytest.raises(SpendNeeded):
        train(project, 5.0, None)
    with Ledger.open(project.ledger) as ledger, Ledger.open(steps_of(project)) as steps:
        assert [c.studies for c in steps.charges()] == [(STUDY,)] * 2
        marked = [e for c in ledger.charges() if c.studies for e in c.events]
        trained = [e for c in steps.charges() for e in c.events]
        (votes,), (lots,) = (study_costs(ledger, one_teacher=ADD), study_costs(steps))
    assert votes.in_advance
    assert lots.in_advance
    assert votes.guarantee.epsilon == compose(marked).guarantee(delta=1e-3).epsilon
    assert lots.guarantee.epsilon == compose(trained).guarantee(delta=1e-3).epsilon
    both = combined_guarantee([votes.guarantee, lots.guarantee])

    content = project.call("ledger", "show", "runs/tiny").stdout
    assert f"\n{STUDY}: {stated(votes.guarantee)} for 2 releases together\n" in content
    assert f"in tiny.dpsgd.ledger: {stated(lots.guarantee)} for 2 releases together\n" in content
    cost = f"ε {format_epsilon(both.epsilon)} at δ 0.002"
    assert f"to publish both: {cost}, for one record's contribution " in content
    assert "counts against the budget like anything else" in content
    assert "by hash" not in content  # the recipe is known
    by_file = project.call("ledger", "show", "data/ledgers/tiny.ledger").stdout
    assert "by hash" in by_file
    turned = project.call("ledger", "show", "data/ledgers/tiny.dpsgd.ledger").stdout
    assert f"in tiny.ledger: {stated(votes.guarantee)} for 2 releases together\n" in turned
    rows = [line for line in content.splitlines() if "labels " in line]
    assert [STUDY in row for row in rows] == [False, True, True]


def test_what_was_not_planned_by_one_method_is_shown_of_both(project: Any) -> None:
    plan_votes(project, 3.0)
    plan_lots(project, 2.0)
    run(project, "aggregate.scale=3.0", "privacy.sanitise=false")
    train(project, 2.0, STUDY)
    assert NOT_PLANNED not in project.call("ledger", "show", "runs/tiny").stdout
    train(project, 3.0, STUDY)
    with Ledger.open(project.ledger) as ledger, Ledger.open(steps_of(project)) as steps:
        votes, lots = ledger.guarantee(), steps.guarantee()
    content = project.call("ledger", "show", "runs/tiny").stdout
    assert f"{STUDY}: {stated(votes)} for 1 release ({NOT_PLANNED})\n" in content
    assert f"{stated(lots)} for 2 releases together ({NOT_PLANNED})\n" in content
    assert (
        f"to publish both: ε {format_epsilon(votes.epsilon + lots.epsilon)} at δ 0.002" in content
    )


@pytest.mark.campaign
def test_ledger_show_restates_lots_for_a_shuffled_partition(project: Any) -> None:
    project.write(partition={"method": "shuffle"})
    run(project)
    for noise in (8.0, 0.3):  # the second is so little that δ (1 + e^ε) would pass one
        train(project, noise, STUDY)
        with Ledger.open(project.ledger) as ledger:
            both = ledger.data_set_total()
        content = project.call("ledger", "show", "runs/tiny").stdout
        assert (
            f"to publish both: ε {format_epsilon(both.epsilon)} at δ {format_epsilon(both.delta)}"
            in content
        )
        assert "one record replaced" in content


# --- what pages, cards and refusals state of a study ----------------------------------------------


def finish(project: Any, *settings: str, **more: Any) -> None:
    settings = ("student.model=sklearn.tree:DecisionTreeClassifier", *settings)
    run(project, "privacy.sanitise=false", *settings, until="evaluate", **more)


def let_out(project: Any, folder: str, *words: str, code: int = 0, out: str = "out",
            plugins: str = "plugins") -> Any:  # fmt: skip
    return project.call("release", folder, out, "--plugin-path", plugins, *words, code=code)


def card_of(project: Any) -> str:
    assert verify_release(project.folder / "out").problems == ()
    return (project.folder / "out" / "MODEL_CARD.md").read_text()


def stated(guarantee: Any) -> str:
    return format_cost(guarantee.epsilon, guarantee.delta)


@pytest.mark.campaign
def test_a_release_does_not_hold_the_name_of_a_folder(project: Any) -> None:
    finish(project, "aggregate.scale=3.0")
    let_out(project, "runs/tiny", "--chosen-beforehand")
    for file in ("MODEL_CARD.md", "release.json", "report.html"):
        assert STUDY not in html.unescape((project.folder / "out" / file).read_text())


@pytest.mark.campaign
def test_the_settings_of_no_point_are_released_with_a_note(project: Any) -> None:
    finish(project, "aggregate.scale=3.0")
    finish(project, "aggregate.scale=4.0", study=None, out="runs/other")
    let_out(project, "runs/other")
    card = card_of(project)
    assert "* 1 other release was drawn from this data set." in card
    assert "to be compared" not in card


def other_plugins(project: Any) -> str:
    """Plug-ins elsewhere, with which the same settings give other votes."""
    code = (project.folder / "plugins/centroids.py").read_text()
    (project.folder / "elsewhere").mkdir()
    changed = code.replace("shrink=0.0", "shrink=0.3")
    (project.folder / "elsewhere/centroids.py").write_text(changed)
    return "elsewhere"


def other_draw(project: Any, how: str) -> dict[str, Any]:
    """How to draw with the settings of a study and from other votes, or from the same again."""
    if how == "plug-ins":
        return {"plugins": other_plugins(project)}
    return {"spend": True}


@pytest.mark.parametrize("how", ["plug-ins", "the same votes"])
@pytest.mark.campaign
def test_settings_of_a_study_drawn_after_it_are_of_the_study(project: Any, how: str) -> None:
    finish(project, "aggregate.scale=3.0")
    finish(project, "aggregate.scale=4.0")
    more = other_draw(project, how)
    finish(project, "aggregate.scale=3.0", study=None, out="runs/after", **more)
    first, _, last = charges(project)
    assert first.settings & last.settings
    assert last.studies == ()
    assert (first.release.split()[1] == last.release.split()[1]) is (how == "the same votes")
    plugins = more.get("plugins", "plugins")
    refused = let_out(project, "runs/after", plugins=plugins, code=2).stderr
    (line,) = refused.splitlines()
    assert f"one of 2 releases of the study “{STUDY}”, or has the settings of one" in line
    assert "--chosen-beforehand" in line
    let_out(project, "runs/after", "--chosen-beforehand", plugins=plugins)
    card = card_of(project)
    assert "* 2 other releases were drawn from this data set." in card
    assert "are among 2 releases that were made to be compared" in card
    assert "* Its owner states that it was chosen before any of their results was seen" in card


def whole_ledger(project: Any) -> str:
    with Ledger.open(project.ledger) as ledger:
        return f"{stated(ledger.guarantee())} together ({NOT_PLANNED})"


def test_releases_outside_the_plan_are_charged_at_the_ledgers_rate(project: Any) -> None:
    """Labels with the settings of a study that are not of it: its plan does not count them."""
    plan_votes(project, 3.0, 4.0)
    finish(project, "aggregate.scale=3.0")
    finish(project, "aggregate.scale=4.0")
    with Ledger.open(project.ledger) as ledger:
        (cost,) = study_costs(ledger)
        assert cost.in_advance
    finish(project, "aggregate.scale=3.0", study=None, out="runs/after", spend=True)
    refused = let_out(project, "runs/after", code=2).stderr
    assert whole_ledger(project) in refused
    assert stated(cost.guarantee) not in refused
    assert stated(cost.guarantee) in let_out(project, "runs/tiny", code=2).stderr


@pytest.mark.parametrize("how", ["more queries", "a sanitised figure"])
def test_what_builds_on_a_study_is_of_it(project: Any, how: str) -> None:
    """An answer that is extended later, or sanitised: the plan of the study did not have that."""
    plan_votes(project, 3.0)
    finish(project, "aggregate.scale=3.0")
    more = ["aggregate.queries=20"] if how == "more queries" else ["privacy.sanitise=true"]
    finish(project, "aggregate.scale=3.0", *more, study=None)
    with Ledger.open(project.ledger) as ledger:
        charged, (cost,) = ledger.charges(), study_costs(ledger)
        whole = ledger.guarantee()  # where one teacher changes: by hash, of one record more or less
    assert cost.guarantee == dataclasses.replace(whole, neighbours=Neighbours.ADD_REMOVE)
    assert [each.studies for each in charged] == [(STUDY,)] * 2
    assert charged[1].release.startswith("labels" if how == "more queries" else "sanitised")
    assert (cost.releases, cost.in_advance) == (2, False)
    assert whole_ledger(project) in let_out(project, "runs/tiny", code=2).stderr


def test_a_sanitised_figure_is_of_the_study_though_its_draw_is_gone(project: Any) -> None:
    """The charge of the labels is then known by the beginning of its name alone."""
    plan_votes(project, 3.0)
    finish(project, "aggregate.scale=3.0")
    shutil.rmtree(project.run_folder / "private" / "pending-labels")
    finish(project, "aggregate.scale=3.0", "privacy.sanitise=true", study=None)
    labels, sanitised = charges(project, "")
    assert sanitised.release.startswith("sanitised ")
    assert sanitised.studies == labels.studies == (STUDY,)


@pytest.mark.campaign
def test_settings_of_a_study_drawn_before_it_are_of_none(project: Any) -> None:
    """What was drawn before there was a result was not chosen by it."""
    plugins = other_plugins(project)
    finish(project, "aggregate.scale=3.0", study=None, out="runs/before", plugins=plugins)
    finish(project, "aggregate.scale=3.0")
    finish(project, "aggregate.scale=4.0")
    first, second, _ = charges(project)
    assert first.settings & second.settings
    assert (first.studies, second.studies) == ((), (STUDY,))
    let_out(project, "runs/before", plugins=plugins)
    card = card_of(project)
    assert "to be compared" not in card
    assert "Its owner states" not in card


def test_another_draw_of_the_votes_of_a_study_is_of_the_study_at_any_time(project: Any) -> None:
    """Two draws of the same votes: whoever lets out the first may have seen the second."""
    finish(project, "aggregate.scale=3.0", study=None, out="runs/before")
    finish(project, "aggregate.scale=3.0", spend=True)
    refused = let_out(project, "runs/before", code=2).stderr
    assert f"one of 1 release of the study “{STUDY}”" in refused


@pytest.mark.campaign
def test_draws_with_the_same_settings_are_counted(project: Any) -> None:
    """The best of several draws is a choice, too."""
    finish(project, study=None)
    finish(project, study=None, out="runs/second", spend=True)
    finish(project, study=None, out="runs/third", spend=True)
    printed = []
    for folder in ("runs/tiny", "runs/second", "runs/third"):
        project.call("report", folder, "--plugin-path", "plugins")
        text = html.unescape((project.folder / folder / "report.html").read_text())
        printed.append(re.findall(r"(\d) other releases? w\w+ drawn from this data set", text))
    assert printed == [["2"]] * 3  # the first, too, may be let out after a look at the others
    for file in (project.folder / "runs/second/private/pending-labels").glob("*/manifest.json"):
        file.unlink()  # then it may be any of them
    project.call("report", "runs/second", "--plugin-path", "plugins")
    assert "2 other releases" in (project.folder / "runs/second/report.html").read_text()


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.campaign
def test_the_page_and_the_summary_mention_a_study(project: Any, planned: bool) -> None:
    finish(project, study=None)
    page = project.run_folder / "report.html"
    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    assert "to be compared" not in page.read_text()
    if planned:
        plan_votes(project, 3.0, 4.0)
    finish(project, "aggregate.scale=3.0")
    finish(project, "aggregate.scale=4.0")
    with Ledger.open(project.ledger) as ledger:
        whole = ledger.guarantee()
    if planned:
        whole = compose([*votes_of(3.0), *votes_of(4.0)]).guarantee(delta=1e-3)
    why = "" if planned else f" ({NOT_PLANNED})"
    content = f"what all of them cost: {stated(whole)} together{why}."
    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    text = html.unescape(page.read_text())
    assert "are among 2 releases that were made to be compared" in text
    assert content in text
    again = project.call_run(
        "--set", "aggregate.scale=4.0", "--set", "privacy.sanitise=false",
        "--set", "student.model=sklearn.tree:DecisionTreeClassifier",
    )  # fmt: skip
    assert content in " ".join(again.stdout.split())


def test_a_refusal_states_what_holds_where_points_were_added(project: Any) -> None:
    plan_votes(project, 3.0, 4.0)
    finish(project, "aggregate.scale=3.0")
    finish(project, "aggregate.scale=4.0")
    planned = compose([*votes_of(3.0), *votes_of(4.0)]).guarantee(delta=1e-3)
    refused = let_out(project, "runs/tiny", code=2).stderr
    assert f"one of 2 releases of the study “{STUDY}”" in refused
    assert f"which cost {stated(planned)} together, and" in refused
    finish(project, "aggregate.scale=5.0")
    with Ledger.open(project.ledger) as ledger:
        later = ledger.guarantee()
    assert later.epsilon > planned.epsilon
    refused = let_out(project, "runs/tiny", code=2).stderr
    assert "one of 3 releases" in refused
    assert f"which cost {stated(later)} together ({NOT_PLANNED}), and" in refused


@pytest.mark.parametrize("method", ["hash", "shuffle"])
@pytest.mark.campaign
def test_what_a_comparison_costs_counts_both_methods(project: Any, method: str) -> None:
    project.write(partition={"method": method})
    plan_votes(project, 2.0, 3.0)
    plan_lots(project, 8.0)
    finish(project)
    finish(project, "aggregate.scale=3.0")
    train(project, 8.0, STUDY)
    relation = ADD if method == "hash" else Neighbours.REPLACE_ONE
    with Ledger.open(project.ledger) as ledger, Ledger.open(steps_of(project)) as steps:
        costs = [study_costs(each, one_teacher=relation)[0] for each in (ledger, steps)]
        trained = steps.guarantee()
    assert all(each.in_advance for each in costs)
    both = combined_guarantee([each.guarantee for each in costs], replace_one=method == "shuffle")
    refused = let_out(project, "runs/tiny", code=2).stderr
    assert "one of 3 releases of the study" in refused
    printed = "" if method == "shuffle" else f" for {describe_neighbours('zero-out')}"
    assert f"cost {stated(both)} together{printed}, and" in refused
    let_out(project, "runs/tiny", "--chosen-beforehand")
    card = card_of(project)
    assert "Over **all PATE releases** of tiny" in card
    assert f"what all of them cost: {stated(both)} together{printed}." in card.replace("\\", "")
    assert "1 release of this data set by DP-SGD" in card
    trained_cost = f"{stated(trained)} in all, for {describe_neighbours('zero-out')}"
    assert trained_cost in card.replace("\\", "")

    train(project, 9.0, STUDY)  # beyond the plan
    with Ledger.open(project.ledger) as ledger:
        later = ledger.data_set_total()
    assert later.epsilon > both.epsilon
    refused = let_out(project, "runs/tiny", code=2, out="later").stderr
    assert "one of 4 releases of the study" in refused
    assert f"cost {stated(later)} together{printed} ({NOT_PLANNED}), and" in refused


@pytest.mark.campaign
def test_models_of_no_study_are_mentioned_too(project: Any) -> None:
    finish(project, study=None)
    train(project, 8.0, None)
    let_out(project, "runs/tiny")
    card = card_of(project)
    assert "1 release of this data set by DP-SGD" in card
    assert "to be compared" not in card
