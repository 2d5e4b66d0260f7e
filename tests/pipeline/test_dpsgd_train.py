"""``dpsgd train`` through the command line: whole runs, killed ones, refused ones."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from harness import Project
from safetensors.numpy import load_file

from dpsgd.recipe import DpsgdRecipe
from dpsgd.runs import open_ledger, plan_run
from pate._format import format_epsilon
from pate.accounting import Guarantee, Ledger, Neighbours, compose, event_from_json
from pate.accounting.plan_guarantee import guarantee_of_plan
from pate.recipes.read import read_recipe

ROOT = Path(__file__).parents[2]
RECIPE = """\
kind = "dpsgd"

[data]
name = "tiny"
source = "tiny.npz"
public = 20
test = 60
accept_unprotected = true

[features]
pca = { dimension = 5, noise_multiplier = 8.0 }

[model]
hidden = [8]

[training]
epochs = 4
lot_size = 20
learning_rate = 0.5

[clipping]
rule = "per-layer"
max_norm = 2.0

[privacy]
epsilon = 6.0
delta = 1e-3
accountant = "moments"  # loss distributions take seconds
"""
RELEASED = {
    "curve.csv", "curve.png", "evaluation.json", "examples.npy", "guarantee.json", "manifest.json",
    "model.safetensors", "pca.npz", "recipe.json",
}  # fmt: skip


# What commands import is loaded once; each is then a forked process, several of them at a time.
LAUNCHER = """
import json, os, sys, traceback
import dpsgd.cli, dpsgd.training, matplotlib.pyplot

def child(words, folder, environment, out, err):
    code = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for path, stream in ((os.devnull, 0), (out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), stream)
        sys.argv = words
        dpsgd.cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    order = json.loads(line)
    if isinstance(order, int):
        print(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1]), flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        child(*order)
