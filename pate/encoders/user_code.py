"""Steps that run the user's code: a trained torch network, or a class or function of their own.

Guarantees:
    A step that keeps something of a record it transforms would carry it to the next one: to another
    shard, to another private record, or into what is published. So the encoder compares what the
    step holds, as it saves itself, before and after (``state_digest``). What a step hides from its
    own ``save`` is not detected.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.archives import read_skops, skops_archive
from pate.artifacts import digest_of
from pate.encoders.spec import find_weights
from pate.encoders.step import Step, flat, read_arrays, write_arrays
from pate.errors import InvalidInput
from pate.plugins import object_state, resolve
from pate.untrusted import make_untrusted, run_untrusted

if TYPE_CHECKING:
    from torch import Tensor, nn

_BATCH = 64
_WEIGHTS = "weights.json"
_VALUES = "values.json"
_SKOPS = "step.skops"  # of a transformer of scikit-learn
_OWN = "own"  # the folder a class's own save() writes into


def _guarded(what: str, call: Callable[[], Any]) -> Any:
    """Run a step's own code on records that may be private; errors show their type alone."""
    return run_untrusted(
        what, call, private=True, error=InvalidInput, advice="; try it on public inputs"
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InvalidInput(f"{file} is damaged or missing; fit the encoder again") from None
    return content


class Backbone(Step):
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
        folder: Path | None = None,
        plugin_path: Path | None = None,
    ) -> None:
        self.file = find_weights(weights, folder=folder, plugin_path=plugin_path)
        self.resize, self.channels, self.mean, self.std = resize, channels, mean, std
        self.digest = digest_of(self.file)
        module = _make_module(model, params or {}, plugin_path)
        _load_weights(module, self.file, removed=_remove_layer(module, layer, model))
        self.module = module.eval().requires_grad_(False)

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        import torch

        parts = []
        with torch.inference_mode():
            for start in range(0, max(len(X), 1), _BATCH):
                part = np.array(X[start : start + _BATCH], dtype=np.float32)
                inputs = self.inputs_of(torch.from_numpy(part))
                answer = _guarded("the backbone", lambda: self.module(inputs))  # noqa: B023
                if not isinstance(answer, torch.Tensor):
                    raise InvalidInput(
                        f"the backbone returned a {type(answer).__name__}; it must return one "
                        "tensor"
                    )
                parts.append(flat(answer.float().numpy()))
        return np.concatenate(parts)

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
        (folder / _WEIGHTS).write_text(header, encoding="utf-8")

    def load(self, folder: Path) -> None:
        if _read_json(folder / _WEIGHTS).get("sha256") != self.digest:
            raise InvalidInput(
                f"{self.file.name} does not hold the weights that the encoder was fitted with; put "
                "those back, or fit the encoder again"
            )

    def state_digest(self) -> str:
        digest = hashlib.sha256(str(self.module.training).encode())
        for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
            values = tensor.detach().double().numpy()
            digest.update(f"{name} {tensor.dtype} {values.shape}".encode() + values.tobytes())
        return digest.hexdigest()


def _make_module(model: str, params: dict[str, Any], plugin_path: Path | None) -> nn.Module:
    import torch

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
        linear = [n for n, part in names.items() if n and isinstance(part, torch.nn.Linear)]
        if not linear:
            raise InvalidInput(
                f"{model!r} has no linear layer inside to remove; name one with layer, or "
                'layer = "" for none'
            )
        layer = linear[-1]
    if layer not in names:
        raise InvalidInput(f"{model!r} has no layer {layer!r}; its last is {list(names)[-1]!r}")
    if layer:
        parent, _, name = layer.rpartition(".")
        setattr(names[parent], name, torch.nn.Identity())
    return layer


def _load_weights(module: nn.Module, file: Path, *, removed: str) -> None:
    """Load the weights, except those of the removed layer; never unpickle an object."""
    import torch
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
            state = state.get("state_dict", state)
        if removed:
            state = {k: v for k, v in state.items() if not k.startswith(f"{removed}.")}
        module.load_state_dict(state)
    except Exception as error:  # each format has its own ways to be damaged
        raise InvalidInput(
            f"{file.name} does not hold the weights of this {type(module).__name__} "
            f"({type(error).__name__}); save its state dict there"
        ) from None


