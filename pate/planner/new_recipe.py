"""A recipe to start from, for the user's own files or with names to replace: ``pate new``.

Teachers and noise are chosen by the rounded number of private records and by public quantities, so
that the recipe runs as it is; its comments state how to choose better.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np

from pate._files import write_new
from pate.accounting import Event, Repeated
from pate.accounting.calibrate import moments_epsilon, most, smallest_noise
from pate.datasets.catalogue import CATALOGUE, data_root
from pate.datasets.parts import Wanted, encode_labels
from pate.datasets.preview import Preview, preview, preview_three
from pate.errors import InvalidInput
from pate.mechanisms import voting_mechanism
from pate.mechanisms.spec import AggregateSpec
from pate.pipeline.ledger import ledger_path
from pate.pipeline.recipe import Recipe
from pate.recipes.read import COMMANDS, printable, read_recipe, to_toml
from pate.recipes.schema import recipe_models, schema_comment, write_schema

_SHARE = 0.2  # of one file, for public inputs and for testing each
_MOST_TEACHERS = 250
_SHARD = 20  # records or people of a teacher
_FEWEST_UNITS = 100
_EPSILONS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
_ENOUGH_LABELS = 100
_FEWEST_LABELS = 10
_SIDE = 32  # pixels of an image, where they differ or are many


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFiles:
    """The user's own files, and the columns or arrays in them."""

    private: Path  # or all records, if there are no others
    public: Path | None = None
    test: Path | None = None
    label: str | None = None
    id: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Teachers, noise and ε, from public or rounded quantities."""

    teachers: int
    sigma: float
    epsilon: float
    delta: float
    labels: int  # that ε has room for


def write_recipe(path: Path, files: OwnFiles | None, *, start: str = "tabular") -> list[str]:
    """Write a commented recipe for the user's own files; return notes for the user.

    The private file is read for its layout alone: columns, class names, the numbers of records and
    people. The numbers are rounded to one digit before anything is chosen by them. Without files
    the recipe has names of files, columns and classes to replace. ``start`` is what to begin with:
    tabular or images (teachers), records (record votes) or compare.
    """
    if path.exists():
        raise InvalidInput(f"{path} exists; choose another name")
    if files is None:
        _write(path, *_example(path, images=start == "images"), start=start, name=_name(path))
        return [f"Replace the names of files, columns and classes in [data] of {path} by yours."]
    if (files.public is None) != (files.test is None):
        given, missing = ("public", "test") if files.test is None else ("test", "public")
        raise InvalidInput(
            f"--{given} goes with --{missing}: give both files, or neither, to divide "
            f"{files.private} itself"
        )
    wanted = Wanted(label=files.label, id=files.id, group=files.group)
    if files.public is None or files.test is None:
        found = [preview(files.private, wanted)]
    else:
        found = preview_three([files.private, files.public, files.test], wanted)
    classes = _class_names(files, found)
    recipe = _write(path, files, found, classes, start=start, name=_name(files.private))
    notes = [f"The {len(classes)} class names in {path} are public: they are in the recipe."]
    if files.public is None:
        notes.append(
            f"A fifth of {files.private} becomes public inputs and a fifth test records: the "
            "people in these are NOT protected (accept_unprotected in [data])."
        )
    ledger = ledger_path(recipe, data_root())
    if ledger.exists():
        notes.append(
            f"A ledger of this name is at {ledger.absolute()}: the run is charged to it. If it is "
            f"of other people, change name in [data] of {path}."
        )
    layout = found[0 if len(found) == 1 else 1]
    if layout.unusable:
        notes.append(
            "Left out, as they are empty or hold texts of many kinds: "
            f"{printable(', '.join(layout.unusable))}."
        )
    return notes


def write_votes_script(path: Path) -> list[str]:
    """Write a shell script that aggregates the user's own votes; return notes for the user."""
    write_new(path, resources.files("pate.planner").joinpath("own_votes.sh").read_text("utf-8"))
    return [f"Replace the first lines of {path} by your own file of votes and settings."]