"""


class Launcher:
    """Starts ``dpsgd`` again and again, each time as a process of its own."""

    def __init__(self):
        self.server = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def order(self, order):
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


class Started:
    """A command that was started: its output so far, and its end."""

    def __init__(self, launcher, words, project):
        self.launcher = launcher
        stem = project.folder / f"output-{len(list(project.folder.glob('output-*')))}"
        self.out, self.err = stem.with_suffix(".out"), stem.with_suffix(".err")
        self.out.touch()
        self.pid = launcher.order(
            [words, str(project.folder), project.environment(), str(self.out), str(self.err)]
        )

    def wait_for_epoch(self, number):
        deadline = time.monotonic() + 120
        while str(number) not in epochs_in(self.out.read_text()):
            assert time.monotonic() < deadline, self.err.read_text()
            time.sleep(0.001)

    def send_signal(self, which):
        os.kill(self.pid, which)

    def end(self):
        """Wait for it; return its output, its errors and its exit code."""
        code = self.launcher.order(self.pid)
        return self.out.read_text(), self.err.read_text(), code


@pytest.fixture(scope="module")
def launcher():
    made = Launcher()
    yield made
    made.server.communicate(timeout=60)


class TrainingProject(Project):
    """A folder with data and a recipe, and ``dpsgd`` to run in it."""

    program = "dpsgd"
    launcher: Launcher

    @property
    def released(self) -> Path:
        (manifest,) = self.run_folder.glob("released/training/*/manifest.json")
        return manifest.parent

    @property
    def report(self):
        return json.loads((self.released / "guarantee.json").read_text())

    def ledger_file(self, kind="dpsgd.ledger") -> Path:
        return self.folder / "data" / "ledgers" / f"tiny.{kind}"

    def charges(self, kind="dpsgd.ledger"):
        if not self.ledger_file(kind).exists():
            return []
        with Ledger.open(self.ledger_file(kind)) as ledger:
            return ledger.charges()

    def change(self, old, new):
        path = self.folder / "tiny.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    def dpsgd(self, *words, code=0):
        """Run a command in this process; it must end with ``code``, and one line if not 0."""
        done = self.call(*words, code=code)
        if code:
            assert done.stderr.startswith("dpsgd: "), done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr if code else done.stdout

    def train(self, *words, code=0):
        return self.dpsgd("train", "tiny.toml", *words, code=code)

    def start(self, *words):
        """Start the command as a process of its own."""
        return Started(self.launcher, ["dpsgd", *words], self)


@pytest.fixture
def project(tmp_path, monkeypatch, launcher):
    """Blobs of three classes in six dimensions; 320 of 400 records are private."""
    rng = np.random.default_rng(11)
    labels = np.arange(400) % 3
    features = rng.normal(size=(400, 6)) + 4 * np.eye(6)[labels]
    np.savez(tmp_path / "tiny.npz", X=features, y=labels)
    (tmp_path / "data").mkdir()
    (tmp_path / "tiny.toml").write_text(RECIPE)
    made = TrainingProject(tmp_path)
    made.launcher = launcher
    return made


@pytest.fixture
def quick(project, monkeypatch):
    """The same, without the picture, which takes longer than the training."""

    def table_alone(history, folder):
        (folder / "curve.csv").write_text(f"{len(history)} rows\n")

    monkeypatch.setattr("dpsgd.training.write_curve", table_alone)
    return project


@pytest.fixture
def planned(quick):
    """The same, with noise that is given: a process of its own need not search for it."""
    quick.change("epsilon = 6.0", "noise_multiplier = 1.5")
    return quick


# --- whole runs -------------------------------------------------------------------------------


def test_a_run_tells_its_guarantee_and_releases_what_was_paid_for(project):
    output = project.train()
    report = project.report
    rows = [line.split() for line in output.splitlines() if line.lstrip()[:1].isdigit()]
    assert [row[0] for row in rows if len(row) == 4] == ["1", "2", "3", "4"]
    assert "δ = 0.001 for one record's contribution removed (zero-out; the number" in output
    assert "Whole data set so far: ε = " in output
    assert "PCA and training" in output
    assert "moments accountant" in output
    assert 5.99 < report["guarantee"]["epsilon"] <= 6.0
    assert report["guarantee"]["neighbours"] == "zero-out"
    assert report["guarantee"]["publishable"]
    assert report["accuracy"] > 0.8
    # One charge, for exactly what the guarantee was worked out from.
    (charge,) = project.charges()
    events = [event_from_json(text) for text in report["events"]]
    spent = compose(list(charge.events)).guarantee(delta=1e-3).epsilon
    assert spent == report["guarantee"]["epsilon"] == compose(events).guarantee(delta=1e-3).epsilon
    assert len(events) == 2


def test_what_is_released_holds_nothing_private(project):
    project.train()
    assert {file.name for file in project.released.iterdir()} == RELEASED
    private = project.run_folder / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    (checkpoint,) = private.glob("*/checkpoint.safetensors")
    assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o600
    assert {path.name for path in project.run_folder.iterdir()} == {"private", "released"}
    weights = load_file(project.released / "model.safetensors")
    assert {name: value.shape for name, value in weights.items()} == {
        "0.weight": (8, 5), "0.bias": (8,), "2.weight": (3, 8), "2.bias": (3,),
    }  # fmt: skip
    with np.load(project.released / "pca.npz") as pca:
        assert pca["components"].shape == (6, 5)
    with (project.released / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert {row["seconds"] for row in rows} == {"0.0"}  # how long a lot took tells its size
    # No number of a private record, and no path of this machine, is anywhere in the texts.
    texts = "".join(file.read_text() for file in project.released.glob("*.json"))
    with np.load(project.folder / "tiny.npz") as data:
        assert not any(f"{value:.6f}"[:8] in texts for value in data["X"].ravel()[:600])
    assert str(project.folder) not in texts


def test_a_finished_run_is_found_again_without_torch(quick):
    quick.train()
    before = {file: file.stat().st_mtime_ns for file in quick.run_folder.rglob("*")}
    output = quick.train()
    assert output.startswith("nothing to do: ")
    assert "Guarantee: ε = 6 at δ = 0.001" in output
    assert len(quick.charges()) == 1
    assert before == {file: file.stat().st_mtime_ns for file in quick.run_folder.rglob("*")}
    code = (
        "import sys; sys.argv = ['dpsgd', 'train', 'tiny.toml', '--quiet']\n"
        "from dpsgd.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'sklearn', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=quick.folder, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0


def test_json_for_machines(project):
    first, again = json.loads(project.train("--json")), json.loads(project.train("--json"))
    assert first["guarantee"]["delta"] == 1e-3
    assert [row["epoch"] for row in first["epochs"]] == [1, 2, 3, 4]
    assert set(first["files"]) == RELEASED - {"manifest.json"}
    assert (first.pop("new"), again.pop("new")) == (True, False)
    assert first == again


def test_quiet_says_the_result_alone(quick):
    output = quick.train("--quiet")
    assert output.lstrip().startswith("Test accuracy")
    assert "epoch" not in output


@pytest.mark.campaign
def test_every_rule_and_way_to_say_it(quick):
    variants = [
        ("--set", 'clipping.rule="flat"'),
        ("--set", 'clipping.rule="automatic"', "--set", 'privacy.accountant="abadi"'),
        ("--set", 'clipping.rule="adaptive"', "--set", "clipping.quantile=0.6"),
        ("--set", "clipping.max_norm=[1.0, 2.0]", "--set", "evaluate.each_epoch=false"),
        ("--set", 'training.optimizer="adam"', "--set", "training.batch_size=7"),
    ]
    for number, words in enumerate(variants):
        report = json.loads(quick.train("--json", "--out", f"runs/{number}", *words))
        assert report["guarantee"]["epsilon"] <= 6.0
        assert report["accuracy"] > 0.5
    assert len(quick.charges()) == len(variants)


def test_caveats_are_told(quick):
    fast = quick.train("--out", "fast", "--set", 'privacy.noise="fast"')
    assert "NOT TO BE PUBLISHED AS PRIVATE: noise from torch's fast generator" in fast
    shuffled = quick.train("--out", "shuffled", "--set", 'training.sampling="shuffle"')
    assert "guarantee does not hold for shuffling" in shuffled
    report = json.loads(quick.train("--json", "--out", "fast", "--set", 'privacy.noise="fast"'))
    assert not report["guarantee"]["publishable"]


def test_a_seeded_run_repeats_itself_and_is_kept_apart(quick):
    first = quick.train("--insecure-seed", "3")
    assert "NOT TO BE PUBLISHED AS PRIVATE: seeded noise: not private" in first
    assert quick.charges() == []
    assert len(quick.charges("dpsgd.not-private.ledger")) == 1
    weights = (quick.released / "model.safetensors").read_bytes()
    quick.train("--insecure-seed", "3", "--out", "again", "--spend")
    (again,) = quick.folder.glob("again/released/training/*/model.safetensors")
    assert again.read_bytes() == weights


def test_what_pate_released_is_pointed_out(quick):
    quick.ledger_file("ledger").parent.mkdir(parents=True)
    votes = Guarantee(epsilon=20.0, delta=1e-3, neighbours=Neighbours.REPLACE_ONE)
    Ledger.open(quick.ledger_file("ledger"), budget=votes).close()
    output = quick.train()
    assert "releases of PATE from these data are charged in" in output
    assert "add up" in output


# --- budgets and changes ----------------------------------------------------------------------


def test_over_budget_is_refused_and_leaves_nothing(quick):
    quick.change("delta = 1e-3", "delta = 1e-3\nbudget = 1.0")
    refused = quick.train(code=3)
    assert "past the budget of 1" in refused
    assert quick.charges() == []
    assert not list(quick.run_folder.glob("released/*/*"))
    left = {file.name for file in quick.run_folder.glob("private/*/*")}
    assert left <= {"lock", ".checkpoint.safetensors.lock"}
    quick.train("--epsilon", "0.8")  # less fits, and no consent is asked for
    assert len(quick.charges()) == 1
    assert "a budget never changes" in quick.train("--set", "privacy.budget=9.0", "--out", "b",
                                                   code=2)  # fmt: skip


def test_a_budget_raises_the_noise_only_where_the_plan_would_pass_it(quick):
    """The ledger adds up log-moments, by which the noise of the tightest accountant costs more."""
    claimed, charged, noise = {}, {}, {}
    for budget in (None, 20.0, 6.0, 6.1):
        changes = ['privacy.accountant="tightest"']
        changes += [] if budget is None else [f"privacy.budget={budget}"]
        _, recipe = read_recipe(str(quick.folder / "tiny.toml"), changes, DpsgdRecipe)
        plan = plan_run(recipe, records=320)
        noise[budget] = plan.noise_multiplier
        claimed[budget] = guarantee_of_plan(plan.events, delta=1e-3).epsilon
        with open_ledger(recipe, plan, quick.folder / str(budget) / "tiny.dpsgd.ledger") as ledger:
            ledger.charge(plan.events, release="dpsgd")  # 6.1 was refused, at the λ of another plan
            charged[budget] = ledger.spent().epsilon
    assert noise[20.0] == noise[None] < noise[6.0] == noise[6.1]
    assert 5.99 < claimed[None] == claimed[20.0] <= 6 < charged[None] <= charged[20.0]
    assert claimed[6.0] == claimed[6.1] < 5.9 < charged[6.1] == charged[6.0] <= 6


@pytest.mark.parametrize("earlier", [False, True])
def test_a_run_that_was_begun_resumes_with_its_own_noise(quick, monkeypatch, earlier):
    """Another version may find less; one before the noise was recorded found it by moments."""
    words = ("--set", "privacy.budget=20.0", "--set", 'privacy.accountant="tightest"')

    def found(*, accountant, **_):
        return 3.0 if accountant == "moments" else 2.0

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dpsgd.runs.noise_for", lambda **_: 3.0)
        patched.setattr("dpsgd.cli.train.EpochTable.show", stop)
        quick.train(*words, code=130)
    (home,) = quick.run_folder.glob("private/*/home.json")
    content = json.loads(home.read_text())
    assert content.pop("noise_multiplier") == 3.0
    if earlier:
        home.write_text(json.dumps(content))
    monkeypatch.setattr("dpsgd.runs.noise_for", found)
    assert "paid for" in quick.train(*words, "--dry-run")
    done = quick.train(*words)
    assert "resuming after step" in done
    assert "noise multiplier 3," in done
    assert len(quick.charges()) == 1
    assert "noise multiplier 2," in quick.train(*words, "--out", "b", "--spend")


def test_why_a_ledger_counts_more_is_stated_once(quick):
    why = "more than this model's own ε, although there is no other release: a ledger adds up"
    first = quick.train("--set", 'privacy.accountant="tightest"')
    assert first.count(why) == 1
    assert "by privacy loss distributions, which are tighter." in first
    second = quick.train("--epsilon", "3", "--spend")  # beside another, it is no surprise
    assert why not in second


def test_noise_that_costs_a_ledger_too_much_is_refused_with_the_remedy(quick):
    quick.ledger_file().parent.mkdir(parents=True)
    budget = Guarantee(epsilon=6.0, delta=1e-3)
    Ledger.open(quick.ledger_file(), budget=budget).close()
    words = ("--set", 'privacy.accountant="tightest"', "--epsilon", "5.5")
    for more in ((), ("--dry-run",)):
        refused = quick.train(*words, *more, code=3)
        assert "past the budget of 6" in refused
        assert 'privacy.accountant = "moments"' in refused
        assert refused.count("\n") == 1
    assert quick.charges() == []


def test_a_charge_is_printed_before_it_is_made(quick):
    quick.change("delta = 1e-3", "delta = 1e-3\nbudget = 10.0")
    line = f"will charge ε 6 (δ 0.001) to {quick.ledger_file()}; 4 of 10 left after it"
    assert quick.train("--dry-run").splitlines() == [line]
    assert not quick.run_folder.exists()
    assert not quick.ledger_file().exists()
    assert line in quick.train().splitlines()
    assert quick.train("--dry-run").startswith("nothing to charge")
    for words in (("--out", "b"), ("--epsilon", "3")):
        note, planned = quick.train(*words, "--dry-run").splitlines()
        assert "add --spend" in note
        assert planned.startswith("will bring the data set's ε to ")
    (planned,) = json.loads(quick.train("--epsilon", "3", "--spend", "--dry-run", "--json"))[
        "charges"
    ]
    assert "if another release" not in quick.train().splitlines()[-1]
    done = quick.train("--epsilon", "3", "--spend")
    for told in (done, quick.train()):  # the first one, too, may be taken after a look at the other
        clause = "; the whole data set's ε = "
        assert clause in told.splitlines()[-1]
        assert told.splitlines()[-1].endswith("led to the choice of these settings.")
    assert f"; its increment of {format_epsilon(planned['epsilon'])} is not " in done
    refused = quick.train("--dry-run", "--epsilon", "9", "--out", "c", code=3)
    assert "past the budget of 10" in refused
    assert "will bring" not in quick.train("--epsilon", "9", "--out", "c", code=3)
    assert len(quick.charges()) == 2


def test_a_second_ledger_of_the_same_records_needs_a_word(quick):
    quick.train()
    words = ("--set", "data.name=other", "--out", "b")
    assert f"have a ledger at {quick.ledger_file()}: charges" in quick.train(*words, code=3)
    assert f"have a ledger at {quick.ledger_file()}: charges" in quick.train(*words, "--dry-run")
    assert "charges there and here add up" in quick.train(*words, "--spend")


@pytest.mark.campaign
def test_another_recipe_in_the_same_folder_costs_again(quick):
    quick.train()
    refused = quick.train("--epsilon", "3", code=3)
    assert "privacy.epsilon changed" in refused
    assert "--out" in refused
    assert "--spend" in refused
    assert len(quick.charges()) == 1
    quick.train("--epsilon", "3", "--spend")
    assert len(quick.charges()) == 2
    assert quick.train().startswith("nothing to do")  # the first is still there
    quick.train("--epsilon", "2", "--out", "elsewhere")
    assert len(quick.charges()) == 3


def test_people_of_one_file_are_unprotected_only_if_that_is_accepted(quick):
    """A finished run goes on working without the key; a new one is refused."""
    assert "The people in public and test records are not protected" in quick.train()
    quick.change("accept_unprotected = true\n", "")
    assert quick.train().startswith("nothing to do")
    refused = quick.train("--out", "b", "--set", "data.seed=1", code=2)
    assert "data.accept_unprotected = true" in refused
    assert not (quick.folder / "b").exists()
    assert len(quick.charges()) == 1


def test_the_same_training_in_another_folder_costs_again(quick):
    """One rule for `pate` and `dpsgd`: the same data and settings are paid for twice with a word"""
    quick.train()
    for words in (("--out", "b"), ("--out", "b", "--set", "training.batch_size=7")):
        refused = quick.train(*words, code=3)
        assert "has already paid for training with these settings" in refused
        assert "--spend" in refused
    shutil.copy(quick.folder / "tiny.npz", quick.folder / "moved.npz")
    quick.change('source = "tiny.npz"', 'source = "moved.npz"')  # the same data set
    assert "already paid" in quick.train("--out", "b", code=3)
    assert len(quick.charges()) == 1
    assert not list(quick.folder.glob("b/private/*/checkpoint.safetensors"))
    shutil.rmtree(quick.run_folder)
    assert "already paid" in quick.train(code=3)
    quick.train("--spend")
    assert len(quick.charges()) == 2
    assert quick.train().startswith("nothing to do")
    quick.train("--out", "b", "--set", "model.init=1")  # another model
    assert len(quick.charges()) == 3


@pytest.mark.campaign
def test_of_the_same_training_in_many_folders_at_once_one_is_paid(planned):
    started = [planned.start("train", "tiny.toml", "--out", f"runs/{i}") for i in range(4)]
    ends = [command.end() for command in started]
    assert sorted(code for *_, code in ends) == [0, 3, 3, 3], ends
    assert all(err.count("\n") == 1 and "already paid" in err for _, err, code in ends if code)
    assert len(planned.charges()) == 1
    assert len(list(planned.folder.glob("runs/*/released/training/*/model.safetensors"))) == 1


def test_a_killed_run_is_resumed_under_its_settings_without_a_word(planned):
    code, _, _ = stopped(planned, signal.SIGKILL, after=0.05)
    assert code == -signal.SIGKILL
    assert "already paid" in planned.train("--out", "b", *LONG, code=3)
    planned.train(*LONG)
    assert len(planned.charges()) == 1


@pytest.mark.parametrize("rate", ["1e300", "1e38", "{start=0.1, end=1e300, epochs=2}"])
@pytest.mark.sample(1)
def test_a_learning_rate_beyond_all_bounds_is_refused_before_the_charge(quick, rate):
    output = quick.train("--set", f"training.learning_rate={rate}", code=2)
    assert "learning_rate" in output
    assert not quick.ledger_file().exists()


def test_a_mistake_found_late_costs_nothing_and_asks_for_no_consent(quick):
    assert "did you mean relu" in quick.train("--set", 'model.activation="rellu"', code=2)
    assert "features" in quick.train("--set", "features.pca.dimension=7", code=2)
    assert "lot_size is 900" in quick.train("--set", "training.lot_size=900", code=2)
    assert not quick.ledger_file().exists()
    quick.train("--quiet")


def test_one_process_at_a_time(quick):
    quick.train("--quiet")
    (lock,) = quick.run_folder.glob("private/*/lock")
    shutil.rmtree(quick.released)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another process is training" in quick.train(code=2)
    output = quick.train()  # publishes what was trained, once more
    assert "resuming after step 64 of 64" in output
    assert len(quick.charges()) == 1


def test_a_run_is_finished_with_the_ledger_it_was_begun_with(quick):
    quick.train("--quiet")
    for file in quick.released.iterdir():
        file.unlink()
    assert "was begun with the ledger at" in quick.train("--data-root", "other", code=2)


# --- killed and interrupted -------------------------------------------------------------------

LONG = ("--set", "training.epochs=40")


def epochs_in(text):
    """Epoch → ε and accuracy, as they were shown."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: tuple(row[1:3]) for row in rows if len(row) == 4 and row[0].isdigit()}


