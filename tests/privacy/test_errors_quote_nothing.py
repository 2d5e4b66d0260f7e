"""What the user's own code prints, warns of or raises while records are open is not shown.

Plug-ins of all kinds get hold of a marked value and do their worst with it; neither output holds
it, whatever the engine, and the command ends in one line with the right exit code.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpsgd.cli
import pate.cli

MARK = "1234.56"  # the beginning of a private value, wherever it turns up
QUOTING = '''
import logging
import os
import resource
import sys
import threading
import warnings

import numpy as np
import torch

from pate.errors import InvalidInput, PateError
from pate.plugins import resolve


class Mine(PateError):
    exit_code = 0


class Odd(BaseException):
    pass


class Interrupted(KeyboardInterrupt):
    pass


def quote(how, X):
    """Does with a private value whatever a careless program might."""
    if not (X > 1000).any():
        return
    value = str(X[X > 1000][0])
    if how == "talks":
        print(value)
        print(value, file=sys.stderr)
        sys.__stdout__.write(value)
        os.write(1, value.encode())
        os.write(2, value.encode())
        warnings.warn(value)
        logging.getLogger("mine").error(value)
    elif how == "refuses through us":
        resolve(value)
    elif how == "breaks":
        [][int(X[0, 0])]
    elif how == "checks limits":
        if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
            raise RuntimeError("a crash would leave a core dump")
    elif how:
        kinds = {each.__name__: each for each in (Mine, Odd, Interrupted, InvalidInput)}
        kind = kinds.get(how) or getattr(__builtins__, how, None) or __builtins__[how]
        raise kind(value)


class Teacher:
    def __init__(self, classes, how="", when="fit"):
        self.classes, self.how, self.when = classes, how, when
        self.centres = np.zeros((0, 0))

    def fit(self, X, y):
        if self.when == "fit":
            quote(self.how, X)
        self.centres = np.full((self.classes, X.shape[1]), 1e6)
        for label in np.unique(y):
            self.centres[label] = X[y == label].mean(axis=0)

    def predict(self, X):
        if self.when == "predict":
            quote(self.how, self.centres)
        return ((X[:, None, :] - self.centres[None]) ** 2).sum(axis=2).argmin(axis=1)


class Family(Teacher):
    def family(self):
        return "all"

    @classmethod
    def fit_many(cls, teachers, shards):
        return [each and InvalidInput(f"odd {shard[0].max()}") for each, shard in
                zip(teachers, shards, strict=True)]


class Step:
    def __init__(self, how):
        self.how = how

    def transform(self, X):
        quote(self.how, X)
        return X


def load():
    labels = np.arange(320) % 2
    features = np.random.default_rng(3).normal(size=(320, 3)) + 5 * labels[:, None]
    private = features[120:]
    private[::2, 1] = 1234.5678
    how = os.environ["HOW"]
    if how == "a key":
        return {str(private[0, 1]): private}
    quote(how, private)
    return (private, labels[120:]), features[:60], (features[60:120], labels[60:120])


class Network(torch.nn.Module):
    def __init__(self, shape, classes, how, after=0):
        super().__init__()
        self.layer, self.how, self.left = torch.nn.Linear(shape[0], classes), how, after

    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            with torch.no_grad():
                quote(self.how, x.numpy())
        return self.layer(x * 1e-3)
'''
EARLY = """
from quoting import *
quote(os.environ["HOW"], np.full((2, 2), 1234.5678))
"""
PATE = """
[data]
name = "mine"
source = "quoting:load"
classes = ["0", "1"]
[teachers]
count = 4
model = "quoting:Teacher"
[aggregate]
mechanism = "lnmax"
scale = 2.0
queries = 15
[privacy]
delta = 1e-3
[student]
model = "quoting:Teacher"
"""
DPSGD = """
kind = "dpsgd"
[data]
name = "mine"
source = "quoting:load"
classes = ["0", "1"]
[model]
entry = "quoting:Network"
[training]
epochs = 1
lot_size = 50
learning_rate = 0.1
[privacy]
noise_multiplier = 2.0
delta = 1e-3
"""
RAISED = {  # what a plug-in does, and the type that is told of it
    "ValueError": "ValueError",
    "InvalidInput": "InvalidInput",
    "refuses through us": "InvalidInput",
    "Mine": "Mine",
    "Odd": "Odd",
    "Interrupted": "Interrupted",
    "GeneratorExit": "GeneratorExit",
    "SystemExit": "SystemExit",
    "MemoryError": "MemoryError",
    "OSError": "OSError",
    "breaks": "IndexError",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATE_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("HOW", "")
    Path("plugins").mkdir()
    Path("plugins/quoting.py").write_text(QUOTING)
    Path("plugins/early.py").write_text(EARLY)
    Path("my.toml").write_text(PATE)
    Path("dp.toml").write_text(DPSGD)
    return tmp_path


@pytest.fixture
def call(place, monkeypatch, capfd):
    """Runs a command in this process; returns its exit code and all that appeared, in C too."""

    def call_(*words, main=pate.cli.main):
        monkeypatch.setattr(sys, "argv", ["command", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capfd.readouterr()
        return stop.value.code or 0, captured.out + captured.err

    return call_


def words(stage, *settings, engine="serial"):
    given = [word for setting in settings for word in ("--set", setting)]
    return [stage, "my.toml", "--engine", engine, "--plugin-path", "plugins", *given]


def told(said, *fragments):
    assert MARK not in said
    assert "Traceback" not in said
    for fragment in fragments:
        assert fragment in said, said


@pytest.mark.parametrize("how", RAISED)
def test_teacher(call, how):
    code, said = call(*words("teach", f"teachers.params.how={how}"))
    assert code == 2, said
    told(said, f"fit raised {RAISED[how]} in plugins/quoting.py line")
    assert said.count("\n", said.index("pate: ")) == 1


@pytest.mark.parametrize(
    ("how", "engine"),
    [("InvalidInput", "processes:2"), ("Odd", "processes:2"), ("GeneratorExit", "gpus:cpu,cpu")],
)
@pytest.mark.sample(1)
def test_teacher_in_a_worker(call, how, engine):
    code, said = call(*words("teach", f"teachers.params.how={how}", engine=engine))
    assert code == 2, said
    told(said, f"fit raised {RAISED[how]} in plugins/quoting.py line")


def test_teacher_that_quotes_later(call):
    settings = ("teachers.params.how=InvalidInput", "teachers.params.when=predict")
    code, said = call(*words("vote", *settings))
    assert code == 2, said
    told(said, "predict raised InvalidInput in plugins/quoting.py line")


def test_family_that_hands_over_its_errors(call):
    settings = ("teachers.model=quoting:Family", "teachers.count=16")
    code, said = call(*words("teach", *settings))
    assert code == 2, said
    told(said, "fit_many reported InvalidInput")


@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize("source", ["quoting:load", "early:load"])
def test_data_plugin(call, monkeypatch, how, source):
    monkeypatch.setenv("HOW", how)
    sys.modules.pop("early", None)
    code, said = call(*words("teach", f"data.source={source}"))
    assert code == 2, said
    told(said, f"{RAISED[how]} in plugins/quoting.py line")


def test_data_plugin_with_keys_of_its_own(call, monkeypatch):
    monkeypatch.setenv("HOW", "a key")
    code, said = call(*words("teach"))
    assert code == 2, said
    told(said, "quoting:load returned an unknown key")


@pytest.mark.parametrize("source", ["quoting:load", "early:load"])
def test_talkative_data_plugin(call, monkeypatch, source):
    monkeypatch.setenv("HOW", "talks")
    sys.modules.pop("early", None)
    code, said = call(*words("teach", f"data.source={source}", "teachers.params.how=talks"))
    assert code == 0, said
    told(said, "teach: running")


def test_encoder(call):
    step = 'encoder.steps=[{name="quoting:Step",params={how="%s"}}]'
    for how in ("InvalidInput", "Odd"):
        code, said = call(*words("teach", step % how))
        assert code == 2, said
        told(said, f"transform of quoting:Step raised {how} in plugins/quoting.py line")
    code, said = call(*words("teach", step % "talks"))
    assert code == 0, said
    told(said)


def test_reference_model(call):
    # With much noise, so that the labels are not all of one class.
    settings = (
        "evaluate.reference=true", "student.params.how=InvalidInput", "aggregate.scale=50"
    )  # fmt: skip
    code, said = call(*words("run", *settings))
    assert code == 2, said
    told(said, "the reference model failed: fit raised InvalidInput in plugins/quoting.py line")


@pytest.mark.parametrize("how", ["ValueError", "InvalidInput", "Odd", "SystemExit"])
def test_dpsgd_model(call, how):
    code, said = call(
        "train", "dp.toml", "--plugin-path", "plugins", "--insecure-seed", "1",
        "--set", f"model.params.how={how}", main=dpsgd.cli.main,
    )  # fmt: skip
    assert code == 2, said
    told(said, how)


def test_dpsgd_model_that_breaks_while_it_trains(call):
    """After all checks of the model: the number of passes is that of a few steps."""
    code, said = call(
        "train", "dp.toml", "--plugin-path", "plugins", "--insecure-seed", "1",
        "--set", "training.epochs=20", "--set", "model.params.how=InvalidInput",
        "--set", "model.params.after=40", main=dpsgd.cli.main,
    )  # fmt: skip
    assert code == 2, said
    told(said, "the model raised InvalidInput in plugins/quoting.py line")


def test_talkative_dpsgd_model(call):
    code, said = call(
        "train", "dp.toml", "--plugin-path", "plugins", "--insecure-seed", "1",
        "--set", "model.params.how=talks", main=dpsgd.cli.main,
    )  # fmt: skip
    assert code == 0, said
    told(said, "steps in lots of 50", "epoch", "Test accuracy")  # our own words are heard


@pytest.mark.campaign
def test_the_owner_may_see_it(call):
    """With --debug, and for the one command: the next one is silent again."""
    setting = "teachers.params.how=InvalidInput"
    for engine in ("serial", "processes:1"):
        code, said = call("--debug", *words("teach", setting, engine=engine))
        assert code == 2, said
        assert MARK in said
        assert "Traceback" in said
    code, said = call(*words("teach", setting))
    assert code == 2
    told(said)


def test_an_error_of_ours_that_nobody_expected(call, monkeypatch):
    """Its text is not shown: nobody knows what it quotes."""
    from pate.stages import data

    def broken(spec, **_):
        raise KeyError(f"no {MARK}")

    monkeypatch.setattr(data, "load", broken)
    code, said = call(*words("teach"))
    assert code == 1
    told(said, "pate: unexpected KeyError in", "--debug")


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_CORE)[1] == 0, reason="no core dump could be made anyway"
)
@pytest.mark.parametrize("engine", ["serial", "processes:1"])
@pytest.mark.sample(1)
def test_a_crash_leaves_no_core_dump(place, engine):
    """Records would be in it. The data plug-in runs in the command, the teacher in a worker."""
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    allowed = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, ({most}, {most}));"
    code = (
        f"{allowed} import runpy, sys; sys.argv[0] = 'pate'; runpy.run_module('pate', "
        "run_name='__main__')"
    )
    how = "checks limits"
    done = subprocess.run(
        [sys.executable, "-c", code, *words("teach", f"teachers.params.how={how}", engine=engine)],
        env={**os.environ, "HOW": how, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


LOADED = """
import resource, sys
from pathlib import Path
from pate.datasets.spec import DataSpec
from pate.datasets.loading import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
spec = DataSpec(name="mine", source="t.csv", label="y", features=["a"], public=20, test=20,
                **eval(sys.argv[1]))
load(spec, root=Path("."))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("named", [{}, {"id": "note"}, {"group": "note"}])
def test_one_long_cell_does_not_make_every_other_as_long(place, named):
    """A table of 0.3 MB took 1.6 GB: as many letters as the longest note, for every record."""
    rng = np.random.default_rng(1)
    notes = ["n" * 131_000, *map(str, range(2999))]
    rows = zip(rng.normal(size=3000), notes, np.arange(3000) % 2, strict=True)
    text = "a,note,y\n" + "".join(f"{a},{note},{label}\n" for a, note, label in rows)
    Path("t.csv").write_text(text)
    assert len(text) < 300_000
    done = subprocess.run(
        [sys.executable, "-c", LOADED, repr(named)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert int(done.stdout) < 100, "MB"
