"""``MODEL_CARD.md``: the guarantee in words and symbols, how to use the student, and its limits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pate._format import format_epsilon, format_factor
from pate.accounting import BestOfTries, Repeated
from pate.accounting.events import tally
from pate.release.contents import recipe_of
from pate.release.figures import read_events

CARD = "MODEL_CARD.md"
_LISTED = 20  # candidates of a choice
_MARKS = re.compile(r"([\\`*_{}\[\]()#!|~]|:(?=//))")


def plainly(text: Any) -> str:
    r"""Somebody's own words, on one line, so that they are neither Markdown nor HTML.

    >>> print(plainly("a  *b*"), plainly("<img>"), plainly("http://x"))
    a \*b\* &lt;img&gt; http\://x
    """
    shown = "".join(each if each.isprintable() else " " for each in str(text))
    line = _MARKS.sub(r"\\\1", " ".join(shown.split()))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def write_card(
    statement: Mapping[str, Any], header: Mapping[str, Any], release: Mapping[str, Any]
) -> str:
    """The card as Markdown.

    It follows from the JSON files of a release alone, to the last byte: so it can be checked.
    """
    parts = [
        _title(release),
        _guarantee(statement, release["notes"]),
        _use(header, release),
        _made(statement, release),
        _quality(release),
        _check(header),
    ]
    return "\n".join(parts)


def _title(release: Mapping[str, Any]) -> str:
    recipe = release["recipe"]
    return (
        f"# A student of {plainly(recipe['data']['name'])}\n\n"
        f"A classifier that learnt from the noised votes of {recipe['teachers']['count']:d} "
        "teachers on public inputs (PATE). The teachers, their votes and the private records are "
        f"not part of this release. Made on {plainly(release['date'])} with pate "
        f"{plainly(release['versions']['pate'])}.\n"
    )


def _guarantee(statement: Mapping[str, Any], notes: list[str]) -> str:
    stated, figure = statement["guarantee"], statement["sanitised"]
    data = statement["data_set"]
    whole = data["guarantee"]
    chosen = _choice(statement)
    published = "the labels behind the student"
    if chosen is not None:
        published += f", and the choice of its settings among {len(chosen.candidates)} candidates"
    if figure is not None:
        published += ", and the sanitised figure in `guarantee.json`"
    lines = [
        "## What is promised",
        "",
        f"**(ε, δ) differential privacy with ε = {format_epsilon(stated['epsilon'])} and "
        f"δ = {stated['delta']:g}**, for {statement['protects']} ({stated['neighbours']}).",
        "",
        f"In words: with {statement['protects']}, whatever somebody makes of this release becomes "
        f"at most {format_factor(stated['epsilon'])} times (e^ε) as likely, but for a chance of δ, "
        f"whatever else they know. {_judged(stated['epsilon'])} It covers "
        f"{published}; the student is made from these and public inputs alone, so it costs nothing "
        "more (post-processing).",
        "",
        f"In symbols: Pr[M(D) ∈ S] ≤ e^ε Pr[M(D′) ∈ S] + δ for all neighbours D, D′ and all S. "
        f"{_how(statement)}",
        "",
    ]
    if figure is not None:
        lines += [
            "`guarantee.json` also holds a sanitised figure: what the votes themselves say the "
            "labels cost, hidden by noise. It is not a differential privacy guarantee and must not "
            "be quoted as one: it holds at the data at hand only, bounds one direction (from these "
            "data to their neighbours), and, where a noised check decides what is answered "
            "(Confident- and Interactive-GNMax), it is known only after the answers. The guarantee "
            "above does not rest on it.",
            "",
        ]
    lines += [
        f"Over **all PATE releases** of {plainly(data['name'])} up to this one's making, this one "
        f"among them: ε = {format_epsilon(whole['epsilon'])} at δ = {whole['delta']:g}, by "
        f"{_terms(data['terms'])}. It counts between data sets for which one teacher of each "
        "release changes. The events listed for the data set in `guarantee.json` show "
        "what was charged; their sum is no guarantee beyond this reading of the ledger.",
        "",
    ]
    for note in notes:
        lines += [f"* {plainly(note)}"]
    return "\n".join(lines) + ("\n" if notes else "")


def _judged(epsilon: float) -> str:
    """What a manager should make of ε."""
    if epsilon <= 1:
        return "At an ε of one or less that is a strong promise."
    if epsilon <= 5:
        return "That is a promise of middling strength; below one it would be a strong one."
    return "A factor so large promises little by itself; below five it would mean more."


def _choice(statement: Mapping[str, Any]) -> BestOfTries | None:
    """The choice that was paid for, where settings were chosen privately."""
    kinds = tally(read_events(statement["labels"]))
    return next((event for event in kinds if isinstance(event, BestOfTries)), None)


def _how(statement: Mapping[str, Any]) -> str:
    stated, chosen = statement["guarantee"], _choice(statement)
    conversion = f"the {stated['conversion']} conversion"
    if chosen is not None:
        return (
            f"A number of tries was drawn at random, {chosen.mean_tries:g} on average, and each "
            "tried one candidate with fresh noise. The best one by its accuracy on public test "
            "records is this student; the others and their number stay private. The log-moments of "
            "such a choice (Papernot & Steinke 2022, Theorem 2) come to this ε at "
            f"λ = {stated['moment']:g}, by {conversion}."
        )
    if statement["counted"] == "plan":
        return (
            "The most that could be asked and answered was fixed before any vote was opened; its "
            f"log-moments add up to this ε at λ = {stated['moment']:g}, by {conversion}."
        )
    return (
        "Answers of an earlier release are among the labels, so ε is that of all charges to the "
        f"ledger up to this release, at λ = {stated['moment']:g}, by {conversion}."
    )


def _terms(terms: Mapping[str, Any]) -> str:
    if terms["mode"] == "odometer":
        return "the ledger's reading, which holds at all times at once (no budget was set)"
    return "the ledger's budget, which no charge may pass"


def _use(header: Mapping[str, Any], release: Mapping[str, Any]) -> str:
    shape = ", ".join(["n", *map(str, header["input"]["shape"])])
    model, names = header["model"], header["class_names"]
    code = model["kind"] == "code"
    own = ', plugin_path="FOLDER WITH ITS CODE", trust=True' if code else ""
    lines = [
        "## How to use it",
        "",
        "```python",
        "import pate",
        "",
        f'student = pate.load_student("."{own})',
        "labels = student.predict(X)",
        "```",
        "",
        f"`X` has shape ({shape}), like the public inputs it learnt from "
        f"({header['input']['dtype']}). Labels are 0 … {len(names) - 1}; `student.class_names` "
        f"says what they are called: {_listed(names[:20])}{', …' if len(names) > 20 else ''}.",
        "",
        _form(model),
        "",
    ]
    if header["encoder"] or (code and model["encoder"] is not None):
        lines += [
            "The encoder in `encoder/` was fitted on public inputs only, and is applied first.",
            "",
        ]
    if release["labels"]:
        lines += [
            "`labels/` holds the released labels: `answered.npy` has rows of the public inputs, "
            "`labels.npy` their labels; `asked.npy` all rows asked about; `kept.npy` and "
            "`kept_labels.npy` rows on which the student's own label stood.",
            "",
        ]
    return "\n".join(lines)


def _form(model: Mapping[str, Any]) -> str:
    """What the student is made of, and what loading it does."""
    if model["kind"] == "code":
        return (
            f"The student needs code that is not part of this release: {_listed(model['needs'])} "
            f"({plainly(model['why'])}). Loading it imports and runs that code, so it asks for "
            "`trust=True`: give it only for code you know and a release from somebody you trust. "
            "`plugin_path` is not needed where the code is installed."
        )
    form = {
        "onnx": "an ONNX graph of standard operators",
        "linear": "a matrix of weights (safetensors)",
        "constant": "one label",
        "network": "the weights (safetensors) of a network that pate brings",
    }[model["kind"]]
    return (
        f"The student is data, {form}: loading it runs no code from this release. Before it was "
        "released it was compared with the original on public and random inputs: the same labels, "
        "and the same probabilities to 0.0001."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(map(plainly, names))


def _made(statement: Mapping[str, Any], release: Mapping[str, Any]) -> str:
    recipe = recipe_of(release)
    events = "\n".join(_paid_for(statement))
    teachers, student = recipe.teachers, recipe.student
    models = [entry.model for entry in teachers.mix] or [str(teachers.model)]
    encoder = _listed([step.name for step in recipe.encoder.steps]) or "none"
    return (
        "## How it was made\n\n"
        f"* Teachers: {teachers.count} of {_listed(models)}; "
        f"a {recipe.partition.by} goes to one of them, by {recipe.partition.method}\n"
        f"* Encoder, public: {encoder}\n"
        f"* Student: {_listed([student.model, student.method])}, on {student.inputs} inputs; "
        "public inputs and released labels are all it saw. "
        "A model that keeps what it learnt from (nearest neighbours) holds public inputs.\n"
        "* Noise: drawn from the operating system's secure randomness\n\n"
        f"What was paid for, at most:\n\n{events}\n"
    )


def _paid_for(statement: Mapping[str, Any]) -> Iterator[str]:
    for event, count in tally(read_events(statement["labels"])).items():
        if not isinstance(event, BestOfTries):
            yield f"* `{Repeated(event, count)}`"
            continue
        yield f"* {event}:"
        kinds = Counter(event.candidates)
        for plan, times in list(kinds.items())[:_LISTED]:
            often = f", {times} times" if times > 1 else ""
            yield f"  * {' and '.join(f'`{each}`' for each in plan)}{often}"
        if len(kinds) > _LISTED:
            yield f"  * and {len(kinds) - _LISTED} more, which `guarantee.json` lists"


def _quality(release: Mapping[str, Any]) -> str:
    student = release["evaluation"]["student"]
    chosen = (
        "It was chosen by its share of these very records, so expect a little less elsewhere. "
        if release["recipe"].get("selection") is not None
        else ""
    )
    return (
        "## How good it is\n\n"
        f"{100 * student['accuracy']:.1f} % of {student['records']:d} test records are right "
        f"(95 %: {100 * student['low']:.1f} … {100 * student['high']:.1f} %). {chosen}"
        "Records unlike the public inputs may fare worse. The guarantee speaks of privacy, and not "
        "of fairness or of fitness for a purpose.\n"
    )


def _check(header: Mapping[str, Any]) -> str:
    own = " --plugin-path FOLDER --trust" if header["model"]["kind"] == "code" else ""
    return (
        "## How to check it\n\n"
        "```\n"
        "sha256sum -c SHA256SUMS\n"
        f"pate verify .{own}\n"
        "```\n\n"
        "The first shows that the files are those of `SHA256SUMS`. Whoever can change files can "
        "change that list: compare its own digest, which `pate verify` prints, with one that you "
        "have from the owner.\n\n"
        "The second also works ε out anew from the events in `guarantee.json`, without the private "
        "data, and writes this card and the page again from the JSON files. That these are all the "
        "events there were is the word of whoever keeps the ledger: the charges are named there.\n"
    )
