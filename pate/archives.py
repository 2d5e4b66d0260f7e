"""Archives of scikit-learn's models by skops, read without running what they name.

The same model gives the same archive. skops names objects by their address in memory and stamps
members with the time: both are replaced, so that equal digests mean equal models.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

from pate.errors import InvalidInput

_LIBRARIES = ("sklearn", "numpy", "scipy")
_SCHEMA = "schema.json"

# Parts of scikit-learn's models besides those that skops trusts: subclasses of these ...
_FAMILIES = (
    "sklearn.base.BaseEstimator",
    "sklearn.gaussian_process.kernels.Kernel",
    "sklearn.metrics._dist_metrics.DistanceMetric",
    "sklearn.model_selection._split.BaseCrossValidator",
    "sklearn.model_selection._split.BaseShuffleSplit",
    "sklearn.model_selection._split._RepeatedSplits",
    "sklearn.neighbors._ball_tree.BinaryTree32",
    "sklearn.neighbors._ball_tree.BinaryTree64",
    "sklearn.neighbors._kd_tree.BinaryTree32",
    "sklearn.neighbors._kd_tree.BinaryTree64",
    "sklearn.neural_network._stochastic_optimizers.BaseOptimizer",
)
# ... and these, each with one loader only.
_PIECES = {
    "numpy.dtype": "DTypeNode",
    "scipy.interpolate._bsplines.BSpline": "ObjectNode",
    "sklearn.calibration._CalibratedClassifier": "ObjectNode",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor": "ObjectNode",
    "sklearn.metrics._scorer._PassthroughScorer": "ObjectNode",
    "sklearn.tree._tree.Tree": "TreeNode",
    "sklearn.utils._bunch.Bunch": "DictNode",
    "sklearn.utils._metadata_requests.MetadataRequest": "ObjectNode",
    "sklearn.utils._metadata_requests.MethodMetadataRequest": "ObjectNode",
}
# Module names whose import may run a program.
_PROGRAMS = {"__main__", "conftest", "distutils", "f2py", "setup"}


def skops_archive(model: Any, *, home: str) -> bytes:
    """Return the model as a skops archive; refuse a model that could not be loaded again."""
    import skops.io  # type: ignore[import-untyped]
    from skops.io.exceptions import (  # type: ignore[import-untyped]
        UnsupportedTypeException,
    )

    try:
        raw = skops.io.dumps(model)
    except (UnsupportedTypeException, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"a {type(model).__name__} cannot be saved by skops ({type(error).__name__}); give its "
            "class methods save(folder) and load(folder)"
        ) from None
    data = _canonical(raw)
    _trusted(data, home=home)
    return data


def read_skops(file: Path, *, home: str, kind: type[Any]) -> Any:
    """Return the model in an archive, which must be a ``kind``.

    Guarantees:
        Types are parts of scikit-learn's models, or come from the package ``home`` that the recipe
        names; an archive that names anything else is refused before it is read. Of the libraries,
        no function and no class is loaded as a value except numpy's arithmetic and number types,
        and no module is imported that they had not imported themselves.
    """
    import skops.io

    try:
        data = file.read_bytes()
        model = skops.io.loads(data, trusted=_trusted(data, home=home))
    except InvalidInput:
        raise
    except OSError as error:
        raise InvalidInput(f"the model file {file} cannot be read: {error.strerror}") from None
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"{file} is not a model that can be read ({type(error).__name__}); train it again"
        ) from None  # its own message may quote what the model learned
    if type(model) is not kind:
        raise InvalidInput(
            f"{file} holds a {type(model).__name__}, and the recipe's model is a {kind.__name__}; "
            "train it again"
        )
    return model


def _trusted(data: bytes, *, home: str) -> list[str]:
    import skops.io

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        schema = json.loads(archive.read(_SCHEMA))
    if schema["protocol"] == 0:  # its functions carry a second name, which decides
        raise InvalidInput("the model was saved by a version of skops that is too old; save again")
    types: list[str] = skops.io.get_untrusted_types(data=data)  # imports nothing that is stored
    uses = _uses(schema)
    strangers = [name for name in types if not _may_load(name, uses.get(name, set()), home=home)]
    if strangers:
        raise InvalidInput(
            f"the model holds {', '.join(strangers)}, which is neither of scikit-learn nor of the "
            "model's own module; give its class methods save(folder) and load(folder)"
        )
    return types


def _uses(schema: Any) -> dict[str, set[str]]:
    """Return the loaders by which each stored name would be read."""
    uses: dict[str, set[str]] = {}
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "__loader__" in node:
                name = f"{node.get('__module__')}.{node.get('__class__')}"
                uses.setdefault(name, set()).add(str(node["__loader__"]))
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return uses


def _may_load(name: str, loaders: set[str], *, home: str) -> bool:
    """Return whether a name that skops does not trust may be loaded by these loaders."""
    package = name.partition(".")[0]
    if package not in _LIBRARIES:
        return package == home.partition(".")[0] and _written_in(package, _find(name, home=home))
    # As a value to be called, a library's class may open files; as an object it is only filled in.
    return loaders == {_PIECES.get(name, "ObjectNode")} and (name in _PIECES or _is_model(name))


def _is_model(name: str) -> bool:
    """Return whether a class belongs to the families that scikit-learn's models consist of.

    skops has loaded all of scikit-learn by now. Nothing more is imported, as that may run programs.
    """
    module, _, attribute = name.rpartition(".")
    kind = _loaded(module, attribute)
    families = tuple(_loaded(*family.rsplit(".", 1)) for family in _FAMILIES)
    return (
        isinstance(kind, type)
        and kind.__module__ == module
        and is_plain(module)
        and issubclass(kind, tuple(family for family in families if isinstance(family, type)))
    )


def _loaded(module: str, attribute: str) -> Any:
    return vars(sys.modules[module]).get(attribute) if module in sys.modules else None


def is_plain(module: str) -> bool:
    """Return whether a module is part of a library, and not a program or test of it.

    >>> is_plain("sklearn.tree._tree"), is_plain("numpy.f2py.__main__"), is_plain("sklearn.tests.a")
    (True, False, False)
    """
    return not any(
        part in _PROGRAMS or part.lstrip("_").startswith("test") for part in module.split(".")
    )


def _find(name: str, *, home: str) -> Any:
    """Return the class, function or method that a name of the model's own package refers to."""
    module, _, attribute = name.rpartition(".")
    owner, _, kind = module.rpartition(".")
    for place, path in ((module, [attribute]), (owner, [kind, attribute])):
        if not place or (place != home and not is_plain(place)):
            continue
        try:
            found: Any = importlib.import_module(place)
            for part in path:
                found = getattr(found, part)
        except (Exception, SystemExit):
            continue
        return found
    return None


