"""What the public page says, section by section."""

from __future__ import annotations

import math

from pate._format import (
    format_epsilon_fixed as epsilon,
)
from pate._format import (
    format_factor as factor,
)
from pate._format import (
    format_number as plain,
)
from pate._format import (
    format_percent as percent,
)
from pate._format import (
    strength,
)
from pate.metrics import Share
from pate.report import plots
from pate.report.facts import Facts, Figure
from pate.report.markup import Markup, join, tag
from pate.report.recipe_text import recipe_text
from pate.report.tables import Cell, confusion_table, table
from pate.report.wording import (
    CONVERSIONS,
    best_guess,
    mechanism_formula,
    sanitised_holds,
)

_MOST_BARS = 40  # classes in a picture
_MOST_CELLS = 26  # classes in a confusion matrix; above, the commonest confusions are listed
_LISTED = 20


def warnings(facts: Facts) -> Markup | None:
    if not facts.warnings:
        return None
    stop = [facts.seeded and number == 0 for number in range(len(facts.warnings))]
    return join(
        tag("h2", "Read this first", id="warnings-title"),
        *(
            tag("div", tag("p", each), class_=f"notice{' stop' if stops else ''}")
            for each, stops in zip(facts.warnings, stop, strict=True)
        ),
    )


def guarantee(facts: Facts) -> Markup:
    eps, delta = facts.guarantee.epsilon, facts.guarantee.delta
    word, verdict = strength(eps)
    held = (
        tag("div", tag("p", tag("strong", "It does not hold here: "), "the noise was seeded. The "
            "figures show what a run with secret noise would guarantee."), class_="notice stop")
        if facts.seeded
        else tag("div", tag("p", tag("strong", f"This is a {word} guarantee. "), verdict),
                 class_="notice" if word == "weak" else "notice verdict")
    )  # fmt: skip
    what = "the released labels and the student" + (
        ", and the sanitised figure below" if facts.price else ""
    )
    if facts.recipe.selection is not None:
        what += ", and from the choice of its settings"
    words = [
        tag("h3", "In words"),
        tag("p", f"The private data stays where it is. {plain(facts.recipe.teachers.count)} "
            "teachers learnt from separate parts of it and voted on public inputs. Of each vote "
            "only the winner left, after random noise had been added to the counts. The student "
            "learnt from those labels and from public inputs alone."),
        tag("p", f"The guarantee compares the data as it was with the same data with "
            f"{facts.protects}. Whatever anybody concludes from {what} is at most e",
            tag("sup", "ε"), f" ≈ {factor(eps)} times as likely with the one as with the other, "
            f"but for a probability of δ = {plain(delta)}."),
        tag("p", "Put to the test: somebody knows everything else, and guesses which of the two it "
            "was. Without any release a guess is right half of the time. With it, "
            f"{_guess(facts)}. That holds for any attacker, with any other knowledge, now and "
            "later."),
        tag("p", "It covers what this finished run released. That a run stopped, say because a "
            "teacher could not learn from its part, or how long it took, may depend on private "
            "records and is not covered: its owner keeps that secret."),
        held,
    ]  # fmt: skip
    return join(tag("h2", "The guarantee", id="guarantee-title"), *words, *_symbols(facts))


def _guess(facts: Facts) -> str:
    share = best_guess(facts.guarantee.epsilon, facts.guarantee.delta)
    if share > 0.9999:
        return "this bound would let the best guess be right nearly always"
    digits = 2 if share > 0.99 else 1
    up = math.ceil(share * 100 * 10**digits) / 10**digits / 100  # a bound must not look better
    return f"the best guess is right at most {percent(up, digits)} of the time"


