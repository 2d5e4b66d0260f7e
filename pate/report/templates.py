"""Jinja2 templates in which every value is escaped unless it was made here."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import cache
from importlib import resources

import jinja2
from jinja2.ext import Extension
from markupsafe import Markup

_SHARED = "pate.report"  # whose macros the templates of other packages may use
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # no HTML page holds these
_BESIDE_TAG = re.compile(r"(?:(?<=>)|(?<=[%#]\}))\n\s*|\n\s*(?=<|\{[%#])|(?<=\}\})\n\s*(?=\{\{)")


def escape_html(value: object) -> Markup:
    """Return a value as HTML shows it; what is markup already stays.

    >>> print(escape_html("a < b & <script>"))
    a &lt; b &amp; &lt;script&gt;
    """
    if hasattr(value, "__html__"):
        return Markup(value)
    return Markup(html.escape(_CONTROL.sub("\ufffd", str(value))))


class JoinedLines(Extension):
    """Join the lines of a template, so that its layout leaves no trace in the page.

    A line break and the indentation after it are dropped beside a tag and between two expressions,
    and are one space elsewhere.
    """

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """Return the source as one line."""
        return re.sub(r"\n\s*", " ", _BESIDE_TAG.sub("", source.rstrip("\n")))


@cache
def template(
    package: str,
    name: str,
    *,
    escape: Callable[[object], Markup] = escape_html,
    joined: bool = True,
) -> jinja2.Template:
    """Return a template of a package.

    Guarantees:
        Every value goes through ``escape`` unless it is :class:`~markupsafe.Markup`; a name that
        the context does not hold is an error, not an empty text.
    """

    def load(wanted: str) -> str:
        home = package if resources.files(package).joinpath(wanted).is_file() else _SHARED
        return resources.files(home).joinpath(wanted).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        autoescape=True,
        finalize=escape,
        undefined=jinja2.StrictUndefined,
        extensions=[JoinedLines] if joined else [],
        keep_trailing_newline=True,
    )
    return environment.get_template(name)