def stopped(project, how, *, after):
    """A long run that ends by a signal some time after its second epoch: what it showed and said"""
    command = project.start("train", "tiny.toml", *LONG)
    command.wait_for_epoch(2)
    time.sleep(after)
    command.send_signal(how)
    out, err, code = command.end()
    return code, epochs_in(out), err


@pytest.mark.campaign
def test_stopped_at_random_moments_a_run_goes_on_under_one_charge(planned):
    rng = random.Random(5)
    code, shown, err = stopped(planned, signal.SIGINT, after=rng.random() / 10)
    assert (code, err) == (
        130,
        "dpsgd: interrupted; run the same command again to resume\n",
    )
    code, again, _ = stopped(planned, signal.SIGKILL, after=rng.random() / 10)
    assert code == -signal.SIGKILL
    assert 2 <= len(shown) < 40
    assert 2 <= len(again) < 40
    assert len(planned.charges()) == 1
    assert not list(planned.run_folder.glob("released/*/*"))
    output = planned.train(*LONG)
    assert "resuming after step" in output
    # What anybody saw of an epoch is what became of it: no step was drawn twice.
    assert set(shown.items()) <= set(epochs_in(output).items())
    assert set(again.items()) <= set(epochs_in(output).items())
    assert list(epochs_in(output)) == [str(epoch) for epoch in range(1, 41)]
    (charge,) = planned.charges()
    assert planned.report["steps"] == 16 * 40
    spent = compose(list(charge.events)).guarantee(delta=1e-3).epsilon
    assert planned.report["guarantee"]["epsilon"] == spent


