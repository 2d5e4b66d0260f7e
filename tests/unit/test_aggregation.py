"""Plans from public numbers, and votes from elsewhere that are released exactly once."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import pate
from pate import aggregation
from pate.aggregation import aggregate_votes, plan_release
from pate.cli import app
from pate.errors import BudgetExceeded, InvalidInput, LedgerError, SpendNeeded
from pate.mechanisms import ConfidentGnmax, GaussianNoisyMax

COUNTS = np.tile([[200, 30, 20], [10, 220, 20]], (20, 1))
VOTES = pate.Votes(counts=COUNTS)
NOISE = GaussianNoisyMax(sigma=30.0)


@pytest.fixture
def place(tmp_path):
    return {"delta": 1e-5, "ledger": tmp_path / "x.ledger", "out": tmp_path / "labels.npy"}


def charges(place):
    with pate.Ledger.open(place["ledger"]) as ledger:
        return ledger.charges()


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gnmax", "lnmax"])
@pytest.mark.parametrize("queries", [None, 1, 50])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_a_plan_never_costs_more_than_epsilon(name, queries, epsilon):
    _, plan = plan_release(name, epsilon=epsilon, delta=1e-6, inputs=300, teachers=250, classes=3,
                           queries=queries)  # fmt: skip
    assert 0 < plan.guarantee.epsilon <= epsilon
    assert plan.queries == queries or queries is None
    assert 1 <= plan.queries <= 300
    assert not plan.guarantee.data_dependent


def test_given_noise_limits_the_queries():
    _, plan = plan_release(NOISE, epsilon=1.0, delta=1e-5, inputs=500, teachers=250, classes=3)
    _, more = plan_release(NOISE, epsilon=None, delta=1e-5, inputs=500, teachers=250, classes=3)
    assert plan.queries < more.queries == 500
    assert more.guarantee.epsilon > 1.0


# --- exactly once ---------------------------------------------------------------------------------


def test_labels_are_charged_once_and_found_again(place):
    first = aggregate_votes(VOTES, NOISE, **place)
    again = aggregate_votes(VOTES, NOISE, **place)
    assert first.drawn
    assert not again.drawn
    assert (first.labels == again.labels).all()
    assert (np.load(place["out"]) == first.labels).all()
    (charge,) = charges(place)
    assert charge.release == first.release == again.release
    stated = json.loads(place["out"].with_suffix(".json").read_text())
    assert stated["guarantee"]["epsilon"] == first.guarantee.epsilon == again.guarantee.epsilon
    assert stated["guarantee"]["publishable"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("point", ["charge", "labels", "statement", "cleanup"])
def test_a_kill_at_any_point_costs_one_charge_and_one_draw(place, monkeypatch, point):
    """Whatever was charged is published by the next call, and nothing is published uncharged."""
    with monkeypatch.context() as patch:
        write = aggregation.write_atomically

        def killed(path, content, **rest):
            if path.suffix == {"labels": ".npy", "statement": ".json"}.get(point):
                raise Killed
            write(path, content, **rest)

        patch.setattr(aggregation, "write_atomically", killed)
        if point == "charge":
            patch.setattr(pate.Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(Killed))
        if point == "cleanup":
            unlink = type(place["out"]).unlink

            def stop(self, **rest):
                if self.name.endswith(".pending"):
                    raise Killed
                unlink(self, **rest)

            patch.setattr(type(place["out"]), "unlink", stop)
        with pytest.raises(Killed):
            aggregate_votes(VOTES, NOISE, **place)
    pending = place["out"].with_name(".labels.npy.pending")
    assert pending.stat().st_mode & 0o077 == 0
    drawn = json.loads(pending.read_text())["labels"]
    assert len(charges(place)) == (0 if point == "charge" else 1)
    assert place["out"].exists() == (point in ("statement", "cleanup"))
    done = aggregate_votes(VOTES, NOISE, **place)
    assert done.labels.tolist() == drawn
    assert len(charges(place)) == 1
    assert not pending.exists()


def test_a_refused_charge_leaves_nothing(place):
    with pytest.raises(BudgetExceeded, match="nothing was charged"):
        aggregate_votes(VOTES, NOISE, **place, budget=0.2)
    assert charges(place) == []
    assert {path.name for path in place["out"].parent.glob("*labels*")} == set()
    with pytest.raises(LedgerError, match="a budget never changes"):
        aggregate_votes(VOTES, NOISE, **place, budget=5.0)


def test_the_same_release_elsewhere_must_be_asked_for(place):
    aggregate_votes(VOTES, NOISE, **place)
    other = place | {"out": place["out"].with_name("other.npy")}
    with pytest.raises(SpendNeeded, match="add --spend"):
        aggregate_votes(VOTES, NOISE, **other)
    assert not list(place["out"].parent.glob(".other*"))
    aggregate_votes(VOTES, NOISE, **other, spend=True)
    assert len(charges(place)) == 2


def test_other_votes_or_noise_do_not_replace_labels(place):
    aggregate_votes(VOTES, NOISE, **place)
    before = place["out"].read_bytes()
    for votes, noise in ((VOTES, GaussianNoisyMax(sigma=31.0)), (VOTES.first(3), NOISE)):
        with pytest.raises(InvalidInput, match="other votes or settings"):
            aggregate_votes(votes, noise, **place)
    assert place["out"].read_bytes() == before
    assert len(charges(place)) == 1


def test_a_lost_ledger_is_noticed(place):
    aggregate_votes(VOTES, NOISE, **place)
    for file in place["ledger"].parent.glob("x.ledger*"):
        file.unlink()
    with pytest.raises(LedgerError, match="restore the ledger from a backup"):
        aggregate_votes(VOTES, NOISE, **place)


def test_what_is_published_does_not_tell_whether_votes_changed(place):
    """Two releases of equal and of different votes differ in the random name and the labels."""
    other = pate.Votes(counts=COUNTS[:, ::-1].copy())
    published = []
    for number, votes in enumerate((VOTES, VOTES, other)):
        out = place["out"].with_name(f"labels-{number}.npy")
        aggregate_votes(votes, NOISE, **place | {"out": out}, spend=True)
        published.append(json.loads(out.with_suffix(".json").read_text()))
        assert {path.name for path in out.parent.glob(f"*labels-{number}*")} == {
            out.name,
            out.with_suffix(".json").name,
        }
    names = {each.pop("release") for each in published}
    assert len(names) == 3
    assert published[0] == published[1] == published[2]
    assert set(published[0]) == {"events", "queries", "answers", "guarantee"}
    digests = [charge.settings for charge in charges(place)]  # these stay in the ledger
    assert digests[0] == digests[1] != digests[2]


def test_the_ledgers_digest_of_votes_is_under_a_key(place):
    """Whoever sees a ledger cannot try out votes."""
    aggregate_votes(VOTES, NOISE, **place)
    elsewhere = place["out"].parent / "elsewhere"
    elsewhere.mkdir()
    twin = {"delta": 1e-5, "ledger": elsewhere / "x.ledger", "out": elsewhere / "labels.npy"}
    aggregate_votes(VOTES, NOISE, **twin)
    assert charges(place)[0].settings != charges(twin)[0].settings
    assert (place["ledger"].with_suffix(".key").stat().st_mode & 0o077) == 0


def test_queries_without_an_answer_have_no_label(place):
    split = pate.Votes(counts=np.array([[250, 0], [125, 125]]))
    mechanism = ConfidentGnmax(threshold=190.0, sigma1=5.0, sigma2=5.0)
    assert aggregate_votes(split, mechanism, **place).labels.tolist() == [0, -1]


# --- the command ----------------------------------------------------------------------------------


def run(*words):
    return CliRunner().invoke(app, ["aggregate-votes", *map(str, words)])


def test_the_command_writes_labels_and_resumes(place, tmp_path):
    np.save(tmp_path / "votes.npy", COUNTS)
    words = (tmp_path / "votes.npy", "--mechanism", "gnmax", "--sigma", 30, "--delta", 1e-5,
             "--ledger", place["ledger"], "--out", place["out"])  # fmt: skip
    first, again = run(*words), run(*words, "--json")
    assert first.exit_code == 0, first.output
    assert "40 labels of 40 queries" in first.output
    assert "the records of one teacher" in first.output
    charge = first.output.splitlines()[0]  # before it is made
    assert charge.startswith("will charge ε ")
    assert charge.endswith(f" to {place['ledger']}; no budget is set")
    assert "will charge" not in again.output
    assert json.loads(again.stdout)["release"] == charges(place)[0].release
    assert len(charges(place)) == 1


def test_the_command_reads_labels_of_teachers(place, tmp_path):
    np.save(tmp_path / "labels_in.npy", np.array([[0, 1, 2], [0, 1, -1]] * 50))
    words = (tmp_path / "labels_in.npy", "--mechanism", "lnmax", "--scale", 5, "--delta", 1e-5,
             "--ledger", place["ledger"], "--out", place["out"])  # fmt: skip
    words += ("--labels",)
    assert run(*words, "--classes", 3).exit_code != 0
    refused = run(*words, "--abstentions")
    assert "--labels needs --classes" in str(refused.exception)
    done = run(*words, "--abstentions", "--classes", 3)
    assert done.exit_code == 0, done.output
    assert np.load(place["out"]).shape == (3,)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--mechanism", "gnmax"], "needs sigma"),
        (["--mechanism", "gnmax", "--scale", "3", "--sigma", "3"], "takes no scale"),
        (
            ["--mechanism", "interactive", "--threshold", "9", "--sigma1", "9", "--sigma2", "9"],
            "asks a student between rounds",
        ),
        (["--mechanism", "nonsense"], "nonsense|gnmax"),
    ],
)
def test_mistakes_charge_nothing(place, tmp_path, more, words):
    np.save(tmp_path / "votes.npy", COUNTS)
    done = run(tmp_path / "votes.npy", *more, "--delta", 1e-5, "--ledger", place["ledger"], "--out",
               place["out"])  # fmt: skip
    assert isinstance(done.exception, InvalidInput)
    assert pytest.importorskip("re").search(words, str(done.exception))
    assert not place["ledger"].exists()
