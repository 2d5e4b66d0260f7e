"""Public data: what is learned without private records costs no privacy.

Guarantees:
    Differential privacy is closed under post-processing, and what is fixed before any private
    record is read is part of the mechanism, not of its output (Dwork & Roth 2014, Proposition
    2.1). So weights and features from public data cause no event, on one condition that no code
    can check: no private record was used to make them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection
from difflib import get_close_matches
from functools import partial
from typing import Any, Self, TypeVar, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from dpsgd.gradients import mode
from dpsgd.noise import torch_seed
from pate._validate import check_positive, check_whole
from pate.errors import InvalidInput

__all__ = ["Frozen", "encode", "freeze", "pretrain"]

Model = TypeVar("Model", bound=nn.Module)


@final
class Frozen(nn.Module):
    """A public module that private training cannot change: neither weights nor statistics.

    It belongs in front of the layers that are trained: no gradient passes through it.

    Parameters
    ----------
    module : torch.nn.Module
        The module to freeze, in place.

    Guarantees:
        The inner module stays in evaluation mode whatever ``train()`` is given, so BatchNorm takes
        no statistics from private records and dropout is off; each record is treated on its own
        if the inner module in evaluation mode does so.

    >>> Frozen(nn.BatchNorm1d(3)).train().module.training
    False
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.module.eval()
        return self

    @torch.no_grad()
    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.module.eval()  # also after train() was called on it directly
        return self.module(*inputs, **named)


def freeze(
    model: Model, *, except_last: int | None = None, except_names: Collection[str] | None = None
) -> Model:
    """Freeze a model except for its last layers, or the parts named; return the same model.

    Only weights are frozen: a layer that keeps statistics, as BatchNorm does, belongs in
    :class:`Frozen`.

    Parameters
    ----------
    model : torch.nn.Module
        The model, changed in place.
    except_last : int, optional
        The number of layers to keep trained, counted from the last one registered; only layers
        that own parameters count. Give it or ``except_names``.
    except_names : collection of str, optional
        The names of the modules, with all in them, or parameters to keep trained.

    Returns
    -------
    torch.nn.Module
        The model.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> [p.requires_grad for p in freeze(model, except_last=1).parameters()]
    [False, False, True, True]
    """
    if (except_last is None) == (except_names is None):
        raise InvalidInput("give exactly one of except_last and except_names")
    kept = _last(model, except_last) if except_last is not None else _named(model, except_names)
    if not any(parameter.requires_grad for parameter in kept):
        raise InvalidInput("this would freeze every parameter; keep at least one that is trained")
    stay = {id(parameter) for parameter in kept}
    for parameter in model.parameters():
        if id(parameter) not in stay:
            parameter.requires_grad_(False)
    return model


def _last(model: nn.Module, count: int) -> list[nn.Parameter]:
    count = check_whole("except_last", count, least=1)
    owned = [list(module.parameters(recurse=False)) for module in model.modules()]
    layers = [parameters for parameters in owned if parameters]
    if count > len(layers):
        raise InvalidInput(
            f"except_last is {count}; the model has {len(layers)} layers with parameters"
        )
    return [parameter for layer in layers[-count:] for parameter in layer]