@pytest.mark.campaign
def test_a_copy_of_a_live_run_is_refused_and_one_of_them_finishes(planned):
    """The folder of a run is copied while it trains: one charge, one trained model."""
    copy = planned.folder / "runs" / "copy"
    live = planned.start("train", "tiny.toml", *LONG)
    live.wait_for_epoch(2)
    live.send_signal(signal.SIGSTOP)  # a slow machine: it holds its lock all the while
    shutil.copytree(planned.run_folder, copy)
    output = planned.train("--out", "runs/copy", *LONG, code=2)
    assert "another process is training this run" in output
    live.send_signal(signal.SIGCONT)
    live.wait_for_epoch(6)  # several checkpoints after the copy
    live.send_signal(signal.SIGKILL)  # the lock goes with it
    live.end()
    assert "not the last of its run" in planned.train("--out", "runs/copy", *LONG, code=2)
    shutil.rmtree(copy)
    shutil.copytree(planned.run_folder, copy)  # of the last checkpoint either goes on
    both = [planned.start("train", "tiny.toml", "--out", out, *LONG)
            for out in ("runs/tiny", "runs/copy")]  # fmt: skip
    ends = [command.end() for command in both]
    assert sorted(code for *_, code in ends) == [0, 2], ends
    (error,) = (err for _, err, code in ends if code)
    assert re.match("dpsgd: (another process|this checkpoint is not the last)", error)
    assert error.count("\n") == 1
    assert len(list(planned.folder.glob("runs/*/released/training/*/model.safetensors"))) == 1
    assert len(planned.charges()) == 1


