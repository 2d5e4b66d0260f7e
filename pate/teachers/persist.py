"""Trained teachers on disk: skops, safetensors, npz and JSON; never pickle.

A folder holds ``teacher.json``, which names the format, and the files of that format. Modules to
import come from the recipe, never from the folder. An object that no format takes is kept as the
shard it learned from, and fitted again.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from pate.archives import read_skops, skops_archive
from pate.errors import InvalidInput, PateError
from pate.plugins import object_state
from pate.teachers.adapters import SklearnTeacher, is_torch_module, is_torch_teacher, make
from pate.teachers.placement import isolated_randomness
from pate.teachers.protocol import Shard, Teacher, guarded, train
from pate.teachers.spec import ModelSpec

# A class of the user's own must save files of these kinds, which are read without running code.
RELEASABLE = "npy|npz|json|safetensors|skops|txt|onnx|ubj"

_HEADER = "teacher.json"
_SKOPS = "model.skops"
_TENSORS = "model.safetensors"
_ARRAYS = "arrays.npz"
_OWN = "own"  # the folder a class's own save() writes into
_RECORDS, _LABELS = "records.npy", "labels.npy"


def save(
    teacher: Teacher, folder: Path, *, shard: Shard | None = None, seed: int = 0
) -> dict[str, Any]:
    """Write a trained teacher into a folder; return the content of ``teacher.json``.

    A class's own ``save(folder)`` and ``load(folder)`` are used if it has both. The same model
    gives the same bytes, unless a class writes its own files. A teacher that cannot be stored is
    refused, unless the ``shard`` that it learned from is given, and the ``seed``: then these are
    stored in its place, and :func:`restore` fits it again.

    Guarantees:
        A trained teacher is PRIVATE: the folder must be one that only its owner can read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        header = _write(teacher, folder, shard)
    except InvalidInput:
        if shard is None:
            raise
        for name, array in zip((_RECORDS, _LABELS), shard, strict=True):
            np.save(folder / name, np.asarray(array), allow_pickle=False)
        header = {"format": "refit", "seed": seed}
    (folder / _HEADER).write_text(json.dumps(header, sort_keys=True), encoding="utf-8")
    return header


def load(
    folder: Path, model: ModelSpec, *, classes: int, seed: int, plugin_path: Path | None = None
) -> Teacher:
    """Return the teacher that :func:`save` wrote, for the model that the recipe names."""
    return restore(make(model, classes=classes, seed=seed, plugin_path=plugin_path), folder)


def require_releasable(folder: Path) -> None:
    """Refuse a saved model that could not be released: files of a class's own ``save(folder)``."""
    own = folder / _OWN
    for file in sorted(each for each in own.rglob("*") if not each.is_dir()):
        name = file.relative_to(own).as_posix()
        if not re.fullmatch(rf"([\w-]+/)*[\w.-]+\.({RELEASABLE})", name):
            raise InvalidInput(
                f"its save(folder) writes {name}, and no release takes such a file; write "
                f"{RELEASABLE.replace('|', ', ')} files"
            )


def files_of_format(kind: str) -> str:
    """Return a regular expression for the files of a format that ``teacher.json`` names.

    >>> files_of_format("skops"), files_of_format("constant")
    ('model\\\\.skops', '(?!)')
    """
    files = {"skops": _SKOPS, "safetensors": _TENSORS, "arrays": _ARRAYS}
    if kind == "own":
        return rf"{_OWN}/.+"
    return re.escape(files[kind]) if kind in files else "(?!)"


def restore(
    fresh: Teacher, folder: Path, *, remake: Callable[[int], Teacher] | None = None
) -> Teacher:
    """Load the saved state into an untrained teacher; return the teacher to use.

    One that is fitted again comes from ``remake``, if given, with the seed of its first training.
    """
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
        kind = header["format"]
    except FileNotFoundError:
        raise InvalidInput(f"there is no saved teacher in {folder}; train it first") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(folder) from None
    expected = {_format(fresh), "refit"}
    expected |= {"constant"} if isinstance(fresh, SklearnTeacher) else set()
    expected |= {"skops"} if "arrays" in expected else set()
    if kind not in expected:
        raise InvalidInput(
            f"{folder} holds a teacher saved as {kind!r}, and the recipe's model is saved as "
            f"{_format(fresh)!r}; train it again"
        )
    try:
        if kind == "refit":
            return _fit_again(fresh if remake is None else remake(header["seed"]), folder, header)
        return _read(fresh, folder, header)
    except PateError:
        raise
    except (ValueError, KeyError, TypeError):
        raise _damaged(folder) from None


def _damaged(folder: Path) -> InvalidInput:
    return InvalidInput(f"{folder / _HEADER} is damaged; train the teacher again")


def _format(teacher: Any) -> str:
    core = teacher.estimator if isinstance(teacher, SklearnTeacher) else teacher
    if all(callable(getattr(core, name, None)) for name in ("save", "load")):
        return "own"
    if isinstance(teacher, SklearnTeacher):
        return "skops"
    if is_torch_module(_module(teacher)):
        return "safetensors"
    return "arrays"


