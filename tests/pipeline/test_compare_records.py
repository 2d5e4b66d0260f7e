"""Record votes beside teachers and DP-SGD in one comparison: rows, charges, totals, refusals."""

from __future__ import annotations

import json
import re
import shutil
import sys

import numpy as np
import pytest
from harness import as_written

from pate.accounting import (
    ForAddRemove,
    Guarantee,
    Ledger,
    Neighbours,
    PureDP,
    exact_divergence,
)
from pate.accounting.events import tally

DELTA, SEEDS = 1e-3, 2
RECIPE = """
kind = "compare"

[data]
name = "tiny"
source = "tiny.npz"
accept_unprotected = true
public = 30
test = 30

[compare]
epsilons = [1, 4]
seeds = 2
delta = 1e-3

[record_votes.student]
model = "centroids:Centroids"

[pate]
least_epsilon = 4.0

[pate.teachers]
count = 6
model = "centroids:Centroids"

[pate.aggregate]
mechanism = "gnmax"
queries = 12

[pate.student]
model = "centroids:Centroids"

[dpsgd.model]
entry = "nets:linear"

[dpsgd.training]
steps = 5
lot_size = 60
learning_rate = 1.0

[dpsgd.privacy]
accountant = "moments"
"""
WORDS = ("compare", "mine.toml", "--engine", "serial", "--plugin-path", "plugins")
LEDGERS = ("tiny.ledger", "tiny.dpsgd.ledger")
pytestmark = pytest.mark.xdist_group("compare-records")


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    monkeypatch.setattr("pate.studies.compare.save_figure", lambda *_, **__: None)


def prepared(project):
    project.data(records=600)
    project.plugin("nets", "from dpsgd.models import linear\n")
    (project.folder / "mine.toml").write_text(RECIPE)
    return project


