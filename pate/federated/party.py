"""A party: it trains its own teachers, and gives their noised votes into a secure sum.

Everything here is PRIVATE and stays in the party's folder, but for what :func:`noised_votes`
returns: the votes with the party's share of the noise, charged to the party's ledger by then.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._files import write_atomically
from pate.accounting import (
    Event,
    ForAddRemove,
    ForReplacement,
    Ledger,
    Neighbours,
    Repeated,
)
from pate.datasets.catalogue import data_root as default_root
from pate.datasets.content import require_own_ledger
from pate.datasets.files import read
from pate.datasets.parts import Part, Wanted, to_tables
from pate.datasets.table import Splits, Table, check_splits
from pate.engines import Progress, make_engine, terminal_progress
from pate.errors import InvalidInput
from pate.federated.recipes import PartyRecipe, Question, encoder_digest
from pate.federated.secure_sum import sum_parameters
from pate.mechanisms.charged import release_share_once
from pate.pipeline.ledger import ledger_of, open_ledger
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Context, Options, Stage
from pate.recipes.paths import find_path
from pate.recipes.read import read_recipe
from pate.stages.data import DATA, PARTITION, write_splits
from pate.stages.encode import ENCODE, ENCODE_RECORDS, ENCODER
from pate.stages.record_vote import CELLS, VOTE_RECORDS
from pate.stages.teach import TEACH
from pate.stages.vote import VOTE

FAILED = "failed"  # a note in the folder of a party
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """A party's recipe and its folder."""

    recipe: PartyRecipe
    folder: Path
    options: Options

    @classmethod
    def open(
        cls,
        recipe: str,
        folder: Path,
        *,
        engine: str = "serial",
        report: Callable[[str], None] = lambda text: None,
    ) -> Party:
        """Return the party of a recipe file; nothing is run."""
        _, read_it = read_recipe(recipe, None, PartyRecipe)
        root = read_it.data_root
        options = Options(
            data_root=default_root(None if root is None else Path(root)),
            engine=make_engine(engine),
            plugin_path=read_it.plugins.chosen(None),
            report=report,
            progress=_no_progress,
        )
        return cls(recipe=read_it, folder=folder, options=options)


def inputs_digest(inputs: NDArray[Any]) -> str:
    """Return the digest of public inputs, which a question names."""
    whole = np.ascontiguousarray(inputs, dtype="<f8")
    return hashlib.sha256(repr(whole.shape).encode() + whole.tobytes()).hexdigest()


def keep_inputs(party: Party, inputs: NDArray[Any]) -> str:
    """Store the coordinator's public inputs, and return their digest."""
    if inputs.dtype.kind not in "biuf" or inputs.ndim < 2 or not len(inputs):
        raise InvalidInput("the coordinator's inputs are not rows of numbers")
    digest = inputs_digest(inputs)
    place = _inputs_file(party, digest)
    if not place.exists():
        content = io.BytesIO()
        np.save(content, np.ascontiguousarray(inputs, dtype="<f8"), allow_pickle=False)
        write_atomically(place, content.getvalue(), make_parents=True)
    return digest


def require_agreed(party: Party, question: Question) -> None:
    """Refuse a question that this party's terms, range or budget do not cover; charge nothing."""
    _require_terms(party, question)
    made = _with_splits(party, question)
    with _ledger(party, made.recipe, made.splits) as ledger:
        events, relation = _charged(made.recipe, question)
        ledger.require_room(events, records=relation)


def _require_terms(party: Party, question: Question) -> None:
    if question.terms != party.recipe.federation:
        raise InvalidInput(
            "the coordinator's [federation] differs from this party's; make both the same"
        )
    votes = party.recipe.votes
    if (votes.by, votes.reach) != (question.by, question.reach):
        raise InvalidInput(
            f"the coordinator asks for votes by {question.by} with a reach of {question.reach}, "
            f"and this party's are by {votes.by} with {votes.reach}; make [votes] the same"
        )
    if question.by == "records" and encoder_digest(party.recipe.encoder) != question.encoder:
        raise InvalidInput(
            "the coordinator's [encoder] differs from this party's; make both the same"
        )
    if party.recipe.teacher_count + question.share.reach > sum_parameters(question.parties).clip:
        raise InvalidInput(
            f"votes of {party.recipe.teacher_count} teachers with this noise pass the range of a "
            "secure sum; lower the noise"
        )


def count_votes(party: Party, question: Question) -> None:
    """Train this party's teachers and count their votes; what is done is not done again."""
    _counted(party, question)


def noised_votes(party: Party, question: Question, *, run: int, session: str) -> NDArray[np.int64]:
    """Return the votes that are asked for with this party's share of noise, once they are paid.

    Guarantees:
        The charge for the sum is in the party's ledger before this returns, by its events at
        ``terms.shares`` shares of noise. A run's votes are drawn once, charged once, and bound to
        one question and one key exchange (``session``): two sums over different parties never share
        noise, and a party that joined twice is in a sum once, so that one record moves one vote of
        it. Another run draws anew, and is charged.
    """
    _require_terms(party, question)
    made = _counted(party, question)  # all of it was done before
    counts = made.run.artifact("vote").array("counts.npy")
    if max(question.rows) >= len(counts):
        raise InvalidInput("the coordinator asks about an input that it did not send")
    if question.by == "records" and len(question.rows) != len(counts):
        raise InvalidInput("the coordinator asks for a part of the table of record votes")
    asked = np.array(counts[np.array(question.rows)], dtype=np.int64)
    events, relation = _charged(made.recipe, question)
    with _ledger(party, made.recipe, made.splits, remember=True) as ledger:
        noised = release_share_once(
            question.share,
            asked,
            events=events,
            ledger=ledger,
            name=f"federation {run}",
            bound_to=(question.digest, session),
            records=relation,
            group=made.recipe.protected_group,
        )
    # For teachers a chance below e^−4000; for records also where millions vote at one input.
    if np.abs(noised).max() > sum_parameters(question.parties).clip:
        raise InvalidInput("votes and noise pass the range of a secure sum")
    return noised


