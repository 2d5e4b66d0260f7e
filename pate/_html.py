"""Objects as notebooks show them: one small block of HTML, in light and dark themes.

A notebook is shared with its output, so objects show what was released, and name the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# Colours that are readable on white and on black; everything else is the theme's own.
_GOOD, _BAD = "#2e8b57", "#d0503f"
_CELL = "padding:.15em 1.2em .15em 0;text-align:left;vertical-align:top;border:0"


def block(
    title: str,
    rows: Iterable[tuple[str, str]],
    *,
    verdict: tuple[str, bool] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return named values under a title, with a verdict in green (or, if not good, red) and notes.

    >>> "&lt;b&gt;" in block("<b>", [])
    True
    """
    lines = "".join(
        f'<tr style="background:none"><td style="{_CELL};opacity:.7">{escape(name)}</td>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return _framed(title, lines, verdict=verdict, notes=notes)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    verdict: tuple[str, bool] | None = None,
    notes: Sequence[str] = (),
    more: Sequence[str] = (),
) -> str:
    """Return a titled table with a verdict, notes, and ``more`` of them to be opened."""
    head = "".join(f'<th style="{_CELL};opacity:.7">{escape(name)}</th>' for name in columns)
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row)
        + "</tr>"
        for row in rows
    )
    whole = f'<tr style="background:none">{head}</tr>{body}'
    return _framed(title, whole, verdict=verdict, notes=notes, more=more)


def _framed(
    title: str,
    rows: str,
    *,
    verdict: tuple[str, bool] | None,
    notes: Sequence[str],
    more: Sequence[str] = (),
) -> str:
    mark = ""
    if verdict is not None:
        text, good = verdict
        mark = f' <b style="color:{_GOOD if good else _BAD}">{escape(text)}</b>'
    below = "".join(map(_note, notes))
    if more:
        below += f"<details><summary>Notes</summary>{''.join(map(_note, more))}</details>"
    return (
        '<div style="border-left:3px solid #8884;padding-left:.8em;margin:.3em 0">'
        f"<div><b>{escape(title)}</b>{mark}</div>"
        f'<table style="border:0;margin:.2em 0;width:auto">{rows}</table>{below}</div>'
    )


def _note(text: str) -> str:
    return f'<div style="opacity:.7;font-size:.9em;max-width:60em">{escape(text)}</div>'
