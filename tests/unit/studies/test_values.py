"""Values on the command line, and back to what ``--set`` reads."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.recipes.read import as_setting, read_recipe
from pate.studies.sweep import read_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("10", (10,)),
        ("10,20.0", (10, 20.0)),
        (" 1 , 2 ", (1, 2)),
        ("true,false", (True, False)),
        ("[1,2],[3]", ([1, 2], [3])),
        ('"a,b","c"', ("a,b", "c")),
        ("{ a = 1 },{ a = 2 }", ({"a": 1}, {"a": 2})),
        ("supervised,fixmatch", ("supervised", "fixmatch")),
        ("sklearn.svm:SVC,batched", ("sklearn.svm:SVC", "batched")),
        ("10,many", (10, "many")),  # words and numbers: each as --set reads it
    ],
)
def test_values_are_toml_or_words(text: str, values: tuple[Any, ...]) -> None:
    found = read_values(text)
    assert found == values
    assert [type(each) for each in found] == [type(each) for each in values]


@pytest.mark.parametrize("text", ["", "  ", "1,", "a,", "1,,2", "a,,b", ",1", "[1", "{a", '"a'])
def test_values_that_are_missing_or_left_open_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_values(text)
    assert "\n" not in str(refused.value)


def test_a_line_break_opens_no_second_setting() -> None:
    assert read_values("1]\nother = [2") == ("1]\nother = [2",)


VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab ."), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip


@given(VALUES)
def test_a_setting_reads_as_the_value_it_was_made_of(value: Any) -> None:
    text = as_setting(value)
    try:
        back = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        back = text  # a word without quotation marks, as --set takes it
    assert back == value
    assert type(back) is type(value)
    assert "\n" not in text


def test_set_reads_it_back() -> None:
    setting = f"student.params={as_setting({'n_estimators': 7, 'criterion': 'log_loss'})}"
    _, recipe = read_recipe("digits-teachers", [setting], Recipe)
    assert recipe.student.params == {"n_estimators": 7, "criterion": "log_loss"}