def _write(
    path: Path,
    files: OwnFiles,
    found: Sequence[Preview],
    classes: tuple[str, ...],
    *,
    start: str,
    name: str,
) -> Recipe:
    """Write the recipe and the schema beside it; return what is read back."""
    text = _text(path, files, found, classes, start=start, name=name)
    write_new(path, text)
    try:
        kind = "compare" if start == "compare" else "pate"
        write_schema(path, kind)
        recipe: Recipe = read_recipe(str(path), None, recipe_models()[COMMANDS[kind]])[1]  # type: ignore[assignment]
    except InvalidInput:
        path.unlink()
        raise
    return recipe


def _example(path: Path, *, images: bool) -> tuple[OwnFiles, list[Preview], tuple[str, ...]]:
    """Return made-up files: names to replace, and settings for some thousands of records."""
    beside, suffix = path.parent, "" if images else ".csv"
    files = OwnFiles(
        private=beside / f"private{suffix}",
        public=beside / f"public{suffix}",
        test=beside / f"test{suffix}",
        label=None if images else "outcome",
    )
    sides, classes = (32, 32) if images else None, ("no", "yes")
    found = [
        # As most tables, with text and gaps; steps for them are there to be left out.
        Preview(
            records=records,
            labels=np.array(classes),
            sides=sides,
            files=images,
            text=() if images else ("job",),
            gaps=() if images else ("job",),
        )
        for records in (5000, 1000, 1000)
    ]
    return files, found, classes


def _class_names(files: OwnFiles, found: Sequence[Preview]) -> tuple[str, ...]:
    paths = (files.private, files.public, files.test)
    labels = [
        (str(path), each.labels)
        for path, each in zip(paths, found, strict=False)
        # A public file may keep the column and leave it empty.
        if each.labels is not None and any(str(label).strip() for label in each.labels)
    ]
    if not labels:
        raise InvalidInput(f"{files.private} holds no labels; every private record needs one")
    distinct = {str(label).strip() for _, each in labels for label in each.tolist()}
    records = sum(len(each) for _, each in labels)
    if 3 * len(distinct) > max(records, 6):  # these may be ids, which must not get into a recipe
        raise InvalidInput(
            f"the labels of {files.private} differ in nearly every record; name the column of the "
            "classes by --label"
        )
    return encode_labels(labels)[1]


# --- teachers, noise and ε ------------------------------------------------------------------------


def rounded(number: float) -> int:
    """Return a number with one digit that is not zero.

    >>> rounded(1234), rounded(96), rounded(0)
    (1000, 100, 1)
    """
    return int(float(f"{max(number, 1):.0e}"))


def _chosen(units: int, public: int, *, classes: int) -> _Choice:
    """Return teachers with some twenty of the units each, and noise that they can outvote.

    ``units`` are records, or people if these are protected as a whole; both numbers are rounded.
    ε is the smallest of a few that has room for enough labels, and 8 where none has.
    """
    teachers = max(2, min(_MOST_TEACHERS, rounded(units / max(_SHARD, 5 * classes))))
    delta = 10.0 ** -max(5, math.floor(math.log10(units)) + 2)  # well below one over the units
    cost = moments_epsilon(delta=delta)

    def answer(sigma: float) -> Event:
        spec = AggregateSpec.model_validate({"mechanism": "gnmax", "sigma": sigma})
        return voting_mechanism(spec).answer_event

    few, enough = min(_FEWEST_LABELS, public), min(_ENOUGH_LABELS, public)
    least = smallest_noise(answer, count=few, target=_EPSILONS[-1], epsilon=cost)
    sigma = math.ceil(10 * max(least, teachers / 5)) / 10
    enough_for = (each for each in _EPSILONS if cost([Repeated(answer(sigma), enough)]) <= each)
    epsilon = next(enough_for, _EPSILONS[-1])
    labels = min(public, most(answer(sigma), target=epsilon, epsilon=cost))
    return _Choice(teachers=teachers, sigma=sigma, epsilon=epsilon, delta=delta, labels=labels)


