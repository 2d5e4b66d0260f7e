"""Words, figures and curves of the report; escaping; drawings."""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import jinja2
import numpy as np
import pytest
from markupsafe import Markup

from pate._format import format_epsilon_fixed as epsilon
from pate._format import format_factor as factor
from pate._format import format_number as plain
from pate._format import format_percent as percent
from pate._format import strength
from pate.accounting import (
    Analysis,
    Conversion,
    Gaussian,
    GaussianNoisyMaxAnswer,
    Guarantee,
    LaplaceNoisyMaxAnswer,
    Repeated,
    ThresholdCheck,
    compose,
)
from pate.accounting.composition import advanced, gaussian_delta, gaussian_epsilon
from pate.artifacts.results import StatedGuarantee
from pate.errors import InvalidInput
from pate.mechanisms import AggregateSpec, make_mechanism
from pate.metrics import Share
from pate.pipeline.recipe import Recipe
from pate.report.curves import (
    advanced_epsilon,
    cost_curves,
    moment_profile,
    naive_epsilon,
    shown_queries,
)
from pate.report.facts import (
    best_guess,
    publishable_cost,
    read_comparison,
    recipe_text,
    without_paths,
)
from pate.report.plots import shares_plot, short
from pate.report.templates import JoinedLines, escape_html, template

SPECS = {
    "lnmax": AggregateSpec(mechanism="lnmax", scale=8.0),
    "gnmax": AggregateSpec(mechanism="gnmax", sigma=20.0),
    "confident": AggregateSpec(mechanism="confident", threshold=60.0, sigma1=15.0, sigma2=6.0),
    "interactive": AggregateSpec(mechanism="interactive", threshold=6.0, sigma1=15.0, sigma2=6.0),
}
RECIPE = {
    "data": {"name": "mine", "source": "/home/ann/secret/records.csv", "label": "y"},
    "teachers": {"count": 9, "model": "mine:Model", "params": {"a b": [1, 2.5], "on": True}},
    "aggregate": {"mechanism": "lnmax", "scale": 8.0, "queries": 10},
    "student": {"model": "mine:Model"},
}


def rendered(source, **context):
    """A template from a text, in the environment of the pages."""
    environment = template("pate.report", "page.html.j2").environment
    return environment.from_string(source).render(**context)


def test_values_are_escaped_and_markup_is_not():
    nasty = "<script>alert('x')</script>&\""
    shown = rendered('<p title="{{ x }}">{{ x }}</p>', x=nasty)
    assert "<script" not in shown
    assert shown.count('"') == 2
    macro = "{% macro b(x) %}<b>{{ x }}</b>{% endmacro %}{{ b(b(x)) }}"
    assert rendered(macro, x="<") == "<b><b>&lt;</b></b>"
    assert rendered("{{ x ~ '<' }}{{ '%s' | format(x) }}", x="<") == "&lt;&lt;&lt;"
    assert rendered("{{ x }}", x=Markup("<i>")) == "<i>"
    assert "\x00" not in escape_html("a\x00b\ud800")
    escape_html("a\x00b\ud800").encode()  # goes into a file
    with pytest.raises(jinja2.UndefinedError):
        rendered("{{ missing }}")


def test_the_layout_of_a_template_leaves_no_trace():
    source = "<p>\n  one\n  two {{ 1 }}\n  {{ 2 }}{% if true %}\n  three\n  {% endif %}\n</p>\n"
    assert JoinedLines(jinja2.Environment()).preprocess(source, None) == (
        "<p>one two {{ 1 }}{{ 2 }}{% if true %}three{% endif %}</p>"
    )


@pytest.mark.parametrize("value", [0.00012345, 0.5, 1.00001, 14.37841, 99.991, 9999.9, 123456.7])
def test_an_epsilon_never_looks_smaller_than_it_is(value):
    shown = float(epsilon(value))
    assert value <= shown <= value * 1.01


def test_numbers_for_people():
    assert epsilon(0.0) == "0"
    assert plain(2e-5) == "2\u202f·\u202f10⁻⁵"
    assert percent(0.0) == "0\u202f%"
    assert percent(1e-9).startswith("<")
    assert factor(math.log(1234.5)) == "1\u202f235"
    assert factor(25.0).endswith("billion")


def test_the_best_guess_is_what_randomised_response_reaches():
    """(ε, δ) is reached with equality: δ tells all, the rest is a coin with odds e^ε."""
    for eps, delta in itertools.product((0.1, 1.0, 3.0), (0.0, 0.05)):
        odds = math.exp(eps)
        outcomes = [delta, (1 - delta) * odds / (1 + odds), (1 - delta) / (1 + odds), 0.0]
        reached = sum(max(p, q) for p, q in zip(outcomes, outcomes[::-1], strict=True)) / 2
        assert best_guess(eps, delta) == pytest.approx(reached, rel=1e-12)


