"""The [data] section, the data root, the list of named sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from pate._files import user_data_folder
from pate.datasets.catalogue import CATALOGUE, data_root
from pate.datasets.spec import DataSpec

THREE = {"private_path": "a.csv", "public_path": "b.csv", "test_path": "c.csv"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "mnits"}, "no data set named 'mnits'; did you mean mnist"),
        ({"name": "hospital"}, "for your own data set source or private_path"),
        ({"name": "../x", "source": "x.csv"}, "cannot name a data set"),
        ({"name": "x" * 221, "source": "x.csv"}, "use at most 220"),
        ({"name": "digits", "source": "x.csv"}, "built-in data set; give your own data another"),
        ({"name": "digits", "label": "y"}, "label is for your own data"),
        ({"name": "digits", "image_size": 8}, "image_size is for your own data"),
        ({"name": "own", "source": "x.csv", **THREE}, "source and private_path are both set"),
        ({"name": "own", "private_path": "a.csv"}, "private_path is set and public_path is not"),
        ({"name": "own", "public_path": "b.csv"}, "public_path is set and private_path is not"),
        ({"name": "digits", "public": 0}, "0 is not an amount"),
        ({"name": "digits", "public": 1.0}, "share strictly between 0 and 1"),
        ({"name": "digits", "test": True}, "not an amount"),
        ({"name": "digits", "private": "many"}, "not an amount"),
        ({"name": "digits", "test": float("nan")}, "not an amount"),
        ({"name": "digits", "seed": -1}, "greater than or equal to 0"),
        ({"name": "own", "source": "x", "label": "y", "id": "y"}, "both name column 'y'"),
        ({"name": "own", "source": "x", "label": "y", "features": ["y"]}, "also among features"),
        ({"name": "own", "source": "x", "features": []}, "features is empty"),
        ({"name": "own", "source": "x", "features": ["a", "a"]}, "a column twice"),
        ({"name": "own", "source": "x", "classes": ["a"]}, "two or more classes"),
        ({"name": "own", "source": "x", "classes": ["a", "a", "b"]}, "each once"),
        ({"name": "own", "source": "x", "image_size": 0}, "greater than or equal to 1"),
        ({"name": "digits", "publik": 3}, "Extra inputs"),
        ({"name": "digits", "order": "file"}, "order is for named sets that have an official test"),
        ({"name": "digits", "public_from": "training"}, "public_from is for named sets"),
        ({"name": "own", "source": "x", "order": "file"}, "order is for named sets"),
        ({"name": "mnist", "public_from": "training", "order": "file"}, "leave out one of"),
    ],
)
def test_a_wrong_section_is_one_clear_error(fields, words):
    with pytest.raises(ValidationError, match=words) as caught:
        DataSpec(**fields)
    assert caught.value.error_count() == 1


def test_a_right_section():
    spec = DataSpec(name="own", public=0.3, test=100, label="y", group="user", **THREE)
    assert spec.own
    assert (spec.public, spec.test, spec.private) == (0.3, 100, None)
    assert not DataSpec(name="mnist").own


def test_the_data_root_does_not_depend_on_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PATE_DATA")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    (tmp_path / "data").mkdir()
    assert data_root() == user_data_folder()
    assert data_root().is_relative_to(tmp_path / "home")
    assert data_root(None, "/recipe/data") == Path("/recipe/data")
    monkeypatch.setenv("PATE_DATA", str(tmp_path / "set"))
    assert data_root(None, "/recipe/data") == tmp_path / "set"
    assert data_root(Path("option")) == Path("option")


def test_the_list_tells_what_is_on_disk(tmp_path):
    (tmp_path / "adult").mkdir()
    for name in ("adult.data", "adult.test"):
        (tmp_path / "adult" / name).write_text("x\n")
    present = {name: named.present(tmp_path) for name, named in CATALOGUE.items()}
    assert [name for name, there in present.items() if there] == [
        "digits",
        "breast-cancer",
        "adult",
    ]
    assert set(present) >= {"mnist", "fashion-mnist", "cifar10", "svhn"}
    (tmp_path / "adult" / "adult.test").write_text("")
    assert not CATALOGUE["adult"].present(tmp_path)
    assert all(named.licence and named.source for named in CATALOGUE.values())


def test_checking_a_recipe_needs_no_numpy():
    code = (
        "import sys; from pate.datasets.spec import DataSpec; DataSpec(name='digits')\n"
        "from pate.datasets.catalogue import CATALOGUE\n"
        "print([m for m in ('numpy', 'torch', 'sklearn') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