def _symbols(facts: Facts) -> list[Markup]:
    name, formula = mechanism_formula(facts.recipe.aggregate)
    conversion, theorem = CONVERSIONS[facts.conversion.value]
    terms = [
        ("Mechanism", f"{name}: {formula}. nⱼ: votes for class j."),
        ("Neighbours", f"d′ is d with {facts.protects}; one teacher, so one vote for each query, "
         "changes."),
        ("Plan", _plan_said(facts)),
        ("Composition", "log-moments α(λ) of all events add up: Abadi et al. 2016, Theorem 2.1."),
        *_selection_said(facts),
        ("Conversion", f"{conversion} ({theorem})" + (
            ", at the one λ that the ledger fixed when it was opened (Feldman & Zrnic 2021)."
            if facts.extended else ".")),
    ]  # fmt: skip
    if facts.sanitised is not None:
        terms.append(
            ("Sanitised ε", "the data-dependent ε with noise scaled to its smooth sensitivity, a "
             "margin that makes it an upper bound, and its own price (after Papernot et al. 2018, "
             "Appendix B), rounded up to thousandths; computed at one order fixed in advance. "
             + sanitised_holds(facts.recipe.aggregate))
        )  # fmt: skip
    elif facts.why_not:
        terms.append(("Sanitised ε", f"none: {facts.why_not}."))
    if facts.all_releases is not None:
        terms.append(
            ("The whole data set", f"all releases that were ever charged to its ledger: "
             f"ε = {epsilon(facts.all_releases.epsilon)} at δ = {plain(facts.all_releases.delta)}, "
             "between data sets for which one teacher of each release changes.")
        )  # fmt: skip
    return [
        tag("h3", "In symbols"),
        tag("p", "Pr[M(d) ∈ S] ≤ e", tag("sup", "ε"), " Pr[M(d′) ∈ S] + δ  for all neighbours d, d′"
            f" and all S, with ε = {epsilon(facts.guarantee.epsilon)}, "
            f"δ = {plain(facts.guarantee.delta)}", class_="formula"),
        tag("dl", *(part for term, said in terms for part in (tag("dt", term), tag("dd", said))),
            class_="terms"),
        _figures_table(facts),
    ]  # fmt: skip


def _selection_said(facts: Facts) -> list[tuple[str, str]]:
    """How the settings were chosen, where that was done privately."""
    chosen = facts.recipe.selection
    if chosen is None:
        return []
    return [
        ("Choice of settings", f"{plain(len(chosen.candidates))} candidates, which differ in "
         f"{', '.join(chosen.candidates[0]) or 'nothing'}. A number of tries was "
         f"drawn at random, {plain(chosen.mean_tries)} on average; each tried one of them with "
         "fresh noise, and the best one, by its student’s accuracy on public test records, is what "
         "this page shows. The others stayed private, and so did their number: the guarantee is "
         "that of the whole choice (Papernot & Steinke 2022, Theorem 2)."
         + ("" if facts.recipe.privacy.epsilon is None else
            " privacy.epsilon in the recipe capped one try, and not the choice.")),
    ]  # fmt: skip


def _plan_said(facts: Facts) -> str:
    if facts.extended:
        return (
            f"{plain(facts.answers)} answers to {plain(facts.queries)} queries, asked for in "
            "several goes, each when the answers before it were known. The guarantee is the "
            "ledger's, which covers them all and holds however they were chosen."
        )
    planned = (
        f"at most {plain(facts.answers)} answers to {plain(facts.queries)} queries, fixed before "
        "the votes were opened. "
    )
    if facts.recipe.selection is not None:
        return f"{planned}The guarantee counts such a plan for each candidate."
    return f"{planned}The guarantee is the one of the plan, whatever was answered."


