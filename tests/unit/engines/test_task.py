"""Tasks and outcomes as values: what they refuse, and what they do not show."""

from __future__ import annotations

import pytest

from pate.engines import Outcome, Task
from pate.errors import InvalidInput


@pytest.mark.parametrize("function", ["", "json", "json:", ":loads", "__main__:f"])
def test_a_function_must_be_importable_by_name(function):
    with pytest.raises(InvalidInput, match=r"write 'package\.module:name'"):
        Task(key="k", function=function, payload={})


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_is_a_number(weight):
    with pytest.raises(InvalidInput, match="has the weight"):
        Task(key="k", function="m:f", payload={}, weight=weight)


@pytest.mark.parametrize("value", [{1, 2}, b"SECRET", object(), 1j])
def test_a_payload_that_cannot_travel_is_refused_where_it_is_made(value):
    with pytest.raises(InvalidInput, match="task 'k' is not plain JSON data") as caught:
        Task(key="k", function="m:f", payload={"deep": [value]})
    assert "SECRET" not in str(caught.value)


def test_a_circular_payload_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidInput, match="ValueError"):
        Task(key="k", function="m:f", payload={"loop": loop})


def test_payload_and_result_stay_out_of_repr():
    task = Task(key="k", function="m:f", payload={"x": "SECRET"})
    outcome = Outcome(key="k", result={"x": "SECRET"}, error=None, seconds=0.0, attempts=1)
    assert "SECRET" not in repr(task) + repr(outcome)
