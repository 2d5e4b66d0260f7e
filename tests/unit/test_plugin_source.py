"""Which code of a plug-in folder counts for a cache key."""

from __future__ import annotations

import pytest

from pate.errors import InvalidInput
from pate.plugin_source import source_digest

MINE = """
import numpy as np
from helpers import scaled
import tables

LIMIT = 3

class Base:
    rate = LIMIT

class Teacher(Base):
    def fit(self, X, y):
        return scaled(X) + tables.SIZE

class Student:
    def fit(self, X, y):
        return other(X)

def other(X):
    return X
"""
HELPERS = """
from deeper import depth

def scaled(X):
    return X / depth()

def unused():
    return 0
"""


@pytest.fixture
def folder(tmp_path):
    files = {"mine": MINE, "helpers": HELPERS, "deeper": "def depth():\n    return 2\n",
             "tables": "SIZE = 4\n", "apart": "x = 1\n"}  # fmt: skip
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def edited(folder, module, old, new):
    file = folder / f"{module}.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("mine", "return other(X)", "return other(2 * X)"),  # of the student
        ("mine", "LIMIT = 3", "# a comment\nLIMIT = 3\n\n\nclass Later:\n    pass\n"),
        ("helpers", "return 0", "return 1"),
        ("apart", "x = 1", "x = 2"),
    ],
)
def test_code_that_is_not_used_does_not_count(folder, module, old, new):
    before = source_digest(["mine:Teacher"], folder)
    edited(folder, module, old, new)
    assert source_digest(["mine:Teacher"], folder) == before


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("mine", "scaled(X) +", "scaled(X) -"),
        ("mine", "LIMIT = 3", "LIMIT = 4"),  # by way of the base class
        ("mine", "LIMIT = 3", "LIMIT = 3\nnp.seterr(all='ignore')"),  # runs on import
        ("mine", "LIMIT = 3", "LIMIT = 3\n@print\nclass Registered:\n    pass\n"),
        ("helpers", "X / depth()", "X * depth()"),
        ("deeper", "return 2", "return 3"),
        ("tables", "SIZE = 4", "SIZE = 5"),
    ],
)
def test_code_that_is_used_counts(folder, module, old, new):
    before = source_digest(["mine:Teacher"], folder)
    edited(folder, module, old, new)
    assert source_digest(["mine:Teacher"], folder) != before


@pytest.mark.parametrize("word", ["globals()", "sys.modules[__name__]", "eval('other')"])
def test_where_code_looks_names_up_all_of_its_module_counts(folder, word):
    edited(folder, "mine", "tables.SIZE", f"{word}.x")
    before = source_digest(["mine:Teacher"], folder)
    edited(folder, "mine", "return other(X)", "return other(2 * X)")
    assert source_digest(["mine:Teacher"], folder) != before


def test_packages_relative_and_star_imports(tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import *\n")
    (package / "inner.py").write_text("from . import side\n\nclass A:\n    x = side.y\n")
    (package / "side.py").write_text("y = 1\n")
    before = source_digest(["pack:A"], tmp_path)
    assert source_digest(["pack.inner:A"], tmp_path) is not None
    (package / "side.py").write_text("y = 2\n")
    assert source_digest(["pack:A"], tmp_path) != before


def test_names_of_installed_packages_and_no_folder():
    assert source_digest(["sklearn.linear_model:Ridge"], None) is None


def test_an_installed_name_uses_nothing_of_the_folder(folder):
    assert source_digest(["sklearn.linear_model:Ridge"], folder) is None
    assert source_digest(["mine:Teacher"], folder / "mine.py") == source_digest(
        ["mine:Teacher"], folder
    )


def test_what_cannot_be_parsed_is_named(folder):
    (folder / "deeper.py").write_text("def depth(:\n")
    with pytest.raises(InvalidInput, match=r"deeper.py is not valid Python"):
        source_digest(["mine:Teacher"], folder)


@pytest.mark.parametrize(
    "mine",
    [
        "import losses\nfrom base import REG\n\ndef Teacher():\n    return REG['x']\n",
        "from base import REG\ntry:\n    import losses\nexcept ImportError:\n    pass\n"
        "class Teacher:\n    x = REG\n",
        "import importlib\n\nclass Teacher:\n    def fit(self, X, y):\n"
        "        return importlib.import_module('losses')\n",
        "from importlib import import_module as load\n\ndef Teacher():\n    load('losses')\n",
        "from sys import modules\n\ndef Teacher():\n    return modules['losses']\n",
        "def helper():\n    import losses\n\nclass Teacher:\n    x = helper()\n",
    ],
)
def test_modules_that_are_reached_in_other_ways_count(tmp_path, mine):
    (tmp_path / "mine.py").write_text(mine)
    (tmp_path / "base.py").write_text("REG = {}\n\ndef put(f):\n    REG['x'] = f\n    return f\n")
    losses = "from base import put\n\n@put\ndef loss():\n    return {}\n"
    (tmp_path / "losses.py").write_text(losses.format(1))
    before = source_digest(["mine:Teacher"], tmp_path)
    (tmp_path / "losses.py").write_text(losses.format(2))
    assert source_digest(["mine:Teacher"], tmp_path) != before


def test_a_package_comes_before_a_module_of_its_name(tmp_path):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets.py").write_text("A = 1\n")
    (tmp_path / "nets" / "__init__.py").write_text("A = 1\n")
    before = source_digest(["nets:A"], tmp_path)
    (tmp_path / "nets.py").write_text("A = 2\n")
    assert source_digest(["nets:A"], tmp_path) == before
    (tmp_path / "nets" / "__init__.py").write_text("A = 2\n")
    assert source_digest(["nets:A"], tmp_path) != before


def test_the_digest_is_the_same_for_every_version_of_python(tmp_path):
    """Later versions have more fields; those that are empty do not count."""
    (tmp_path / "mine.py").write_text("def f(x: int = 1):\n    return [x, *'a']\n")
    assert source_digest(["mine:f"], tmp_path) == (
        "27292d6ecb5e5ab56dca0b851edec3b8dc10322735212a766883b1ec52240390"
    )
