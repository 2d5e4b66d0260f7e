"""The ``[encoder]`` section of a recipe: the steps that turn an input into features."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from pate.errors import InvalidInput

# The keys of each step with their defaults; ``...`` where a key is required.
_KEYS: dict[str, dict[str, Any]] = {
    "scattering": {"J": 2, "L": 8, "order": 2},
    "root": {},
    "standardise": {"floor": 0.0, "groups": None},
    "normalise": {},
    "groupnorm": {"groups": ...},
    "pca": {"dimension": ..., "whiten": 0.0},
    "diffusion": {"dimension": ..., "neighbours": 10, "time": 16.0},
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


class StepSpec(BaseModel):
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
        'or "module:attr"'
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
    model: str | None = Field(None, description='torch: the backbone, as "module:attr"')
    weights: str | None = Field(None, description="torch: a .safetensors or .pt file")
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

    def weight_digests(self, *, plugin_path: Path | None = None) -> list[str]:
        """Return digests of the files of weights that the steps read, for a fingerprint."""
        from pate.artifacts import digest_of

        files = [step.weights for step in self.steps if step.weights is not None]
        return [digest_of(find_weights(file, plugin_path=plugin_path)) for file in files]


def find_weights(weights: str, *, plugin_path: Path | None) -> Path:
    """Return the file of weights: the path as given, or relative to the user's own code."""
    places = [Path(weights).expanduser()]
    if plugin_path is not None:
        places.append((plugin_path if plugin_path.is_dir() else plugin_path.parent) / weights)
    for place in places:
        if place.is_file():
            return place
    raise InvalidInput(f"there is no file {weights} for the backbone's weights; check the path")
