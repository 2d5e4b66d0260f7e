"""HTML, with every text escaped unless it was made here."""

from __future__ import annotations

import html
import re

_VOID = {"br", "hr", "meta", "link", "wbr"}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # no HTML page holds these


class Markup(str):
    """Text that is HTML already; only :func:`tag`, :func:`join` and the plots make it."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Text as HTML shows it; what is markup already stays.

    >>> escape("a < b & <script>")
    'a &lt; b &amp; &lt;script&gt;'
    """
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_CONTROL.sub("\ufffd", str(text))))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; ``class_`` is class, other underscores are hyphens; None and False are left out.

    >>> tag("th", "a & b", scope="col", class_="n", hidden=None)
    '<th scope="col" class="n">a &amp; b</th>'
    >>> tag("p", "plain ", tag("em", "<x>"))
    '<p>plain <em>&lt;x&gt;</em></p>'
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{''.join(map(escape, children))}</{name}>")


def join(*parts: object, between: str = "") -> Markup:
    """Parts one after the other, each escaped where it is not markup."""
    return Markup(between.join(map(escape, parts)))
