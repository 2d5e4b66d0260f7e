"""Bad recipes, bad files, bad teachers, bad folders: one line that names what to fix, and no more.

Most cases run the command line in this process, for speed; the contract of a real process (exit
code, standard error, nothing else) is checked at the end.
"""

from __future__ import annotations

import decimal
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pate.cli import main

RECIPE = """\
# Five teachers of my own.
[data]
name = "mine"
source = "data.npz"
public = 40
test = 20
accept_unprotected = true
[teachers]
count = 5
model = "crew:Centroids"

[aggregate]
mechanism = "lnmax"
scale = 2.0
queries = 20

[student]
model = "crew:Centroids"
"""

CREW = '''
"""Teachers that are plain numpy, good and bad."""
import os
import time
from pathlib import Path

import numpy as np


class Centroids:
    """The nearest mean."""

    def __init__(self, shrink=0.0, classes=2):
        self.shrink, self.classes = shrink, classes

    def fit(self, X, y):
        self.seen = np.unique(y)
        self.means = np.array([X[y == label].mean(axis=0) for label in self.seen])
        return self

    def predict(self, X):
        far = ((X[:, None] - self.means[None]) ** 2).sum(axis=2)
        return self.seen[far.argmin(axis=1)]


class Raises(Centroids):
    def fit(self, X, y):
        raise ValueError(f"could not digest {X[0, 0]!r}")


class RaisesLater(Centroids):
    def predict(self, X):
        raise KeyError(str(X[0, 0]))


class Exits(Centroids):
    def fit(self, X, y):
        raise SystemExit("stop")


class Leaves(Centroids):
    def fit(self, X, y):
        os._exit(0)


class Generator(Centroids):
    def fit(self, X, y):
        raise GeneratorExit(f"could not digest {X[0, 0]!r}")


class Base(Centroids):
    def fit(self, X, y):
        raise type("Odd", (BaseException,), {})(f"could not digest {X[0, 0]!r}")


class Strict(Centroids):
    def fit(self, X, y):
        np.seterr(all="raise")
        return super().fit(X, y)


class Huge(Centroids):
    def fit(self, X, y):
        np.empty(2**58)


class TwoColumns(Centroids):
    def predict(self, X):
        return np.zeros((len(X), 2))


class TooFew(Centroids):
    def predict(self, X):
        return super().predict(X)[:-1]


class UnknownClass(Centroids):
    def predict(self, X):
        return np.full(len(X), 7)


class Fractions(Centroids):
    def predict(self, X):
        return np.full(len(X), 0.5)


class Words(Centroids):
    def predict(self, X):
        return np.array(["cat"] * len(X))


class Hangs(Centroids):
    def fit(self, X, y):
        time.sleep(60)


class NoPredict:
    def fit(self, X, y):
        return self


class Unsaveable(Centroids):
    def fit(self, X, y):
        super().fit(X, y)
        self.trace = lambda: None
        return self


ready_made = Centroids()


def broken_data():
    raise RuntimeError("row 17 is strange")


def data_that_leaves():
    os._exit(0)


def data_that_exits():
    raise SystemExit(0)
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with good data, a good recipe, and teachers of all kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATE_DATA", str(tmp_path / "root"))
    rng = np.random.default_rng(5)
    labels = np.arange(150) % 2
    np.savez("data.npz", X=rng.normal(size=(150, 3)) + 3 * labels[:, None], y=labels)
    Path("my.toml").write_text(RECIPE)
    Path("plugins").mkdir()
    Path("plugins/crew.py").write_text(CREW)
    return tmp_path


@pytest.fixture
def pate(here, monkeypatch, capsys):
    """Runs the command in this process; returns its exit code, output and messages."""

    def pate_(*arguments):
        monkeypatch.setattr(sys, "argv", ["pate", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return pate_


@pytest.fixture
def run(pate):
    """``pate run my.toml`` with the plug-ins, in this process."""

    def run_(*arguments, recipe="my.toml", engine="serial"):
        return pate("run", recipe, "--engine", engine, "--plugin-path", "plugins", *arguments)

    return run_


def refused(result, *fragments, exit_code=2, usage=False):
    """One clear line, the right exit code, no traceback; and the line names the thing to fix."""
    code, out, err = result
    assert "Traceback" not in out + err
    assert code == exit_code, err
    if not usage:
        assert err.startswith("pate: "), err
        assert err.count("\n") == 1, err
        assert err.endswith("\n"), err
        assert 15 < len(err) < 640, err
    for fragment in fragments:
        assert fragment in err, err


def change(old, new, *, path="my.toml"):
    """Edits the recipe; the place to edit must be there."""
    text = Path(path).read_text()
    assert text.count(old) >= 1
    Path(path).write_text(text.replace(old, new, 1))


def complete(run):
    code, _, err = run("--quiet")
    assert code == 0, err


def made_of(stage):
    """The folder of a stage's only artifact in runs/my."""
    (manifest,) = Path("runs/my").glob(f"*/{stage}/*/manifest.json")
    return manifest.parent


def test_the_recipe_that_all_mistakes_start_from_is_good(run):
    complete(run)


def test_what_cannot_be_printed_is_escaped_and_what_is_long_is_cut(run):
    """Of keys and of settings alike: a terminal must not obey them."""
    change("count = 5", 'count = 5\n"\\u001b[31mred" = 1')
    refused(run(), "my.toml:10", "teachers.\\x1b[31mred")
    change('\n"\\u001b[31mred" = 1', "")
    refused(run("--set", f"teachers.count=[{'1, ' * 5000}]"), "--set teachers.count=[1, 1,", "…")
    refused(run("--set", 'teachers.count="\x1b[31m"'), 'teachers.count="\\x1b[31m')


# --- recipes ----------------------------------------------------------------------------------

BAD_RECIPES = {
    "not TOML": ("count = 5", "count = = 5", ["my.toml:9", "TOML"]),
    "a key twice": ("count = 5", "count = 5\ncount = 6", ["my.toml:10", "TOML"]),
    "text without an end": ('name = "mine"', 'name = "mine', ["my.toml:3", "TOML"]),
    "an unknown section": (
        "[student]",
        "[studnet]",
        ["my.toml:17", "[studnet]", "did you mean student?"],
    ),
    "a section far from any": ("[student]", "[xyz]\na = 1\n[student]", ["my.toml:17", "xyz"]),
    "a misspelt key": ("count = 5", "cuont = 5", ["my.toml:9", "teachers.cuont", "count"]),
    "a key unlike any": (
        "count = 5",
        "count = 5\nzzz = 5",
        ["my.toml:10", "teachers.zzz", "model"],
    ),
    "a key without a section": ("# Five", 'name = "mine"\n# Five', ["my.toml:1", "name"]),
    "a key in the wrong section": (
        "test = 20",
        "scale = 20",
        ["my.toml:6", "data.scale", "[aggregate]"],
    ),
    "text for a number": ("count = 5", 'count = "many"', ["my.toml:9", "teachers.count"]),
    "a fraction for a count": ("count = 5", "count = 5.5", ["my.toml:9", "teachers.count"]),
    "a number for a name": ('name = "mine"', "name = 7", ["my.toml:3", "data.name"]),
    "no student": (
        '[student]\nmodel = "crew:Centroids"',
        "",
        ["my.toml: student is missing", "[student]"],
    ),
    "no teachers": (
        '[teachers]\ncount = 5\nmodel = "crew:Centroids"',
        "",
        ["my.toml: the section [teachers] is missing"],
    ),
    "one teacher": ("count = 5", "count = 1", ["my.toml:9: teachers.count is 1", "2"]),
    "a count that is missing": ("count = 5\n", "", ["my.toml:8", "teachers.count is missing"]),
    "no model": ('count = 5\nmodel = "crew:Centroids"', "count = 5", ["my.toml:8", "model", "mix"]),
    "model and mix": (
        "count = 5",
        'count = 5\nmix = [{ model = "crew:Centroids" }]',
        ["my.toml:8", "model", "mix", "both"],
    ),
    "a key of a mix": (
        'model = "crew:Centroids"\n\n[agg',
        '[[teachers.mix]]\nmodel = "crew:Centroids"\nwieght = 2\n\n[agg',
        ["my.toml:12", "teachers.mix.0.wieght", "weight"],
    ),
    "a mix too large": (
        'model = "crew:Centroids"\n\n[agg',
        "mix = [" + '{ model = "crew:Centroids" }, ' * 6 + "]\n\n[agg",
        ["my.toml:8", "mix", "5 teachers"],
    ),
    "noise below zero": ("scale = 2.0", "scale = -2.0", ["my.toml:14", "aggregate.scale"]),
    "noise without end": ("scale = 2.0", "scale = inf", ["my.toml:14", "aggregate.scale"]),
    "noise that is text": ("scale = 2.0", 'scale = "2.0"', ["my.toml:14", "aggregate.scale"]),
    "noise of another mechanism": (
        "scale = 2.0",
        "sigma = 2.0",
        ["my.toml:12", "lnmax", "scale", "sigma"],
    ),
    "noise missing": ("scale = 2.0\n", "", ["my.toml:12", "lnmax", "scale"]),
    "a mechanism half described": (
        'mechanism = "lnmax"\nscale = 2.0',
        'mechanism = "confident"\nthreshold = 4.0',
        ["my.toml:12", "confident", "sigma1", "sigma2"],
    ),
    "an unknown mechanism": (
        'mechanism = "lnmax"',
        'mechanism = "lnmaxx"',
        ["my.toml:13", "aggregate.mechanism", "gnmax", "did you mean lnmax?"],
    ),
    "no queries": ("queries = 20", "queries = 0", ["my.toml:15", "aggregate.queries", "1"]),
    "queries that are true": ("queries = 20", "queries = true", ["my.toml:15", "queries"]),
    "an impossible delta": (
        "[student]",
        "[privacy]\ndelta = 1.5\n\n[student]",
        ["my.toml:18", "privacy.delta", "1"],
    ),
    "an epsilon of zero": (
        "[student]",
        "[privacy]\nepsilon = 0\n\n[student]",
        ["my.toml:18", "privacy.epsilon", "0"],
    ),
    "an unknown conversion": (
        "[student]",
        '[privacy]\nconversion = "best"\n\n[student]',
        ["my.toml:18", "privacy.conversion", "classic", "improved"],
    ),
    "an unknown way to split": (
        "[teachers]",
        '[partition]\nmethod = "random"\n\n[teachers]',
        ["my.toml:9", "partition.method", "hash", "shuffle"],
    ),
    "a model without a colon": (
        'count = 5\nmodel = "crew:Centroids"',
        'count = 5\nmodel = "crew Centroids"',
        ["my.toml:10", "teachers.model", "module:attr"],
    ),
    "data of two sources": (
        "public = 40",
        'public = 40\nprivate_path = "data.npz"',
        ["my.toml:2", "source", "private_path"],
    ),
    "a third of the paths": (
        'source = "data.npz"',
        'private_path = "data.npz"',
        ["my.toml:2", "public_path"],
    ),
    "an unknown data set": (
        'name = "mine"\nsource = "data.npz"',
        'name = "digts"',
        ["my.toml:2", "digts", "digits"],
    ),
    "a name that is a path": ('name = "mine"', 'name = "../mine"', ["my.toml:2", "../mine"]),
    "a name that is taken": ('name = "mine"', 'name = "mnist"', ["my.toml:2", "mnist", "another"]),
    "a share above one": ("public = 40", "public = 1.5", ["my.toml:5", "data.public", "share"]),
    "an option of own data": (
        'name = "mine"\nsource = "data.npz"',
        'name = "digits"\nlabel = "y"',
        ["my.toml:2", "label", "digits"],
    ),
    "a parameter without end": (
        '[student]\nmodel = "crew:Centroids"',
        '[student]\nmodel = "crew:Centroids"\nparams = { a = [1, { b = nan }] }',
        ["my.toml:19: student.params.a.1.b is NaN", "finite"],
    ),
    "a parameter that is a day": (
        '[student]\nmodel = "crew:Centroids"',
        '[student]\nmodel = "crew:Centroids"\nparams = { a = [1, { b = 2020-02-20 }] }',
        ["my.toml:19: student.params.a.1.b is", "2020-02-20", "text, a number"],
    ),
    "a key of another section": (
        "test = 20",
        "sigma1 = 20.0",
        ["my.toml:6", "data.sigma1", "[aggregate]"],
    ),
    "a parameter of a step without end": (
        "[student]",
        '[encoder]\nsteps = [{ name = "crew:Step", params = { a = inf } }]\n\n[student]',
        ["my.toml:18: encoder.steps.0.params.a is Infinity", "finite"],
    ),
    "an encoder without steps": (
        "[student]",
        '[encoder]\nname = "scattering"\n\n[student]',
        ["my.toml:18", "encoder.name", "belongs to encoder.steps"],
    ),
    "a misspelt step": (
        "[student]",
        '[encoder]\nsteps = ["scatering"]\n\n[student]',
        ["my.toml:18", "'scatering'", "did you mean scattering?"],
    ),
    "a key of another step": (
        "[student]",
        '[encoder]\nsteps = [{ name = "pca", J = 3 }]\n\n[student]',
        ["my.toml:18", "pca", "needs dimension", "takes no J"],
    ),
    "a key of another method": (
        '[student]\nmodel = "crew:Centroids"',
        '[student]\nmodel = "crew:Centroids"\nrounds = 4',
        ["my.toml:17", "'rounds' belongs to method = 'self-training'"],
    ),
}


@pytest.mark.parametrize("case", BAD_RECIPES)
def test_recipe(case, run):
    old, new, fragments = BAD_RECIPES[case]
    change(old, new)
    refused(run(), *fragments)
    assert not Path("runs").exists()


def test_recipe_that_is_not_there(pate):
    refused(pate("run", "mi.toml"), "mi.toml", "my.toml?")
    refused(pate("run", "digits.toml"), "digits.toml", "digits?")
    refused(pate("run", "elsewhere/my.toml"), "elsewhere/my.toml")
    refused(pate("run", "digitz"), "digitz", "digits?")
    refused(pate("run", "my"), "my.toml?")
    refused(pate("run", "qqq"), "qqq", "digits", "tabular")
    refused(pate("run", "."), ". is a folder", ".toml")
    refused(pate("run", "plugins/"), "plugins/ is a folder", ".toml")
    refused(pate("run", ""), "recipe", "digits")
    refused(pate("run", f"{'x' * 300}.toml"), "name too long")


def test_recipe_that_is_not_text(pate):
    Path("my.toml").write_bytes(b"\xff\xfe\x00")
    refused(pate("run", "my.toml"), "my.toml", "UTF-8")
    Path("my.toml").unlink()
    Path("my.toml").mkdir()
    refused(pate("run", "my.toml"), "my.toml", "folder")


@pytest.mark.campaign
def test_recipe_that_is_a_pipe(here):
    """Nobody writes into it: whoever reads waits for ever."""
    os.mkfifo("pipe.toml")
    refused(process("run", "pipe.toml"), "pipe.toml is a pipe")
    refused(process("run", "pip.toml"), "there is no recipe file pip.toml")


def test_empty_recipe(pate):
    Path("my.toml").write_text("")
    refused(pate("run", "my.toml"), "my.toml", "data is missing")


def test_section_that_is_a_value(pate):
    Path("my.toml").write_text("student = 3\n" + RECIPE.partition("[student]")[0])
    refused(pate("run", "my.toml"), "my.toml:1: student is 3", "section")


SPELLINGS = {  # the same mistake, teachers.mix.1.weight, as TOML may have it; and its line
    "tables": ('[[teachers.mix]]\nmodel = "a:B"\n\n[[teachers.mix]]\nmodel = "a:B"\nweight = 0', 6),
    "inline": ('[teachers]\nmix = [{ model = "a:B" }, { model = "a:B", weight = 0 }]', 2),
    "over lines": ('[teachers]\nmix = [\n { model = "a:B" },\n {model="a:B",weight=0},\n]', 2),
    "dotted": ('teachers.mix = [{ model = "a:B" }, { model = "a:B", weight = 0 }]', 1),
    "quoted": ('["teachers"] # ensemble\n"mix" = [{ model = "a:B" }, {model="a:B", weight=0 }]', 2),
    "after text": (
        '[teachers]\nparams.note = """\n[teachers]\nmix = 3\n"""\n[[ teachers . mix ]]\n'
        'model = "a:B"\n[[teachers.mix]]\nmodel = "a:B"\n"weight" = 0',
        10,
    ),
    "with windows line ends": ('[teachers]\r\nmix = [{model="a:B"},{model="a:B",weight=0}]\r\n', 2),
    "with a byte order mark": ('\ufeffteachers.mix = [{model="a:B"},{model="a:B",weight=0}]', 1),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_places_are_found_in_every_spelling_of_toml(spelling, pate):
    text, line = SPELLINGS[spelling]
    rest = RECIPE.partition("[teachers]")[0] + "[aggregate]" + RECIPE.partition("[aggregate]")[2]
    Path("my.toml").write_bytes(f"{text}\n{rest}".encode())
    result = pate("run", "my.toml", "--set", "teachers.count=5")
    refused(result, f"my.toml:{line}: teachers.mix.1.weight is 0;", "greater")


def test_numbers_beyond_all_measure(pate):
    for number in ("9" * 5000, "[" * 3000 + "]" * 3000):
        Path("my.toml").write_text(RECIPE.replace("count = 5", f"count = {number}"))
        refused(pate("run", "my.toml"), "my.toml")


# --- --set and other options ------------------------------------------------------------------

BAD_SETTINGS = {
    "teachers.count": ["teachers.count", "section.key=value"],
    "count=5": ["count=5", "section.key=value"],
    "=5": ["=5", "section.key=value"],
    "teachers.=5": ["section.key=value"],
    "teachers.cuont=5": ["--set", "teachers.cuont", "count"],
    "teacher.count=5": ["--set", "teacher", "teachers"],
    "teachers.count=lots": ["--set teachers.count=lots"],
    "teachers.count=": ["--set teachers.count="],
    "teachers.count=1": ["--set teachers.count=1", "2"],
    "teachers.count.x=1": ["--set teachers.count.x=1", "count"],
    "aggregate.scale=0": ["--set aggregate.scale=0"],
    "aggregate.scale=nan": ["--set aggregate.scale=nan"],
    "aggregate.sigma=4.0": ["my.toml:12 with --set aggregate.sigma=4.0", "lnmax"],
    "data.public=[1,2]": ["--set data.public=[1,2]"],
    "student.params=3": ["--set student.params=3", "table"],
    "student.params.x=nan": ["--set student.params.x=nan: student.params.x is", "finite"],
    "teachers.params.x=[-inf]": [
        "--set teachers.params.x=[-inf]: teachers.params.x.0 is",
        "finite",
    ],
    "teachers.mix.0.weight=1": ["--set teachers.mix.0.weight=1", "teachers"],
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_setting(setting, run):
    refused(run("--set", setting), *BAD_SETTINGS[setting])
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "engine",
    ["threads", "processes:0", "processes:x", "serial:2", "gpus:x", "ray:", "",
     "processes:99999999999999999999", "gpus:cpu@99999999999999999999"],
)  # fmt: skip
def test_engine(engine, run):
    refused(run(engine=engine), "engine", engine)


def test_plugin_path_that_is_not_there(pate):
    refused(pate("run", "my.toml", "--plugin-path", "nowhere"), "--plugin-path", "nowhere")


def test_usage(pate):
    code, out, err = pate("run")
    refused((code, out, err.lower()), "recipe", usage=True)  # older versions of typer shout
    refused(pate("run", "my.toml", "--bogus"), "--bogus", usage=True)
    refused(pate("run", "my.toml", "--insecure-seed", "x"), "--insecure-seed", usage=True)
    refused(pate("partitoin", "my.toml"), "partitoin", usage=True)


def test_seed_below_zero(run):
    code, out, err = run("--insecure-seed", "-1")
    refused((code, out, err.splitlines(keepends=True)[-1]), "-1", "seed")


# --- data -------------------------------------------------------------------------------------


def arrays(**changes):
    rng = np.random.default_rng(1)
    good = {"X": rng.normal(size=(150, 3)), "y": np.arange(150) % 2}
    np.savez("data.npz", **{k: v for k, v in (good | changes).items() if v is not None})


def with_nan():
    features = np.ones((150, 3))
    features[3, 1] = np.nan
    return features


BAD_ARRAYS = {
    "NaN": ({"X": with_nan()}, ["data.npz"]),
    "no features": ({"X": None}, ["data.npz", "'X'"]),
    "no labels": ({"y": None}, ["data.npz", "'y'"]),
    "unequal lengths": ({"y": np.arange(149) % 2}, ["data.npz", "150", "149"]),
    "one class": ({"y": np.zeros(150, dtype=int)}, ["data.npz", "class"]),
    "labels with fractions": ({"y": np.arange(150) / 7}, ["data.npz", "fractions"]),
    "features that are words": ({"X": np.full((150, 3), "a")}, ["data.npz", "numbers"]),
    "features in a row": ({"X": np.ones(150)}, ["data.npz", "(150,)"]),
    "no records": ({"X": np.ones((0, 3)), "y": np.ones(0, dtype=int)}, ["data.npz"]),
    "too few records": ({"X": np.ones((30, 3)), "y": np.arange(30) % 2}, ["data.npz", "30"]),
    "pickled objects": ({"y": np.array([{}] * 150, dtype=object)}, ["data.npz", "refused"]),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays(case, run):
    changes, fragments = BAD_ARRAYS[case]
    arrays(**changes)
    refused(run(), *fragments)


def test_data_file_that_is_not_there(run):
    Path("data.npz").unlink()
    refused(run(), "data.npz")


def test_data_file_that_is_damaged(run):
    Path("data.npz").write_bytes(Path("data.npz").read_bytes()[:-400])
    refused(run(), "data.npz")


def test_data_file_of_an_unknown_kind(run):
    change("data.npz", "data.xlsx")
    Path("data.xlsx").write_bytes(b"PK")
    refused(run(), "data.xlsx", ".csv")


def test_data_without_a_size(run):
    change("public = 40\n", "")
    refused(run(), "public", "count or a share")


BAD_TABLES = {
    "no such label": ("a,b,kind\n1,2,x\n", 'label = "kid"', ["t.csv", "'kid'", "'kind'"]),
    "no label named": ("a,b,kind\n1,2,x\n", "", ["t.csv", "label"]),
    "no such id": ("a,kind\n1,x\n", 'label = "kind"\nid = "nr"', ["t.csv", "id", "'nr'"]),
    "no such feature": (
        "a,kind\n1,x\n",
        'label = "kind"\nfeatures = ["aa"]',
        ["t.csv", "'aa'", "'a'"],
    ),
    "words": (
        "a,kind\n" + "".join(f"hello {n},{'xy'[n % 2]}\n" for n in range(150)),
        'label = "kind"',
        ["t.csv", "'a'", "mostly different", "categorical"],
    ),
    "gaps": (
        "a,b,kind\n" + "".join(f"{n},,{'xy'[n % 2]}\n" for n in range(150)),
        'label = "kind"',
        ["t.csv", "'b'", "empty in all public records"],
    ),
    "infinity": ("a,b,kind\n1,inf,x\n2,3,y\n", 'label = "kind"', ["t.csv", "'b'"]),
    "a short line": ("a,b,kind\n1,2,x\n1,y\n", 'label = "kind"', ["t.csv", "line 3"]),
    "no header": ("1,2,0\n3,4,1\n", 'label = "kind"', ["t.csv", "first line"]),
    "one name twice": ("a,a,kind\n1,2,x\n", 'label = "kind"', ["t.csv", "two columns"]),
    "nothing": ("", 'label = "kind"', ["t.csv", "empty"]),
    "one class": ("a,kind\n1,x\n2,x\n", 'label = "kind"', ["t.csv", "class"]),
    "one id twice": (
        "a,id,kind\n1,9,x\n2,9,y\n",
        'label = "kind"\nid = "id"',
        ["t.csv", "more than once"],
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_table(case, run):
    content, keys, fragments = BAD_TABLES[case]
    Path("t.csv").write_text(content)
    change('source = "data.npz"', f'source = "t.csv"\n{keys}')
    result = run()
    refused(result, *fragments)
    assert "hello" not in result[2]  # a private value


def test_teachers_that_change_numpy_change_it_for_nobody(run):
    change("crew:Centroids", "crew:Strict")
    before = np.geterr()
    complete(run)
    assert np.geterr() == before


def parquet(**columns):
    arrow = pytest.importorskip("pyarrow")
    labels = {"y": np.arange(150) % 2}
    importlib.import_module("pyarrow.parquet").write_table(
        arrow.table(labels | columns), "t.parquet"
    )
    change('source = "data.npz"', 'source = "t.parquet"\nlabel = "y"')


SECONDS = np.arange(150) + 1583020799123456789
ODD_COLUMNS = {  # what a column of Parquet may hold, and how the file says which type that is
    "ragged lists": (lambda arrow: [[1.0] * (row % 3) for row in range(150)], "list<"),
    "nanoseconds": (lambda arrow: arrow.array(SECONDS).cast("timestamp[ns]"), "timestamp[ns]"),
    "an unknown time zone": (
        lambda arrow: arrow.array(SECONDS // 1000).cast(arrow.timestamp("us", tz="Mars/Phobos")),
        "Mars/Phobos",
    ),
    "bytes that are no text": (
        lambda arrow: arrow.StringArray.from_buffers(
            150,
            arrow.py_buffer((np.arange(151) * 2).astype("<i4").tobytes()),
            arrow.py_buffer(b"\xff\xfe" * 150),
        ),
        "string",
    ),
}


@pytest.mark.parametrize("case", ODD_COLUMNS)
def test_column_of_parquet_that_python_cannot_hold(case, run):
    """Where it is used it is refused by its type, without a value; else nobody looks."""
    arrow = pytest.importorskip("pyarrow")
    make, kind = ODD_COLUMNS[case]
    parquet(a=np.random.default_rng(1).normal(size=150), odd=make(arrow))
    result = run()
    refused(result, "t.parquet", "'odd'")
    assert "1583020799" not in result[2]
    held = case == "nanoseconds" and importlib.util.find_spec("pandas")  # as texts, by pandas
    for role in () if held else ("id", "group"):
        result = run("--set", f"data.{role}=odd", "--set", 'data.features=["a"]')
        refused(result, "t.parquet", "'odd'", kind)
        assert "1583020799" not in result[2]
    complete(lambda quiet: run(quiet, "--set", 'data.features=["a"]'))


def test_decimals_of_parquet_are_numbers(run):
    arrow = pytest.importorskip("pyarrow")
    decimals = [decimal.Decimal(row) / 8 for row in range(150)]
    parquet(a=arrow.array(decimals, type=arrow.decimal128(12, 4)))
    complete(run)


@pytest.mark.parametrize("settings", [["data.id=who"], ["data.group=who", "partition.by=group"]])
def test_names_that_are_not_unicode(settings, run):
    """A lone surrogate: what a name in another encoding becomes."""
    arrays(who=np.array([f"\udcff{row}" for row in range(150)]))
    words = [word for setting in settings for word in ("--set", setting)]
    complete(lambda quiet: run(quiet, *words))


def pictures(folder, *, name, classes=(b"a", b"b")):
    from PIL import Image

    rng = np.random.default_rng(1)
    for row in range(150):
        place = Path(folder) / os.fsdecode(classes[row % 2])
        place.mkdir(parents=True, exist_ok=True)
        pixels = (rng.random((4, 4)) * 100 + 100 * (row % 2)).astype(np.uint8)
        Image.fromarray(pixels.reshape(4, 4)).save(place / os.fsdecode(name % row))


def test_image_files_of_another_encoding(run):
    pictures("images", name=b"\xe9%d.png")
    change("crew:Centroids", "ridge")
    change('[student]\nmodel = "crew:Centroids"', '[student]\nmodel = "ridge"')
    complete(lambda quiet: run(quiet, "--set", "data.source=images"))


def test_class_folders_of_another_encoding(run):
    """Class names are published: on a page, in a card."""
    pictures("images", name=b"%d.png", classes=(b"a", b"\xe9"))
    refused(run("--set", "data.source=images"), "a class of images is not Unicode text", "rename")


@pytest.mark.campaign
def test_folders_of_another_encoding(run, pate):
    out, released = os.fsdecode(b"\xe9"), os.fsdecode(b"\xe8")
    own = ("--plugin-path", "plugins")
    complete(lambda quiet: run(quiet, "--out", out))
    for words in (("report", out), ("status", out), ("release", out, released)):
        code, _, err = pate(*words, *own)
        assert code == 0, err
    assert (Path(out) / "report.html").is_file()
    assert Path(released).is_dir()


def test_table_that_is_not_utf8(run):
    Path("t.csv").write_bytes(b"a,kind\n1,\xff\n")
    change('source = "data.npz"', 'source = "t.csv"\nlabel = "kind"')
    refused(run(), "t.csv", "UTF-8")


def test_named_set_that_was_not_fetched(run):
    change('name = "mine"\nsource = "data.npz"', 'name = "mnist"')
    refused(run(), "mnist", "pate data fetch mnist")


def test_own_code_for_data(run):
    change("data.npz", "crew:broken_data")
    result = run()
    refused(result, "crew:broken_data", "RuntimeError")
    assert "17" not in result[2]
    for name, kind in (("data_that_leaves", "ProcessExit"), ("data_that_exits", "SystemExit")):
        refused(
            run("--set", f"data.source=crew:{name}"), f"{name} raised {kind} in plugins/crew.py"
        )
    change("crew:broken_data", "crew:broken_dat")
    refused(run(), "crew", "broken_dat", "broken_data")
    change("crew:broken_dat", "krew:data")
    refused(run(), "krew")


def test_fetch_of_an_unknown_set(pate):
    refused(pate("data", "fetch", "mnits"), "mnits", "mnist")


def test_more_teachers_than_records(run):
    shuffled = ("--set", "partition.method=shuffle")
    refused(run(*shuffled, "--set", "teachers.count=500"), "500", "teachers.count")


def test_teachers_without_records_abstain(run):
    """With a hashed partition how many records there are is private: it is no mistake."""
    code, _, err = run("--set", "teachers.count=80")
    assert code == 0, err


def test_groups_that_are_not_there(run):
    refused(run("--set", "partition.by=group"), "partition.by", "group")


# --- models -----------------------------------------------------------------------------------

BAD_MODELS = {
    "krew:Centroids": ["krew"],
    "crew:Centroid": ["crew", "'Centroid'", "'Centroids'"],
    "crew:NoPredict": ["NoPredict", "fit and predict"],
    "crew:ready_made": ["object", "class"],
    "centroids": ["centroids", "colon"],
    "sklearn.tree.DecisionTreeClassifier": ["sklearn.tree:DecisionTreeClassifier"],
    "crew:Raises": ["teacher 0", "ValueError in plugins/crew.py line"],
    "crew:Exits": ["teacher 0", "SystemExit in plugins/crew.py line"],
    "crew:Leaves": ["teacher 0", "ProcessExit in plugins/crew.py line"],
    "crew:Generator": ["teacher 0", "GeneratorExit in plugins/crew.py line"],
    "crew:Base": ["teacher 0", "Odd in plugins/crew.py line"],
    "crew:Huge": ["teacher 0", "MemoryError in plugins/crew.py line"],
    "crew:RaisesLater": ["teacher 0", "KeyError"],
    "crew:TwoColumns": ["teacher 0", "shape (40, 2)", "(40,)"],
    "crew:TooFew": ["teacher 0", "shape (39,)"],
    "crew:UnknownClass": ["teacher 0", "class"],
    "crew:Fractions": ["teacher 0", "fractions"],
    "crew:Words": ["teacher 0", "whole numbers"],
}


@pytest.mark.parametrize("model", BAD_MODELS)
@pytest.mark.sample(6)
def test_teacher(model, run):
    change("crew:Centroids", model)
    result = run()
    refused(result, *BAD_MODELS[model])
    assert "digest" not in result[2]  # what the model said may quote a record
    assert not list(Path("runs").glob("my/released/*"))


def test_student_that_no_format_stores(run):
    """As a teacher it is fitted again; as a student it could not be released."""
    change('[student]\nmodel = "crew:Centroids"', '[student]\nmodel = "crew:Unsaveable"')
    change("crew:Centroids", "crew:Unsaveable")
    refused(run(), "Unsaveable.trace", "save(folder)")
    assert list(Path("runs").glob("my/private/vote/*"))


def test_teacher_with_bad_params(run):
    change('model = "crew:Centroids"', 'model = "crew:Centroids"\nparams = { shrnk = 2 }')
    refused(run(), "Centroids", "shrnk")


def test_plugin_that_cannot_be_imported(run):
    Path("plugins/crew.py").write_text("import nothing_like_this\n")
    refused(run(), "crew", "nothing_like_this")
    Path("plugins/crew.py").write_text("class Centroids(:\n")
    refused(run(), "crew.py is not valid Python", "line 1")


def test_plugin_path_that_is_no_code(pate):
    Path("notes.txt").write_text("words")
    refused(pate("run", "my.toml", "--engine", "serial", "--plugin-path", "notes.txt"), "notes.txt")


@pytest.mark.parametrize(
    ("model", "reason"), [("krew:Centroids", "'krew'"), ("crew:NoPredict", "NoPredict")]
)
def test_student_that_cannot_be_made(model, reason, run):
    """Found before anything is paid for."""
    change('[student]\nmodel = "crew:Centroids"', f'[student]\nmodel = "{model}"')
    refused(run(), "the student cannot be made", reason)
    assert not Path("root/ledgers/mine.ledger").exists()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("crew:Raises", "fit raised ValueError in plugins/crew.py line"),
        ("crew:Leaves", "fit raised ProcessExit in plugins/crew.py line"),
    ],
)
def test_student(model, reason, run):
    """Found before anything is paid for, on made-up labels; a repaired recipe goes on."""
    change('[student]\nmodel = "crew:Centroids"', f'[student]\nmodel = "{model}"')
    refused(run(), "the student cannot be trained, asked and stored", reason)
    assert not Path("root/ledgers/mine.ledger").exists()
    change(f'[student]\nmodel = "{model}"', '[student]\nmodel = "crew:Centroids"')
    complete(run)


def test_student_without_probabilities(run):
    refused(run("--set", "student.method=self-training"), "predict_proba", "supervised")


def test_timeout_with_the_serial_engine(run):
    refused(run("--set", "teachers.timeout=5"), "timeout", "processes")


# --- budget -----------------------------------------------------------------------------------


def test_not_even_one_answer_fits(run):
    refused(run("--set", "privacy.epsilon=0.001"), "one answer", "epsilon", exit_code=3)
    assert not list(Path("runs/my").glob("released/*"))


def test_budget_of_the_data_set(run):
    refused(run("--set", "privacy.budget=0.5"), "budget of 0.5", exit_code=3)
    assert not list(Path("runs/my").glob("released/*"))


def test_budget_that_changes(run):
    complete(run)
    refused(
        run("--set", "privacy.budget=9", "--set", "aggregate.scale=3.0"), "mine.ledger", "budget"
    )


def test_answer_that_was_lost(run):
    complete(run)
    shutil.rmtree("runs/my")
    refused(run(), "mine.ledger", "--spend", exit_code=3)


# --- folders and files that went bad ----------------------------------------------------------


def test_run_folder_that_is_a_file(run):
    Path("runs").write_text("")
    refused(run(), "runs")
    refused(run("--out", "my.toml"), "my.toml")
    refused(run("--out", "my.toml/run"), "my.toml")


@contextmanager
def small_disk(folder: Path, *, options: str):
    """A file system of its own: small, and later perhaps read-only."""
    folder.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_read_only_run_folder(run):
    with small_disk(Path("runs"), options="size=4m"):
        complete(run)
        before = sorted(Path("runs").rglob("*"))
        subprocess.run(["mount", "-o", "remount,ro", "runs"], check=True)
        refused(run("--set", "student.params.shrink=1.0"), "runs/my", "ead-only")
        assert sorted(Path("runs").rglob("*")) == before


def test_full_disk(run):
    with small_disk(Path("runs"), options="size=32k"):
        refused(run(), "runs/my", "no space left")
        assert not list(Path("runs").rglob(".draft-*"))


def test_data_root_that_is_a_file(run):
    Path("root").write_text("")
    refused(run(), "root")


def test_data_root_that_is_read_only(run):
    with small_disk(Path("root"), options="size=1m,ro"):
        refused(run(), "root/ledgers")


def test_damaged_artifact(run):
    complete(run)
    labels = made_of("aggregate") / "labels.npy"
    content = bytearray(labels.read_bytes())
    content[-1] ^= 1
    labels.write_bytes(content)
    refused(run("--set", "student.params.shrink=1.0"), str(labels), "damaged")


def test_artifact_with_a_file_less(run):
    complete(run)
    (made_of("vote") / "counts.npy").unlink()
    refused(run("--set", "aggregate.scale=3.0"), "vote", "counts.npy", "missing")


def test_edited_manifest(run):
    complete(run)
    manifest = made_of("vote") / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"teachers": 5', '"teachers": 500'))
    refused(run(), str(manifest.parent), "changed by hand")
    manifest.write_text("{")
    refused(run(), str(manifest.parent), "cannot be read")


def test_status_beside_a_broken_manifest(run, pate):
    """Why a stage is stale cannot be told; that it is, and everything else, can."""
    complete(run)
    own = ("--plugin-path", "plugins")
    code, _, err = pate("account", "my.toml", "--quiet", *own, "--set", "student.params.shrink=1.0")
    assert code == 0, err
    (origin,) = Path("runs/my/private/origins/distill").glob("*.json")
    origin.write_text("{")
    code, out, err = pate("status", "runs/my", *own)
    assert code == 0, err
    assert "stale" in out
    assert "cannot be read" in out


def test_damaged_teacher(run):
    complete(run)
    for file in Path("runs/my/private/teacher").glob("*/arrays.npz"):
        file.write_bytes(b"PK")
    shutil.rmtree(made_of("vote"))
    refused(run(), "teacher", "arrays.npz")


def test_corrupt_ledger(run, pate):
    complete(run)
    ledger = Path("root/ledgers/mine.ledger")
    ledger.write_bytes(b"\0" * 5000)
    refused(run("--set", "aggregate.scale=3.0"), "mine.ledger", "cannot be read")
    refused(pate("ledger", "show", ledger), "mine.ledger", "cannot be read")
    refused(pate("ledger", "show", "runs/my"), "mine.ledger", "cannot be read")
    refused(pate("status", "runs/my"), "mine.ledger", "cannot be read")


def test_places_that_are_no_run(pate):
    refused(pate("status", "plugins"), "plugins", "no run")
    refused(pate("status", "nowhere"), "nowhere", "no run")
    refused(pate("status", "my.toml"), "my.toml", "no run")
    refused(pate("ledger", "show", "nowhere"), "nowhere")
    refused(pate("ledger", "show", "plugins"), "plugins")
    refused(pate("ledger", "show", "my.toml"), "my.toml", "cannot be read")


def test_ledger_of_a_run_that_paid_for_nothing(pate):
    code, _, err = pate("partition", "my.toml", "--engine", "serial", "--quiet")
    assert code == 0, err
    refused(pate("ledger", "show", "runs/my"), "mine", "paid for nothing")


def test_resolved_recipe_that_was_edited(run, pate):
    complete(run)
    resolved = Path("runs/my/recipe.json")
    content = json.loads(resolved.read_text())
    content["teachers"]["count"] = 0
    resolved.write_text(json.dumps(content))
    refused(pate("status", "runs/my"), "recipe.json", "run the recipe again")
    resolved.write_text("{")
    refused(pate("status", "runs/my"), "recipe.json")
    resolved.write_bytes(b"\xff")
    refused(pate("ledger", "show", "runs/my"), "recipe.json")


def test_new(pate):
    refused(pate("new", "my.toml"), "my.toml exists")
    assert Path("my.toml").read_text() == RECIPE
    refused(pate("new", "nowhere/my.toml"), "nowhere/my.toml")
    refused(pate("new", "x" * 300), "name too long")


def test_names_too_long_for_the_disk(run, pate):
    refused(pate("status", "x" * 300), "name too long")
    refused(run("--out", "x" * 300), "name too long")
    refused(run("--set", f"data.source={'x' * 300}.npz"), "name too long")
    refused(run("--set", f"data.name={'x' * 300}"), "name")


# --- real processes ---------------------------------------------------------------------------


def process(*arguments, **more):
    done = subprocess.run(
        [sys.executable, "-m", "pate", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )
    return done.returncode, done.stdout, done.stderr


def test_process_misspelt_key(here):
    change("count = 5", "cuont = 5")
    refused(process("run", "my.toml"), "my.toml:9", "teachers.cuont", "count")


def test_process_without_a_terminal_that_knows_greek(here):
    result = process(
        "run", "my.toml", "--engine", "serial", "--plugin-path", "plugins",
        "--set", "privacy.epsilon=0.001",
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    refused(result, "one answer", exit_code=3)


@pytest.mark.campaign
def test_process_teacher_that_hangs(here):
    change("crew:Centroids", "crew:Hangs")
    result = process(
        "run", "my.toml", "--engine", "processes:2", "--plugin-path", "plugins",
        "--set", "teachers.timeout=1.0",
    )  # fmt: skip
    refused(result, "teacher", "within 1 s")


@pytest.mark.campaign
def test_process_teacher_that_raises_in_a_worker(here):
    change("crew:Centroids", "crew:Raises")
    result = process("run", "my.toml", "--engine", "processes:1", "--plugin-path", "plugins")
    refused(result, "failed: fit raised ValueError in plugins/crew.py line 28")
    assert re.match(r"pate: teacher \d+ failed", result[2])
    assert "digest" not in result[1] + result[2]


@pytest.mark.campaign
def test_process_without_utf8(here):
    """In the C locale, and told not to take UTF-8 for it, a file is ASCII unless one says else."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
    plain |= {"LC_ALL": "C", "PYTHONUTF8": "0"}
    code, out, err = process("recipes", env=plain)
    assert (code, err) == (0, "")
    assert "digits" in out
    code, _, err = process("new", "fresh.toml", env=plain)
    assert (code, err) == (0, "")
    assert "digits" in Path("fresh.toml").read_text(encoding="utf-8")
    Path("my.toml").write_text("# ε\n" + RECIPE, encoding="utf-8")
    own = ("--engine", "serial", "--plugin-path", "plugins", "--quiet")
    assert process("run", "my.toml", *own, env=plain)[0] == 0
    code, _, err = process("report", "runs/my", "--plugin-path", "plugins", env=plain)
    assert (code, err) == (0, "")
    assert "ε" in Path("runs/my/report.html").read_text(encoding="utf-8")


@pytest.mark.campaign
def test_process_whose_reader_goes_away(here):
    """``pate run my.toml | head -1``."""
    command = [sys.executable, "-m", "pate", "run", "my.toml", "--engine", "serial",
               "--plugin-path", "plugins"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"data: running\n"
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(timeout=300) == 141
    assert process("status", "runs/my", "--plugin-path", "plugins")[0] == 0


def test_process_on_a_full_disk(here):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "pate", "recipes"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )
    refused((done.returncode, "", done.stderr), "no space left")


def test_process_unfit_for_its_data(here):
    """Less memory than one array of the data takes: an error of nobody's."""
    np.savez("data.npz", X=np.zeros((150, 2_000_000), dtype=np.uint8), y=np.arange(150) % 2)
    limited = (
        "import resource, runpy, sys\n"
        "import numpy, scipy.special, pydantic\n"
        "with open('/proc/self/statm') as file:\n"
        "    used = int(file.read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000,) * 2)\n"
        "sys.argv = ['pate', *sys.argv[1:]]\n"
        "runpy.run_module('pate', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "run", "my.toml", "--engine", "serial", "--plugin-path",
         "plugins"], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    refused((done.returncode, done.stdout, done.stderr), "not enough memory (in pate/", exit_code=1)


@pytest.mark.campaign
def test_process_that_was_killed_while_it_wrote_its_page(here):
    own = ("--engine", "serial", "--plugin-path", "plugins", "--quiet")
    assert process("run", "my.toml", *own)[0] == 0
    killed = (
        "import os, sys\n"
        "from pate.cli import main\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), 9)\n"
        "sys.argv = ['pate', 'report', 'runs/my', '--plugin-path', 'plugins', *sys.argv[1:]]\n"
        "main()\n"
    )
    litter = [Path("runs/my"), Path("runs/my/private")]
    for more, place in zip(([], ["--private"]), litter, strict=True):
        done = subprocess.run([sys.executable, "-c", killed, *more], timeout=300, check=False)
        assert done.returncode == -9
        assert len(list(place.glob(".report*"))) == 1
    assert process("run", "my.toml", *own)[0] == 0
    assert [len(list(place.glob(".report*"))) for place in litter] == [0, 0]


def test_what_a_killed_ray_left_is_swept_by_the_next_command(run, here, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # sockets of Ray need a short path
        monkeypatch.setattr(tempfile, "tempdir", short)
        left = [Path(short, "pate-ray-abcd_012"), Path(short, "pate-task-abcd_012")]
        others = [Path(short, "pate-ray-notes"), Path(short, "pate-task-force")]
        for folder in left + others:
            (folder / "session").mkdir(parents=True)
        complete(run)
        assert [folder.exists() for folder in left + others] == [False, False, True, True]


def test_process_archive_of_a_strange_kind(here):
    with zipfile.ZipFile("data.npz", "w") as archive:
        archive.writestr("X.npy", b"not an array")
    refused(process("run", "my.toml", "--engine", "serial"), "data.npz")
