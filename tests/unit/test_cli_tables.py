"""Tables in narrow terminals: columns go, figures stay whole."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from pate.cli.compare import _COLUMNS, _cells
from pate.cli.tables import Column, fitted_table, fitting_columns

ROW = SimpleNamespace(  # as much of a ComparisonRow as the table reads
    name="true public labels",
    epsilon=12.345,
    accuracy=0.5,
    spread=0.012,
    runs=(None,) * 3,
    whole=False,
    labels=1310,
    seconds=59.0,
    peak_memory_mb=1453.0,
    neighbours="replace-one",
    data_dependent=False,
    publishable=False,
)


def printed(columns, width):
    file = io.StringIO()
    Console(file=file, width=width).print(fitted_table(columns, width))
    return file.getvalue()


def comparison():
    return [
        Column(heading=heading, cells=[cell], justify=justify, rank=rank)
        for (heading, justify, rank), cell in zip(_COLUMNS, _cells(ROW), strict=True)
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_epsilon_and_accuracy_are_whole_at_any_width(width):
    text = printed(comparison(), width)
    for whole in ("true public labels", "12.4", "50.0 ± 1.2 (3)", "NO"):
        assert whole in text
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())


def test_a_wide_terminal_has_all_columns():
    text = printed(comparison(), 200)
    assert all(heading in text for heading, _, _ in _COLUMNS)
    assert "≥ 59.0 s" in text


def test_the_least_important_columns_go_first():
    columns = comparison()
    ranks = [
        sorted(each.rank for each in fitting_columns(columns, width))
        for width in range(200, 40, -1)
    ]
    for kept in ranks:
        assert kept == sorted(each.rank for each in columns)[: len(kept)]
    assert len({len(kept) for kept in ranks}) == 6


def test_what_is_needed_stays_even_without_room():
    assert len(fitting_columns(comparison(), 1)) == 4
