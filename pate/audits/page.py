"""The page of an audit: ``audit.html.j2``, in the style of a run's report. PRIVATE."""

from __future__ import annotations

from datetime import UTC, datetime

from pate import __version__
from pate._format import format_epsilon, format_number, format_percent, format_remaining
from pate.audits.plots import page_plots
from pate.audits.results import Audit
from pate.audits.roc import LOW_RATES, most_advantage, most_tpr
from pate.report.page import STAMP, page_frame
from pate.report.templates import template


def render_audit(audit: Audit) -> str:
    """Return the page as HTML: one file that loads nothing, stamped as PRIVATE."""
    claim = audit.claim
    allowed: dict[str, float] = {}
    if claim is not None:
        given = {"epsilon": claim.epsilon, "delta": claim.delta}
        allowed = {name: float(most_tpr(rate, **given)) for name, rate in LOW_RATES.items()}
        allowed["advantage"] = most_advantage(**given)
    page = template("pate.audits", "audit.html.j2").render(
        audit=audit,
        claim=claim,
        allowed=allowed,
        most_advantage=most_advantage,
        bounded=[each for each in audit.findings if each.epsilon is not None],
        curves=[each for each in audit.findings if each.curve is not None],
        attackers=list({each.attack: each for each in audit.findings if each.curve}.values()),
        others=[each for each in audit.findings if each.epsilon is None and each.curve is None],
        plots=page_plots(audit),
        stamp=STAMP,
        rounded_up=format_epsilon,
        rounded_down=format_remaining,
        number=format_number,
        percent=format_percent,
        version=__version__,
        written=datetime.now(UTC).date(),
        **page_frame("page.css", "private.css"),
    )
    return f"<!DOCTYPE html>\n{page}\n"
