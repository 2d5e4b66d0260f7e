"""The encoder and encode stages, and the features that other stages read.

``encoder`` fits the recipe's encoder to public inputs, and nothing else, and encodes them;
``encode`` makes the features of the private records. Without an encoder both leave the inputs as
they are.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact, Draft, Level, fingerprint
from pate.errors import InvalidInput, MissingFile
from pate.partition import PLACES, RECORD_SHARDS
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Absent, Context, Options, Stage
from pate.teachers.adapters import make, takes_missing
from pate.teachers.spec import model_for

if TYPE_CHECKING:
    from pate.encoders.chain import Chain

_FILE = "features.npy"
_ROWS = 4096  # of a table that is read in parts
_SHARDS = "shards.json"
_KNOWN = -1  # the place of a record whose features are taken from an earlier result
_NO_TURN = -1  # of a copy, in batches of records that vote themselves


def _encoder_settings(recipe: Recipe, options: Options) -> Any:
    spec = recipe.encoder
    weights: list[str] | Absent
    try:
        weights = spec.weight_digests(plugin_path=options.plugin_path)
    except MissingFile as problem:
        weights = Absent(problem)
    return {
        "encoder": spec.model_dump(mode="json"),
        "weights": weights,
        "plugin": options.source_digest(spec.model_dump(mode="json")) if spec.steps else None,
    }


def _fit(context: Context) -> None:
    """Write what was fitted, and the features of the public inputs, once.

    Guarantees:
        The stage's clearance is PUBLIC: the store refuses it anything above. So the encoder is a
        function of public inputs, and encoding a private record costs nothing.
    """
    spec, public = context.recipe.encoder, context.inputs["data-public"]
    categories = tuple(public.facts.get("categories", ()))
    spec.require_categories(categories)
    with context.draft(Level.PUBLIC) as draft:
        draft.facts["identity"] = not spec.steps
        # Left out where they say nothing: then the artifact is the one of earlier versions.
        missing = bool(public.facts.get("missing", False))
        draft.facts.update({"categories": True} if categories else {})
        draft.facts.update({"raw_missing": True} if missing else {})
        missing = missing and not spec.completes
        if spec.steps:
            from pate.encoders.chain import fit_encoder, save_encoder

            inputs, plugins = public.array(_FILE), context.options.plugin_path
            chain = fit_encoder(spec, inputs, categories=categories, plugin_path=plugins)
            save_encoder(chain, draft.path)
            shape = (len(inputs), *chain.shape)
            out = draft.new_array(_FILE, dtype=np.float32, shape=shape)
            chain.transform_into(inputs, out)
            out.flush()  # type: ignore[attr-defined]
            missing = missing or has_missing(out)
        draft.facts.update({"missing": True} if missing else {})


def _encode_settings(recipe: Recipe, options: Options) -> Any:
    # All else is in the encoder and in the shards; code of the user's runs here once more.
    spec = recipe.encoder
    own = options.source_digest(spec.model_dump(mode="json")) if spec.runs_user_code else None
    return {"plugin": own}


def _encode(context: Context) -> None:
    """Encode one shard, or slice of a shard, at a time, into a memory-mapped array.

    Guarantees:
        No batch holds records of two shards (or slices). So features of one are a function of it
        alone, down to the last bit: sums in floating point may depend on a record's neighbours in
        a batch, and those are of its own shard. Steps of one's own are loaded afresh for every
        shard, so that they have seen no other; one that changes all the same is refused.
    """
    encoder, shards = context.inputs["encoder"], context.inputs["partition"]
    with context.draft(Level.PRIVATE) as draft:
        draft.facts["identity"] = bool(encoder.facts["identity"])
        if encoder.facts["identity"]:
            return
        from pate.encoders.chain import load_encoder

        spec, plugins = context.recipe.encoder, context.options.plugin_path
        chain = load_encoder(spec, encoder.path, plugin_path=plugins)
        if context.recipe.by_records:
            _encode_by_place(context, chain, draft)
            return
        records, offsets = shards.array(_FILE), _bounds(shards)[0]
        out = draft.new_array(_FILE, dtype=np.float32, shape=(len(records), *chain.shape))
        known, fresh = _copy_known(context, draft, out), True
        with context.options.progress("encode", len(offsets) - 1, len(known)) as shown:
            for number, (start, stop) in enumerate(pairwise(offsets.tolist())):
                if number in known:
                    continue
                if stop > start:
                    if not fresh and spec.runs_user_code:
                        chain = load_encoder(spec, encoder.path, plugin_path=plugins)
                    out[start:stop] = chain.transform(np.array(records[start:stop]))
                    fresh = False
                shown.advance(1)
        out.flush()  # type: ignore[attr-defined]


def _bounds(shards: Artifact) -> tuple[NDArray[np.int64], list[str]]:
    """Return where the parts to encode begin, and their digests: slices if there are, or shards."""
    sliced = "slices.npy" in shards.manifest["files"]
    names = ("slices.npy", "slices.json") if sliced else ("offsets.npy", _SHARDS)
    return shards.array(names[0]), shards.json(names[1])


def _copy_known(context: Context, draft: Draft, out: NDArray[Any]) -> set[int]:
    """Copy the features that an earlier result of this encoder holds of the same shards.

    Returns the numbers of these shards. Of records that vote themselves the places count, too.
    """
    shards = context.inputs["partition"]
    (offsets, digests), places = _bounds(shards), None
    if context.recipe.by_records:
        places = np.array(shards.array("places.npy"))
    spans = list(pairwise(offsets.tolist()))
    names = [
        fingerprint(digest, None if places is None else places[start:stop].tolist())
        for digest, (start, stop) in zip(digests, spans, strict=True)
    ]
    draft.save_json(_SHARDS, {"names": names, "offsets": offsets.tolist()})
    made = {name: context.provenance[name] for name in ("encoder", "plugin")}
    known: set[int] = set()
    for each in context.store.all("encode"):
        if (
            _SHARDS not in each.manifest["files"]
            or not made.items() <= each.manifest["inputs"].items()
        ):
            continue
        earlier = context.store.open("encode", each.manifest["made_from"])
        features, held = earlier.array(_FILE), earlier.json(_SHARDS)
        where = dict(zip(held["names"], pairwise(held["offsets"]), strict=True))
        for number, (start, stop) in enumerate(spans):
            if number not in known and names[number] in where:
                out[start:stop] = features[slice(*where[names[number]])]
                known.add(number)
    return known


def _encode_by_place(context: Context, chain: Chain, draft: Draft) -> None:
    """Encode records that vote themselves, each in a place of the batch that is its own.

    Guarantees:
        Features of a record are a function of that record, its id and public inputs, down to the
        last bit. The built-in steps round by the shape of a batch and the record's place in it, and
        by nothing of other records (:class:`pate.encoders.chain.Chain`): every batch has the same
        shape, filled up with a public input, and a record's place follows from its id. Of steps
        that run a user's code that is not known: they get one record at a time. Copies in the same
        place are encoded once. Progress is shown in shards, whose number is public: that of records
        and batches is not.
    """
    shards, public = context.inputs["partition"], context.inputs["data-public"]
    records, places = shards.array(_FILE), np.array(shards.array("places.npy"))
    out = draft.new_array(_FILE, dtype=np.float32, shape=(len(records), *chain.shape))
    spans = list(pairwise(shards.array("offsets.npy").tolist()))
    for number in _copy_known(context, draft, out):
        places[slice(*spans[number])] = _KNOWN
    size = PLACES
    if context.recipe.encoder.runs_user_code:
        size, places = 1, np.minimum(places, 0)
    firsts, same = _first_copies(records, places)
    # The batch of a record: how many before it, in any order, have the same place.
    order = firsts[np.argsort(places[firsts], kind="stable")]
    starts = np.searchsorted(places[order], np.arange(size))
    turn = np.full_like(places, _NO_TURN)
    turn[order] = np.arange(len(order)) - starts[places[order]]
    batch = np.repeat(np.array(public.array(_FILE)[:1]), size, axis=0).astype(records.dtype)
    calls = int(turn.max(initial=_NO_TURN)) + 1
    by_turn = np.argsort(turn, kind="stable")
    edges = np.searchsorted(turn[by_turn], np.arange(calls + 1))
    filler = batch.copy()
    done = 0
    with context.options.progress("encode", RECORD_SHARDS, 0) as shown:
        for call, (start, stop) in enumerate(pairwise(edges.tolist()), start=1):
            rows = by_turn[start:stop]
            batch[:] = filler
            batch[places[rows]] = records[rows]
            out[rows] = chain.transform(batch)[places[rows]]
            if calls > RECORD_SHARDS and RECORD_SHARDS * call // calls > done:
                shown.advance(1)  # one at a time: the size of a step would be that of a batch
                done += 1
        for row in np.flatnonzero((turn == _NO_TURN) & (places != _KNOWN)):
            out[row] = out[same[row]]
        if done < RECORD_SHARDS:
            shown.advance(RECORD_SHARDS - done)
    out.flush()  # type: ignore[attr-defined]


def _first_copies(
    records: NDArray[Any], places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first of equal records in each place, and of each record that first one."""
    seen: dict[tuple[int, bytes], int] = {}
    same = np.empty(len(places), dtype=np.int64)
    for row, place in enumerate(places.tolist()):
        if place == _KNOWN:
            same[row] = row
            continue
        content = hashlib.sha256(np.ascontiguousarray(records[row]).tobytes()).digest()
        same[row] = seen.setdefault((place, content), row)
    return np.array(list(seen.values()), dtype=np.int64), same