def charges(project):
    """The charges to PATE's ledger and to that of DP-SGD."""
    found = []
    for name in LEDGERS:
        path = project.folder / "data" / "ledgers" / name
        if not path.exists():
            found.append([])
            continue
        with Ledger.open(path) as ledger:
            found.append(ledger.charges())
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory, project_in):
    """A comparison that was run to its end in two attempts, the first killed on the way."""
    project = prepared(project_in(tmp_path_factory.mktemp("compare-records")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATE_DATA", "data")
        patch.setattr("pate.studies.compare.save_figure", lambda *_, **__: None)
        with patch.context() as stopped:
            stopped.setattr("dpsgd.training.train", lambda *_: sys.exit(9))
            project.call(*WORDS, code=9)
        project.begun = [len(each) for each in charges(project)]
        project.printed = project.call(*WORDS).stdout
    project.place = project.folder / "runs" / "mine"
    project.content = json.loads((project.place / "compare.json").read_text())
    return project


@pytest.fixture(autouse=True)
def _data_root(monkeypatch):
    monkeypatch.setenv("PATE_DATA", "data")


def rows(made, method):
    return [row for row in made.content["rows"] if row["method"] == method]


def tables(charged):
    """The charges of record votes, and those of teachers."""
    split = [[], []]
    for charge in charged:
        split[not isinstance(next(iter(tally(charge.events))), ForAddRemove)].append(charge)
    return split


def test_there_is_a_row_for_each_method_where_it_is_compared(made):
    assert [row["method"] for row in made.content["rows"]] == [
        "record-votes", "dpsgd", "pate", "record-votes", "dpsgd",
        "public-labels", "record-public-labels", "majority", "reference",
    ]  # fmt: skip
    assert [row["target"] for row in rows(made, "record-votes")] == [1, 4]
    for row in rows(made, "record-votes"):
        assert row["name"] == "PATE (record votes)"
        assert row["neighbours"] == "add-remove"
        assert row["labels"] == 30  # all public inputs
        assert row["publishable"] is True
        assert row["seconds"] > 0
        assert [(once["epsilon"], once["delta"]) for once in row["runs"]] == [
            (row["target"], 0.0)
        ] * SEEDS
    (own,), (informed,) = rows(made, "pate"), rows(made, "record-public-labels")
    assert (own["target"], own["labels"], informed["labels"]) == (4, 12, 30)
    assert informed["epsilon"] is None
    notes = " ".join(made.content["notes"])
    assert "Its ε is pure: δ = 0, so that it also holds at the δ of the others." in notes
    assert "Teachers were left out at ε = 1, by the recipe." in notes
    assert "votes once, at the public input nearest to it;" in notes
    recipe = json.loads((made.place / "recipe.json").read_text())
    assert (recipe["privacy"]["epsilon"], recipe["teachers"]["count"]) == (4.0, 6)


def test_every_repetition_draws_noise_of_its_own_from_the_same_votes(made):
    places = made.place.glob("released/aggregate/*/noised.npy")
    drawn = [np.load(place) for place in places]
    assert len(drawn) == 4
    assert len({each.tobytes() for each in drawn}) == 4
    counts = [np.load(each) for each in made.place.glob("private/vote/*/counts.npy")]
    voted = [each for each in counts if each.sum() == 540]  # of records; teachers cast 6 each
    assert len(voted) == SEEDS
    assert (voted[0] == voted[1]).all()


def test_all_was_planned_before_the_first_charge_and_bears_the_tag(made):
    assert made.begun == [1, 0]  # then it was killed
    for name, charged, count in zip(LEDGERS, charges(made), (6, 4), strict=True):
        assert len(charged) == count
        assert {each.studies for each in charged} == {("compare mine",)}
        with Ledger.open(made.folder / "data" / "ledgers" / name) as ledger:
            plan = ledger.study_plans()["compare mine"]
        assert plan.after == 0
        assert plan.protects.startswith(
            "one record added or removed" if count == 6 else "one record's contribution"
        )
        paid = tally(event for charge in charged for event in charge.events)
        assert tally(plan.events) == paid
    by_records, by_teachers = tables(charges(made)[0])
    assert (len(by_records), len(by_teachers)) == (4, 2)
    assert {each.records for each in charges(made)[0]} == {Neighbours.ADD_REMOVE}
    assert sorted(event.event.epsilon for each in by_records for event in tally(each.events)) == [
        1, 1, 4, 4,
    ]  # fmt: skip


def randomised_response(epsilon, orders):
    """The Rényi divergence of the mechanism that leaks the most within a pure ε, exactly."""
    p = 1 / (1 + np.exp(-epsilon))
    forth = orders * np.log(p) + (1 - orders) * np.log1p(-p)
    back = orders * np.log1p(-p) + (1 - orders) * np.log(p)
    return np.logaddexp(forth, back) / (orders - 1)


def test_the_total_follows_from_the_charges(made):
    """By hand: Rényi divergences of near ties and of randomised response, in one conversion."""
    orders, leads = np.arange(1.1, 8, 0.05), [[50 + lead, 50 - lead] for lead in range(8)]
    by_records, by_teachers = tables(charges(made)[0])
    total = np.zeros_like(orders)
    for charge in by_teachers:
        for event, count in tally(charge.events).items():
            ties = exact_divergence(leads, orders=orders, sigma=event.sigma)
            total += count * ties.largest.max(axis=0)
    for charge in by_records:
        for event in tally(charge.events):
            total += randomised_response(event.event.epsilon, orders)
    by_hand = total + np.log(1 - 1 / orders) - np.log(DELTA * orders) / (orders - 1)
    cost = made.content["cost"]
    # What holds for any pure mechanism lies above its worst one; near the best order, by little.
    assert by_hand.min() <= cost["pate"]["epsilon"] <= 1.1 * by_hand.min()
    assert cost["pate"]["epsilon"] > max(row["epsilon"] for row in rows(made, "record-votes")) * 2
    assert cost["planned_in_advance"] is True
    together = cost["together"]
    assert together["epsilon"] == pytest.approx(cost["pate"]["epsilon"] + cost["dpsgd"]["epsilon"])
    assert together["delta"] == pytest.approx(2 * DELTA)
    relations = [cost[part]["neighbours"] for part in ("pate", "dpsgd", "together")]
    assert relations == ["add-remove", "zero-out", "zero-out"]
    shown = made.call("ledger", "show", "runs/mine", "--json").stdout
    (study,) = as_written(shown)["studies"]
    for part, stated in (("here", "pate"), ("other", "dpsgd"), ("together", "together")):
        assert study[part] == cost[stated]


def test_a_model_of_ones_own_is_released_without_naming_the_plugins_again(made):
    """In processes of their own, which have not imported them."""
    model = json.loads((made.place / "compare.json").read_text())["runs"]["dpsgd"]["folder"]
    folder = made.place / model
    released = made.pate("release", folder, "out", "--chosen-beforehand").stdout
    assert "Next: pate verify out" in released


@pytest.mark.campaign
def test_running_it_again_costs_nothing_and_changes_nothing(made):
    before = charges(made)
    assert as_written(made.call(*WORDS, "--json").stdout) == made.content
    assert charges(made) == before
    printed = made.call(*WORDS).stdout
    assert len(re.findall(r"^PATE \(record votes\), .*: done before$", printed, re.M)) == 4
    assert printed.count(": done before") == 10
    assert "nothing to charge" in made.call(*WORDS, "--dry-run").stdout


def test_a_dry_run_states_what_it_comes_to(made, tmp_path, project_in):
    new = prepared(project_in(tmp_path))
    planned = json.loads(new.call(*WORDS, "--dry-run", "--json").stdout)["charges"]
    assert [each["of"] for each in planned] == ["6 releases of PATE", "4 releases of DP-SGD"]
    assert not list(new.folder.rglob("*.ledger"))
    with Ledger.open(made.folder / "data" / "ledgers" / LEDGERS[1]) as ledger:
        total = ledger.data_set_total()
    assert planned[1]["total"] == pytest.approx(total.epsilon, rel=1e-9)
    assert total.neighbours is Neighbours.ZERO_OUT


@pytest.mark.campaign
def test_the_note_of_a_table_counts_the_inputs_that_a_record_reaches(project):
    words = ("--json", "--seeds", "1", "--epsilon", "1", "--insecure-seed", "1")
    (project.folder / "mine.toml").write_text(
        RECIPE.replace(
            "[record_votes.student]", "[record_votes.votes]\nreach = 2\n\n[record_votes.student]"
        )
    )
    content = as_written(project.call(*WORDS, *words).stdout)
    assert "votes once, at the 2 public inputs nearest to it;" in " ".join(content["notes"])


@pytest.mark.campaign
def test_points_that_are_added_later_cost_what_the_ledgers_state(project):
    prepared(project)
    once = (*WORDS, "--seeds", "1", "--json")
    first = as_written(project.call(*once, "--epsilon", "4").stdout)["cost"]
    assert first["planned_in_advance"] is True
    later = as_written(project.call(*once, "--epsilon", "1,4").stdout)["cost"]
    assert later["planned_in_advance"] is False
    readings = []
    for name in LEDGERS:
        with Ledger.open(project.folder / "data" / "ledgers" / name) as ledger:
            readings.append(ledger.guarantee())
    assert [later[each]["epsilon"] for each in ("pate", "dpsgd")] == [
        pytest.approx(each.epsilon) for each in readings
    ]
    assert later["pate"]["neighbours"] == readings[0].neighbours.value == "add-remove"
    assert later["together"]["epsilon"] == pytest.approx(sum(each.epsilon for each in readings))
    assert later["together"]["neighbours"] == "zero-out"


@pytest.mark.parametrize("name", LEDGERS)
def test_a_budget_without_room_is_refused_before_anything_is_charged(project, name):
    prepared(project)
    place = project.folder / "data" / "ledgers"
    place.mkdir(parents=True)
    relation = Neighbours.REPLACE_ONE if name == LEDGERS[0] else Neighbours.ADD_REMOVE
    budget = Guarantee(epsilon=3.0, delta=DELTA, neighbours=relation)
    with Ledger.open(place / name, budget=budget):
        pass
    refused = project.call(*WORDS, code=3).stderr
    assert refused.count("\n") == 1
    assert "past the budget of 3" in refused
    assert charges(project) == [[], []]


@pytest.mark.campaign
def test_without_teachers_the_cost_of_tables_is_pure(project):
    prepared(project)
    text = RECIPE[: RECIPE.index("[pate]")] + RECIPE[RECIPE.index("[dpsgd.model]") :]
    (project.folder / "mine.toml").write_text(text)
    content = as_written(project.call(*WORDS, "--json", "--seeds", "1").stdout)
    assert {row["method"] for row in content["rows"]} >= {"record-votes", "dpsgd", "reference"}
    (charged, _), cost = charges(project), content["cost"]["pate"]
    assert [tally(each.events) for each in charged] == [
        {ForAddRemove(PureDP(epsilon=epsilon)): 1} for epsilon in (1.0, 4.0)
    ]
    assert (cost["epsilon"], cost["delta"]) == (5.0, 0.0)
    assert content["cost"]["together"]["delta"] == pytest.approx(DELTA)  # that of DP-SGD


@pytest.mark.campaign
def test_labels_of_one_class_end_in_no_student_and_the_comparison_goes_on(project):
    """Counts of 18 a cell drown in noise of scale 1000: no class is ahead."""
    prepared(project)
    words = ("--seeds", "1", "--epsilon", "0.001", "--set", "compare.reference=false")
    words += ("--insecure-seed", "1")  # other noise may put a class ahead by chance
    content = as_written(project.call(*WORDS, "--json", *words).stdout)
    (row,) = [row for row in content["rows"] if row["method"] == "record-votes"]
    assert row["runs"][0]["trained"] is False
    (released,) = project.folder.glob("runs/mine/released/aggregate/*/noised.npy")
    (label,) = set(np.load(released.with_name("labels.npy")).tolist())
    (truth,) = project.folder.glob("runs/mine/public/data-test/*/labels.npy")
    assert row["accuracy"] == np.mean(np.load(truth) == label) > 0
    notes = " ".join(content["notes"])
    assert "no student was trained" in notes
    assert re.search(r"majority class, .*PATE \(record votes\) at ε = 0.001", notes)
    assert as_written(project.call(*WORDS, "--json", *words).stdout) == content
    (ledger,) = project.folder.glob("data/ledgers/tiny.not-private.ledger")
    with Ledger.open(ledger) as opened:
        assert len(opened.charges()) == 1  # it was paid for, and is not paid for again


@pytest.mark.campaign
def test_an_audit_attacks_all_methods_with_the_same_records(made, plain_plots):
    before = made.place.joinpath("compare.json").read_bytes()
    spent = [[each.release for each in side] for side in charges(made)]
    words = ("audit", "runs/mine", "--plugin-path", "plugins", "--shadows", "4", "--canaries", "40")
    made.call(*words)
    found = json.loads((made.place / "private" / "audit.json").read_text())
    assert found["subject"] == "tiny: a comparison at ε = 4"
    models = {
        "PATE (teachers): student",
        "PATE (record votes): student",
        "DP-SGD: model",
    }
    attacks = {}
    for each in found["findings"]:
        if "AUC" in each["values"]:
            attacks.setdefault(each["target"], set()).add(each["attack"])
            assert each["values"]["members"] == 540  # 600 less public and test records
    assert models < set(attacks)
    for name in models:
        method = name.partition(":")[0]
        assert attacks[name] == attacks[f"{method}: model without privacy"]
        assert "LiRA (online)" in attacks[name]
        assert found["claimed"][name]["epsilon"] <= 4
    bounded = [each for each in found["findings"] if each["epsilon"] is not None]
    bounds = {(each["target"], each["attack"].partition(",")[0]): each for each in bounded}
    exact = bounds["PATE (record votes): noised table", "leave-one-out"]
    assert exact["epsilon"] == pytest.approx(4)
    assert exact["epsilon"] <= 4
    (trained,) = (each for each in bounded if each["target"] == "DP-SGD: training")
    assert trained["values"]["canaries"] == 40
    assert not found["contradicted"]
    page = (made.place / "private" / "audit.html").read_text()
    section = page[page.index('id="methods"') : page.index('id="bounds"')]
    assert re.findall(r'scope="row"[^>]*>([^<]+)<', section) == [
        "PATE (teachers)", "PATE (record votes)", "DP-SGD",
    ]  # fmt: skip
    assert [[each.release for each in side] for side in charges(made)] == spent
    assert made.place.joinpath("compare.json").read_bytes() == before


def test_an_audit_without_private_records_is_refused_in_one_line(made):
    bare = made.place.with_name("bare")
    shutil.copytree(made.place, bare, ignore=shutil.ignore_patterns("private"))
    said = made.call("audit", "runs/bare", "--plugin-path", "plugins", code=2).stderr
    assert "the private records of runs/bare are not at hand" in said
    assert said.splitlines()[-1].startswith("pate: PATE (teachers): ")


def test_a_comparison_of_an_earlier_version_is_refused_in_one_line(made):
    file = made.place / "compare.json"
    kept = file.read_text()
    content = json.loads(kept)
    del content["runs"]
    file.write_text(json.dumps(content))
    try:
        said = made.call("audit", "runs/mine", "--plugin-path", "plugins", code=2).stderr
    finally:
        file.write_text(kept)
    assert said.splitlines()[-1].endswith("repeat `pate compare`, which pays for nothing twice")


# Comes as far as learning, and fails there.
PICKY = """
class Picky:
    def __init__(self, classes):
        self.classes = classes

    def fit(self, X, y):
        raise ValueError("no")

    def predict(self, X):
        return X
"""
WRONG = 'model = "centroids:Centroid"'
FAULTS = {
    "record votes": ("[record_votes.student]", WRONG, "did you mean 'Centroids'?"),
    "teachers' student": ("[pate.student]", WRONG, "did you mean 'Centroids'?"),
    "teachers": ("[pate.teachers]", WRONG, "did you mean 'Centroids'?"),
    "learning": ("[pate.student]", 'model = "picky:Picky"', "cannot be trained, asked and stored"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_method_is_tried_before_a_comparison_pays_for_one(project, fault):
    section, wrong, why = FAULTS[fault]
    prepared(project)
    project.plugin("picky", PICKY)
    before, after = RECIPE.split(section)
    after = after.replace('model = "centroids:Centroids"', wrong, 1)
    (project.folder / "mine.toml").write_text(before + section + after)
    runs = [()] if fault == "learning" else [("--dry-run",), ()]  # a dry run trains nothing
    for words in runs:
        (line,) = project.call(*WORDS, *words, code=2).stderr.splitlines()
        assert line.startswith(f"pate: {section.partition('.')[0]}] of this comparison: ")
        assert why in line
        assert "nothing was charged" not in line  # which a later point could not know
        assert charges(project) == [[], []]
        assert not list(project.folder.glob("runs/mine/private/teacher/*"))


def test_categories_that_reach_a_student_raw_are_found_before_a_comparison_pays(project):
    lines = [f"{'ab'[n % 2]},{n / 7},{'no' if n % 2 else 'yes'}" for n in range(300)]
    table = "\n".join(["kind,size,what", *lines]) + "\n"
    (project.folder / "tiny.csv").write_text(table)
    changes = {
        'source = "tiny.npz"': 'source = "tiny.csv"\nlabel = "what"',
        "[compare]": '[encoder]\nsteps = ["one-hot"]\n\n[compare]',
        "[pate.student]": '[pate.student]\ninputs = "features"',
    }
    text = RECIPE
    for old, new in changes.items():
        text = text.replace(old, new)
    (project.folder / "mine.toml").write_text(text)
    for words in (("--dry-run",), ()):
        refused = project.call(*WORDS, *words, code=2).stderr
        assert refused.startswith("pate: [record_votes] of this comparison: student.inputs is")
        assert 'set inputs = "features"' in refused
        assert charges(project) == [[], []]
