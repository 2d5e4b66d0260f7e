"""Which names a release may have imported, and by whose leave.

``student.json`` names the class of the student, and importing runs code. A release may come from
anybody, so only names that are known to be models are followed; for all others the person who
loads it must hand over the code (``plugin_path``) or say whom they trust (``trust``).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pate.errors import InvalidInput
from pate.plugins import resolve
from pate.students.spec import NETWORKS
from pate.teachers.adapters import BUILT_IN
from pate.teachers.archive import is_plain

_OURS = {*BUILT_IN, *NETWORKS.values()}


def package_of(name: str) -> str:
    """The package that a name is imported from.

    >>> package_of("sklearn.tree:DecisionTreeClassifier"), package_of("ridge")
    ('sklearn', 'pate')
    """
    if name in _OURS:
        return "pate"
    return name.partition(":")[0].partition(".")[0]


def provided(package: str, plugin_path: Path | None) -> bool:
    """Whether a plug-in folder (or file) holds a package of this name."""
    if plugin_path is None:
        return False
    folder = plugin_path if plugin_path.is_dir() else plugin_path.parent
    return (folder / f"{package}.py").is_file() or (folder / package / "__init__.py").is_file()


def require_known(
    name: str, *, plugin_path: Path | None = None, trust: Collection[str] = ()
) -> None:
    """Refuses a name that is no model of a known library, and that nobody vouches for.

    >>> require_known("sklearn.tree:DecisionTreeClassifier")
    >>> try:
    ...     require_known("os:system")
    ... except InvalidInput as error:
    ...     "os:system" in str(error)
    True

    Guarantees:
        Without ``plugin_path`` and ``trust`` only classes of models from pate, scikit-learn and
        torchvision are made, from plain values. With them, also what is written in those packages:
        not what they import from elsewhere.
    """
    package = package_of(name)
    if name in _OURS or (":" not in name and name in trust):  # ours, or an entry point
        return
    if ":" in name and (package in trust or provided(package, plugin_path)):
        home = str(getattr(resolve(name, path=plugin_path), "__module__", ""))
        if home.partition(".")[0] in trust or provided(home.partition(".")[0], plugin_path):
            return
        raise InvalidInput(f"{name} was not written in {package}; the release is not loaded")
    # Looking at a class imports its module: not one that is a program.
    plain = is_plain(name.partition(":")[0])
    if package == "sklearn" and plain and _is_estimator(resolve(name)):
        return
    if package == "torchvision" and _is_network(name):
        return
    raise InvalidInput(
        f"the release needs {name}, and importing it runs code of {package}; give plugin_path "
        f"(--plugin-path), a folder that holds {package}, or trust={package!r} (--trust {package}) "
        "if it is an installed package that you trust"
    )


def needs_trust(name: str, *, plugin_path: Path | None) -> bool:
    """Whether a name is followed only if the one who loads it trusts its package."""
    if provided(package_of(name), plugin_path):
        return False
    try:
        require_known(name)
    except InvalidInput:
        return True
    return False


def _is_estimator(target: Any) -> bool:
    from sklearn.base import BaseEstimator  # type: ignore[import-untyped]

    home = str(getattr(target, "__module__", "")).partition(".")[0]
    return isinstance(target, type) and issubclass(target, BaseEstimator) and home == "sklearn"


def _is_network(name: str) -> bool:
    module, _, attribute = name.partition(":")
    if module != "torchvision.models":
        return False
    from pate.vision import torchvision

    return attribute in torchvision().models.list_models(module=torchvision().models)
