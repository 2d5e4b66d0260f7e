"""``pate sweep --private-selection``: one charge, one winner, and nothing else to be seen."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate._format import format_epsilon
from pate.accounting import (
    BestOfTries,
    Conversion,
    LaplaceNoisyMaxAnswer,
    Ledger,
    Repeated,
    compose,
    event_from_json,
)
from pate.accounting.events import tally
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import read_resolved
from pate.releases.files import SUMS, digests, render_sums
from pate.releases.verify import verify as verify_release
from pate.stages.selection import candidate, candidates_of, differences
from pate.studies import selection

OVER = ("--over", "teachers.count=4,6", "--over", "aggregate.scale=1.0,3.0")
WORDS = ("--engine", "serial", "--plugin-path", "plugins", "--out", "runs/tiny")

# A student that talks, warns and notes each training: in a file, which is the test's own.
LOUD = """
import os
import sys
import warnings
import numpy as np
from centroids import Centroids


class Loud(Centroids):
    def __init__(self, classes, journal="", shy=False, never=False):
        super().__init__(classes)
        self.journal, self.shy, self.never = journal, shy, never

    def fit(self, X, y):
        with open(self.journal, "a") as file:
            file.write("trained\\n")
        print("print: training")
        print("print: training", file=sys.stderr)
        os.write(1, b"write: training\\n")
        os.write(2, b"write: training\\n")
        warnings.warn("warning: training", UserWarning)
        made_up = np.array_equal(y, np.arange(len(y)) % self.classes)
        if self.never or (self.shy and not made_up):
            raise ValueError(f"these labels I cannot stand: {y}")
        return super().fit(X, y)
"""


def choose(project: Any, *words: str, tries: str = "5", code: int = 0, over: Any = OVER) -> Any:
    given = ("sweep", "tiny.toml", *over, "--private-selection", "--tries", tries, *WORDS)
    return project.call(*given, *words, code=code)


def paid(project: Any) -> list[Any]:
    if not project.ledger.exists():
        return []
    with Ledger.open(project.ledger) as ledger:
        return ledger.charges()


def winner(project: Any) -> tuple[dict[str, Any], bytes]:
    """The winner's settings, and its labels."""
    recipe = read_resolved(project.run_folder)
    (released,) = (project.run_folder / "released" / "aggregate").iterdir()
    return recipe.model_dump(mode="json"), (released / "labels.npy").read_bytes()


def aggregates(project: Any) -> list[Path]:
    return list((project.run_folder / "released" / "aggregate").iterdir())


def traces(project: Any) -> list[Path]:
    return list(project.run_folder.rglob("*selection-*"))


@pytest.fixture
def tiny(project: Any) -> Any:
    project.write()
    return project


# --- the winner ---------------------------------------------------------------------------------


def test_one_charge_and_the_winner_is_an_ordinary_run(tiny: Any) -> None:
    printed = choose(tiny).stdout
    (charge,) = paid(tiny)
    assert charge.studies == ()
    ((event, count),) = tally(charge.events).items()
    assert (count, event.mean_tries, event.shape) == (1, 5.0, 0.0)
    assert isinstance(event, BestOfTries)
    assert sorted(str(plan) for plan in event.candidates) == sorted(
        f"(Repeated(event=LaplaceNoisyMaxAnswer(scale={scale}), count=12),)"
        for scale in (1.0, 3.0)
        for _ in range(2)
    )
    whole = compose([event]).guarantee(delta=1e-3, conversion=Conversion.IMPROVED)
    recipe = read_resolved(tiny.run_folder)
    assert recipe.selection is not None
    assert len(recipe.selection.candidates) == 4
    assert recipe.model_copy(update={"selection": None}) in candidates_of(recipe)
    plan = tiny.json("aggregate", "plan.json")
    assert plan["guarantee"]["epsilon"] == whole.epsilon
    assert [event_from_json(text) for text in plan["events"]] == [event]
    costs = tiny.json("account", "guarantees.json")
    assert costs["guarantee"] == plan["guarantee"]
    assert costs["guarantee"]["neighbours"] == "add-remove"
    assert costs["sanitised"] is None
    assert "privately" in costs["why_not"]
    assert "improved" not in tiny.json("account-private", "guarantees.json")
    assert re.search(
        r"among 4 candidates, 5 tries on average: ε = \S+ at δ = 0.001 in all", printed
    )
    assert "How long this took is private" in printed
    assert "done" in tiny.call("status", "runs/tiny", "--plugin-path", "plugins").stdout
    # again: nothing to do, nothing to pay
    before = winner(tiny)
    choose(tiny)
    assert winner(tiny) == before
    assert paid(tiny) == [charge]


