"""The coordinator: asks the parties, opens one sum of noised votes, and trains a student on it.

It holds public inputs, test records and what was released: no vote of a single party, and no
private record. Its folder holds

    sum.npz          the noised votes on the queries, stored as soon as they are opened
    student/         the student that was trained on the labels
    federation.json  who took part, the guarantee, the accuracy
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._files import write_atomically
from pate._format import format_cost
from pate.accounting import Guarantee
from pate.accounting.plan_guarantee import guarantee_of_plan
from pate.datasets.files import read
from pate.datasets.parts import Wanted, encode_labels
from pate.encoders.chain import fit_encoder
from pate.errors import InvalidInput, TeacherError
from pate.federated.party import inputs_digest
from pate.federated.recipes import FederationRecipe, Question, encoder_digest
from pate.federated.secure_sum import SumFailed, secure_sum
from pate.metrics import Share
from pate.queries import Chooser
from pate.recipes.paths import find_path
from pate.recipes.read import read_recipe
from pate.stages.distill import try_student
from pate.students.count_smoothing import smooth_counts
from pate.students.train import StudentData, train_student
from pate.teachers.persist import save
from pate.teachers.protocol import predict_labels

RESULT = "federation.json"
FAILURE = "failure.json"
_SUM = "sum.npz"
_ATTEMPTS = 3  # of key exchanges; votes are asked for once


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """A coordinator's recipe, its public data and its folder."""

    recipe: FederationRecipe
    folder: Path
    inputs: NDArray[Any]
    question: Question
    plugin_path: Path | None

    @classmethod
    def open(cls, recipe: str, folder: Path) -> Coordinator:
        """Return the coordinator of a recipe file; nobody is asked."""
        _, found = read_recipe(recipe, None, FederationRecipe)
        data, spec = found.data, found.aggregate
        inputs = read(find_path(data.public_path, folder=data.folder), Wanted(needs_label=False))
        rows = len(inputs.features)
        asked = np.arange(rows)
        if found.votes.by == "teachers":
            asked = Chooser(
                how=spec.choose,
                inputs=rows,
                features=lambda: inputs.features.reshape(rows, -1),
                seed=spec.choose_seed,
            ).first(int(spec.queries or rows))
        terms = found.federation
        question = Question(
            parties=terms.parties,
            dropouts=terms.dropouts,
            colluding=terms.colluding,
            mechanism="gaussian" if found.is_gaussian else "laplace",
            noise=found.noise,
            rows=tuple(asked.tolist()),
            classes=tuple(data.classes),
            inputs=inputs_digest(inputs.features),
            by=found.votes.by,
            reach=found.votes.reach,
            encoder=encoder_digest(found.encoder) if found.votes.by == "records" else "",
        )
        made = cls(
            recipe=found,
            folder=folder,
            inputs=np.asarray(inputs.features, dtype=np.float64),
            question=question,
            plugin_path=found.plugins.chosen(None),
        )
        _ = made.guarantee  # refused here, if there is none
        return made

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for a record of any party, fixed before anybody is asked.

        Guarantees:
            A record is in one party's data (held by n of them, it moves n votes). The sum is what
            the coordinator sees, and all that follows from it is post-processing (Dwork & Roth
            2014, Proposition 2.1), also by another party, whose share is not counted on.
        """
        return guarantee_of_plan(self.question.events, delta=self.recipe.privacy.delta)

    @property
    def features(self) -> NDArray[Any] | None:
        """The encoded inputs that a table of record votes is smoothed on; None with teachers."""
        if self.question.by == "teachers":
            return None
        features, spec = self.inputs, self.recipe.encoder
        if spec.steps:
            chain = fit_encoder(spec, self.inputs, plugin_path=self.plugin_path)
            features = chain.transform(self.inputs)
        return np.asarray(features, dtype=np.float64).reshape(len(self.inputs), -1)

    def read_test(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the test inputs and their classes."""
        path = find_path(self.recipe.data.test_path, folder=self.recipe.data.folder)
        test = read(path, Wanted())
        (truth,), _ = encode_labels(
            [(test.where, test.labels)], classes=list(self.question.classes)
        )
        if test.features.shape[1:] != self.inputs.shape[1:]:
            raise InvalidInput(
                f"a test input in {path} has the shape {test.features.shape[1:]}, and a public "
                f"input {self.inputs.shape[1:]}; make them agree"
            )
        assert truth is not None  # Wanted() needs them
        return test.features, truth

    def require_finish(self) -> None:
        """Refuse test records or a student that :func:`finish` would fail at, before all is paid.

        The student is tried on some of the public inputs with made-up labels.
        """
        self.read_test()
        try:
            try_student(
                self.recipe.student,
                self.inputs,
                features=self.features if self.recipe.encoder.steps else None,
                classes=len(self.question.classes),
                answers=len(self.question.rows),
                plugin_path=self.plugin_path,
            )
        except (TeacherError, InvalidInput) as error:
            text = str(error).removeprefix("the student failed: ")
            raise type(error)(
                f"the student cannot be trained, asked and stored, so nobody is asked: {text}"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A sum that was opened. RELEASED."""

    votes: NDArray[np.int64]
    parties: int
    teachers: int  # of the parties in it


def coordinate(
    coordinator: Coordinator,
    grid: Any,
    context: Any,
    *,
    wait: float,
    timeout: float,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Ask for a sum, unless it is here, train and test the student, and return the results.

    ``wait`` are the seconds in which parties join, and again those in which they train;
    ``timeout`` those for each step of the secure sum.
    """
    opened = _stored(coordinator)
    if opened is None:
        coordinator.require_finish()
        opened = _ask(coordinator, grid, context, wait=wait, timeout=timeout, report=report)
        _store(coordinator, opened)
    return finish(coordinator, opened)


def finish(coordinator: Coordinator, opened: Opened) -> dict[str, Any]:
    """Train and test the student on a sum; write and return the results."""
    recipe, question = coordinator.recipe, coordinator.question
    student = train_student(
        recipe.student, _labelled(coordinator, opened), plugin_path=coordinator.plugin_path
    )
    place = coordinator.folder / "student"
    place.mkdir(exist_ok=True)
    save(student, place)
    inputs, truth = coordinator.read_test()
    predicted = predict_labels(student, inputs, classes=len(question.classes))
    guarantee = coordinator.guarantee
    terms = recipe.federation
    results = {
        "name": recipe.data.name,
        "parties": opened.parties,
        "teachers": opened.teachers,
        "terms": terms.model_dump(),
        "queries": len(question.rows),
        "guarantee": guarantee.as_json(),
        "holds": "for one record of any party, as its partition protects it and as no other party "
        "holds it, if the coordinator follows the protocol and at most "
        f"{terms.colluding} other parties collude with it",
        "accuracy": asdict(Share.counted(int((predicted == truth).sum()), len(truth))),
        "printed": format_cost(guarantee.epsilon, guarantee.delta),
    }
    write_atomically(coordinator.folder / RESULT, json.dumps(results, indent=2).encode())
    return results


def _labelled(coordinator: Coordinator, opened: Opened) -> StudentData:
    """Return the labels that follow from a sum: the largest counts, or a smoothed table."""
    question, inputs = coordinator.question, coordinator.inputs
    rows, classes = np.array(question.rows), len(question.classes)
    if question.by == "teachers":
        labels = opened.votes.argmax(axis=1)
        return StudentData(inputs=inputs, rows=rows, labels=labels, classes=classes)
    features = coordinator.features
    assert features is not None  # records vote
    soft = smooth_counts(
        opened.votes,
        units=question.reach,
        features=features,
        cells=rows,
        variance=question.share.total_variance(opened.parties),
    )
    return StudentData(
        inputs=inputs,
        features=features if coordinator.recipe.encoder.steps else None,
        rows=rows,
        labels=soft.labels,
        classes=classes,
        soft=np.array(soft.probabilities),
        weights=np.array(soft.confidence),
    )


# --- asking ---------------------------------------------------------------------------------------


def _ask(
    coordinator: Coordinator,
    grid: Any,
    context: Any,
    *,
    wait: float,
    timeout: float,
    report: Callable[[str], None],
) -> Opened:
    terms, question = coordinator.recipe.federation, coordinator.question
    until = time.monotonic() + wait
    while len(joined := sorted(grid.get_node_ids())) < terms.parties and time.monotonic() < until:
        time.sleep(min(1.0, wait / 10))
    report(f"{len(joined)} of {terms.parties} parties have joined")
    if len(joined) > terms.parties:
        raise InvalidInput(
            f"{len(joined)} parties have joined, and {terms.parties} were agreed on; admit only "
            "those (SuperNode authentication)"
        )
    _require(len(joined), terms.threshold)
    ready = _prepare(coordinator, grid, joined, timeout=wait)
    report(f"{len(ready)} parties have counted their votes")
    shape = (len(question.rows), len(question.classes))
    for number in range(1, _ATTEMPTS + 1):
        _require(len(ready), terms.threshold)
        try:
            found = secure_sum(
                grid,
                context,
                ready,
                terms=terms,
                shape=shape,
                config={"question": question.to_json()},
                number=number,
                timeout=timeout,
            )
        except SumFailed as failure:
            if failure.asked or number == _ATTEMPTS:
                raise
            # Nothing has left a party: whoever is gone is left out of a new key exchange.
            ready = {node: count for node, count in ready.items() if node in failure.alive}
            continue
        teachers = sum(ready[node] for node in found.nodes)
        _require_plausible(found.total, teachers, coordinator)
        report(f"the votes of {len(found.nodes)} parties are summed")
        return Opened(votes=found.total, parties=len(found.nodes), teachers=teachers)
    raise AssertionError("the last attempt returns or raises")


def _prepare(
    coordinator: Coordinator, grid: Any, nodes: list[int], *, timeout: float
) -> dict[int, int]:
    """Send inputs and question to all; return those that are ready, with their teachers."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

    content = RecordDict(
        {
            "inputs": ArrayRecord([np.asarray(coordinator.inputs, dtype=np.float64)]),
            "question": ConfigRecord({"text": coordinator.question.to_json()}),
        }
    )
    messages = [Message(content, dst_node_id=node, message_type="query") for node in nodes]
    ready = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        if reply.has_error() or "ready" not in reply.content.config_records:
            continue
        count = reply.content.config_records["ready"].get("teachers")
        if type(count) is int and 0 <= count <= 1 << 20:
            ready[int(reply.metadata.src_node_id)] = count
    return ready


def _require(found: int, needed: int) -> None:
    if found < needed:
        raise InvalidInput(
            f"{found} parties are ready, and a sum needs {needed}; nothing was asked of them: see "
            "their logs, or wait longer (--wait)"
        )


def _require_plausible(total: NDArray[np.int64], teachers: int, coordinator: Coordinator) -> None:
    """Refuse a sum that votes and noise cannot have made: a party sent something else.

    The chance that it refuses one that they made is below 10⁻³⁰ for each count.
    """
    question = coordinator.question
    spread = 12 * np.sqrt(question.share.total_variance(question.parties))
    spread *= 1 if question.mechanism == "gaussian" else 6
    most = teachers if question.by == "teachers" else np.inf  # nobody knows how many records vote
    if total.min() < -spread or total.max() > most + spread:
        raise InvalidInput(
            "the sum lies outside what votes and noise can add up to: a party sent something else, "
            "and nobody can know which; the parties were charged"
        )


def _store(coordinator: Coordinator, opened: Opened) -> None:
    content = io.BytesIO()
    np.savez(
        content,
        votes=opened.votes,
        parties=opened.parties,
        teachers=opened.teachers,
        question=coordinator.question.digest,
    )
    write_atomically(coordinator.folder / _SUM, content.getvalue(), make_parents=True)


def _stored(coordinator: Coordinator) -> Opened | None:
    """Return the sum of this very question, if it was opened before."""
    place = coordinator.folder / _SUM
    if not place.is_file():
        return None
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as found:
            question = str(found["question"])
            opened = Opened(
                votes=np.array(found["votes"]),
                parties=int(found["parties"]),
                teachers=int(found["teachers"]),
            )
    except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise InvalidInput(
            f"{place} cannot be read; restore it from a backup, or remove it to ask anew, for "
            "which the parties are charged again"
        ) from error
    if question != coordinator.question.digest:
        raise InvalidInput(
            f"{place} answers another question; choose another --out, or remove it to ask anew"
        )
    return opened