def _figures_table(facts: Facts) -> Markup:
    covers = "labels and sanitised figure" if facts.price else "labels"
    if facts.recipe.selection is not None:
        covers = "labels, and the choice of settings"
    other = next(name for name in facts.plan if name != facts.conversion.value)
    rows = [_figure_row("The guarantee", facts.guarantee, covers)]
    if facts.sanitised is not None and facts.confidence is not None:
        sure = f"labels and itself, at this data; {percent(facts.confidence, 0)} sure"
        rows.append(_figure_row("Sanitised", facts.sanitised, sure))
    # Of a plan that grew with the answers only the ledger's figure holds.
    if facts.recipe.selection is not None:
        rows.append(_figure_row(f"The guarantee, {other} conversion", facts.plan[other], covers))
    elif not facts.extended:
        rows += [
            _figure_row("Plan, labels alone", facts.plan[facts.conversion.value], "labels"),
            _figure_row(f"Plan, {other} conversion", facts.plan[other], "labels"),
            _row("Advanced composition", facts.curves.advanced[-1], None, "labels"),
            _row("Naive sum", facts.curves.naive[-1], None, "labels"),
        ]
    delta = plain(facts.guarantee.delta)
    caption = (
        f"All figures of this run at δ = {delta}. None of them holds: the noise was seeded"
        if facts.seeded
        else f"All figures of this run that may be published, at δ = {delta}"
    )
    return table(caption, ["Figure", "ε", "λ", "Covers"], rows, numeric=(1, 2), chosen=0)


def _figure_row(name: str, figure: Figure, covers: str) -> list[Cell | object]:
    return _row(name, figure.epsilon, figure.moment, covers)


def _row(name: str, value: float, moment: float | None, covers: str) -> list[Cell | object]:
    shown = Cell("–") if moment is None else Cell(f"{moment:g}", moment)
    return [name, Cell(epsilon(value), value), shown, covers]


def run(facts: Facts) -> Markup:
    recipe = facts.recipe
    teacher = recipe.teachers.model or ", ".join(each.model for each in recipe.teachers.mix)
    steps = ", ".join(each.name for each in recipe.encoder.steps) or "none"
    dealt = "a keyed hash of the record’s id" if recipe.partition.method == "hash" else "a shuffle"
    if recipe.partition.by == "group":
        dealt = "a keyed hash of the user’s id"
    name, _ = mechanism_formula(recipe.aggregate)
    terms = [
        ("Private data", f"{recipe.data.name}, dealt to teachers by {dealt}"),
        ("Teachers", f"{plain(recipe.teachers.count)}, {teacher}"),
        ("Encoder", f"{steps}" + ("; learnt from public inputs alone" if recipe.encoder.steps
                                  else "")),
        ("Votes to labels", f"{name}; inputs chosen: {recipe.aggregate.choose}"),
        ("Asked and answered", f"{plain(facts.answered)} of {plain(facts.asked)} queries answered"
         + (f"; {plain(facts.kept)} more labels are the student’s own" if facts.kept else "")),
        ("Student", f"{recipe.student.model}, {recipe.student.method}"),
        ("Noise", "from a known seed: NOT PRIVATE" if facts.seeded
         else "cryptographic, seeded by the operating system, drawn once"),
    ]  # fmt: skip
    return join(
        tag("h2", "What was run", id="run-title"),
        tag("dl", *(part for term, said in terms for part in (tag("dt", term), tag("dd", said))),
            class_="terms"),
    )  # fmt: skip