class Plugin(Step):
    """A function, or a class or factory whose object has ``transform(X)`` and maybe ``fit(X)``.

    A function that can be called with ``params`` alone is a factory; one that needs another
    argument is called with the records. A class's own ``save(folder)`` and ``load(folder)`` are
    used if it has both; otherwise its arrays, numbers and texts are saved, or a transformer of
    scikit-learn as a whole, by skops.

    >>> Plugin("numpy:tanh").transform(np.zeros((2, 3))).shape
    (2, 3)

    Guarantees:
        ``fit`` sees PUBLIC inputs alone. ``transform`` also sees private records; its output and
        the messages of its exceptions are dropped.
    """

    fitted = takes_missing = takes_categories = True

    def __init__(
        self, name: str, *, params: dict[str, Any] | None = None, plugin_path: Path | None = None
    ) -> None:
        self.name, self.params = name, dict(params or {})
        self.made = self._make(resolve(name, path=plugin_path))

    def _make(self, target: Any) -> Any:
        if not callable(target):
            hint = "a step is a class or a function"
            if callable(getattr(target, "transform", None)):
                hint = "name its class, or a function that makes one"
            raise InvalidInput(f"{self.name!r} is one {type(target).__name__} object; {hint}")
        if not inspect.isclass(target) and not self._is_factory(target):
            return _Function(target, self.params)
        failure = f"{self.name!r} cannot be made with params {sorted(self.params)}"
        made = make_untrusted(failure, lambda: target(**self.params), error=InvalidInput)
        if not callable(getattr(made, "transform", None)):
            raise InvalidInput(
                f"{self.name!r} makes a {type(made).__name__}, which has no transform(X); an "
                "encoder's step has one"
            )
        return made

    def _is_factory(self, target: Any) -> bool:
        try:
            inspect.signature(target).bind(**self.params)
        except (TypeError, ValueError):  # it takes the records, or has no signature
            return False
        return not isinstance(target, np.ufunc)

    def fit(self, X: NDArray[Any]) -> None:
        if callable(getattr(self.made, "fit", None)):
            _guarded(f"fit of {self.name}", lambda: self.made.fit(X))

    def transform(self, X: NDArray[Any]) -> NDArray[Any]:
        answer: NDArray[Any] = _guarded(
            f"transform of {self.name}", lambda: np.asarray(self.made.transform(X))
        )
        return answer

    @property
    def is_estimator(self) -> bool:
        """Whether the step is a transformer of scikit-learn, or one made as theirs are."""
        base = sys.modules.get("sklearn.base")
        return base is not None and isinstance(self.made, base.BaseEstimator)

    @property
    def _saves_itself(self) -> bool:
        return all(callable(getattr(self.made, name, None)) for name in ("save", "load"))

    def save(self, folder: Path) -> None:
        if self._saves_itself:
            (folder / _OWN).mkdir()
            _guarded(f"save of {self.name}", lambda: self.made.save(folder / _OWN))
            return
        own = not isinstance(self.made, _Function)
        try:
            arrays, values = object_state(self.made) if own else ({}, {})
        except InvalidInput:
            if not self.is_estimator:
                raise
            archive = skops_archive(self.made, home=type(self.made).__module__)
            (folder / _SKOPS).write_bytes(archive)
            return
        write_arrays(folder, arrays)
        (folder / _VALUES).write_text(json.dumps(values, sort_keys=True), encoding="utf-8")

    def load(self, folder: Path) -> None:
        if self._saves_itself:
            # A class method returns a step; a plain method may fill in its own object.
            loaded = _guarded(f"load of {self.name}", lambda: self.made.load(folder / _OWN))
            self.made = self.made if loaded is None else loaded
            return
        if self.is_estimator and (folder / _SKOPS).is_file():
            kind = type(self.made)
            self.made = read_skops(folder / _SKOPS, home=kind.__module__, kind=kind)
            return
        values = _read_json(folder / _VALUES)
        arrays = {k: v if v.ndim else v[()] for k, v in read_arrays(folder).items()}
        if not isinstance(self.made, _Function):
            self.made.__dict__.clear()
            self.made.__dict__.update(values, **arrays)

    def state_digest(self) -> str:
        digest = hashlib.sha256()
        with tempfile.TemporaryDirectory(prefix="pate-step-") as folder:
            self.save(Path(folder))
            for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
        return digest.hexdigest()


class _Function:
    """A function of the records, as a step."""

    def __init__(self, function: Any, params: dict[str, Any]) -> None:
        self.function, self.params = function, params

    def transform(self, X: NDArray[Any]) -> ArrayLike:
        answer: ArrayLike = self.function(X, **self.params)
        return answer
