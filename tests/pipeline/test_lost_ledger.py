"""A ledger that was lost, or is older than what was released: refused, and no figure is printed."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from harness import call, printed

COMMANDS = [
    ("run",),
    ("aggregate",),
    ("status",),
    ("report",),
    ("release",),
    ("ledger", "show"),
]


def ask(project: Any, words: tuple[str, ...], *, code: int) -> Any:
    if words[0] in ("run", "aggregate"):
        return project.call_run(stage=words[0], code=code)
    more = ["out"] if words[0] == "release" else []
    if words[0] != "ledger":
        more += ["--plugin-path", "plugins"]
    return project.call(*words, "runs/tiny", *more, code=code)


def keep(project: Any, name: str) -> Path:
    """A copy of the ledger, as a backup makes it."""
    copy: Path = project.folder / name
    here, there = sqlite3.connect(project.ledger), sqlite3.connect(copy)
    here.backup(there)
    here.close()
    there.close()
    return copy


@pytest.mark.parametrize("lost", ["deleted", "older", "without the sanitised figure"])
@pytest.mark.sample(1)
def test_no_figure_comes_from_a_ledger_that_lacks_a_charge(project: Any, lost: str) -> None:
    copy = None
    if lost == "older":  # made by another run, before this one
        project.call_run("--out", "runs/other", "--set", "aggregate.scale=3.0", stage="aggregate")
    if lost == "without the sanitised figure":
        project.call_run(stage="aggregate")
    if lost != "deleted":
        copy = keep(project, "copy.ledger")
    project.call_run()
    newest = keep(project, "newest.ledger")
    project.ledger.unlink()
    if copy is not None:
        shutil.copyfile(copy, project.ledger)
    kind = "sanitised" if lost.startswith("without") else "labels"
    for words in COMMANDS:
        refused = ask(project, words, code=2)
        missing = lost == "deleted" and words == ("release",)
        said = "there is no" if missing else f"tiny.ledger lacks the charge of {kind}"
        assert said in refused.stderr, words
        assert "from a backup" in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert "ε" not in refused.stdout + refused.stderr
        assert project.ledger.exists() == (copy is not None)  # none was made anew
    shutil.copyfile(newest, project.ledger)
    for words in COMMANDS:
        if words != ("release",):  # of a student of one's own there is none
            ask(project, words, code=0)


def draw(project: Any, folder: str, words: tuple[str, ...], barrier: Any, results: Any) -> None:
    try:
        barrier.wait(60)
        project.call_run("--out", folder, *words, stage="aggregate")
        results.put((folder, ""))
    except BaseException as error:
        results.put((folder, str(error)))


@pytest.mark.campaign
def test_three_at_once_in_three_folders_pay_once(project: Any) -> None:
    """The same data and settings: of all who ask at once one is charged, and releases."""
    project.engine = "serial"
    project.call_run(stage="vote")
    fork, rounds = multiprocessing.get_context("fork"), 15
    for number in range(rounds):
        words = ("--set", f"aggregate.scale={2 + number}.0")
        folders = [f"runs/{number}-{each}" for each in "abc"]
        for each in folders:
            shutil.copytree(project.run_folder, project.folder / each)
        barrier, results = fork.Barrier(3), fork.Queue()
        workers = [
            fork.Process(target=draw, args=(project, each, words, barrier, results))
            for each in folders
        ]
        for worker in workers:
            worker.start()
        outcomes = dict(results.get(timeout=300) for _ in workers)
        for worker in workers:
            worker.join()
        (winner,) = (folder for folder, said in outcomes.items() if not said)
        losers = [folder for folder in folders if folder != winner]
        for folder in losers:
            assert "has already paid for this release" in outcomes[folder]
            assert not project.artifacts("aggregate", project.folder / folder)
        assert len(project.charges()) == number + 1
    project.call_run("--out", losers[0], *words, "--spend", stage="aggregate")
    assert len(project.charges()) == rounds + 1


@pytest.mark.parametrize("name", ["tiny.dpsgd", "tiny.DPSGD", "tiny.not-private"])
def test_a_name_that_would_share_a_ledger_is_refused(project: Any, name: str) -> None:
    refused = project.call_run("--set", f"data.name={name}", stage="partition", code=2)
    assert "cannot name a data set" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "setting", ["privacy.budget=true", "privacy.epsilon=true", "teachers.retries=false"]
)
def test_true_and_false_are_no_numbers(project: Any, setting: str) -> None:
    refused = project.call_run("--set", setting, stage="partition", code=2)
    key, _, value = setting.partition("=")
    assert f"{key} is {value}; give a number" in refused.stderr


def test_what_stands_in_a_ledger_cannot_steer_a_terminal(project: Any) -> None:
    project.call_run(stage="aggregate")
    connection = sqlite3.connect(project.ledger, isolation_level=None)
    connection.execute("UPDATE charges SET release = 'a' || char(27) || '[2Jb' || char(10) || 'c'")
    connection.close()
    shown = project.call("ledger", "show", "data/ledgers/tiny.ledger").stdout
    assert "\x1b" not in shown
    assert "�[2Jb�c" in shown


def test_an_unknown_basis_is_one_line(project: Any) -> None:
    project.call_run(stage="aggregate")
    connection = sqlite3.connect(project.ledger, isolation_level=None)
    connection.execute("UPDATE charges SET basis = 'hearsay'")
    connection.close()
    refused = project.call("ledger", "show", "data/ledgers/tiny.ledger", code=2)
    assert refused.stderr.count("\n") == 1
    assert "tiny.ledger cannot be read ('hearsay' is not a valid Basis)" in refused.stderr


DPSGD = """\
kind = "dpsgd"

[data]
name = "tiny"
source = "tiny.npz"
public = 20
test = 60
accept_unprotected = true

[model]
hidden = [4]

[training]
steps = 4
lot_size = 20
learning_rate = 0.5

[privacy]
epsilon = 3.0
delta = 1e-3
accountant = "moments"
budget = 9.0
"""


def dpsgd(project: Any, *words: str, code: int = 0) -> str:
    """A command of ``dpsgd`` in the project's folder; all that it printed."""
    done = call("dpsgd", *words, folder=project.folder, environment=project.environment())
    assert done.returncode == code, printed(done)
    assert "Traceback" not in printed(done)
    return printed(done)


@pytest.mark.campaign
def test_votes_and_steps_spend_one_budget(project: Any) -> None:
    """A budget of 9 pays for labels of ε 6.7 or for steps of ε 3, and not for both."""
    project.write(privacy={"budget": 9.0, "sanitise": False}, aggregate={"scale": 2.0})
    (project.folder / "steps.toml").write_text(DPSGD)
    project.call_run(stage="account")
    refused = dpsgd(project, "train", "steps.toml", "--out", "runs/steps", code=3)
    assert "past the budget of 9" in refused
    assert "PATE ε" in refused
    assert "(tiny.ledger) + DP-SGD ε" in refused
    assert len(refused.splitlines()[-1]) > 100
    dpsgd(project, "train", "steps.toml", "--out", "runs/steps", "--set", "privacy.epsilon=0.5")
    shown = project.call("ledger", "show", "runs/tiny").stdout.splitlines()
    (line,) = (each for each in shown if each.startswith("tiny, by all ledgers: "))
    assert "PATE ε" in line
    assert "(tiny.ledger) + DP-SGD ε" in line
    assert "of 9" in line


@pytest.mark.campaign
def test_a_model_whose_charge_is_lost_is_refused(project: Any) -> None:
    (project.folder / "steps.toml").write_text(DPSGD.replace("budget = 9.0\n", ""))
    train = ("train", "steps.toml", "--out", "runs/steps")
    dpsgd(project, *train)
    ledger = project.ledger.with_name("tiny.dpsgd.ledger")
    kept = ledger.read_bytes()
    ledger.unlink()
    said = dpsgd(project, *train, code=2)
    assert "tiny.dpsgd.ledger lacks the charge of the model" in said
    assert not ledger.exists()
    ledger.write_bytes(kept)
    dpsgd(project, *train)