def test_words_follow_the_epsilon():
    assert [strength(e)[0] for e in (0.1, 1.001, 8.0, 8.1)] == [
        "strong", "moderate", "moderate", "weak",
    ]  # fmt: skip
    for name, spec in SPECS.items():
        mechanism = make_mechanism(spec)
        short_name = name if name in ("lnmax", "gnmax") else name[:8]
        assert mechanism.title.lower().startswith(short_name)
        assert re.search(r"= (8|20|15)", mechanism.formula())


@pytest.mark.parametrize("name", SPECS)
def test_curves_grow_and_end_at_the_plan(name):
    mechanism = make_mechanism(SPECS[name])
    curves = cost_curves(
        mechanism, queries=200, answers=90, delta=1e-5, conversion=Conversion.IMPROVED
    )
    for line in (curves.naive, curves.advanced, curves.moments):
        assert len(line) == len(curves.queries) == 60
        assert all(a <= b + 1e-12 for a, b in itertools.pairwise(line))
    events = mechanism.caps(queries=200, answers=90)
    whole = compose(events).guarantee(delta=1e-5)
    assert curves.moments[-1] == whole.epsilon
    profile = moment_profile(events, delta=1e-5, conversion=Conversion.IMPROVED)
    best = int(np.argmin(profile.epsilons))
    assert (profile.moments[best], profile.epsilons[best]) == (whole.moment, whole.epsilon)
    assert 0 < best < len(profile.moments) - 1
    # Every rule is a bound of its own; none is below what Gaussians are known to cost exactly.
    assert min(curves.naive[-1], curves.advanced[-1]) > 0


def test_older_rules_are_sound_for_gaussians():
    """Many checks are one Gaussian with less noise, whose δ is known exactly."""
    checks = [Repeated(ThresholdCheck(sigma=40.0), 25)]
    for rule in (naive_epsilon, advanced_epsilon):
        bound = rule(checks, 1e-5)
        assert gaussian_delta(40.0 / 5, epsilon=bound) <= 1e-5
    same = compose([Repeated(Gaussian(noise_multiplier=40.0), 25)]).guarantee(delta=1e-5)
    published = compose(checks, analysis=Analysis.PUBLISHED).guarantee(delta=1e-5)
    assert compose(checks).guarantee(delta=1e-5).epsilon < published.epsilon == same.epsilon
    assert naive_epsilon(checks, 1e-5) > same.epsilon


def test_older_rules_are_those_of_the_theorems():
    """One vote moves two counts: an answer is a Gaussian of σ/√2, a check one of σ."""
    answer, check = GaussianNoisyMaxAnswer(sigma=30.0), ThresholdCheck(sigma=30.0)
    assert naive_epsilon([answer], 1e-5) == gaussian_epsilon(30 / math.sqrt(2), delta=1e-5)
    assert naive_epsilon([check], 1e-5) == gaussian_epsilon(30.0, delta=1e-5)
    each = 1e-5 / 2 / 10  # half of δ for ten events, and a quarter for each of two kinds
    both = [Repeated(answer, 4), Repeated(check, 6)]
    assert advanced_epsilon(both, 1e-5) == pytest.approx(
        advanced(gaussian_epsilon(30 / math.sqrt(2), delta=each), count=4, slack=1e-5 / 4)
        + advanced(gaussian_epsilon(30.0, delta=each), count=6, slack=1e-5 / 4)
    )
    laplace = [Repeated(LaplaceNoisyMaxAnswer(scale=8.0), 100)]
    assert naive_epsilon(laplace, 1e-5) == 25.0
    assert advanced_epsilon(laplace, 1e-5) == advanced(0.25, count=100, slack=1e-5)


def test_few_queries_are_all_shown():
    assert shown_queries(1) == (1,)
    assert shown_queries(60) == tuple(range(1, 61))


def test_a_recipe_is_shown_without_the_places_of_the_data():
    recipe = Recipe.model_validate(RECIPE)
    text = recipe_text(recipe)
    assert "ann" not in text
    assert "records.csv" not in text
    assert "key" not in tomllib.loads(text)["partition"]
    again = tomllib.loads(text)
    again["data"] |= RECIPE["data"]
    assert Recipe.model_validate(again) == recipe


def test_a_reason_that_names_a_file_is_not_shown():
    assert without_paths("the ledger at /home/ann/x.ledger has paid") == (
        "its price was not paid again"
    )
    assert without_paths("not asked for") == "not asked for"
    assert without_paths(None) is None