# ------------------------------------------------------------------ features for other stages


def public_features_path(context: Context) -> Path:
    """Return the file of public features, to a stage that needs ``encoder``, ``data-public``."""
    return _public_home(context).path / _FILE


def public_features(context: Context) -> NDArray[Any]:
    """Return the public features, memory-mapped."""
    return _public_home(context).array(_FILE)


def _public_home(context: Context) -> Artifact:
    encoder = context.inputs["encoder"]
    return context.inputs["data-public"] if encoder.facts["identity"] else encoder


def private_features_path(context: Context) -> Path:
    """Return the file of private features, in the order of the shards."""
    encoded = context.inputs["encode"]
    home = context.inputs["partition"] if encoded.facts["identity"] else encoded
    return home.path / _FILE


def private_records(context: Context) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all private records as the student's model would see them, and labels. PRIVATE."""
    shards, encoded = context.inputs["partition"], context.inputs["encode"]
    raw = context.recipe.student.inputs == "raw" or encoded.facts["identity"]
    return (shards if raw else encoded).array(_FILE), shards.array("labels.npy")


def student_inputs(context: Context) -> NDArray[Any]:
    """Return the public inputs as the student's model sees them."""
    if context.recipe.student.inputs == "features":
        return public_features(context)
    return context.inputs["data-public"].array(_FILE)


