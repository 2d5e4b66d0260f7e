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

    delta: float = Field(default=1e-5, gt=0, lt=1, description="δ of the guarantee.")


class PartyPrivacy(BaseModel):
    """``[privacy]`` of a party: what it is prepared to spend, whoever asks."""

    model_config = _STRICT

    budget: float = Field(gt=0, description="Limit on ε of all that the records are used for.")
    delta: float = Field(default=1e-5, gt=0, lt=1, description="δ of the ledger.")


class FederationRecipe(BaseModel):
    """The recipe of the coordinator."""

    model_config = _STRICT

    kind: Literal["federation"]
    notes: Notes = ""
    data: PublicData
    federation: FederationTerms
    aggregate: AggregateSpec
    privacy: FederationPrivacy = FederationPrivacy()
    student: StudentSpec
    plugins: Plugins = PluginsSpec()

    @model_validator(mode="after")
    def _is_summed(self) -> Self:
        spec = self.aggregate
        if spec.mechanism not in ("gnmax", "lnmax") or spec.in_rounds or spec.queries is None:
            raise ValueError(
                'a federation sums noised votes once: aggregate.mechanism is "gnmax" or "lnmax", '
                "with a number of queries, and without rounds"
            )
        if self.student.inputs != "raw":
            raise ValueError('student.inputs is "features"; a federation has "raw" inputs only')
        return self

    @property
    def noise(self) -> float:
        """The noise of the sum, in votes: σ or b."""
        spec = self.aggregate
        value = spec.sigma if spec.mechanism == "gnmax" else spec.scale
        assert value is not None  # required by the mechanism
        return float(value)


class PartyRecipe(BaseModel):
    """The recipe of a party."""

    model_config = _STRICT

    kind: Literal["party"]
    notes: Notes = ""
    data_root: DataRoot = None
    data: PartyData
    federation: FederationTerms
    encoder: EncoderSpec = EncoderSpec()
    partition: PartitionSpec = PartitionSpec()
    teachers: TeachersSpec
    privacy: PartyPrivacy
    plugins: Plugins = PluginsSpec()

    def as_recipe(self, question: Question) -> Recipe:
        """Return the recipe that the stages up to the votes are run with."""
        sections = self.model_dump(mode="json", include={"encoder", "partition", "teachers"})
        data = {
            **self.data.model_dump(mode="json", exclude_none=True),
            "public_path": "sent by the coordinator",
            "test_path": "kept by the coordinator",
            "classes": list(question.classes),
        }
        noise = {"gaussian": {"mechanism": "gnmax", "sigma": question.noise}}.get(
            question.mechanism, {"mechanism": "lnmax", "scale": question.noise}
        )
        made = Recipe.model_validate(
            sections
            | {
                "data": data,
                "aggregate": {**noise, "queries": len(question.rows)},
                "privacy": self.privacy.model_dump(mode="json"),
                "student": {"model": "logistic"},  # that of the coordinator: not trained here
            }
        )
        made.data._file = self.data.file
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the coordinator asks of all parties: PUBLIC.

    ``rows`` are those of the public inputs whose votes are summed; ``inputs`` is the digest of all
    public inputs.
    """

    parties: int
    dropouts: int
    colluding: int
    mechanism: Literal["gaussian", "laplace"]
    noise: float
    rows: tuple[int, ...]
    classes: tuple[str, ...]
    inputs: str

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
            if whole and made.rows and len(set(made.rows)) == len(made.rows):
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
        """The noise that each party adds."""
        if self.mechanism == "gaussian":
            return GaussianShare(sigma=self.noise, shares=self.terms.shares)
        if self.mechanism == "laplace":
            return LaplaceShare(scale=self.noise, shares=self.terms.shares)
        raise InvalidInput(f"{self.mechanism!r} is no noise; it is gaussian or laplace")

    @property
    def events(self) -> tuple[Event, ...]:
        """The cost of the sum; the relation is that of each party's partition."""
        change = Sensitivity.of_teachers(queries=len(self.rows), classes=len(self.classes))
        return self.share.events(change)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:24]