def test_a_drawing_takes_any_name_and_its_colours_from_the_page():
    share = Share(accuracy=0.5, low=0.4, high=0.6, records=10)
    names = ["<script>$x$&", "ネコ", "a\x01b", "", "x" * 99]
    drawn = shares_plot([(short(name), share) for name in names])
    assert "<script" not in drawn
    assert re.search(r"<text[^>]*>&lt;script&gt;\$x\$&amp;</text>", drawn)  # no mathematics
    assert "x" * 30 not in drawn
    assert not re.search(r"#[0-9a-fA-F]{6}\b", drawn)
    assert "var(--main)" in drawn
    assert "\x01" not in drawn
    assert drawn == shares_plot([(short(name), share) for name in names])
    ids = re.findall(r'\bid="([^"]+)"', drawn)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:href="#|url\(#)([^")]+)', drawn):
        assert target in ids
    for part in re.findall(r"<svg.*?</svg>", drawn, flags=re.DOTALL):
        root = ElementTree.fromstring(part)
        assert root.get("role") == "img"
        assert [child.tag for child in root][:2] == ["title", "desc"]


def compared(*rows, **changed):
    cost = {"together": {"epsilon": 4.0, "delta": 2e-5, "neighbours": "add-remove"}}
    return {"format": 1, "delta": 1e-5, "seeds": 2, "rows": list(rows), "cost": cost} | changed


CONTENDER = {
    "method": "dpsgd", "name": "DP-SGD", "epsilon": 1.0, "accuracy": 0.9, "spread": 0.01,
    "low": 0.8, "high": 0.95, "neighbours": "add-remove", "publishable": True,
}  # fmt: skip
FREE = CONTENDER | {"method": "majority", "name": "m", "epsilon": None, "neighbours": None}


def test_a_comparison_shows_what_may_be_published_only(tmp_path):
    assert read_comparison(tmp_path) == ()
    file = tmp_path / "compare.json"
    hidden = CONTENDER | {"name": "no privacy", "publishable": False}
    unsaid = {key: value for key, value in hidden.items() if key != "publishable"}
    file.write_text(json.dumps(compared(CONTENDER, hidden, unsaid, FREE)))
    shown = read_comparison(tmp_path)
    assert [each.name for each in shown] == ["DP-SGD", "m"]
    assert shown[0].terms.epsilon_together == 4.0
    file.write_text(json.dumps(compared(hidden, FREE)))
    assert read_comparison(tmp_path) == ()  # nothing is left to be compared with
    file.write_text(json.dumps(compared(CONTENDER, cost={"together": None})))
    assert read_comparison(tmp_path)[0].terms.epsilon_together is None


def test_an_old_comparison_claims_no_more_than_its_sampling_rate_allows(tmp_path):
    """Format 1 claimed add/remove for DP-SGD, whose rate followed from the number of records."""
    pate = CONTENDER | {"method": "pate", "name": "PATE"}
    for number, neighbours in ((1, "zero-out"), (2, "add-remove")):
        content = compared(pate, CONTENDER, format=number)
        (tmp_path / "compare.json").write_text(json.dumps(content))
        first, second = read_comparison(tmp_path)
        assert (first.neighbours, second.neighbours) == ("add-remove", neighbours)
        assert first.terms.neighbours_together == neighbours


def test_a_row_beside_both_methods_may_cost_something(tmp_path):
    """True labels of inputs that answers decided on cost what the answers did."""
    informed = FREE | {"method": "public-labels", "epsilon": 1.0, "neighbours": "add-remove"}
    file = tmp_path / "compare.json"
    file.write_text(json.dumps(compared(CONTENDER, informed, FREE)))
    assert [each.epsilon for each in read_comparison(tmp_path)] == [1.0, 1.0, None]


def test_a_damaged_comparison_is_refused(tmp_path):
    file = tmp_path / "compare.json"
    wrong = [
        compared(CONTENDER, format=3),
        compared(CONTENDER, cost={}),
        compared(CONTENDER | {"accuracy": 1.5}),
        compared(CONTENDER | {"epsilon": None}),
        compared(CONTENDER | {"epsilon": -1}),
        compared(CONTENDER | {"epsilon": math.inf}),
        compared(CONTENDER | {"method": "pate", "epsilon": None}),
        compared(CONTENDER | {"method": "pate", "epsilon": math.nan}),
        compared(CONTENDER, FREE | {"epsilon": -1.0}),
        compared(CONTENDER, FREE | {"epsilon": math.inf}),
        compared({"publishable": True}),
        compared(3),
        {"methods": []},
        [],
    ]
    for damage in ("{", *map(json.dumps, wrong)):
        file.write_text(damage)
        with pytest.raises(InvalidInput, match="compare again"):
            read_comparison(tmp_path)


def test_a_value_that_may_not_be_published_stops_the_page():
    figure = StatedGuarantee.of(Guarantee(epsilon=1.0, delta=1e-5, moment=2.0))
    assert publishable_cost(figure).epsilon == 1.0
    with pytest.raises(InvalidInput, match="may not be published"):
        publishable_cost(replace(figure, publishable=False))
