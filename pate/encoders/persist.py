"""Fitted encoders on disk: npz and JSON, one folder for each step; never pickle.

``encoder.json`` says what was fitted. What to import comes from the recipe, never from the folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pate.encoders.chain import Chain, make_step
from pate.encoders.spec import EncoderSpec, StepSpec
from pate.errors import InvalidInput, PateError

_HEADER = "encoder.json"


def save_encoder(chain: Chain, folder: Path) -> None:
    """Writes a fitted encoder into a folder; the same encoder gives the same bytes.

    Guarantees:
        What is written comes from PUBLIC inputs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for at, step in enumerate(chain.steps):
        place = folder / f"step-{at}"
        place.mkdir(exist_ok=True)
        step.save(place)
    header = {
        "steps": _steps(chain.spec),
        "input_shape": chain.input_shape,
        "shape": chain.shape,
        "widest": chain.widest,
    }
    (folder / _HEADER).write_text(json.dumps(header, sort_keys=True), encoding="utf-8")


def load_encoder(
    spec: EncoderSpec,
    folder: Path,
    *,
    plugin_path: Path | None = None,
    weights: Path | None = None,
) -> Chain:
    """The encoder that :func:`save_encoder` wrote, for the steps of a recipe.

    ``weights`` is a folder in which the files of weights lie, where that is known.
    """
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
        kept, widest = header["steps"], int(header["widest"])
        input_shape, shape = (tuple(map(int, header[key])) for key in ("input_shape", "shape"))
    except FileNotFoundError:
        raise InvalidInput(f"there is no saved encoder in {folder}; fit it first") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(folder) from None
    if kept != _steps(spec):
        raise InvalidInput(
            f"{folder} holds an encoder of other steps than the recipe's; fit it again"
        )
    steps = [make_step(_within(step, weights), plugin_path=plugin_path) for step in spec.steps]
    for at, step in enumerate(steps):
        try:
            step.load(folder / f"step-{at}")
        except PateError:
            raise
        except (ValueError, KeyError, TypeError):
            raise _damaged(folder) from None
    return Chain(spec=spec, steps=tuple(steps), input_shape=input_shape, shape=shape, widest=widest)


def encoder_content(spec: EncoderSpec, *, plugin_path: Path | None = None) -> list[str]:
    """Digests of the files that the steps read, for a fingerprint: other weights, other features.

    >>> encoder_content(EncoderSpec(steps=["scattering"]))
    []
    """
    from pate.encoders.backbone import file_digest, found

    files = [step.weights for step in spec.steps if step.weights is not None]
    return [file_digest(found(file, plugin_path=plugin_path)) for file in files]


def _steps(spec: EncoderSpec) -> list[Any]:
    return [{"name": step.name, **step.settings()} for step in spec.steps]


def _within(step: StepSpec, folder: Path | None) -> StepSpec:
    """The step with its weights from a folder, and from nowhere else."""
    if folder is None or step.weights is None:
        return step
    file = folder / step.weights
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput(
            f"there is no file {step.weights} in {folder} for the backbone's weights"
        )
    return step.model_copy(update={"weights": str(file)})


def _damaged(folder: Path) -> InvalidInput:
    return InvalidInput(f"{folder / _HEADER} is damaged; fit the encoder again")
