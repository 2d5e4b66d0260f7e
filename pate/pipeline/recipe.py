"""A recipe: what to do with which data, checked before anything runs."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pate._format import describe_neighbours
from pate.accounting import Analysis, Conversion, Neighbours
from pate.datasets.spec import DataSpec
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.mechanisms import (
    AggregateSpec,
    OpenAggregateSpec,
    Plan,
    count_mechanism,
    plan_caps,
    plan_table,
    voting_mechanism,
)
from pate.mechanisms.spec import known_mechanisms
from pate.partition import PartitionSpec
from pate.recipes.paths import PluginsSpec
from pate.recipes.read import DataRoot, Notes, Plugins
from pate.record_votes import VotesSpec
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
        default=None,
        description="Cap on ε of this run; fixes the number of queries and answers, or, where "
        "`queries` is given and no noise (lnmax, gnmax), or with record votes, the noise.",
    )
    delta: float = Field(
        default=1e-5,
        ge=0,
        lt=1,
        description="δ of the run and of the ledger. At 0, the default of laplace-counts, ε is "
        "that of pure differential privacy; a new ledger then has a δ of 1e-5.",
    )
    conversion: Literal["classic", "improved"] = Field(
        default="improved", description="Conversion of log-moments to (ε, δ)."
    )
    analysis: Literal["published", "tight"] | None = Field(
        default=None,
        exclude_if=lambda value: value is None,  # recipes without it keep their cache keys
        description="Bounds of the costs of votes, and accountants: tight ones (default), or "
        "log-moments by the papers' bounds.",
    )
    budget: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Limit of the data set over all runs; fixed when its ledger is created.",
    )
    sanitise: bool | None = Field(
        default=None,
        description="Also publish the data-dependent ε, with noise that has its own cost: it pays "
        "only where `pate plan` predicts so. Default: no.",
    )
    doubt: float = Field(
        default=0.01,
        ge=1e-20,  # with less, its margin would need more noise than it covers
        lt=0.5,
        description="Probability that the sanitised ε is too small.",
    )

    @property
    def ledger_delta(self) -> float:
        """The δ of a ledger that is made for this run; one of log-moments needs some."""
        return self.delta or type(self).model_fields["delta"].default

    @property
    def bounds(self) -> Analysis:
        """The bounds of the guarantee."""
        return Analysis(self.analysis or Analysis.TIGHT)


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
    """A whole recipe; data, aggregate and student are required, and teachers if they vote.

    Noise that ``[aggregate]`` leaves open is found when the recipe is read: from then on it is a
    setting like any other.
    """

    # Repeated here: rules between sections follow the configuration of the outermost model.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    notes: Notes = ""
    data_root: DataRoot = None
    data: DataSpec
    encoder: EncoderSpec = EncoderSpec()
    partition: PartitionSpec = PartitionSpec()
    # Left out where it says nothing: then recipes of teachers are those of earlier versions.
    votes: VotesSpec = Field(default=VotesSpec(), exclude_if=lambda value: value.by == "teachers")
    # None with record votes, where no stage that reads it is run.
    teachers: TeachersSpec = Field(default=cast(Any, None), exclude_if=lambda value: value is None)
    aggregate: AggregateSpec
    privacy: PrivacySpec = PrivacySpec()
    student: StudentSpec
    evaluate: EvaluateSpec = EvaluateSpec()
    plugins: Plugins = PluginsSpec()
    selection: SelectionSpec | None = None

    _found: str | None = PrivateAttr(default=None)  # the key of noise that was left open

    @field_validator("teachers", mode="before")
    @classmethod
    def _are_asked(cls, teachers: Any, info: ValidationInfo) -> Any:
        """Refuse teachers beside record votes, before anything is wanted of them."""
        votes = info.data.get("votes")
        if votes is not None and votes.by == "records":
            raise ValueError(
                'votes.by = "records" trains no teachers; remove the section [teachers]'
            )
        return teachers

    @model_validator(mode="wrap")
    @classmethod
    def _find_noise(cls, content: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Find the noise for ``privacy.epsilon`` and ``queries``, if it is left open."""
        key, complete = _with_noise(content)
        made = handler(complete)
        if key is not None:
            made._found = key
        return made

    @property
    def found_noise(self) -> tuple[str, float] | None:
        """The noise that was found, by its key; None where the recipe gives it."""
        return None if self._found is None else (self._found, getattr(self.aggregate, self._found))

    @property
    def noise_target(self) -> str:
        """All that decides which noise is found."""
        spec, privacy = self.aggregate, self.privacy
        if self.by_records:
            return (
                f"{self._found} of {spec.mechanism} at reach {self.votes.reach}, {self.per_user} "
                f"records of a user, ε {privacy.epsilon!r}, δ {privacy.delta!r} "
                f"({privacy.conversion})"
            )
        answers = min(spec.queries or 0, spec.answers or spec.queries or 0)
        return (
            f"{self._found} of {spec.mechanism} for {answers} answers at ε {privacy.epsilon!r}, "
            f"δ {privacy.delta!r} ({privacy.conversion})"
        )

    def with_found(self, noise: float) -> Self:
        """Return the recipe with other noise in place of what was found."""
        assert self._found is not None
        changed = self.aggregate.model_copy(update={self._found: noise})
        return self.model_copy(update={"aggregate": changed})

    def settled(self) -> Self:
        """Return the recipe as if the noise that was found had been given."""
        made = self.model_copy()
        made._found = None
        return made

    def plan(self, *, inputs: int, analysis: Analysis | None = None) -> Plan:
        """Return the most that is asked of so many public inputs; made before votes are opened.

        ``analysis`` takes the place of the recipe's.
        """
        if self._found is not None and (self.aggregate.queries or 0) > inputs:
            raise InvalidInput(
                f"aggregate.queries is {self.aggregate.queries}, for which {self._found} is found, "
                f"and there are {inputs} public inputs; lower queries to {inputs}, or give "
                f"{self._found}"
            )
        if self.by_records:
            return plan_table(
                count_mechanism(self.aggregate),
                epsilon=self.privacy.epsilon,
                delta=self.privacy.delta,
                inputs=inputs,
                reach=self.votes.reach,
                per_user=self.per_user,
                components=self.votes.components is not None,
                conversion=Conversion(self.privacy.conversion),
            )
        mechanism = voting_mechanism(self.aggregate)
        mechanism.check_reachable(teachers=self.teachers.count)
        return plan_caps(
            mechanism,
            self.aggregate,
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            available_queries=inputs,
            conversion=Conversion(self.privacy.conversion),
            analysis=self.privacy.bounds if analysis is None else analysis,
            by_moments=self.privacy.budget is not None,
        )

    @property
    def by_records(self) -> bool:
        """Whether records vote, and not teachers."""
        return self.votes.by == "records"

    @property
    def count_deviation(self) -> float:
        """The standard deviation of the noise on a count of record votes, in votes."""
        variance = count_mechanism(self.aggregate).variance(reach=self.votes.reach)
        return math.sqrt(variance) / self.votes.reach

    def resolved_votes(self, *, inputs: int, classes: int) -> VotesSpec:
        """Return the section ``[votes]`` with the numbers of cells or components that it means."""
        return self.votes.resolved(inputs=inputs, classes=classes, deviation=self.count_deviation)

    @property
    def per_user(self) -> int | None:
        """The most records of a user that vote; None where single records are protected."""
        return None if self.protected_group is None else self.votes.per_user or 1

    @property
    def neighbours(self) -> Neighbours:
        """The relation between data sets under which the guarantee of a run holds."""
        if not self.by_records:
            return self.partition.neighbours
        return Neighbours.ADD_REMOVE if self.per_user is None else Neighbours.USER_ADD_REMOVE

    def protects(self, *, named: bool) -> str:
        """Return in words whom the guarantee protects; ``named`` if records have their own ids.

        A replaced record takes its vote elsewhere, which is one removed and one added: not covered.
        """
        if not self.by_records:
            return self.partition.protects(named=named)
        return describe_neighbours(self.neighbours)

    @property
    def protected_group(self) -> str | None:
        """The column whose groups are protected; None if single records are."""
        return None if self.partition.by == "record" else self.data.group or "groups"

    @property
    def unit(self) -> str:
        """The noun of the guarantee: what one record is, or one group where those are protected."""
        return self.data.unit or ("user" if self.partition.by == "group" else "record")

    @property
    def record_unit(self) -> str:
        """The noun for one record: what every release of the data set protects, by group or not."""
        return "record" if self.partition.by == "group" else self.unit

    @property
    def nouns(self) -> dict[str, str]:
        """The nouns for one record and for one user: of :func:`pate._format.in_nouns`."""
        return {
            "record": self.record_unit,
            "user": self.unit if self.partition.by == "group" else "user",
        }

    @property
    def asked(self) -> str:
        """The teachers, the mechanism and the caps in a line: it distinguishes runs in a folder."""
        spec = self.aggregate
        noise = [f"{key} {getattr(spec, key):g}" for key in spec.kind.required_keys()]
        voters = "record votes" if self.by_records else f"{self.teachers.count} teachers"
        parts = [voters, f"{spec.mechanism} ({', '.join(noise)})"]
        if spec.queries is not None:
            parts.append(f"at most {spec.queries} queries")
        if self.privacy.epsilon is not None:
            parts.append(f"ε at most {self.privacy.epsilon:g}")
        return ", ".join(parts)

    @model_validator(mode="after")
    def _groups_are_protected(self) -> Self:
        """Settle what the partition protects: a group column protects whole groups by itself."""
        settled = self.partition.settled(grouped=self.data.group is not None)
        object.__setattr__(self, "partition", settled)  # of a frozen model, while it is made
        return self

    @model_validator(mode="after")
    def _votes_are_counted(self) -> Self:
        """Check that votes, mechanism and teachers go together; a pure table has δ = 0."""
        by, name = self.votes.by, self.aggregate.mechanism
        if self.aggregate.kind.takes != by:
            kinds = [n for n, kind in known_mechanisms().items() if kind.takes == by]
            raise ValueError(
                f'mechanism "{name}" takes votes by {self.aggregate.kind.takes}, and votes.by is '
                f'"{by}"; choose {", ".join(kinds[:-1])} or {kinds[-1]}'
            )
        if not self.by_records:
            if "teachers" not in self.model_fields_set:
                raise ValueError("the section [teachers] is missing")
            if not self.privacy.delta:
                raise ValueError("privacy.delta is 0, which only laplace-counts reaches; raise it")
            return self
        if self.partition.method != "hash":
            raise ValueError(
                f'partition.method = "{self.partition.method}" is for teachers; with '
                'votes.by = "records" leave it out'
            )
        if self.per_user is None and self.votes.per_user is not None:
            raise ValueError(
                "votes.per_user caps the records of a user, and no users are protected; name "
                "their column in data.group, or leave per_user out"
            )
        if self.selection is not None:
            raise ValueError(
                "private selection among tables of record votes is not supported; sweep without it"
            )
        if self.privacy.sanitise:
            raise ValueError(
                "the cost of a table of record votes does not depend on the votes; leave "
                "privacy.sanitise out"
            )
        mechanism = count_mechanism(self.aggregate)
        mechanism.require_norm(components=self.votes.components is not None)
        pure = mechanism.pure
        if pure and "delta" not in self.privacy.model_fields_set:
            object.__setattr__(self, "privacy", self.privacy.model_copy(update={"delta": 0.0}))
        if not pure and not self.privacy.delta:
            raise ValueError(f'privacy.delta is 0, and mechanism "{name}" needs one above zero')
        return self

    @model_validator(mode="after")
    def _the_guarantee_holds(self) -> Self:
        """A fixed number of private records would let one that leaves pull another one in.

        And of a share, chosen by what records hold, a replaced one would change the number.
        """
        if self.partition.method == "hash" and isinstance(self.data.private, int):
            raise ValueError(
                'data.private is a number of records, which holds for partition.method = "shuffle" '
                "only; give a share between 0 and 1, or leave it out"
            )
        if self.partition.method == "shuffle" and isinstance(self.data.private, float):
            raise ValueError(
                'data.private is a share, which holds for partition.method = "hash" only; give a '
                "number of records, or leave it out"
            )
        if self.data.unit and self.data.group and self.partition.by == "record":
            raise ValueError(
                f'data.unit is "{self.data.unit}", and partition.by = "record" protects single '
                "records, of which one group may have several; leave unit out, or protect groups: "
                'partition.by = "group"'
            )
        return self


