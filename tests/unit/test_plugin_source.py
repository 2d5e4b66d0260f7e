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