def cost(facts: Facts) -> Markup:
    if facts.recipe.selection is not None:
        return _cost_of_choice(facts)
    curves = facts.curves
    chosen = sorted({round(n * (len(curves.queries) - 1) / 8) for n in range(9)})
    places = max(2, 3 - math.floor(math.log10(max(curves.moments[-1], 1e-3))))
    rows = [
        [Cell(plain(curves.queries[i]), curves.queries[i])]
        + [Cell(epsilon(each[i], places=places), each[i])
           for each in (curves.naive, curves.advanced, curves.moments)]
        for i in chosen
    ]  # fmt: skip
    moment = facts.plan[facts.conversion.value].moment
    sanitised = (
        " The diamond is the sanitised figure: what the votes themselves say of the cost, published"
        f" with noise. {sanitised_holds(facts.recipe.aggregate)}"
        if facts.sanitised
        else ""
    )
    return join(
        tag("h2", "What the answers cost", id="cost-title"),
        tag("p", "Every answer adds to ε. Simple sums grow fast; log-moments, which the guarantee "
            "rests on, grow slowly. All curves follow from the plan and show its worst course: a "
            "query that is asked is answered, as long as answers are left."
            + (" Here the plan grew as answers came: the curves are what it would have cost fixed "
               "at once, and no guarantee." if facts.extended else "")),
        tag("figure", plots.cost_picture(facts), tag("figcaption", "ε at δ = "
            f"{plain(facts.guarantee.delta)}. The disc is the guarantee"
            + (", with the price of the sanitised figure." if facts.price else ".")
            + sanitised)),
        tag("details", tag("summary", "The curves as numbers"),
            table("ε after so many queries, at the plan’s worst",
                  ["Queries", "Naive", "Advanced", "Moments"], rows, numeric=(0, 1, 2, 3))),
        tag("h3", "Which λ won"),
        tag("p", "A log-moment gives a valid ε at every λ; the least one counts. For the planned "
            f"labels that is at λ = {moment:g} (Rényi order {_order(moment)})."),
        tag("figure", plots.moment_picture(facts), tag("figcaption", "ε of the planned labels at "
            "each λ of the grid.")),
    )  # fmt: skip


def _cost_of_choice(facts: Facts) -> Markup:
    """A choice costs what it costs as a whole: no curve over its answers is a guarantee."""
    moment = facts.plan[facts.conversion.value].moment
    return join(
        tag("h2", "What the choice cost", id="cost-title"),
        tag("p", "The settings were chosen privately among several candidates. Every try counts "
            "with the most that it could have asked, and the choice on top; that is one figure, "
            f"ε = {epsilon(facts.guarantee.epsilon)}, whichever candidate won and however much of "
            "it was answered. What the winner’s answers would have cost without a choice is no "
            "guarantee, and is not shown."),
        tag("h3", "Which λ won"),
        tag("p", "A log-moment gives a valid ε at every λ; the least one counts. For the choice "
            f"that is at λ = {moment:g} (Rényi order {_order(moment)})."),
        tag("figure", plots.moment_picture(facts), tag("figcaption", "ε of the choice at each λ of "
            "the grid.")),
    )  # fmt: skip


def _order(moment: float | None) -> str:
    return "–" if moment is None else f"{moment + 1:g}"


def consensus(facts: Facts) -> Markup:
    share = facts.answered / max(1, facts.asked)
    checked = facts.recipe.aggregate.kind.checks
    answered = (
        f"{plain(facts.answered)} of {plain(facts.asked)} queries ({percent(share)}) passed the "
        "noised check, in which enough teachers must agree, and were answered."
        if checked
        else f"All {plain(facts.answered)} queries that were asked were answered: {_name(facts)} "
        "makes no check of how far teachers agree."
    )
    parts = [
        tag("h2", "Consensus and labels", id="labels-title"),
        tag("p", answered),
        tag("p", "No histogram of the votes is shown: noisy-max publishes the winner and no count, "
            "so that nothing about the counts may leave beyond what follows from the labels.",
            class_="small"),
    ]  # fmt: skip
    if len(facts.classes) <= _MOST_BARS:
        parts.append(
            tag("figure", plots.labels_picture(facts),
                tag("figcaption", "Labels that were released, noise and all, by class."))
        )  # fmt: skip
    return join(*parts)


def _name(facts: Facts) -> str:
    return mechanism_formula(facts.recipe.aggregate)[0]


