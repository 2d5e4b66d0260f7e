"""The report of a run: one HTML page that needs nothing else.

    facts (what may be shown) ─▶ page (page.html.j2, plots)
    private (what may not) ──────┘

:mod:`pate.report.facts` opens what is RELEASED or PUBLIC through a store that refuses the rest;
:mod:`pate.report.private` alone opens more, and only for the page that is stamped so.
:func:`pate.report.page.write_report` writes either page.
"""