# --- the rest of the command line -------------------------------------------------------------


@pytest.mark.campaign
def test_the_shipped_digits_recipe(quick):
    report = json.loads(quick.dpsgd("train", "digits-dpsgd", "--json", "--data-root", "data"))
    assert report["guarantee"]["epsilon"] <= 4.0
    assert report["accuracy"] > 0.85


@pytest.mark.campaign
def test_recipes_are_for_one_command_each(project):
    output = project.dpsgd("train", "digits", code=2)
    assert "digits is a recipe for `pate run`, not for `dpsgd train`" in output
    for name in ("digits-dpsgd", "tiny.toml"):
        process = subprocess.run(
            [sys.executable, "-m", "pate", "run", name],
            cwd=project.folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert process.returncode == 2
        assert process.stderr == (
            f"pate: {name} is a recipe for `dpsgd train`, not for `pate run`; "
            f"run `dpsgd train {name}`\n"
        )


def test_recipes_and_new(quick):
    listed = [line.split()[0] for line in quick.dpsgd("recipes").splitlines()]
    assert "digits-dpsgd" in listed
    assert not {"digits", "tabular"} & set(listed)
    assert quick.dpsgd("new", "my.toml") == "wrote my.toml; next: dpsgd train my.toml\n"
    assert "my.toml exists; choose another name" in quick.dpsgd("new", "my.toml", code=2)
    quick.dpsgd("train", "my.toml", "--set", "training.epochs=1", "--quiet")


def test_version_and_light_help(project):
    assert project.dpsgd("--version").startswith("dpsgd 0")
    code = (
        "import sys; sys.argv = ['dpsgd', 'train', '--help']\n"
        "from dpsgd.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--insecure-seed" in done.stdout


STEP = ("epsilon", "--sample-rate", "0.01", "--delta", "1e-5")


@pytest.mark.campaign
def test_epsilon_finds_what_is_missing(project):
    by = ("--accountant", "moments")
    noise = project.dpsgd(*STEP, "--steps", "1000", "--target-epsilon", "2", *by)
    assert re.search(r"^noise multiplier = 1\.0222\d*\nε = 2 at δ = 1e-5", noise)
    tight = project.dpsgd(*STEP, "--steps", "1000", "--target-epsilon", "2")
    assert re.search(r"^noise multiplier = 0\.959\d*\nε = 2 at δ = 1e-5", tight)
    given = ("--noise-multiplier", "4", "--target-epsilon", "1", *by)
    most = json.loads(project.dpsgd(*STEP, *given, "--json"))
    assert (most["found"], most["steps"]) == ("steps", 9376)
    assert "left open" in project.dpsgd(*STEP, *given, "--steps", "5", code=2)
    assert "give --steps" in project.dpsgd(*STEP, "--noise-multiplier", "4", code=2)
    assert "not even one" in project.dpsgd(*STEP, "--noise-multiplier", "0.1", "--target-epsilon",
                                        "0.01", code=2)  # fmt: skip


def test_epsilon_by_every_accountant(project):
    words = (*STEP, "--steps", "10000", "--noise-multiplier", "4", "--json", "--accountant")
    spent = {
        name: json.loads(project.dpsgd(*words, name))["epsilon"]
        for name in ("pld", "moments", "abadi", "strong")
    }
    assert list(spent) == sorted(spent, key=spent.__getitem__)
    assert spent["abadi"] == pytest.approx(1.2586, abs=1e-4)
    assert spent["strong"] > 4
    strong = project.dpsgd(*words[:-2], "--accountant", "strong")
    assert "strong composition; the other accountants are tighter" in strong


# --- one charge, one draw, and what a guarantee does not cover ---------------------------------


@pytest.mark.campaign
def test_components_that_are_gone_are_not_drawn_again(quick):
    quick.train()
    shutil.rmtree(quick.run_folder / "released")
    (components,) = quick.run_folder.glob("private/*/pca.npz")
    components.unlink()
    assert "costs again" in quick.train(code=2)
    assert len(quick.charges()) == 1


@pytest.mark.campaign
def test_a_finished_run_is_not_taken_for_one_on_other_data(quick):
    quick.train()
    assert "begun with the ledger" in quick.train("--data-root", "elsewhere", code=2)


@pytest.mark.parametrize("section", ["training.sampling=shuffle", "privacy.noise=fast"])
@pytest.mark.sample(1)
def test_what_no_guarantee_covers_is_kept_apart(quick, section):
    output = quick.train("--set", section)
    assert quick.charges() == []
    assert len(quick.charges("dpsgd.not-private.ledger")) == 1
    assert "none of them is private" in output
    assert "to be published" not in output.lower().replace("not to be published", "")
    assert not quick.report["guarantee"]["publishable"]


@pytest.mark.campaign
def test_weights_in_another_order_of_memory_are_released(quick):
    (quick.folder / "own.py").write_text(
        "from torch import nn\n"
        "import torch\n"
        "def model():\n"
        "    layers = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))\n"
        "    layers[0].weight.data = torch.randn(5, 4).T\n"
        "    return layers\n"
    )
    quick.change("hidden = [8]", 'entry = "own:model"')
    quick.train("--plugin-path", ".")
    assert load_file(quick.released / "model.safetensors")["0.weight"].shape == (4, 5)