# --- inside ---------------------------------------------------------------------------------------


def _no_progress(
    title: str, total: int, done: int, slots: int | None = None, /
) -> AbstractContextManager[Progress]:
    return terminal_progress(title, total, quiet=True, json_logs=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    run: PipelineRun
    recipe: Recipe
    splits: Splits


def _inputs_file(party: Party, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise InvalidInput("the coordinator's question names no inputs")
    return party.folder / "inputs" / f"{digest}.npy"


def _with_splits(party: Party, question: Question) -> _Prepared:
    """Return the run of the stages up to the votes, over own records and the inputs sent."""
    place = _inputs_file(party, question.inputs)
    if not place.is_file():
        raise InvalidInput("the coordinator asks about inputs that it did not send")
    inputs = np.load(place, allow_pickle=False)
    recipe = party.recipe.as_recipe(question)
    with _failing_once(party):
        splits = _own_splits(party, recipe, inputs)
    private, names = splits.private, splits.class_names
    digest = hashlib.sha256(question.inputs.encode())
    for values in (private.features, private.labels):
        digest.update(np.ascontiguousarray(values).tobytes())
    digest.update(repr((private.ids, private.groups, names)).encode())

    def write(context: Context) -> None:
        write_splits(context, splits, equal={})

    def settings(recipe: Recipe, options: Options) -> Any:
        return {"content": digest.hexdigest()}

    own: Stage = replace(DATA, settings=settings, run=write)
    by_records = (ENCODE_RECORDS, CELLS, VOTE_RECORDS)
    run = PipelineRun(
        folder=party.folder / "run",
        recipe=recipe,
        stages=(
            own,
            PARTITION,
            ENCODER,
            *(by_records if recipe.by_records else (ENCODE, TEACH, VOTE)),
        ),
        options=party.options,
    )
    return _Prepared(run=run, recipe=recipe, splits=splits)


def _counted(party: Party, question: Question) -> _Prepared:
    made = _with_splits(party, question)
    with _failing_once(party):
        made.run.execute()
    return made


@contextmanager
def _failing_once(party: Party) -> Iterator[None]:
    """Once own records made a question fail, refuse all until the party joins again.

    Guarantees:
        Whether votes can be counted may depend on the records, and a coordinator may choose inputs
        and classes for that. It learns one such bit, free of charge, whenever the party is joined.
    """
    note = party.folder / FAILED
    if note.exists():
        raise InvalidInput("an earlier question failed; see the log above, and join again")
    try:
        yield
    except Exception:
        write_atomically(note, b"", make_parents=True)
        raise


def _own_splits(party: Party, recipe: Recipe, inputs: NDArray[Any]) -> Splits:
    data = recipe.data
    path = find_path(
        str(data.private_path), folder=data.folder, elsewhere=[party.options.data_root]
    )
    private = read(path, Wanted(id=data.id, group=data.group))
    if private.cells is not None or private.labels is None:
        raise InvalidInput(f"{path} is not a .npz file of records X and their labels y")
    where = "the coordinator's inputs"
    sent = Part(where=where, features=inputs, labels=None)
    tables, names = to_tables([private, sent], classes=data.classes)
    nobody = Table(features=tables[1].features[:1], labels=np.zeros(1, dtype=np.int64))
    splits = Splits(private=tables[0], public=tables[1], test=nobody, class_names=names)
    return check_splits(splits, where=data.name)


def _charged(recipe: Recipe, question: Question) -> tuple[tuple[Event, ...], Neighbours]:
    """Return the events of the sum under the relation of the party's partition."""
    by_user = recipe.protected_group is not None

    def stated(event: Event) -> Event:
        if isinstance(event, Repeated):
            return Repeated(stated(event.event), event.count)
        if recipe.neighbours is Neighbours.REPLACE_ONE:
            return ForReplacement(event)
        return ForAddRemove(event, per_user=by_user)

    relation = recipe.neighbours
    if relation is Neighbours.ADD_REMOVE and by_user:
        relation = Neighbours.USER_ADD_REMOVE
    return tuple(map(stated, question.events)), relation


@contextmanager
def _ledger(
    party: Party, recipe: Recipe, splits: Splits, *, remember: bool = False
) -> Iterator[Ledger]:
    require_own_ledger(
        recipe.data,
        splits,
        root=party.options.data_root,
        ledger=ledger_of(recipe, party.options),
        spend=None,  # `pate party join` has no such option
        report=party.options.report,
        remember=remember,
    )
    with open_ledger(recipe, party.options) as ledger:
        yield ledger