def _write(teacher: Any, folder: Path, shard: Shard | None) -> dict[str, Any]:
    kind = _format(teacher)
    if isinstance(teacher, SklearnTeacher) and teacher.only_label is not None:
        return {"format": "constant", "label": teacher.only_label}
    if kind == "own":
        (folder / _OWN).mkdir(exist_ok=True)
        core = teacher.estimator if isinstance(teacher, SklearnTeacher) else teacher
        guarded("save", lambda: core.save(folder / _OWN), private=True)
    elif kind == "skops":
        (folder / _SKOPS).write_bytes(skops_archive(teacher.estimator, home=teacher.home))
    elif kind == "safetensors":
        _write_tensors(_module(teacher), folder / _TENSORS)
    else:
        try:
            return {"format": kind, "values": _write_arrays(teacher, folder / _ARRAYS)}
        except InvalidInput as reason:
            _write_object(teacher, folder / _SKOPS, shard, reason)
            kind = "skops"
    return {"format": kind}


def _write_object(teacher: Any, file: Path, shard: Shard | None, reason: InvalidInput) -> None:
    """Write an object of any class by skops; raise ``reason`` if it does not come back the same."""
    home = type(teacher).__module__
    try:
        file.write_bytes(skops_archive(teacher, home=home))
        again = read_skops(file, home=home, kind=type(teacher))
        if shard is not None:
            X = np.asarray(shard[0])
            if not np.array_equal(_answers(teacher, X), _answers(again, X)):
                raise reason
    except PateError:
        file.unlink(missing_ok=True)
        raise reason from None


def _answers(teacher: Any, X: Any) -> Any:
    return guarded("predict", lambda: np.asarray(teacher.predict(X)), private=True)


def _fit_again(fresh: Teacher, folder: Path, header: dict[str, Any]) -> Teacher:
    """Fit a teacher to its own shard, as it was fitted alone at first."""
    try:
        records, labels = (np.load(folder / n, allow_pickle=False) for n in (_RECORDS, _LABELS))
    except (OSError, ValueError, EOFError):
        raise InvalidInput(f"{folder} is damaged; train the teacher again") from None
    with isolated_randomness(int(header["seed"])):
        train(fresh, records, labels)
    return fresh


def _read(fresh: Any, folder: Path, header: dict[str, Any]) -> Teacher:
    kind = header["format"]
    if kind == "constant":
        fresh.only_label = int(header["label"])
    elif kind == "own":
        core = fresh.estimator if isinstance(fresh, SklearnTeacher) else fresh
        # A class method returns a teacher; a plain method may fill in its own object.
        loaded = guarded("load", lambda: core.load(folder / _OWN), private=True)
        if loaded is not None and isinstance(fresh, SklearnTeacher):
            fresh.estimator = loaded
        elif loaded is not None:
            fresh = loaded
    elif kind == "skops":
        if not isinstance(fresh, SklearnTeacher):
            home, kind = type(fresh).__module__, type(fresh)
            return cast(Teacher, read_skops(folder / _SKOPS, home=home, kind=kind))
        fresh.estimator = read_skops(folder / _SKOPS, home=fresh.home, kind=type(fresh.estimator))
    elif kind == "safetensors":
        _read_tensors(_module(fresh), folder / _TENSORS)
    else:
        _read_arrays(fresh, folder / _ARRAYS, header["values"])
    teacher: Teacher = fresh
    return teacher


def _module(teacher: Any) -> Any:
    return teacher.module if is_torch_teacher(teacher) else teacher


def _write_tensors(module: Any, file: Path) -> None:
    import torch
    from safetensors.torch import save_file

    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or torch.nn.parameter.is_lazy(value):
            raise InvalidInput(
                f"{name!r} of the module {type(module).__name__} is not a tensor with a size; "
                "give the class fit, predict, save(folder) and load(folder) of its own"
            )
    # Copies: safetensors wants every tensor whole and in memory of its own, also tied weights.
    save_file({k: v.detach().cpu().clone().contiguous() for k, v in state.items()}, file)


def _read_tensors(module: Any, file: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        module.load_state_dict(load_file(file))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InvalidInput(
            f"{file} does not hold the weights of this {type(module).__name__} "
            f"({type(error).__name__}); train it again"
        ) from None
    module.eval()


def _write_arrays(teacher: Any, file: Path) -> dict[str, Any]:
    arrays, values = object_state(teacher)
    # The prefix separates names from savez's own arguments.
    named: dict[str, Any] = {f"a_{name}": value for name, value in arrays.items()}
    np.savez(file, allow_pickle=False, **named)
    return values


def _read_arrays(fresh: Any, file: Path, values: dict[str, Any]) -> None:
    try:
        # numpy leaves a damaged file open if it opened it itself
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name.removeprefix("a_"): stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise InvalidInput(f"{file} is damaged or missing; train the teacher again") from None
    fresh.__dict__.clear()
    fresh.__dict__.update(values)
    fresh.__dict__.update({k: v if v.ndim else v[()] for k, v in arrays.items()})
