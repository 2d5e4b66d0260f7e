"""An audit's verdict, its page, and which sentence may be published."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pate.audits.findings import Finding
from pate.audits.options import AuditOptions, Results
from pate.audits.page import render_audit
from pate.audits.results import Audit, Claim, Exposed, lines
from pate.audits.roc import roc
from pate.errors import ConditionsFail, InvalidInput


def finding(**given):
    plain = {"attack": "canaries", "target": "student", "knowledge": "labels", "source": "them"}
    return Finding(**plain | given)


def audit(*findings, claimed=1.0, **given):
    claim = Claim(epsilon=claimed, delta=1e-5)
    plain = {"subject": "<b>digits</b>", "claims": {"student": claim, "noised table": claim}}
    return Audit(findings=findings, **plain | given)


def test_a_bound_above_the_claim_contradicts_only_what_the_claim_covers():
    bound = finding(epsilon=1.4, confidence=0.95, firm_epsilon=1.2, largest_possible=4.0)
    assert audit(bound, claimed=1.3).contradictions == ()
    wrong = audit(bound, claimed=1.1)
    assert wrong.contradictions == (bound,)
    assert wrong.verdict.startswith("CONTRADICTED: canaries shows more than the claimed ε = 1.1.")
    elsewhere = finding(epsilon=9.0, target="model without privacy")
    assert audit(elsewhere, claimed=1.1).contradictions == ()
    assert "stands untested" in audit(elsewhere, claimed=1.1).verdict
    # A bound of less than 99.99 % contradicts nothing.
    for unsure in (finding(epsilon=9.0, confidence=0.95), finding(epsilon=9.0, confidence=0.999)):
        assert audit(unsure, claimed=1.1).contradictions == ()
    assert audit(finding(epsilon=9.0, confidence=0.9999), claimed=1.1).contradictions
    # A throwaway training of more queries has a claim of its own.
    own = finding(epsilon=1.2, values={"claimed ε": 1.5})
    assert audit(own, claimed=1.1).contradictions == ()
    assert audit(finding(epsilon=1.6, values={"claimed ε": 1.5}), claimed=1.1).contradictions
    nothing = Audit(subject="model", claims={}, findings=(bound,))
    assert nothing.contradictions == ()
    assert nothing.best is None


def test_a_curve_above_what_is_allowed_is_suspect_and_contradicts_within_one_population():
    named = finding(attack="loss", curve=roc(np.ones(300), np.zeros(300)))
    found = audit(named)
    assert found.leaks == (named,)
    assert found.contradictions == ()
    assert found.verdict.startswith("SUSPECT: loss on the student tells private from test records")
    divided = audit(named, one_population=True)
    assert divided.contradictions == (named,)
    assert divided.verdict.startswith("CONTRADICTED: loss shows more than the claimed ε = 1.")
    for innocent in (
        audit(named, claimed=9.0, one_population=True),  # which allows as much
        audit(finding(curve=roc([1.0, 1.0], [0.0, 0.0])), one_population=True),  # chance
        audit(replace(named, target="model without privacy"), one_population=True),
    ):
        assert innocent.leaks == innocent.contradictions == ()


def test_a_condition_that_does_not_hold_contradicts_every_claim():
    found = audit(faults=("3 private records are in several shards",))
    assert found.contradicted
    assert found.as_json()["contradicted"]
    assert found.verdict.startswith("CONTRADICTED: 3 private records are in several shards. The")


def test_lower_bounds_are_rounded_down_and_claims_up():
    shown = audit(finding(epsilon=0.98765, largest_possible=3.999), claimed=1.00001)
    assert shown.verdict == (
        "Nothing contradicts the claimed ε = 1.01; the largest lower bound is 0.987 (canaries)."
    )
    assert "0.987    3.99" in lines(shown)[1]


def test_only_canaries_that_see_no_record_may_be_published():
    among_teachers = finding(epsilon=0.5, confidence=0.95, largest_possible=3.0)
    assert audit(among_teachers).publishable is None
    alone = finding(
        epsilon=0.8734, target="noised table", delta=1e-5, confidence=0.95,
        largest_possible=4.6, values={"canaries": 300.0}, firm_epsilon=0.5,
    )  # fmt: skip
    assert audit(alone).publishable is None  # its canaries were private inputs, or seeded
    alone = replace(alone, publishable=True)
    assert audit(among_teachers, alone).publishable == (
        "An audit with 300 canaries, none a private record, in one training, shows ε ≥ 0.873 at "
        "δ = 1e-05 with 95 % confidence, where 1 is claimed. It could have shown 4.6."
    )
    assert (
        "where 0.8 is claimed, as chance lets 5 of 100 audits of sound code; at 99.99 % confidence "
        "it is 0.5. It could"
    ) in audit(alone, claimed=0.8).publishable


def test_the_page_escapes_names_and_shows_every_finding(plain_plots, tmp_path):
    rates = {
        f"TPR at {at} FPR{end}": 0.02 for at in ("0.1 %", "1 %") for end in ("", ", low", ", high")
    }
    curve = finding(
        attack="LiRA (online)",
        values=rates | {"balanced accuracy": 0.6, "advantage": 0.2, "members": 9.0, "others": 9.0},
        curve=roc([1.0], [1.0]),
    )
    exposed = Exposed(record=17, label="<i>seven</i>", epsilon=0.4, changed=3)
    found = audit(
        curve,
        finding(epsilon=0.5, confidence=0.95, largest_possible=3.0, note="a <note>"),
        finding(attack="exposure", values={"bits": 3.25}),
        realised=np.array([0.0, 0.4]),
        exposed=(exposed,),
        skipped=("Shadow models: too <slow>.",),
        seconds={"canaries": 2.0},
    )
    page = render_audit(found)
    assert page.count("PRIVATE – do not publish") >= 3
    for raw in ("<b>digits", "<i>seven", "a <note>", "too <slow>"):
        assert raw not in page
        assert raw.replace("<", "&lt;").replace(">", "&gt;") in page
    for text in (
        "LiRA (online)",
        "exposure",
        "3.25",
        "a weak audit is no proof",
        'id="realised-wide"',
    ):
        assert text in page
    files = found.write(tmp_path / "private")
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
    assert json.loads((tmp_path / "private" / "audit.json").read_text()) == found.as_json()
    names = {file.name for file in files}
    assert names == {
        "audit.html", "audit.json", "audit-bounds.png", "audit-realised.png", "audit-roc.png",
    }  # fmt: skip


def test_plots_of_an_earlier_audit_do_not_stay_beside_the_page(plain_plots, tmp_path):
    audit(finding(epsilon=0.5, largest_possible=3.0), realised=np.array([0.4])).write(tmp_path)
    (tmp_path / "audit-own.png").touch()  # of its owner
    assert (tmp_path / "audit-bounds.png").exists()
    audit(finding(attack="exposure", values={"bits": 3.25})).write(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {
        "audit.html", "audit.json", "audit-own.png",
    }  # fmt: skip


def test_shadows_are_trained_where_they_are_affordable():
    results = Results(AuditOptions())
    assert results.affordable_shadows("student", seconds=1.0) == 16
    assert results.affordable_shadows("student", seconds=60.0) == 0
    assert "16 trainings would take about 16 minutes; --shadows 16" in results.skipped[0]
    assert Results(AuditOptions(shadows=8)).affordable_shadows("student", seconds=60.0) == 8

    def refuse():
        raise ConditionsFail("no")

    assert results.affordable_shadows("student", refuse) == 0
    with results.part("canaries"):
        refuse()
    assert results.skipped[-1] == "canaries: no."
    for wrong in (
        {"attacks": ()},
        {"attacks": ("x",)},
        {"shadows": 3},
        {"records": 0},
        {"canaries": 4},
    ):
        with pytest.raises(InvalidInput):
            AuditOptions(**wrong)
