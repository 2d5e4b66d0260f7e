"""``report.html`` of a release: does it load nothing from elsewhere, and state the same ε?

A page cannot be written again without the run. So its sentences are not checked, and the card,
which can be, is what counts; here is what a reader would look at first, and a browser would do.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources

PAGE = "report.html"
_EPSILON = re.compile(r"ε = ([0-9][0-9.]*)")
_REFERS = ("href", "src", "srcset", "xlink:href", "action", "formaction", "data", "poster", "ping")
_NEVER = frozenset(
    (
        "applet",
        "audio",
        "base",
        "embed",
        "form",
        "frame",
        "iframe",
        "image",
        "img",
        "link",
        "object",
        "source",
        "video",
    )
)
_ROUNDED = 1.001  # four digits, upwards


def problems_of_page(text: str, epsilon: float) -> Iterator[str]:
    """What is wrong with a page that should state ``epsilon``.

    >>> list(problems_of_page("<p>nothing</p>", 2.0))[0]
    'has not the policy that keeps it from loading anything'
    """
    page = _Page()
    page.feed(text)
    page.close()
    script = resources.files("pate.report").joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline';"
    if len(page.policies) != 1 or not page.policies[0].startswith(policy):
        yield "has not the policy that keeps it from loading anything"
    if page.loads or any(each != script for each in page.scripts):
        yield "would load or run what is not its own"
    found = [float(each) for part in page.figures for each in _EPSILON.findall(part)]
    right = all(epsilon * (1 - 1e-9) <= each <= epsilon * _ROUNDED for each in found)
    if not found or not right:
        yield "states another ε than guarantee.json"


class _Page(HTMLParser):
    """Collects what a page would load and run, and the figures that stand out on it."""

    def __init__(self) -> None:
        super().__init__()
        self.policies: list[str] = []
        self.scripts: list[str] = []
        self.figures: list[str] = []
        self.loads = False
        self._into: list[str] | None = None  # where text goes now, by its last entry
        self._until = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        refers = [given[name] for name in _REFERS if name in given]
        self.loads |= tag in _NEVER or not all(each.startswith("#") for each in refers)
        self.loads |= any(name.startswith("on") for name in given)
        self.loads |= any(_reaches_out(each) for each in given.values())
        if tag == "meta" and "http-equiv" in given:
            if given["http-equiv"].lower() == "content-security-policy":
                self.policies.append(given.get("content", ""))
            else:
                self.loads = True
        shown = given.get("class", "").split()
        if tag == "script":
            self._collect(self.scripts, tag)
        elif (tag == "dd" and "big" in shown) or (tag == "p" and "formula" in shown):
            self._collect(self.figures, tag)

    def _collect(self, into: list[str], tag: str) -> None:
        into.append("")
        self._into, self._until = into, tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._until:
            self._into, self._until = None, ""

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data
        if self.lasttag == "style":
            self.loads |= _reaches_out(data)


def _reaches_out(style: str) -> bool:
    return re.search(r"url\(\s*['\"]?(?!#)|@import", style) is not None
