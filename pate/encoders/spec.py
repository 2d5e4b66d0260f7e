"""The ``[encoder]`` section of a recipe: the steps that turn an input into features."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from pate.errors import InvalidInput, MissingFile
from pate.recipes.paths import Located, find_path

# The keys of each step with their defaults; ``...`` where a key is required.
_KEYS: dict[str, dict[str, Any]] = {
    "scattering": {"J": 2, "L": 8, "order": 2},
    "root": {},
    "standardise": {"floor": 0.0, "groups": None},
    "normalise": {},
    "groupnorm": {"groups": ...},
    "pca": {"dimension": ..., "whiten": 0.0},
    "diffusion": {"dimension": ..., "neighbours": 10, "time": 16.0},
    "impute": {"strategy": "mean", "value": None},
    "one-hot": {},
    "ordinal": {},
    "torch": {
        "model": ..., "weights": ...,
        **dict.fromkeys(("layer", "resize", "channels", "mean", "std", "params")),
    },
}  # fmt: skip
NAMES = tuple(_KEYS)
_OWN: dict[str, Any] = {"params": None}
_ENTRY = re.compile(r"[\w.]+:[\w.]+")

Whole = Annotated[int, Field(ge=1, strict=True)]
Share = Annotated[float, Field(ge=0, le=1)]


class StepSpec(Located):
    """One step: its name, or ``"module:attr"``, and its own settings.

    >>> StepSpec(name="scattering").settings()
    {'J': 2, 'L': 8, 'order': 2}
    >>> try:
    ...     StepSpec(name="pca", whiten=1.0, L=8)
    ... except ValueError as error:
    ...     "needs dimension, and takes no L" in str(error)
    True
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(
        description="scattering, root, standardise, normalise, groupnorm, pca, diffusion, torch, "
        'impute, one-hot, ordinal, or "module:attr", such as a transformer of scikit-learn'
    )
    J: Annotated[int, Field(ge=1, le=10, strict=True)] | None = Field(
        None, description="scattering: averages over 2^J pixels; default 2"
    )
    L: Whole | None = Field(None, description="scattering: angles of the wavelets; default 8")
    order: Annotated[int, Field(ge=1, le=2, strict=True)] | None = Field(
        None, description="scattering: 1 or 2 wavelets in a row; default 2"
    )
    floor: Share | None = Field(
        None, description="standardise: least scale, as a share of the median scale; default 0"
    )
    groups: Whole | None = Field(
        None,
        description="groupnorm: parts of a record, each scaled to mean 0 and variance 1; "
        "standardise: parts that share one scale",
    )
    dimension: Whole | None = Field(None, description="pca and diffusion: number of components")
    whiten: Share | None = Field(
        None, description="pca: 0 keeps the variances, 1 makes all of them one; default 0"
    )
    neighbours: Whole | None = Field(
        None, description="diffusion: public inputs to which a walk may step; default 10"
    )
    time: Annotated[float, Field(ge=1, le=1000)] | None = Field(
        None, description="diffusion: steps of the walk; default 16"
    )
    strategy: Literal["mean", "median", "most_frequent", "constant"] | None = Field(
        None,
        description="impute: what replaces a missing number; default mean. A missing category "
        "becomes the most frequent one",
    )
    value: float | None = Field(None, description="impute: the constant; default 0")
    model: str | None = Field(None, description='torch: the backbone, as "module:attr"')
    weights: str | None = Field(
        None, description="torch: a .safetensors or .pt file, relative to the recipe"
    )
    layer: str | None = Field(
        None, description='torch: the layer to remove instead of the last linear one; "": none'
    )
    resize: Whole | None = Field(None, description="torch: images become resize x resize pixels")
    channels: Whole | None = Field(
        None, description="torch: grey images are repeated to so many channels"
    )
    mean: list[float] | None = Field(None, description="torch: subtracted from each channel")
    std: list[Annotated[float, Field(gt=0)]] | None = Field(
        None, description="torch: divisor of each channel"
    )
    params: dict[str, JsonValue] | None = Field(
        None, description='torch and "module:attr": arguments of the class or factory'
    )

    @model_serializer(mode="wrap")
    def _without_newer_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Fingerprints of recipes without these keys are as before there were any.
        written: dict[str, Any] = handler(self)
        for key in ("strategy", "value"):
            if written.get(key) is None:
                written.pop(key, None)
        return written

    @property
    def own(self) -> bool:
        """Whether the step is the user's own."""
        return ":" in self.name

    @property
    def runs_user_code(self) -> bool:
        """Whether the step is the user's own, or a network.

        >>> [StepSpec(name=name).runs_user_code for name in ("scattering", "numpy:tanh")]
        [False, True]
        """
        return self.own or self.name == "torch"

    def settings(self) -> dict[str, Any]:
        """Return the keys of this step, given or default; none of other steps."""
        keys = _KEYS.get(self.name, _OWN)
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, given: Any) -> Any:
        """Accept a bare name as a step; write defaults out, as in a resolved recipe."""
        if isinstance(given, str):
            given = {"name": given}
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            return given
        defaults = {k: v for k, v in _KEYS.get(given["name"], {}).items() if v is not ...}
        return {**given, **{k: v for k, v in defaults.items() if given.get(k) is None}}

    @model_validator(mode="after")
    def _takes_what_it_needs(self) -> Self:
        if not (self.name in NAMES or _ENTRY.fullmatch(self.name)):
            near = difflib.get_close_matches(self.name, NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(NAMES)}"
            raise InvalidInput(f"{self.name!r} is neither a step nor 'module:attr'; {hint}")
        keys = _KEYS.get(self.name, _OWN)
        given = [k for k in type(self).model_fields if k != "name" and getattr(self, k) is not None]
        missing = [key for key, default in keys.items() if default is ... and key not in given]
        unneeded = [key for key in given if key not in keys]
        problems = []
        if missing:
            problems.append(f"needs {' and '.join(missing)}")
        if unneeded:
            problems.append(f"takes no {' and no '.join(unneeded)}")
        if problems:
            known = f"its keys are {', '.join(keys)}" if keys else "it has no keys"
            raise InvalidInput(f'step "{self.name}" {", and ".join(problems)}; {known}')
        self._fits_together()
        return self

    def _fits_together(self) -> None:
        if self.value is not None and self.strategy != "constant":
            raise InvalidInput(
                f'step "impute" takes value with strategy = "constant" only, and strategy is '
                f'"{self.strategy}"; leave one of them out'
            )
        if self.model is not None and not _ENTRY.fullmatch(self.model):
            raise InvalidInput(f"model is {self.model!r}; write it as 'module:attr'")
        if self.weights is not None and not self.weights.endswith((".safetensors", ".pt", ".pth")):
            raise InvalidInput(
                f"weights is {self.weights!r}; give a .safetensors file, or a .pt file of a "
                "state dict"
            )
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise InvalidInput("mean and std go together, with one number each for every channel")