def _named(model: nn.Module, names: Collection[str] | None) -> list[nn.Parameter]:
    given = isinstance(names, Collection) and not isinstance(names, str)
    if not given or not names or not all(isinstance(name, str) for name in names):
        raise InvalidInput("except_names is empty, or not a list of names; give a list of names")
    every = dict(model.named_parameters(remove_duplicate=False))
    modules = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    kept = []
    for name in names:
        found = [p for full, p in every.items() if full == name or full.startswith(f"{name}.")]
        if not found:
            near = get_close_matches(name, [*modules, *every], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(f"nothing with parameters is named {name!r} in the model{hint}")
        kept += found
    return kept


def pretrain(
    model: Model,
    inputs: ArrayLike | torch.Tensor,
    labels: ArrayLike | torch.Tensor,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> Model:
    """Train a classifier without privacy, by AdamW and cross entropy; return the model.

    The data must be public: nothing here is private, and nothing is accounted for. Frozen
    parameters stay as they are, and so does torch's own random state.

    Parameters
    ----------
    model : torch.nn.Module
        The model, trained in place.
    inputs : array-like or torch.Tensor of shape (n_records, …)
        Public inputs; a tensor is passed to the model as it is, an array as float32.
    labels : array-like or torch.Tensor of shape (n_records,)
        Their classes, counted from 0.
    epochs, batch_size : int
        The number of passes over the data, and of records in a batch.
    learning_rate : float
        The learning rate of AdamW.
    seed : int
        The same seed gives the same weights on one thread of one machine.

    Returns
    -------
    torch.nn.Module
        The model.

    >>> model = pretrain(nn.Linear(2, 2), np.eye(2).repeat(50, 0), np.arange(100) // 50,
    ...                  epochs=20, batch_size=10, learning_rate=0.1, seed=0)
    >>> model(torch.eye(2)).argmax(dim=1).tolist()
    [0, 1]
    """
    records, classes = _as_tensor(inputs, "inputs"), _as_classes(labels)
    if not len(records) == len(classes) >= 1:
        raise InvalidInput(
            f"there are {len(records)} inputs and {len(classes)} labels; give one label for each"
        )
    if classes.ndim != 1 or int(classes.min()) < 0:
        raise InvalidInput("labels must be one whole number for each input, counted from 0")
    epochs = check_whole("epochs", epochs, least=1)
    batch_size = check_whole("batch_size", batch_size, least=1)
    learning_rate = check_positive("learning_rate", learning_rate)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise InvalidInput(f"seed is {seed!r}; it must be a whole number, 0 or more, below 2**63")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidInput("every parameter of the model is frozen; there is nothing to train")
    optimizer = torch.optim.AdamW(trained, lr=learning_rate)
    order = torch.Generator().manual_seed(seed)
    device = trained[0].device
    with mode(model, training=True), torch_seed(seed, device):
        for epoch in range(epochs):
            total = 0.0
            for batch in _batches(torch.randperm(len(classes), generator=order), batch_size):
                optimizer.zero_grad()
                logits = _checked(model(records[batch].to(device)), int(classes.max()) + 1)
                loss = nn.functional.cross_entropy(logits, classes[batch].to(device))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += float(loss.detach())
            if not math.isfinite(total):
                raise InvalidInput(
                    f"the loss is not finite in epoch {epoch + 1}; lower learning_rate"
                )
    optimizer.zero_grad()
    return model


def encode(encoder: Any, X: ArrayLike, *, batch_size: int = 1024) -> NDArray[np.float32]:
    """Return features of records by a public encoder; of private records, they are private.

    Parameters
    ----------
    encoder : torch.nn.Module, object with ``transform``, or callable
        A module is run in evaluation mode, without gradients, on float32; a function takes an
        array of records and returns an array of features.
    X : array-like of shape (n_records, …)
        The records.
    batch_size : int, default=1024
        The number of records encoded at a time.

    Returns
    -------
    ndarray of float32 of shape (n_records, …)
        One row of features for each record.

    Guarantees:
        Free if the encoder was made without private records and treats each record on its own:
        then the features of one record depend on that record alone, and neighbouring data sets
        stay neighbours. The components of a private PCA are not public; they have a cost of
        their own.

    >>> encode(lambda rows: rows.mean(axis=1, keepdims=True), np.eye(3), batch_size=2).shape
    (3, 1)
    """
    batch_size = check_whole("batch_size", batch_size, least=1)
    try:
        records = np.asanyarray(X)  # a map of a file stays one
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput("the records are not one array; give an array (records, …)") from None
    if records.ndim < 1:
        raise InvalidInput("there is one number and no axis of records; give an array (records, …)")
    features: NDArray[np.float32] | None = None
    run = encoder.transform if hasattr(encoder, "transform") else encoder
    with contextlib.ExitStack() as stack:
        if isinstance(encoder, nn.Module):
            stack.enter_context(mode(encoder, training=False))
            run = partial(_forward, encoder)
        elif not callable(run):
            raise InvalidInput(
                f"the encoder is a {type(encoder).__name__}; it must be a torch module, a "
                "function, or an object with a method transform"
            )
        for start in range(0, max(len(records), 1), batch_size):  # once even without records
            rows = records[start : start + batch_size]
            part = _as_features(run(rows))
            if part.ndim < 1 or len(part) != len(rows):
                raise InvalidInput(
                    "the encoder returned another number of rows than it was given; it must "
                    "return one row of features for each record"
                )
            if features is None:
                features = np.empty((len(records), *part.shape[1:]), dtype=np.float32)
            if part.shape[1:] != features.shape[1:]:
                raise InvalidInput(
                    "the encoder returned features of another shape for another batch; it must "
                    "treat each record on its own"
                )
            features[start : start + len(rows)] = part
    assert features is not None
    return features


@torch.no_grad()
def _forward(module: nn.Module, rows: NDArray[Any]) -> Any:
    """Run a torch module on an array of records."""
    try:
        given = torch.from_numpy(np.array(rows, dtype=np.float32))
    except (TypeError, ValueError):  # whose texts may quote a private cell
        raise InvalidInput("a torch module encodes numbers; the records hold others") from None
    first = next(module.parameters(), given)
    return module(given.to(first.device))


def _as_features(result: Any) -> NDArray[Any]:
    """Return the output of an encoder as an array of numbers."""
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu()
        result = (result.float() if result.is_floating_point() else result).numpy()
    elif isinstance(result, tuple | dict):
        raise InvalidInput(
            f"the encoder returned a {type(result).__name__}; it must return one array of features"
        )
    try:
        features = np.asarray(result)
    except (TypeError, ValueError, RuntimeError):
        features = np.empty(0, dtype=object)
    if features.dtype.kind not in "biuf":
        raise InvalidInput("the encoder did not return an array of real numbers")
    return features


def _as_tensor(data: ArrayLike | torch.Tensor, what: str) -> torch.Tensor:
    """Return a tensor as it is, an array as float32; refuse one without an axis of records."""
    if not isinstance(data, torch.Tensor):
        data = torch.from_numpy(_numbers(data, what).astype(np.float32))
    if not data.ndim:
        raise InvalidInput(f"{what} have no axis of records; give an array (records, …)")
    return data


def _as_classes(labels: ArrayLike | torch.Tensor) -> torch.Tensor:
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().double().numpy()
    given = _numbers(labels, "labels")
    if not given.ndim or not np.array_equal(given, np.trunc(given)):  # also false for NaN
        raise InvalidInput("labels must be one whole number for each input, counted from 0")
    return torch.from_numpy(given.astype(np.int64))


def _numbers(data: ArrayLike, what: str) -> NDArray[Any]:
    """Return a copy: torch has no read-only tensors, and data may be a read-only memory map."""
    try:
        given = np.array(data)
    except (TypeError, ValueError):
        given = np.empty(0, dtype=object)
    if given.dtype.kind not in "biuf":
        raise InvalidInput(f"{what} are not an array of real numbers")
    return given


def _checked(logits: torch.Tensor, classes: int) -> torch.Tensor:
    if logits.ndim != 2 or logits.shape[1] < classes:
        raise InvalidInput(
            f"the model returned {tuple(logits.shape)} where labels need logits of shape "
            f"(records, {classes}) or wider; change its last layer"
        )
    return logits


def _batches(order: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Split the order into batches; a single record left over joins the batch before.

    BatchNorm has no variance of one record.
    """
    batches = list(torch.split(order, size))
    if size > 1 and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches
