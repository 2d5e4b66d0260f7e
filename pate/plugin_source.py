"""The source code that a name in a plug-in folder uses, as a digest for cache keys.

A stage is stale when code that it runs has changed, and only then: a new file beside a plug-in, or
a class that nothing refers to, must not train teachers again, because new votes are paid for again.
What is used is read from the syntax tree, without importing anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pate.artifacts import fingerprint
from pate.errors import InvalidInput

# Code that names these may use anything in its module: then all of it counts.
_DYNAMIC = frozenset(
    {"globals", "locals", "eval", "exec", "__import__", "importlib", "sys.modules", "inspect",
     "__init_subclass__", "__subclasses__", "metaclass"}
)  # fmt: skip
_IMPORT_NAME = re.compile(r"([^\W\d][\w.]*):([^\W\d][\w.]*)")


def source_digest(settings: Any, path: Path | None) -> str | None:
    """Return a digest of the code in a plug-in folder that settings use; None if they use none.

    Every text of the form ``module:attr`` in ``settings`` is an import name. The digest covers the
    named definitions, the definitions they refer to, the statements that run whenever their modules
    are imported, and the same of the local modules that these import. Comments and layout do not
    count.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "mine.py").write_text("class A: pass")
    >>> before = source_digest(["mine:A"], folder)
    >>> _ = (folder / "mine.py").write_text("class A: pass  # the teacher\\n\\nclass B: pass")
    >>> source_digest(["mine:A"], folder) == before
    True
    """
    if path is None:
        return None
    modules = _Modules(path if path.is_dir() else path.parent)
    for module, attribute in _import_names(settings):
        modules.use(module, attribute.split(".")[0])
    used = sorted(modules.statements())
    return fingerprint(used) if used else None


def _import_names(settings: Any) -> Iterator[tuple[str, str]]:
    if isinstance(settings, dict):
        settings = list(settings.values())
    if isinstance(settings, list | tuple):
        for each in settings:
            yield from _import_names(each)
    elif isinstance(settings, str) and (found := _IMPORT_NAME.fullmatch(settings)):
        yield found[1], found[2]


class _Modules:
    """The modules of a folder, parsed on demand, and which of their statements are used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parsed: dict[str, list[ast.stmt] | None] = {}
        self._used: dict[str, set[int]] = {}
        self._names: set[tuple[str, str | None]] = set()

    def statements(self) -> Iterator[tuple[str, int, str]]:
        """Yield the used statements of each module, in their order."""
        for module, numbers in self._used.items():
            body = self._body(module) or []
            for place, number in enumerate(sorted(numbers)):
                yield module, place, ast.dump(body[number])

    def use(self, module: str, name: str | None) -> None:
        """Count a name of a module as used; None is all of it. Other modules are ignored."""
        body = self._body(module)
        if body is None or (module, name) in self._names:
            return
        self._names.add((module, name))
        package = module.rpartition(".")[0]
        if package:
            self.use(package, "")  # importing a module runs its package
        everything = name is None or not _DYNAMIC.isdisjoint(_words(body))
        for number, statement in enumerate(body):
            if everything or not _only_binds(statement) or name in _bound(statement):
                self._use_statement(module, number, statement)

    def _use_statement(self, module: str, number: int, statement: ast.stmt) -> None:
        if number in self._used.setdefault(module, set()):
            return
        self._used[module].add(number)
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.use(alias.name, None)
                    self.use(alias.name.partition(".")[0], None)
            elif isinstance(node, ast.ImportFrom):
                source = _absolute(module, node, package=self._is_package(module))
                for alias in node.names:
                    self.use(source, None if alias.name == "*" else alias.name)
                    self.use(f"{source}.{alias.name}", None)  # where it is a module
        for word in _words([statement]):
            self.use(module, word)

    def _file(self, module: str) -> Path | None:
        place = self._folder.joinpath(*module.split("."))
        files = (place.with_suffix(".py"), place / "__init__.py")
        return next((file for file in files if file.is_file()), None)

    def _is_package(self, module: str) -> bool:
        file = self._file(module)
        return file is not None and file.name == "__init__.py"

    def _body(self, module: str) -> list[ast.stmt] | None:
        if module not in self._parsed:
            file = self._file(module) if module else None
            self._parsed[module] = None if file is None else _parse(file)
        return self._parsed[module]


def _parse(file: Path) -> list[ast.stmt]:
    try:
        return ast.parse(file.read_bytes(), filename=file.name).body
    except OSError as error:
        raise InvalidInput(f"cannot read the plug-in {file}: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"the plug-in {file} is not valid Python: {error}") from None


def _only_binds(statement: ast.stmt) -> bool:
    """Return whether a statement does nothing but bind names: a definition, an import, a constant.

    A decorator may register what it decorates, and any other statement may do anything.
    """
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return not statement.decorator_list
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        calls = any(isinstance(node, ast.Call) for node in ast.walk(statement))
        return not calls and all(isinstance(target, ast.Name) for target in targets)
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)  # a docstring
    if isinstance(statement, ast.ImportFrom):
        return all(alias.name != "*" for alias in statement.names)
    return isinstance(statement, ast.Import)


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds in its module."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _words(statements: list[ast.stmt]) -> set[str]:
    """Return every identifier in some statements: names, attributes, keywords and definitions."""
    words: set[str] = set()
    for node in (each for statement in statements for each in ast.walk(statement)):
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
            if isinstance(node.value, ast.Name):
                words.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg is not None:
            words.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            words.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            words.update(alias.name for alias in node.names)
    return words


def _absolute(module: str, node: ast.ImportFrom, *, package: bool) -> str:
    """Return the module that a ``from … import`` names, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + (1 if package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])
