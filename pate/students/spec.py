"""The ``[student]`` section of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from pate.teachers.spec import ModelName, ModelSpec, Training


class StudentSpec(Training):
    """Which model learns from the released labels, and how.

    >>> StudentSpec(model="sklearn.linear_model:LogisticRegression").method
    'supervised'
    """

    method: Literal["supervised", "self-training"] = "supervised"
    model: ModelName
    rounds: PositiveInt = 3  # of self-training, after the first fit
    confidence: float = Field(default=0.9, gt=0, le=1)  # a pseudo-label needs this probability
    seed: int = Field(default=0, ge=0, lt=2**32)

    def as_model(self) -> ModelSpec:
        """The student's model on its own, as :func:`pate.teachers.load` wants it."""
        settings = {name: getattr(self, name) for name in Training.model_fields}
        return ModelSpec(model=self.model, **settings)
