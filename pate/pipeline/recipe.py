"""A recipe: what to do with which data, checked before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pate.accounting import Conversion
from pate.datasets.spec import DataSpec
from pate.encoders.spec import EncoderSpec
from pate.mechanisms import AggregateSpec, Plan, make_mechanism, plan_caps
from pate.partition import PartitionSpec
from pate.recipes.schema import Notes
from pate.students.spec import StudentSpec
from pate.teachers.spec import TeachersSpec


class PrivacySpec(BaseModel):
    """``[privacy]``: what this run may cost, and what the data set may cost in all.

    ``epsilon`` caps this run: the most queries and answers that fit are worked out before the votes
    are opened. ``budget`` is the data set's own limit, over all runs; it is agreed on when its
    ledger is made, and never changes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epsilon: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    conversion: Literal["classic", "improved"] = "improved"
    budget: Annotated[float, Field(gt=0)] | None = None
    sanitise: bool = True  # publish the data-dependent ε with noise, at its price
    doubt: Annotated[float, Field(gt=0, lt=0.5)] = 0.01


class EvaluateSpec(BaseModel):
    """``[evaluate]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference: bool = False  # also train the student's model on the private data, for comparison
    public_labels: bool = False  # and the student on the own labels of what was asked about


class SelectionSpec(BaseModel):
    """``[selection]``: how this recipe was chosen, privately. Written by a selection, not by hand.

    ``candidates`` are what could have been chosen, each as the settings that tell it from the
    others; ``mean_tries`` and ``shape`` say how the number of tries was drawn
    (:class:`pate.accounting.BestOfTries`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    candidates: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    mean_tries: Annotated[float, Field(gt=1)]
    shape: Annotated[float, Field(ge=0)] = 0.0


class Recipe(BaseModel):
    """The whole of it; every section has defaults but data, teachers, aggregate and student."""

    # Said here too: what sections have in common is checked by the rules of the outermost.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    notes: Notes = ""
    data: DataSpec
    encoder: EncoderSpec = EncoderSpec()
    partition: PartitionSpec = PartitionSpec()
    teachers: TeachersSpec
    aggregate: AggregateSpec
    privacy: PrivacySpec = PrivacySpec()
    student: StudentSpec
    evaluate: EvaluateSpec = EvaluateSpec()
    selection: SelectionSpec | None = None

    def plan(self, *, inputs: int) -> Plan:
        """Return the most that is asked of so many public inputs; made before votes are opened."""
        mechanism = make_mechanism(self.aggregate)
        mechanism.check_reachable(teachers=self.teachers.count)
        return plan_caps(
            mechanism,
            self.aggregate,
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            available_queries=inputs,
            conversion=Conversion(self.privacy.conversion),
        )

    @property
    def asked(self) -> str:
        """What is asked of whom, in a line: it distinguishes the runs of one folder."""
        spec = self.aggregate
        noise = [f"{key} {getattr(spec, key):g}" for key in spec.kind.required_keys()]
        told = [f"{self.teachers.count} teachers", f"{spec.mechanism} ({', '.join(noise)})"]
        if spec.queries is not None:
            told.append(f"at most {spec.queries} queries")
        if self.privacy.epsilon is not None:
            told.append(f"ε at most {self.privacy.epsilon:g}")
        return ", ".join(told)

    @model_validator(mode="after")
    def _the_guarantee_holds(self) -> Self:
        """A fixed number of private records would let one that leaves pull another one in."""
        if self.partition.method == "hash" and isinstance(self.data.private, int):
            raise ValueError(
                'data.private is a number of records, which holds for partition.method = "shuffle" '
                "only; give a share between 0 and 1, or leave it out"
            )
        return self