class EncoderSpec(BaseModel):
    """``[encoder]``: the steps, in order; without any, features are the inputs.

    >>> spec = EncoderSpec(steps=["scattering", {"name": "pca", "dimension": 40}])
    >>> [step.name for step in spec.steps]
    ['scattering', 'pca']

    Guarantees:
        Steps are fixed or fitted on PUBLIC inputs, so features cost no privacy. A backbone's
        weights and a user's own step must not come from private records either, which no program
        can check.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    steps: list[StepSpec] = Field(
        default=[], description="Steps in order; a step without keys may be its name alone."
    )

    @property
    def runs_user_code(self) -> bool:
        """Whether any step is the user's own, or a network."""
        return any(step.runs_user_code for step in self.steps)

    @property
    def completes(self) -> bool:
        """Whether no missing value is left after the steps, as far as built-in ones are known."""
        return any(step.name == "impute" for step in self.steps)

    def require_categories(self, categories: Sequence[int]) -> None:
        """Refuse steps that leave codes of categories to a model, or take them for numbers."""
        if not any(categories):
            return
        for step in self.steps:
            if step.own or step.name in ("one-hot", "ordinal"):
                return
            if step.name != "impute":
                raise InvalidInput(
                    f'step "{step.name}" would take codes of categories for numbers; put "one-hot" '
                    'or "ordinal" before it'
                )
        raise InvalidInput(
            f"{sum(map(bool, categories))} of {len(categories)} columns hold categories, which a "
            'model would take for numbers; add the step "one-hot" to the encoder, or "ordinal" for '
            "trees"
        )

    def weight_digests(self, *, plugin_path: Path | None = None) -> list[str]:
        """Return digests of the files of weights that the steps read, for a fingerprint."""
        from pate.artifacts import digest_of

        return [
            digest_of(find_weights(step.weights, folder=step.folder, plugin_path=plugin_path))
            for step in self.steps
            if step.weights is not None
        ]


def find_weights(weights: str, *, folder: Path | None, plugin_path: Path | None) -> Path:
    """Return the file of weights: relative to the recipe's folder, or to the user's own code."""
    plugins = [path if path.is_dir() else path.parent for path in [plugin_path] if path]
    try:
        file = find_path(weights, folder=folder, elsewhere=plugins)
    except MissingFile as error:
        raise MissingFile(f"{error}, for the backbone's weights; check the path") from None
    if not file.is_file():
        raise InvalidInput(f"{file} is a folder, and weights are a file; check the path")
    return file