def _written_in(package: str, found: Any) -> bool:
    """Return whether the package defines it; an imported object may be anything."""
    return callable(found) and str(getattr(found, "__module__", "")).split(".")[0] == package


def _canonical(raw: bytes) -> bytes:
    """Return the same archive with members named and numbered in order, and without times."""
    numbers: dict[Any, int] = {}
    files: dict[str, str] = {}

    def renumber(node: Any) -> None:
        if isinstance(node, dict):
            if "__id__" in node:
                node["__id__"] = numbers.setdefault(node["__id__"], len(numbers) + 1)
            file = node.get("file")
            if isinstance(file, str) and file in members:
                node["file"] = files.setdefault(file, f"{len(files)}{Path(file).suffix}")
            for child in node.values():
                renumber(child)
        elif isinstance(node, list):
            for child in node:
                renumber(child)

    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        members = set(old.namelist()) - {_SCHEMA}
        schema = json.loads(old.read(_SCHEMA))
        renumber(schema)
        for name in sorted(members, key=lambda name: int(Path(files[name]).stem)):
            new.writestr(zipfile.ZipInfo(files[name]), old.read(name))
        new.writestr(zipfile.ZipInfo(_SCHEMA), json.dumps(schema, separators=(",", ":")))
    return out.getvalue()