def _with_noise(content: Any) -> tuple[str | None, Any]:
    """Return the key of noise that a recipe leaves open, and its content with that noise.

    What is wrong with the content is left to validation.
    """
    given = content.get("aggregate") if isinstance(content, dict) else None
    if not isinstance(given, dict):
        return None, content
    try:
        spec = OpenAggregateSpec.model_validate(given)
    except ValidationError:
        return None, content
    key = spec.kind.calibrated
    if key is None or not spec.finds_noise:
        return None, content
    try:
        privacy = PrivacySpec.model_validate(content.get("privacy", {}))
    except ValidationError:  # which is reported, and not the noise that cannot be found for it
        return None, content | {"aggregate": given | {key: 1.0}}
    if privacy.epsilon is None:
        return None, content
    try:
        votes = VotesSpec.model_validate(content.get("votes", {}))
        data = content.get("data", {})
        grouped = bool(data.group if isinstance(data, DataSpec) else data.get("group"))
        by = PartitionSpec.model_validate(content.get("partition", {})).settled(grouped=grouped).by
    except (ValidationError, ValueError, AttributeError):
        return None, content | {"aggregate": given | {key: 1.0}}
    if not privacy.delta and not getattr(spec.kind, "pure", False):  # which is refused
        return None, content | {"aggregate": given | {key: 1.0}}
    noise = spec.least_noise(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        conversion=Conversion(privacy.conversion),
        analysis=privacy.bounds,
        by_moments=privacy.budget is not None,
        reach=votes.reach,
        per_user=(votes.per_user or 1) if by == "group" else None,
    )
    return key, content | {"aggregate": given | {key: noise}}