def has_missing(values: NDArray[Any]) -> bool:
    """Return whether a table has missing values; read in parts."""
    parts = range(0, len(values) if values.ndim == 2 else 0, _ROWS)
    return any(np.isnan(values[start : start + _ROWS]).any() for start in parts)


def require_complete(
    context: Context, *, classes: int, width: int, private: NDArray[Any] | None = None
) -> None:
    """Refuse models that take no missing values or codes of categories, where these reach them.

    ``private`` are the features that teachers learn from, where these are still to be trained; so
    many columns are what models are tried with. For stages before labels are paid for: the message
    is for the owner, and that private records have missing values is published nowhere.
    """
    facts = context.inputs["encoder"].facts
    missing = bool(facts.get("missing", False))
    refuse_incomplete(
        context.recipe,
        context.options,
        classes=classes,
        width=width,
        categories=bool(facts.get("categories", False)),
        raw=bool(facts.get("raw_missing", False)),
        encoded=missing,
        private=private is not None and (missing or has_missing(private)),
    )


def refuse_incomplete(
    recipe: Recipe,
    options: Options,
    *,
    classes: int,
    width: int,
    categories: bool,
    raw: bool,
    encoded: bool,
    private: bool,
) -> None:
    """Refuse models that take no missing values or codes of categories, where these reach them.

    Values are missing from public records as they are (``raw``), from these ``encoded``, or from
    the encoded ``private`` ones that teachers learn from.
    """
    student, plain = recipe.student, recipe.student.inputs == "raw"
    require_no_codes(recipe, categories=categories)
    impute = 'add the step "impute" to the encoder'
    models = []
    if private:
        entries = recipe.teachers.mix or [model_for(recipe.teachers, 0)]
        models = [("teachers", each, impute) for each in entries]
    if raw if plain else encoded:
        if plain:
            done = recipe.encoder.completes
            impute = f'{"" if done else f"{impute} and "}set inputs = "features" in [student]'
        if student.method != "supervised":
            raise _incomplete(f"the student's method {student.method!r}", impute)
        models.append(("student", student.as_model(), impute))
    for who, model, remedy in models:
        made = make(model, classes=classes, seed=0, plugin_path=options.plugin_path)
        if not takes_missing(made, width=width):
            raise _incomplete(f"the model {model.model} of [{who}]", remedy)


def require_no_codes(recipe: Recipe, *, categories: bool) -> None:
    """Refuse a student that would learn from codes of categories."""
    if categories and recipe.student.inputs == "raw":
        raise InvalidInput(
            'student.inputs is "raw", and columns hold categories, which a model would take for '
            'numbers; set inputs = "features" in [student], so that it learns from what the '
            "encoder makes of them"
        )


def _incomplete(what: str, remedy: str) -> InvalidInput:
    return InvalidInput(
        f"records have missing values, and {what} takes none; {remedy}, or choose a model that "
        "takes them, such as LightGBM, XGBoost or sklearn.ensemble:HistGradientBoostingClassifier"
    )


def graph_features(context: Context) -> NDArray[Any] | None:
    """Return the encoder's features of public inputs, as (n, d); None without an encoder."""
    encoder = context.inputs["encoder"]
    if encoder.facts["identity"]:
        return None
    features = encoder.array(_FILE)
    return features.reshape(len(features), -1)


def as_student_sees(context: Context, inputs: NDArray[Any]) -> NDArray[Any]:
    """Return other inputs, such as the test set's, in the form the student's model sees."""
    encoder = context.inputs["encoder"]
    if context.recipe.student.inputs == "raw" or encoder.facts["identity"]:
        return inputs
    from pate.encoders.chain import load_encoder

    spec, plugins = context.recipe.encoder, context.options.plugin_path
    return load_encoder(spec, encoder.path, plugin_path=plugins).transform(inputs)


ENCODER = Stage(
    name="encoder",
    version=1,
    needs=("data-public",),
    clearance=Level.PUBLIC,
    settings=_encoder_settings,
    run=_fit,
)

ENCODE = Stage(
    name="encode",
    version=2,
    needs=("partition", "encoder"),
    clearance=Level.PRIVATE,
    settings=_encode_settings,
    run=_encode,
)

ENCODE_RECORDS = replace(ENCODE, needs=("partition", "encoder", "data-public"))