def test_what_did_not_win_is_gone(tiny: Any) -> None:
    choose(tiny)
    assert traces(tiny) == []
    assert len(tiny.artifacts("aggregate")) == len(tiny.artifacts("pending-labels")) == 1
    assert len(tiny.artifacts("distill")) == len(tiny.artifacts("evaluate")) == 1
    assert len(tiny.artifacts("vote")) == 2  # of all candidates, whoever was picked
    pending = tiny.path("pending-labels")
    known = {"asked", "answered", "labels", "kept", "kept_labels"}
    assert {each.stem for each in pending.iterdir()} == known | {
        "plan", "events", "charge", "manifest"
    }  # fmt: skip


def test_the_best_try_wins(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are given out by the picks: the best of those that were picked must win."""
    order = [0.5, 0.9, 0.1, 0.7]
    picked: list[int] = []

    def scored(one: Any, answer: Any) -> float:
        recipe = one.context.recipe
        number = settings.index((recipe.teachers.count, recipe.aggregate.scale))
        picked.append(number)
        return order[number]

    settings = [(4, 1.0), (4, 3.0), (6, 1.0), (6, 3.0)]
    monkeypatch.setattr(selection, "_score_of", scored)
    choose(tiny, tries="20")
    best = max(set(picked), key=order.__getitem__)
    recipe = read_resolved(tiny.run_folder)
    assert (recipe.teachers.count, recipe.aggregate.scale) == settings[best]


@pytest.mark.campaign
def test_tries_are_independent_and_uniform(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tries: every candidate is picked about as often, and no two have the same noise."""
    monkeypatch.setattr(selection, "draw_tries", lambda mean, shape, *, rng: 400)
    seen: list[tuple[int, bytes]] = []

    def scored(one: Any, answer: Any) -> float:
        noised = (answer.path / "labels.npy").read_bytes()
        seen.append(
            (one.context.recipe.teachers.count * 10 + one.context.recipe.aggregate.scale, noised)
        )
        return 0.5

    monkeypatch.setattr(selection, "_score_of", scored)
    tiny.write(aggregate={"scale": 50.0, "queries": 30})  # labels are all but random
    over = ("--over", "teachers.count=4,6", "--over", "aggregate.scale=50.0,60.0")
    choose(tiny, over=over)
    counts = np.unique([pick for pick, _ in seen], return_counts=True)[1]
    assert len(seen) == 400
    assert len({noised for _, noised in seen}) == 400  # 3^30 answers: equal ones mean equal noise
    assert len(counts) == 4
    assert np.all(np.abs(counts - 100) < 5 * np.sqrt(400 * 3 / 16))


# --- nothing is revealed --------------------------------------------------------------------------


def test_nothing_heard_depends_on_the_number_of_tries(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.plugin("loud", LOUD)
    journal = tiny.folder / "journal"
    tiny.write(student={"model": "loud:Loud", "params": {"journal": str(journal)}})
    heard, trained = [], []
    for count in (1, 7):
        monkeypatch.setattr(selection, "draw_tries", lambda mean, shape, *, rng, n=count: n)
        shutil.rmtree(tiny.run_folder, ignore_errors=True)
        journal.unlink(missing_ok=True)
        done = choose(tiny, "--spend")
        low = capfd.readouterr()
        # up to what is published; the winner's own training is heard, as in any run
        until = done.stdout.partition("aggregate: running")[0]
        until = re.sub(r"will (charge|bring) .*\n", "", until)  # after the charge of the one before
        heard.append((re.sub(r"[0-9a-f]{20}", "", until), done.stderr, low.out, low.err))
        trained.append(len(journal.read_text().splitlines()))
    assert trained == [1 + 1 + 1, 1 + 7 + 1]  # a rehearsal, the tries, and the winner
    assert heard[0] == heard[1]


def test_a_try_that_fails_is_the_worst(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate's student cannot learn from real labels: the other wins, and nobody hears."""
    tiny.plugin("loud", LOUD)
    monkeypatch.setattr(selection, "draw_tries", lambda mean, shape, *, rng: 30)
    params = [{"journal": str(tiny.folder / "journal"), "shy": shy} for shy in (True, False)]
    tiny.write(student={"model": "loud:Loud", "params": params[0]})
    content = ",".join(
        "{" + f'journal="{p["journal"]}", shy={str(p["shy"]).lower()}' + "}" for p in params
    )
    done = choose(tiny, over=("--over", f"student.params={content}"))
    assert "cannot stand" not in done.stdout + done.stderr
    assert read_resolved(tiny.run_folder).student.params["shy"] is False


def test_if_all_tries_fail_that_is_paid_for_first(tiny: Any) -> None:
    tiny.plugin("loud", LOUD)
    journal = str(tiny.folder / "journal")
    tiny.write(student={"model": "loud:Loud", "params": {"journal": journal, "shy": True}})
    done = choose(tiny, code=2)
    assert "the student failed" in done.stderr
    assert len(paid(tiny)) == 1
    assert traces(tiny) == []
    assert len(tiny.artifacts("aggregate")) == 1  # what was paid for is out, and is the reason


def test_a_student_that_can_never_learn_costs_nothing(tiny: Any) -> None:
    tiny.plugin("loud", LOUD)
    journal = str(tiny.folder / "journal")
    tiny.write(student={"model": "loud:Loud", "params": {"journal": journal, "never": True}})
    choose(tiny, code=2)
    assert paid(tiny) == []
    assert traces(tiny) == []


def test_what_is_under_way_is_in_private(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While tries go on, nothing outside ``private`` follows from votes, and no charge is there."""
    seen = []

    def scored(one: Any, answer: Any) -> float:
        released = list((tiny.run_folder / "released").rglob("*"))
        outside = [each for each in traces(tiny) if "private" not in each.parts]
        mode = (tiny.run_folder / "private").stat().st_mode & 0o777
        recipe = json.loads((tiny.run_folder / "recipe.json").read_text())
        seen.append((released, outside, mode, paid(tiny), recipe["selection"]))
        return 0.5

    monkeypatch.setattr(selection, "_score_of", scored)
    choose(tiny)
    assert seen[0] == ([], [], 0o700, [], None)
    assert all(each == seen[0] for each in seen)


# --- two at once --------------------------------------------------------------------------------


def in_private(project: Any) -> dict[str, bytes]:
    """Everything in the private folder."""
    files = (project.run_folder / "private").rglob("*")
    return {str(each): each.read_bytes() for each in files if each.is_file()}


def test_one_process_at_a_time_selects_in_a_folder(tiny: Any) -> None:
    private = tiny.run_folder / "private"
    private.mkdir(parents=True, mode=0o700)
    handle = os.open(private, os.O_RDONLY)  # as another selection holds it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for _ in range(2):
            done = choose(tiny, code=2)
            assert len(done.stderr.splitlines()) == 1
            assert "another process is selecting in runs/tiny" in done.stderr
            assert paid(tiny) == []
            assert traces(tiny) == []
            assert not (tiny.run_folder / "released").exists()
    finally:
        os.close(handle)
    choose(tiny)
    assert len(paid(tiny)) == 1
    assert len(aggregates(tiny)) == 1


def test_a_second_selection_touches_nothing_of_the_first(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the first one tries: courses, answers and scores stay what they were."""
    refused = []

    def scored(one: Any, answer: Any) -> float:
        before = in_private(tiny)
        if not refused:
            words = ("sweep", "tiny.toml", *OVER, "--private-selection", "--tries", "5", *WORDS)
            refused.append(tiny.pate(*words, code=2).stderr)
        assert in_private(tiny) == before
        assert paid(tiny) == []
        return 0.5

    monkeypatch.setattr(selection, "_score_of", scored)
    monkeypatch.setattr(selection, "draw_tries", lambda mean, shape, *, rng: 3)
    choose(tiny)
    (printed,) = refused
    assert len(printed.splitlines()) == 1
    assert "another process is selecting" in printed
    assert len(paid(tiny)) == 1
    assert traces(tiny) == []


# --- kill -9 ------------------------------------------------------------------------------------

KILLER = """
import os, signal, sys
from pate.accounting.ledger import Ledger
from pate.pipeline.runner import PipelineRun
from pate.studies import selection
from pate.stages import distill

def die(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)

charge, execute = Ledger.charge, PipelineRun.execute

def charged(self, *given, **named):
    charge(self, *given, **named)
    die()

def of_the_winner(self, *given, **named):
    return die() if self.recipe.selection is not None else execute(self, *given, **named)

moment = sys.argv.pop(1)
if moment == "course":
    selection.Tries._answer = die
elif moment == "half an answer":
    selection.answers_of = die
elif moment == "score":
    selection._score_of = die
elif moment == "before the charge":
    Ledger.charge = die
elif moment == "after the charge":
    Ledger.charge = charged
elif moment == "published":
    selection.forget = die
elif moment == "forgotten":
    PipelineRun.execute = of_the_winner
elif moment == "student":
    distill.train_student = die
from pate.cli import main
main()
"""
MOMENTS = ("course", "half an answer", "score", "before the charge", "after the charge",
           "published", "forgotten", "student")  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed_is_one_charge_and_one_winner(
    tiny: Any, moment: str, tmp_path: Path, project_in: Any
) -> None:
    """What was drawn by then stays: two copies of what is left, resumed, have the same winner."""
    words = ("sweep", "tiny.toml", *OVER, "--private-selection", "--tries", "8", *WORDS)
    done = subprocess.run(
        [sys.executable, "-c", KILLER, moment, *words],
        cwd=tiny.folder,
        env=tiny.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    paid_by_then = MOMENTS.index(moment) > MOMENTS.index("before the charge")
    assert len(paid(tiny)) == paid_by_then
    if not paid_by_then:
        assert not (tiny.run_folder / "released").exists()
        assert json.loads((tiny.run_folder / "recipe.json").read_text())["selection"] is None
    if moment in ("score", "before the charge"):  # all answers are drawn
        drawn = {
            file.read_bytes() for file in tiny.run_folder.glob("private/selection-try/*/labels.npy")
        }
        assert drawn
    shutil.copytree(tiny.folder, tmp_path / "copy")
    copy = project_in(tmp_path / "copy")
    for each in (tiny, copy):
        choose(each, tries="8")
        assert len(paid(each)) == 1
        assert traces(each) == []
        assert not list(each.run_folder.rglob(".draft-*"))
    if moment in ("course", "half an answer"):
        return  # answers of these were drawn after the copy
    assert winner(tiny) == winner(copy)
    if moment in ("score", "before the charge"):
        assert winner(tiny)[1] in drawn
    assert paid(tiny)[0].release == paid(copy)[0].release or moment == "score"


def test_deleting_the_folder_refunds_nothing(tiny: Any) -> None:
    choose(tiny)
    shutil.rmtree(tiny.run_folder)
    assert "--spend" in choose(tiny, code=3).stderr
    assert len(paid(tiny)) == 1
    choose(tiny, "--spend")
    assert len(paid(tiny)) == 2


def test_votes_that_spoke_before_need_consent(tiny: Any) -> None:
    """Whichever candidate would win: it is asked before anything is drawn."""
    tiny.call_run(
        "--out", "runs/tiny", "--set", "teachers.count=4", "--set", "privacy.sanitise=false"
    )
    assert "--spend" in choose(tiny, code=3).stderr
    assert len(paid(tiny)) == 1
    assert traces(tiny) == []
    choose(tiny, "--spend")
    assert len(paid(tiny)) == 2


@pytest.mark.campaign
def test_choosing_again_among_the_same_votes_needs_consent(tiny: Any) -> None:
    choose(tiny)
    wider = ("--over", "teachers.count=4,6,5", "--over", "aggregate.scale=1.0,3.0")
    assert "--spend" in choose(tiny, over=wider, code=3).stderr
    alone = ("--out", "runs/tiny", "--set", "teachers.count=4", "--set", "aggregate.scale=2.0")
    assert "--spend" in tiny.call_run(*alone, code=3).stderr
    assert len(paid(tiny)) == 1
    others = ("--over", "teachers.count=5,7")
    assert "--spend" in choose(tiny, over=others, code=3).stderr
    choose(tiny, "--spend", over=others)  # votes of nobody yet
    choose(tiny, "--spend", over=wider)
    tiny.call_run(*alone, "--spend", "--set", "privacy.sanitise=false")
    assert len(paid(tiny)) == 4


def test_a_winner_takes_up_its_own_selection(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder, one choice, several seeds: the same winner, and each has labels of its own."""
    monkeypatch.setattr(selection, "draw_tries", lambda mean, shape, *, rng: 30)
    monkeypatch.setattr(
        selection, "_score_of", lambda one, answer: one.context.recipe.aggregate.scale
    )
    over = ("--over", "aggregate.scale=1.0,3.0")
    for seed in range(4):
        choose(tiny, "--insecure-seed", str(seed), "--spend", over=over)
    origins = (tiny.run_folder / "private" / "origins" / "aggregate").glob("*.json")
    assert len({json.loads(each.read_text())["facts"]["drawn"] for each in origins}) == 4


def test_times_are_named_as_private_and_the_ledger_is_the_owners(tiny: Any) -> None:
    printed = " ".join(choose(tiny).stdout.split())
    assert re.search("So do the times of files in .*runs/tiny and that of the charge", printed)
    assert tiny.ledger.stat().st_mode & 0o777 == 0o600


def test_a_hint_is_printed_where_running_all_openly_costs_less(tiny: Any) -> None:
    students = ["--over", "student.seed=0,1,2"]  # of the same labels, which openly are paid once
    dear = " ".join(choose(tiny, over=students).stdout.split())
    alone = compose([Repeated(LaplaceNoisyMaxAnswer(scale=2.0), 12)]).guarantee(delta=0.001)
    printed = re.search(r"all 3 run openly cost no more, ε = ([0-9.]+) together", dear)
    assert printed is not None
    assert printed[1] == format_epsilon(alone.epsilon)
    assert "openly" not in choose(tiny, "--out", "runs/other", tries="1.1").stdout


def test_the_budget_is_asked_before_anybody_is_taught(tiny: Any) -> None:
    tiny.write(privacy={"budget": 5.0})
    assert "budget" in choose(tiny, code=3).stderr
    assert paid(tiny) == []
    assert not tiny.artifacts("teach")


def test_answers_that_were_chosen_are_never_extended(tiny: Any) -> None:
    """A run of the winner's settings with more queries draws all of them anew."""
    choose(tiny)
    recipe = read_resolved(tiny.run_folder)
    settings = [
        f"teachers.count={recipe.teachers.count}", f"aggregate.scale={recipe.aggregate.scale}",
        "aggregate.queries=20", "privacy.sanitise=false",
    ]  # fmt: skip
    words = [word for each in settings for word in ("--set", each)]
    tiny.call_run("--out", "runs/tiny", "--spend", *words)
    last = paid(tiny)[-1]
    assert [each.count for each in last.events] == [20]


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "printed"),
    [
        (("--over", "partition.key=a,b"), "candidates differ in partition"),
        (("--over", "privacy.delta=1e-3,1e-4"), "candidates differ in privacy.delta"),
        (("--over", "privacy.conversion=classic,improved"), "candidates differ in privacy.conv"),
        (("--over", "aggregate.choose=first,uncertain"), "asked in rounds"),
        (("--over", "aggregate.scale=2.0"), "no choice"),
    ],
)
def test_what_cannot_be_chosen_among(tiny: Any, over: Any, printed: str) -> None:
    done = choose(tiny, over=over, code=2)
    assert printed in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert paid(tiny) == []


def test_a_selection_is_not_run_by_hand(tiny: Any) -> None:
    section = {"candidates": [{"aggregate.scale": 2.0}, {"aggregate.scale": 9.0}], "mean_tries": 5}
    tiny.write(selection=section)
    done = tiny.call_run(code=2)
    assert "cannot be run by hand" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not tiny.run_folder.exists()
    choose(tiny, code=2)


def test_candidates_as_settings_and_back(tiny: Any) -> None:
    from pate.recipes.read import read_recipe

    recipes = [
        read_recipe(str(tiny.folder / "tiny.toml"), [f"aggregate.scale={scale}", more], Recipe)[1]
        for scale in (2.0, 5.0)
        for more in ("privacy.epsilon=3.0", "student.params={shrink = 0.5}")
    ]
    content = differences(recipes)
    assert list(content[0]) == ["aggregate.scale", "privacy.epsilon", "student.params"]
    for start in recipes:
        assert [candidate(start, each) for each in content] == recipes


# --- release ------------------------------------------------------------------------------------


def change(file: Path, edit: Any) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def sums_again(out: Path) -> None:
    listed = {n: d for n, d in digests(out).items() if n != "release.json"}
    change(out / "release.json", lambda content: content.update(files=listed))
    (out / SUMS).write_text(render_sums(digests(out)))


@pytest.fixture(scope="module")
def released(tmp_path_factory: Any, project_in: Any) -> Any:
    project = project_in(tmp_path_factory.mktemp("released"))
    project.write(student={"model": "sklearn.tree:DecisionTreeClassifier"})
    choose(project)
    project.call("release", "runs/tiny", "out", "--plugin-path", "plugins", "--labels")
    return project


def test_a_winner_is_released_with_the_epsilon_of_the_choice(released: Any) -> None:
    out = released.folder / "out"
    checked = verify_release(out)
    (charge,) = paid(released)
    whole = compose(charge.events).guarantee(delta=1e-3)
    assert checked.problems == ()
    assert checked.epsilon == whole.epsilon
    card = (out / "MODEL_CARD.md").read_text()
    assert "the choice of its settings among 4 candidates" in card
    assert "Papernot & Steinke 2022" in card
    page = (out / "report.html").read_text()
    assert "The cost of the choice" in page
    assert "Naive sum" not in page
    assert "Papernot &amp; Steinke 2022" in page
    for each in (card, page):  # the best of several shares of the same records looks too good
        assert "chosen by its accuracy on these same records" in each


TAMPERED: dict[str, Any] = {
    "fewer candidates": lambda c: c["recipe"]["selection"]["candidates"].pop(),
    "fewer tries": lambda c: c["recipe"]["selection"].update(mean_tries=2.0),
    "another shape": lambda c: c["recipe"]["selection"].update(shape=1.0),
    "more noise": lambda c: [
        each.update({"aggregate.scale": 100.0}) for each in c["recipe"]["selection"]["candidates"]
    ],
    "no choice": lambda c: c["recipe"].pop("selection"),
    "another winner": lambda c: c["recipe"]["teachers"].update(count=5),
    "a wider interval": lambda c: c["evaluation"]["student"].update(high=1.0, low=0.99),
    "a better share": lambda c: c["evaluation"]["student"].update(accuracy=0.999),
}


@pytest.mark.parametrize("kind", TAMPERED)
@pytest.mark.sample(1)
def test_what_was_changed_is_found(released: Any, tmp_path: Path, kind: str) -> None:
    out = shutil.copytree(released.folder / "out", tmp_path / "out")
    change(out / "release.json", TAMPERED[kind])
    sums_again(out)
    problems = verify_release(out).problems
    assert any(each.startswith(("release.json", "guarantee.json")) for each in problems)


def test_a_smaller_epsilon_is_found(released: Any, tmp_path: Path) -> None:
    """The event replaced by what one try costs, all figures made to follow."""
    from pate.accounting.ledger.terms import Terms
    from pate.releases.guarantee import (
        guarantee_of_ledger,
        guarantee_of_plan,
        guarantee_record,
        write_events,
    )

    out = shutil.copytree(released.folder / "out", tmp_path / "out")

    def lower(content: Any) -> None:
        (event,) = tally([event_from_json(text) for text in content["labels"]])
        alone = list(event.candidates[0])
        content["labels"] = content["data_set"]["events"] = write_events(alone)
        figure = guarantee_of_plan(alone, delta=1e-3, conversion=Conversion.IMPROVED)
        content["guarantee"] = guarantee_record(figure, "add-remove")
        terms = Terms.from_json(json.dumps(content["data_set"]["terms"]))
        content["data_set"]["guarantee"] = guarantee_record(
            guarantee_of_ledger(alone, terms), "replace-one"
        )

    change(out / "guarantee.json", lower)
    sums_again(out)
    problems = verify_release(out).problems
    assert any("its events are not those" in each for each in problems)


@pytest.mark.campaign
def test_a_ledger_that_disagrees_is_believed(released: Any, tmp_path: Path) -> None:
    """A run whose files say less than was charged is not released."""
    shutil.copytree(released.folder, tmp_path / "project")
    plan = next((tmp_path / "project/runs/tiny/released/aggregate").glob("*/plan.json"))
    change(plan, lambda content: content["guarantee"].update(epsilon=0.1))
    done = subprocess.run(
        [sys.executable, "-m", "pate", "release", "runs/tiny", "out2", "--plugin-path", "plugins"],
        cwd=tmp_path / "project",
        env=released.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert not (tmp_path / "project/out2").exists()


@pytest.mark.campaign
def test_a_point_of_a_sweep_is_refused_unless_chosen_beforehand(project: Any) -> None:
    project.write(student={"model": "sklearn.tree:DecisionTreeClassifier"})
    project.call("sweep", "tiny.toml", *OVER, *WORDS)
    words = ("release", "runs/tiny", "out", "--plugin-path", "plugins")
    done = project.call(*words, code=2)
    assert "one of 4 releases of the study “sweep tiny”" in done.stderr
    assert "--chosen-beforehand" in done.stderr
    assert re.search(r"cost ε = [0-9.]+ at δ = 0.001 together", done.stderr)
    assert len(done.stderr.splitlines()) == 1
    assert not (project.folder / "out").exists()
    project.call(*words, "--chosen-beforehand")
    card = (project.folder / "out" / "MODEL_CARD.md").read_text()
    assert "chosen before any of their results was seen" in card
    assert verify_release(project.folder / "out").problems == ()


@pytest.mark.campaign
def test_a_choice_among_points_of_a_sweep_that_was_seen_is_asked_about(project: Any) -> None:
    """Candidates may have been picked by its table, for which no ε of the choice accounts."""
    project.write(student={"model": "sklearn.tree:DecisionTreeClassifier"})
    project.call_run(*OVER, "--out", "runs/seen", stage="sweep")
    few = ("--over", "aggregate.scale=3.0,3.1")
    choose(project, over=few)
    words = ("release", "runs/tiny", "out", "--plugin-path", "plugins")
    (line,) = project.call(*words, code=2).stderr.splitlines()
    assert "“sweep seen”" in line
    project.call(*words, "--chosen-beforehand")
    assert "Its owner states" in (project.folder / "out" / "MODEL_CARD.md").read_text()


@pytest.mark.campaign
def test_leftovers_of_a_killed_release_are_swept(released: Any, tmp_path: Path) -> None:
    mine, other = tmp_path / ".pate-release-abc", tmp_path / ".draft-of-somebody"
    for each in (mine, other):
        each.mkdir()
        (each / "file").write_text("half")
    held = tmp_path / ".pate-release-held"
    held.mkdir()
    handle = os.open(held, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    released.call("release", "runs/tiny", str(tmp_path / "out"), "--plugin-path", "plugins")
    os.close(handle)
    assert not mine.exists()
    assert other.exists()
    assert held.exists()
