"""The recipes of a federation: one of the coordinator, and one of each party."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pate.accounting import Event
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.mechanisms import AggregateSpec
from pate.mechanisms.noise_shares import GaussianShare, LaplaceShare, NoiseShare, Sensitivity
from pate.partition import PartitionSpec
from pate.pipeline.recipe import Recipe
from pate.recipes.paths import Located, PluginsSpec
from pate.recipes.read import DataRoot, Notes, Plugins
from pate.record_votes import VotesSpec
from pate.students.spec import StudentSpec
from pate.teachers.spec import TeachersSpec

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FederationTerms(BaseModel):
    """``[federation]``: what all organisations have agreed on; the same in every recipe."""

    model_config = _STRICT

    parties: int = Field(ge=2, le=1000, description="Organisations that hold records.")
    dropouts: int = Field(
        default=1, ge=0, description="Most parties that may be missing from the sum of votes."
    )
    colluding: int = Field(
        default=0,
        ge=0,
        description="Most parties that may reveal their share of the noise to the coordinator.",
    )

    @property
    def threshold(self) -> int:
        """The fewest parties whose votes are in a sum that anybody sees."""
        return self.parties - self.dropouts

    @property
    def shares(self) -> int:
        """The shares of noise that suffice.

        Guarantees:
            Of the shares in any sum that is opened, those of colluding parties are not counted on,
            nor, where nobody colludes, that of a single party: it knows its own share, and may read
            the labels and the student that follow from the sum.
        """
        return self.threshold - max(self.colluding, 1)

    @model_validator(mode="after")
    def _most_take_part(self) -> Self:
        if 2 * self.threshold <= self.parties + self.colluding or self.threshold < 2:
            raise ValueError(
                f"of {self.parties} parties, {self.dropouts} may drop out and {self.colluding} "
                "collude: two different sums of one round could then be opened; lower dropouts or "
                "colluding"
            )
        return self


class PublicData(Located):
    """``[data]`` of the coordinator: public inputs and test records, and no private ones."""

    model_config = _STRICT

    name: str = Field(description="Name of the federation's task, for reports.")
    public_path: str = Field(description="The .npz file of public inputs (`X`).")
    test_path: str = Field(description="The .npz file of test records (`X` and `y`).")
    classes: list[str] = Field(min_length=2, description="Class names, in order.")


class PartyData(Located):
    """``[data]`` of a party: its private records."""

    model_config = _STRICT

    name: str = Field(description="Name of the records: their ledger is kept under this name.")
    private_path: str = Field(description="The .npz file of private records (`X`, `y`).")
    id: str | None = Field(default=None, description="Array that identifies a record.")
    group: str | None = Field(
        default=None, description="Array that identifies the person a record belongs to."
    )
    unit: str | None = Field(default=None, description='Noun for one record, such as "patient".')


class FederationPrivacy(BaseModel):
    """``[privacy]`` of the coordinator."""

    model_config = _STRICT

    delta: float = Field(
        default=1e-5, ge=0, lt=1, description="δ of the guarantee; 0 with Laplace noise only."
    )


class PartyPrivacy(BaseModel):
    """``[privacy]`` of a party: what it is prepared to spend, whoever asks."""

    model_config = _STRICT

    budget: float = Field(gt=0, description="Limit on ε of all that the records are used for.")
    delta: float = Field(default=1e-5, gt=0, lt=1, description="δ of the ledger.")


class FederationRecipe(BaseModel):
    """The recipe of the coordinator."""

    model_config = _STRICT

    kind: Literal["federation"] = Field(description="Marks a recipe of a coordinator.")
    notes: Notes = ""
    data: PublicData
    federation: FederationTerms
    encoder: EncoderSpec = EncoderSpec()
    votes: VotesSpec = VotesSpec()
    aggregate: AggregateSpec
    privacy: FederationPrivacy = FederationPrivacy()
    student: StudentSpec
    plugins: Plugins = PluginsSpec()

    @model_validator(mode="after")
    def _is_summed(self) -> Self:
        spec = self.aggregate
        if self.votes.by == "records":
            _require_one_table(self.votes)
            if spec.kind.takes != "records":
                raise ValueError(
                    'with votes.by = "records" aggregate.mechanism is "laplace-counts" or '
                    '"gaussian-counts"'
                )
        elif spec.mechanism not in ("gnmax", "lnmax") or spec.in_rounds or spec.queries is None:
            raise ValueError(
                'a federation sums noised votes once: aggregate.mechanism is "gnmax" or "lnmax", '
                "with a number of queries, and without rounds"
            )
        elif self.encoder.steps:
            raise ValueError(
                "teachers have encoders of their own, at the parties; remove [encoder]"
            )
        if self.student.inputs != "raw":
            raise ValueError('student.inputs is "features"; a federation has "raw" inputs only')
        return self

    @property
    def noise(self) -> float:
        """The noise of the sum, in votes: σ or b."""
        (key,) = self.aggregate.kind.required_keys()
        return float(getattr(self.aggregate, key))

    @property
    def is_gaussian(self) -> bool:
        """Whether the noise is Gaussian, and not Laplace."""
        return self.aggregate.kind.required_keys() == ("sigma",)


class PartyRecipe(BaseModel):
    """The recipe of a party."""

    model_config = _STRICT

    kind: Literal["party"] = Field(description="Marks a recipe of a party.")
    notes: Notes = ""
    data_root: DataRoot = None
    data: PartyData
    federation: FederationTerms
    encoder: EncoderSpec = EncoderSpec()
    partition: PartitionSpec = PartitionSpec()
    votes: VotesSpec = VotesSpec()
    teachers: TeachersSpec | None = None
    privacy: PartyPrivacy
    plugins: Plugins = PluginsSpec()

    @model_validator(mode="after")
    def _somebody_votes(self) -> Self:
        if self.votes.by == "records":
            _require_one_table(self.votes)
        if (self.teachers is None) != (self.votes.by == "records"):
            raise ValueError('give a section [teachers], or [votes] with by = "records"')
        return self

    @property
    def teacher_count(self) -> int:
        """The number of teachers; 0 where records vote."""
        return 0 if self.teachers is None else self.teachers.count

    def as_recipe(self, question: Question) -> Recipe:
        """Return the recipe that the stages up to the votes are run with."""
        named = {"encoder", "partition", "votes", "teachers"}
        sections = self.model_dump(mode="json", include=named, exclude_none=True)
        data = {
            **self.data.model_dump(mode="json", exclude_none=True),
            "public_path": "sent by the coordinator",
            "test_path": "kept by the coordinator",
            "classes": list(question.classes),
        }
        gaussian = question.mechanism == "gaussian"
        aggregate: dict[str, Any] = {"sigma" if gaussian else "scale": question.noise}
        if self.votes.by == "records":
            aggregate["mechanism"] = "gaussian-counts" if gaussian else "laplace-counts"
        else:
            aggregate["mechanism"] = "gnmax" if gaussian else "lnmax"
            aggregate["queries"] = len(question.rows)
        made = Recipe.model_validate(
            sections
            | {
                "data": data,
                "aggregate": aggregate,
                "privacy": self.privacy.model_dump(mode="json"),
                "student": {"model": "logistic"},  # that of the coordinator: not trained here
            }
        )
        made.data._file = self.data.file
        return made


def _require_one_table(votes: VotesSpec) -> None:
    """Refuse record votes at places that machines may round differently, and several of a user."""
    if (votes.cells, votes.components, votes.per_user) != (None, None, None):
        raise ValueError(
            "in a federation records vote at all public inputs, one of each user; leave "
            "votes.cells, votes.components and votes.per_user out"
        )


def encoder_digest(spec: EncoderSpec) -> str:
    """Return the digest of an encoder's settings, by which a question names it."""
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the coordinator asks of all parties: PUBLIC.

    ``rows`` are those of the public inputs whose votes are summed, with record votes all;
    ``inputs`` is the digest of all public inputs; ``encoder`` the digest of the encoder that
    record votes need to have in common.
    """

    parties: int
    dropouts: int
    colluding: int
    mechanism: Literal["gaussian", "laplace"]
    noise: float
    rows: tuple[int, ...]
    classes: tuple[str, ...]
    inputs: str
    by: Literal["teachers", "records"] = "teachers"
    reach: int = 1
    encoder: str = ""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the question in a message; refuse what is none."""
        try:
            content: dict[str, Any] = json.loads(text)
            made = cls(
                **content | {key: tuple(content[key]) for key in ("rows", "classes")},
            )
            made.terms, made.share  # noqa: B018, checks of their values
            whole = all(type(row) is int and row >= 0 for row in made.rows)
            known = made.by in ("teachers", "records") and type(made.reach) is int
            if known and whole and made.rows and len(set(made.rows)) == len(made.rows):
                return made
        except (KeyError, TypeError, ValueError):
            pass
        raise InvalidInput("the coordinator's question cannot be read; check its version of pate")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def terms(self) -> FederationTerms:
        """The terms as this question states them."""
        return FederationTerms(
            parties=self.parties, dropouts=self.dropouts, colluding=self.colluding
        )

    @property
    def share(self) -> NoiseShare:
        """The noise that each party adds, in units of 1/reach vote."""
        if self.mechanism == "gaussian":
            return GaussianShare(sigma=self.noise * self.reach, shares=self.terms.shares)
        if self.mechanism == "laplace":
            return LaplaceShare(scale=self.noise * self.reach, shares=self.terms.shares)
        raise InvalidInput(f"{self.mechanism!r} is no noise; it is gaussian or laplace")

    @property
    def events(self) -> tuple[Event, ...]:
        """The cost of the sum; the relation is that of each party's partition."""
        rows, classes = len(self.rows), len(self.classes)
        if self.by == "teachers":
            return self.share.events(Sensitivity.of_teachers(queries=rows, classes=classes))
        change = Sensitivity.of_records(cells=rows, classes=classes, reach=self.reach, records=1)
        return self.share.events(change)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:24]