def student(facts: Facts) -> Markup:
    rows = shares(facts)
    share = facts.student
    parts = [
        tag("h2", "How good the student is", id="student-title"),
        tag("p", f"The student is right on {percent(share.accuracy)} of {plain(share.records)} test"
            f" records (95 % interval, Wilson: {_interval(share)})."
            + (" It was chosen by its share of these very records: expect a little less elsewhere."
               if facts.recipe.selection is not None else "")
            + (f" It agrees with {percent(facts.agreement.accuracy)} of the released labels."
               if facts.agreement else "")),
        tag("figure", plots.shares_picture(rows), tag("figcaption", "“Commonest class” "
            "is what a student that learnt nothing would reach on the same test records.")),
        _class_table(facts),
    ]  # fmt: skip
    return join(*parts, *_confusion(facts))


def shares(facts: Facts) -> list[tuple[str, Share]]:
    """What is drawn one under the other."""
    rows = [("student", facts.student)]
    if facts.private is not None and facts.private.reference is not None:
        rows.append(("without privacy", facts.private.reference))
    if facts.labels is not None:
        rows.append(("released labels", facts.labels))
    if facts.agreement is not None:
        rows.append(("agrees with labels", facts.agreement))
    commonest = max(row.records for row in facts.classes) / facts.student.records
    none = Share(accuracy=commonest, low=commonest, high=commonest, records=facts.student.records)
    rows.append(("commonest class", none))
    return rows


def _interval(share: Share) -> str:
    return f"{percent(share.low)} to {percent(share.high)}"


def _class_table(facts: Facts) -> Markup:
    rows = [
        [
            row.name,
            Cell(plain(row.labels), row.labels),
            Cell(plain(row.records), row.records),
            _ratio(row.right, row.records),
            _ratio(row.right, row.said),
        ]
        for row in facts.classes
    ]
    return table(
        "Each class: released labels, test records, how many the student finds (recall), and how "
        "often it is right to say so (precision)",
        ["Class", "Labels", "Tested", "Recall", "Precision"],
        rows,
        numeric=(1, 2, 3, 4),
    )


def _ratio(part: int, whole: int) -> Cell:
    return Cell(percent(part / whole), part / whole) if whole else Cell("–", -1.0)


def _confusion(facts: Facts) -> list[Markup]:
    if not facts.confusion:
        return []
    names = [row.name for row in facts.classes]
    if len(names) <= _MOST_CELLS:
        return [tag("h3", "Confusion matrix"), confusion_table(names, facts.confusion)]
    pairs = [
        (count, names[i], names[j])
        for i, row in enumerate(facts.confusion)
        for j, count in enumerate(row)
        if i != j and count
    ]
    rows = [[Cell(count, count), truth, said] for count, truth, said in sorted(pairs)[::-1]]
    caption = f"The {_LISTED} commonest confusions among {len(names)} classes"
    return [
        tag("h3", "Confusions"),
        table(caption, ["Records", "Is", "Said"], rows[:_LISTED], numeric=(0,)),
    ]


def provenance(facts: Facts) -> Markup:
    digests = [
        [each.what, each.level, tag("span", each.sha256, class_="mono")] for each in facts.digests
    ]
    versions = ", ".join(f"{name} {number}" for name, number in facts.versions.items())
    seed = " --insecure-seed SEED" if facts.seeded else ""
    return join(
        tag("h2", "Where this comes from", id="provenance-title"),
        tag("p", "To do the same again, save the recipe below as ", tag("code", "recipe.toml"),
            ", put the files and columns of your data into it if they are your own, and run:"),
        tag("pre", tag("code", f"pate run recipe.toml --out runs/again{seed}"), tabindex="0"),
        tag("p", "On the same data that draws fresh noise: the ledger charges it again.",
            class_="small") if not facts.seeded else "",
        tag("details", tag("summary", "The recipe, every setting spelt out"),
            tag("pre", tag("code", recipe_text(facts.recipe)), tabindex="0")),
        table("What this page was made from, as SHA-256", ["Artifact", "Level", "Digest"], digests)
        if digests else "",
        tag("p", f"Versions: {versions}.", class_="small"),
    )  # fmt: skip