# --- the text -------------------------------------------------------------------------------------


def _text(
    path: Path,
    files: OwnFiles,
    found: Sequence[Preview],
    classes: tuple[str, ...],
    *,
    start: str,
    name: str,
) -> str:
    """Return the recipe."""
    private, one_file = found[0], len(found) == 1
    layout = found[0] if one_file else found[1]  # of public records, where they are apart
    rest = 1 - 2 * _SHARE if one_file else 1.0  # of the records that stay private
    who, units = "records", private.records
    if private.people is not None:
        who, units = "people", private.people
    units = rounded(rest * units)
    public = rounded(_SHARE * private.records) if one_file else layout.records
    images = layout.sides is not None
    if units < _FEWEST_UNITS:
        raise InvalidInput(
            f"{files.private} leaves about {units} private {who}, too few to teach an ensemble; "
            f"PATE needs {_FEWEST_UNITS} at the very least, and thousands for a small ε"
        )
    choice = _chosen(units, public, classes=len(classes))
    environment = jinja2.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["toml"] = to_toml
    template = resources.files("pate.planner").joinpath("recipe.toml.j2").read_text("utf-8")
    return environment.from_string(template).render(
        schema=schema_comment("compare" if start == "compare" else "pate"),
        start=start,
        prefix="pate." if start == "compare" else "",
        command="pate compare" if start == "compare" else "pate run",
        recipe=printable(path.name),
        name=name,
        one_file=one_file,
        private=_place(files.private, path),
        public=_place(files.public or Path(), path),
        test=_place(files.test or Path(), path),
        share=_SHARE,
        public_share=_SHARE / (1 - _SHARE),
        label=files.label,
        id=files.id,
        group=files.group,
        features=_features(files, found),
        classes=classes,
        resized=layout.resized,
        side=_SIDE,
        steps=_steps(layout, by_distance=start == "records"),
        seen=images or bool(private.columns),
        prepared=bool(layout.text or layout.gaps),
        units=units,
        who=who,
        few=choice.labels < _ENOUGH_LABELS,
        choice=choice,
        model="ridge" if images else "logistic",
        images=images and layout.files,
        labelled=layout.labels is not None,
    )


def _steps(layout: Preview, *, by_distance: bool) -> list[str]:
    """Return the steps that turn inputs into numbers without gaps, or images into features."""
    if by_distance and layout.sides is not None:
        return ["scattering", "root", "normalise"] if layout.wavelets else ["normalise"]
    if layout.wavelets:
        return ["scattering", "standardise"]
    categories = ["one-hot"] if layout.text else []
    gaps = [*categories, "impute"] if layout.text or layout.gaps else []
    return [*gaps, "standardise"]


def _features(files: OwnFiles, found: Sequence[Preview]) -> tuple[str, ...] | None:
    """Return the features to name: where not every column of the private file can be used."""
    private, layout = found[0], found[0 if len(found) == 1 else 1]
    if private.features is not None:
        return (private.features,)
    if not private.columns:
        return None
    shared = set(layout.columns).difference(layout.unusable)
    shared = shared.intersection(*(each.columns for each in found))
    if not shared:
        raise InvalidInput(
            f"{files.private} has no column of numbers or categories beside its label, id and "
            "group that all files share; add one"
        )
    kept = tuple(name for name in private.columns if name in shared)
    return None if kept == private.columns else kept


def _name(file: Path) -> str:
    """Return a name for a data set, from that of its file."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", file.stem).strip("-_") or "own"
    return f"{name}-own" if name in CATALOGUE else name


def _place(file: Path, recipe: Path) -> str:
    """Return a path as the recipe names it: relative, unless the file is far away."""
    relative = os.path.relpath(file.absolute(), recipe.absolute().parent)
    far = relative.count(f"..{os.sep}") > 2
    return str(file.absolute()) if far else relative
