"""A recipe: what to do with which data, checked before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pate.accounting import Conversion
from pate.datasets.spec import DataSpec
from pate.encoders.spec import EncoderSpec
from pate.mechanisms import AggregateSpec, Plan, make_mechanism, plan_caps
from pate.partition import PartitionSpec
from pate.recipes.read import DataRoot, Notes
from pate.students.spec import StudentSpec
from pate.teachers.spec import TeachersSpec


class PrivacySpec(BaseModel):
    """``[privacy]``: the cost of this run, and the budget of the data set.

    ``epsilon`` caps this run: the most queries and answers that fit are computed before the votes
    are opened. ``budget`` is the data set's own limit over all runs; it is fixed when its ledger is
    created, and never changes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epsilon: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Cap on ε of this run; fixes the number of queries and answers."
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="δ of the run and of the ledger.")
    conversion: Literal["classic", "improved"] = Field(
        default="improved", description="Conversion of log-moments to (ε, δ)."
    )
    budget: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Limit of the data set over all runs; fixed when its ledger is created.",
    )
    sanitise: bool = Field(
        default=True,
        description="Publish the data-dependent ε with noise; the noise has its own cost.",
    )
    doubt: float = Field(
        default=0.01, gt=0, lt=0.5, description="Probability that the sanitised ε is too small."
    )


class EvaluateSpec(BaseModel):
    """``[evaluate]``: models to compare the student with, on the test records."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference: bool = Field(
        default=False,
        description="Also train the student's model on the private records; never published.",
    )
    public_labels: bool = Field(
        default=False, description="Also train the student on the true labels of the queries."
    )


class SelectionSpec(BaseModel):
    """``[selection]``: the private selection that chose this recipe. Not written by hand.

    The number of tries was drawn from a distribution of this mean and shape
    (:class:`pate.accounting.BestOfTries`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    candidates: tuple[dict[str, Any], ...] = Field(
        min_length=1, description="Recipes that could have been chosen, by their settings."
    )
    mean_tries: float = Field(gt=1, description="Mean number of tries.")
    shape: float = Field(default=0.0, ge=0, description="Shape of the number of tries.")


class Recipe(BaseModel):
    """A whole recipe; data, teachers, aggregate and student are required."""

    # Repeated here: rules between sections follow the configuration of the outermost model.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    notes: Notes = ""
    data_root: DataRoot = None
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
        """The teachers, the mechanism and the caps in a line: it distinguishes runs in a folder."""
        spec = self.aggregate
        noise = [f"{key} {getattr(spec, key):g}" for key in spec.kind.required_keys()]
        parts = [f"{self.teachers.count} teachers", f"{spec.mechanism} ({', '.join(noise)})"]
        if spec.queries is not None:
            parts.append(f"at most {spec.queries} queries")
        if self.privacy.epsilon is not None:
            parts.append(f"ε at most {self.privacy.epsilon:g}")
        return ", ".join(parts)

    @model_validator(mode="after")
    def _the_guarantee_holds(self) -> Self:
        """A fixed number of private records would let one that leaves pull another one in."""
        if self.partition.method == "hash" and isinstance(self.data.private, int):
            raise ValueError(
                'data.private is a number of records, which holds for partition.method = "shuffle" '
                "only; give a share between 0 and 1, or leave it out"
            )
        return self
