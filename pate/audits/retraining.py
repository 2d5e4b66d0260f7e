"""A run of PATE trained again in memory, on other records: for shadow models and for canaries.

Nothing of it is published, so nothing is charged, and its noise may be seeded. All that comes out
is PRIVATE.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact
from pate.artifacts.results import Labels
from pate.audits.leave_one_out import cast_votes
from pate.audits.predictions import Predict
from pate.components import Components, VotingPlaces, load_places
from pate.errors import ConditionsFail, StoreError
from pate.mechanisms import count_mechanism, voting_mechanism
from pate.partition import partition
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Context
from pate.record_votes import GRID, RecordVotes, count_along
from pate.stages.encode import (
    as_student_sees,
    graph_features,
    private_features_path,
    public_features,
    student_inputs,
)
from pate.students.count_smoothing import label_inputs
from pate.students.train import StudentData, train_student
from pate.teachers.adapters import make
from pate.teachers.protocol import Teacher, probabilities
from pate.teachers.spec import model_for, seed_for
from pate.votes import Votes

IntArray = NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Retraining:
    """The training of a finished run, to be repeated on other records.

    Parameters
    ----------
    run : PipelineRun
        The run: its recipe, its public inputs, and the queries that were asked.
    """

    run: PipelineRun

    @cached_property
    def context(self) -> Context:
        """What the last stage of the run may read."""
        return self.run.context("evaluate")

    @cached_property
    def classes(self) -> int:
        """The public number of classes."""
        return int(self.context.inputs["data-public"].facts["classes"])

    @cached_property
    def labels(self) -> Labels:
        """What the run released."""
        return Labels.load(self.context.inputs["aggregate"])

    @cached_property
    def asked(self) -> NDArray[Any]:
        """The queries that were asked, as teachers see them."""
        return np.array(public_features(self.context)[np.array(self.labels.asked)])

    @property
    def columns(self) -> list[dict[str, Any]] | None:
        """The columns of a table; None of other records."""
        try:
            found: list[dict[str, Any]] = self.run.artifact("data-columns").json("columns.json")
        except StoreError:
            return None
        return found

    @cached_property
    def cells(self) -> VotingPlaces:
        """The cells or components at which records vote."""
        return load_places(self.run.artifact("cells").path)

    def private(self) -> tuple[NDArray[Any], NDArray[Any], IntArray]:
        """Return private records as they are and as teachers see them, and labels, by shards."""
        shards = self.context.inputs["partition"]
        seen = np.load(private_features_path(self.context), mmap_mode="r", allow_pickle=False)
        return shards.array("features.npy"), seen, np.array(shards.array("labels.npy"))

    def faults(self) -> tuple[str, ...]:
        """Return which conditions of the guarantee the stored shards and votes do not meet.

        Every record is in one shard, a teacher casts one vote on an input, and a record as many as
        its reach.
        """
        recipe, found = self.run.recipe, []
        shards, counts = self.run.artifact("partition"), self.run.artifact("vote")
        more = Counter(_digests(shards)) - Counter(_digests(self.run.artifact("data")))
        if more:
            found.append(
                f"{more.total()} private records are in the shards more often than in the data, "
                "so that one record reaches several teachers or votes"
            )
        votes = np.asarray(counts.array("counts.npy"), dtype=np.int64)
        if recipe.by_records and isinstance(self.cells, Components):
            return (*found, *self._sum_faults(self.cells, votes))
        if recipe.by_records:
            cast, most = int(votes.sum()), len(shards.array("labels.npy")) * recipe.votes.reach
        else:
            cast, most = int(votes.sum(axis=1).max()), recipe.teachers.count
        if cast > most:
            where = "in the table" if recipe.by_records else "on one input"
            found.append(f"{cast} votes are counted {where}, of {most} at most")
        return tuple(found)

    def _sum_faults(self, components: Components, sums: IntArray) -> Iterator[str]:
        """Yield what is wrong with sums of votes along components, looking at every vote again."""
        _, seen, labels = self.private()
        votes = components.coordinates(np.asarray(seen))
        if (votes**2).sum(axis=1).max(initial=0) > GRID**2:
            yield "a vote along the components is longer than one"
        if not np.array_equal(count_along(votes, labels, classes=self.classes), sums):
            yield "the sums along the components are not those of the votes of the shards' records"

    def test(self) -> tuple[NDArray[Any], IntArray]:
        """Return the test records, and labels."""
        test = self.context.inputs["data-test"]
        return np.array(test.array("features.npy")), np.array(test.array("labels.npy"))

    def as_teachers_see(self, records: NDArray[Any]) -> NDArray[Any]:
        """Return records as the encoder makes them."""
        encoder = self.context.inputs["encoder"]
        if encoder.facts["identity"]:
            return records
        from pate.encoders.chain import load_encoder

        spec, plugins = self.run.recipe.encoder, self.run.options.plugin_path
        return load_encoder(spec, encoder.path, plugin_path=plugins).transform(records)

    def as_student_sees(self, records: NDArray[Any]) -> NDArray[Any]:
        """Return records in the form in which the student's model takes them."""
        return as_student_sees(self.context, records)

    def teacher(self, number: int) -> Teacher:
        """Return an untrained teacher of the recipe."""
        spec = self.run.recipe.teachers
        return make(
            model_for(spec, number),
            classes=self.classes,
            seed=seed_for(spec, number),
            plugin_path=self.run.options.plugin_path,
        )

    def student(
        self, features: NDArray[Any], labels: IntArray, *, ids: Sequence[str], seed: int
    ) -> Teacher:
        """Return a student of other private records: noised votes, and what is learnt from them.

        ``features`` are the records as teachers see them; ``ids`` decide on their shards.
        """
        recipe, rng = self.run.recipe, np.random.default_rng(seed)
        if recipe.by_records:
            data = self._labelled_by_records(features, labels, rng)
        else:
            data = self._labelled_by_teachers(features, labels, ids, rng)
        return train_student(
            recipe.student.model_copy(update={"seed": seed % 2**31}),
            data,
            plugin_path=self.run.options.plugin_path,
        )

    def reference(self, records: NDArray[Any], labels: IntArray, *, seed: int) -> Teacher:
        """Return the student's model fitted to private labels themselves: NOT PRIVATE.

        ``records`` are as the student's model takes them.
        """
        spec = self.run.recipe.student
        plain = {"method": "supervised", "validation": 0.0, "seed": seed % 2**31}
        return train_student(
            spec.model_copy(update=plain),
            StudentData(
                inputs=records, rows=np.arange(len(labels)), labels=labels, classes=self.classes
            ),
            plugin_path=self.run.options.plugin_path,
            private=True,
        )

    def confidences(self, model: Teacher) -> Predict:
        """Return a model's probabilities as a function of records in the form that it takes."""
        return lambda records: probabilities(model, records, classes=self.classes)

    def _labelled_by_records(
        self, features: NDArray[Any], labels: IntArray, rng: np.random.Generator
    ) -> StudentData:
        recipe, context = self.run.recipe, self.context
        reach = recipe.votes.reach
        votes = RecordVotes(
            counts=self.cells.count(features, labels, classes=self.classes, reach=reach),
            reach=reach,
            components=recipe.votes.components is not None,
        )
        table = count_mechanism(recipe.aggregate).release(votes, rng=rng).table
        public = np.array(public_features(context), dtype=np.float64)
        soft = label_inputs(table, places=self.cells, features=public.reshape(len(public), -1))
        return StudentData(
            inputs=np.array(student_inputs(context)),
            features=graph_features(context),
            rows=np.arange(len(public)),
            labels=soft.labels,
            classes=self.classes,
            soft=soft.probabilities,
            weights=soft.confidence,
        )

    def _labelled_by_teachers(
        self,
        features: NDArray[Any],
        labels: IntArray,
        ids: Sequence[str],
        rng: np.random.Generator,
    ) -> StudentData:
        recipe, context = self.run.recipe, self.context
        if recipe.aggregate.in_rounds:
            raise ConditionsFail(
                "labels that are asked for in rounds, each by what the last one released, are not "
                "drawn again here"
            )
        votes = self.votes(features, labels, ids)
        mechanism, plan = voting_mechanism(recipe.aggregate), self.labels.plan
        release = mechanism.release(votes, rng=rng, most_answers=plan.answers)
        return StudentData(
            inputs=np.array(student_inputs(context)),
            features=graph_features(context),
            rows=np.array(self.labels.asked)[release.answered],
            labels=release.labels,
            classes=self.classes,
        )

    def votes(self, features: NDArray[Any], labels: IntArray, ids: Sequence[str]) -> Votes:
        """Return the votes on the asked queries of teachers trained on other records."""
        recipe = self.run.recipe
        single = recipe.partition.model_copy(update={"by": "record"})
        shards = partition(list(ids), teachers=recipe.teachers.count, spec=single)
        teachers: list[Teacher | None] = []
        parts = []
        for number in range(shards.count):
            rows = shards.order[shards.offsets[number] : shards.offsets[number + 1]]
            parts.append((features[rows], labels[rows]))
            teachers.append(self.teacher(number) if len(rows) else None)
        seeds = [seed_for(recipe.teachers, number) for number in range(shards.count)]
        cast = cast_votes(teachers, parts, self.asked, seeds=seeds, classes=self.classes)
        return Votes.from_labels(cast, classes=self.classes, abstentions=True)


def _digests(records: Artifact) -> Iterator[bytes]:
    """Yield a digest of each record with its label."""
    for row, label in zip(records.array("features.npy"), records.array("labels.npy"), strict=True):
        yield hashlib.sha256(np.ascontiguousarray(row).tobytes() + b"%d" % label).digest()
