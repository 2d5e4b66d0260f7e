"""A trained torch network without its last layer, as a step."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.encoders.step import Fixed, flat, guarded
from pate.errors import InvalidInput
from pate.plugins import resolve
from pate.untrusted import make_untrusted

if TYPE_CHECKING:
    from torch import Tensor, nn

_BATCH = 64
_HEADER = "weights.json"


class Backbone(Fixed):
    """Features of a network with weights from disk, in evaluation mode, on the CPU.

    ``model`` is ``"module:attr"``, a class or function that makes a torch module of ``params``, for
    example ``"torchvision.models:resnet18"``. The last linear layer is removed, or the ``layer``
    that is named (``""``: none). Images (n, h, w) and (n, h, w, channels) become (n, channels, h,
    w), resized and repeated over ``channels`` if these are given; then ``mean`` and ``std`` of each
    channel apply. Other records are passed as they are.

    Guarantees:
        Nothing is fitted. The weights must not have been trained on the private records. A digest
        of the weights is saved with the encoder, and other weights are refused afterwards.
    """

    def __init__(
        self,
        *,
        model: str,
        weights: str,
        layer: str | None = None,
        resize: int | None = None,
        channels: int | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        params: dict[str, Any] | None = None,
        plugin_path: Path | None = None,
    ) -> None:
        self.file = find_weights(weights, plugin_path=plugin_path)
        self.resize, self.channels, self.mean, self.std = resize, channels, mean, std
        self.digest = file_digest(self.file)
        module = _make_module(model, params or {}, plugin_path)
        taken = _remove_layer(module, layer, model)
        _load_weights(module, self.file, taken)
        self.module = module.eval().requires_grad_(False)

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        import torch

        parts = []
        with torch.inference_mode():
            for start in range(0, max(len(X), 1), _BATCH):
                part = np.array(X[start : start + _BATCH], dtype=np.float32)
                inputs = self.inputs_of(torch.from_numpy(part))
                parts.append(self._features(inputs))
        return np.concatenate(parts)

    def _features(self, inputs: Tensor) -> NDArray[np.float32]:
        import torch

        answer = guarded("the backbone", lambda: self.module(inputs))
        if not isinstance(answer, torch.Tensor):
            raise InvalidInput(
                f"the backbone returned a {type(answer).__name__}; it must return one tensor"
            )
        features: NDArray[np.float32] = flat(answer.float().numpy())
        return features

    def inputs_of(self, X: Tensor) -> Tensor:
        """Return records in the form that the network takes."""
        import torch

        if X.ndim not in (3, 4):
            if self.resize or self.channels or self.mean:
                raise InvalidInput(
                    "resize, channels, mean and std are for images (n, height, width[, channels]), "
                    f"and these records have shape {tuple(X.shape[1:])}; leave them out"
                )
            return X
        images = X.unsqueeze(1) if X.ndim == 3 else X.movedim(3, 1).contiguous()
        if self.channels is not None and images.shape[1] != self.channels:
            if images.shape[1] != 1:
                raise InvalidInput(
                    f"channels is {self.channels}, and the images have {images.shape[1]}; only "
                    "grey images can be repeated"
                )
            images = images.repeat(1, self.channels, 1, 1)
        if self.resize is not None:
            images = torch.nn.functional.interpolate(
                images, size=(self.resize, self.resize), mode="bilinear", antialias=True
            )
        if self.mean is not None and self.std is not None:
            if len(self.mean) != images.shape[1]:
                raise InvalidInput(
                    f"mean and std have {len(self.mean)} numbers, and the images have "
                    f"{images.shape[1]} channels; give one for each"
                )
            mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (self.mean, self.std))
            images = (images - mean) / std
        return images

    def save(self, folder: Path) -> None:
        header = json.dumps({"sha256": self.digest})
        (folder / _HEADER).write_text(header, encoding="utf-8")

    def load(self, folder: Path) -> None:
        try:
            kept = json.loads((folder / _HEADER).read_text(encoding="utf-8"))["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            raise InvalidInput(
                f"{folder / _HEADER} is damaged or missing; fit the encoder again"
            ) from None
        if kept != self.digest:
            raise InvalidInput(
                f"{self.file.name} does not hold the weights that the encoder was fitted with; put "
                "those back, or fit the encoder again"
            )


def find_weights(weights: str, *, plugin_path: Path | None) -> Path:
    """Return the file of weights: the path as given, or relative to the user's own code."""
    places = [Path(weights).expanduser()]
    if plugin_path is not None:
        places.append((plugin_path if plugin_path.is_dir() else plugin_path.parent) / weights)
    for place in places:
        if place.is_file():
            return place
    raise InvalidInput(f"there is no file {weights} for the backbone's weights; check the path")


def file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _make_module(model: str, params: dict[str, Any], plugin_path: Path | None) -> nn.Module:
    import torch

    if model.partition(":")[0].partition(".")[0] == "torchvision":
        from pate.vision import torchvision

        torchvision()
    target = resolve(model, path=plugin_path)
    if not callable(target) or isinstance(target, torch.nn.Module):
        raise InvalidInput(
            f"{model!r} is neither a class nor a function; a backbone is made by one"
        )
    failure = f"{model!r} cannot be made with params {sorted(params)}"
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, and replaced
        made = make_untrusted(failure, lambda: target(**params), error=InvalidInput)
    if not isinstance(made, torch.nn.Module):
        raise InvalidInput(f"{model!r} makes a {type(made).__name__}; a backbone is a torch module")
    return made


def _remove_layer(module: nn.Module, layer: str | None, model: str) -> str:
    """Remove a layer; return its name."""
    import torch

    names = dict(module.named_modules())
    if layer is None:
        linear = [
            name for name, part in names.items() if name and isinstance(part, torch.nn.Linear)
        ]
        if not linear:
            raise InvalidInput(
                f"{model!r} has no linear layer inside to remove; name one with layer, or "
                'layer = "" for none'
            )
        layer = linear[-1]
    if layer == "":
        return layer
    if layer not in names:
        raise InvalidInput(f"{model!r} has no layer {layer!r}; its last is {list(names)[-1]!r}")
    parent, _, name = layer.rpartition(".")
    setattr(names[parent], name, torch.nn.Identity())
    return layer


def _load_weights(module: nn.Module, file: Path, taken: str) -> None:
    """Load the weights, except those of the removed layer; never unpickle an object."""
    import torch
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
            state = state.get("state_dict", state)
        if taken:
            state = {k: v for k, v in state.items() if not k.startswith(f"{taken}.")}
        module.load_state_dict(state)
    except Exception as error:  # each format has its own ways to be damaged
        raise InvalidInput(
            f"{file.name} does not hold the weights of this {type(module).__name__} "
            f"({type(error).__name__}); save its state dict there"
        ) from None
