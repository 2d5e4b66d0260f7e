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
from pate.engines.files import modules
from pate.errors import InvalidInput

# Code that uses one of these may reach any code by its name: then the whole folder counts.
_DYNAMIC = frozenset(
    {"globals", "locals", "eval", "exec", "__import__", "importlib", "sys.modules", "inspect",
     "__init_subclass__", "__subclasses__", "metaclass", "__globals__"}
)  # fmt: skip
_IMPORT_NAME = re.compile(r"([^\W\d][\w.]*):([^\W\d][\w.]*)")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def source_digest(settings: Any, path: Path | None) -> str | None:
    """Return a digest of the code in a plug-in folder that settings use; None if they use none.

    Every text of the form ``module:attr`` in ``settings`` is an import name. The digest covers the
    named definitions, the definitions they refer to, the statements that run whenever their modules
    are imported, and the same of the local modules that these import. Comments and layout do not
    count, and nor do data files beside a plug-in.

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
    used = _UsedSource(path if path.is_dir() else path.parent)
    for module, attribute in _import_names(settings):
        used.add(module, attribute.split(".")[0])
    if used.dynamic:
        return whole_folder_digest(path)
    statements = sorted(used.statements())
    return fingerprint(statements) if statements else None


def whole_folder_digest(path: Path) -> str:
    """Return a digest of every module in a plug-in folder."""
    return fingerprint([(name, file.read_bytes().hex()) for name, file in modules(path).items()])


def _import_names(settings: Any) -> Iterator[tuple[str, str]]:
    if isinstance(settings, dict):
        settings = list(settings.values())
    if isinstance(settings, list | tuple):
        for each in settings:
            yield from _import_names(each)
    elif isinstance(settings, str) and (found := _IMPORT_NAME.fullmatch(settings)):
        yield found[1], found[2]


class _UsedSource:
    """The statements of a folder's modules that some names use; modules are parsed on demand."""

    def __init__(self, folder: Path) -> None:
        self.dynamic = False  # whether what is used cannot be known
        self._folder = folder
        self._parsed: dict[str, list[ast.stmt] | None] = {}
        self._used: dict[str, set[int]] = {}
        self._names: set[tuple[str, str | None]] = set()

    def statements(self) -> Iterator[tuple[str, int, str]]:
        """Yield the used statements of each module, in their order."""
        for module, numbers in self._used.items():
            body = self._body(module) or []
            for place, number in enumerate(sorted(numbers)):
                yield module, place, _describe(body[number])

    def add(self, module: str, name: str | None) -> None:
        """Count a name of a module as used, "" for importing it, None for all of it.

        Modules that are not in the folder are ignored.
        """
        body = self._body(module)
        if body is None or (module, name) in self._names:
            return
        self._names.add((module, name))
        package = module.rpartition(".")[0]
        if package:
            self.add(package, "")
        self.dynamic |= not _DYNAMIC.isdisjoint(_words(body)) or any(
            isinstance(each, ast.FunctionDef) and each.name == "__getattr__" for each in body
        )
        for number, statement in enumerate(body):
            bound = _bound(statement)
            imports = isinstance(statement, ast.Import | ast.ImportFrom)
            if name is None or name in bound or "*" in bound:
                self._add_statement(module, number, statement)
            elif imports:
                for source, _ in self._imported(module, statement):
                    self.add(source, "")
            elif not _only_binds(statement):
                self._add_statement(module, number, statement)

    def _add_statement(self, module: str, number: int, statement: ast.stmt) -> None:
        if number in self._used.setdefault(module, set()):
            return
        self._used[module].add(number)
        for node in ast.walk(statement):
            for source, name in self._imported(module, node):
                self.add(source, name)
        for word in _words([statement]):
            self.add(module, word)

    def _imported(self, module: str, node: ast.AST) -> Iterator[tuple[str, str | None]]:
        """Yield the modules that an import statement may load, and what of them it names."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
                yield alias.name.partition(".")[0], None
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node, package=self._is_package(module))
            for alias in node.names:
                yield source, None if alias.name == "*" else alias.name
                yield f"{source}.{alias.name}", None

    def _file(self, module: str) -> Path | None:
        place = self._folder.joinpath(*module.split("."))
        files = (place / "__init__.py", place.with_suffix(".py"))  # as Python looks for them
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


def _describe(node: Any) -> str:
    """Return a syntax tree as text that is the same for every version of Python.

    Fields that are empty are left out: later versions have more of them.
    """
    if isinstance(node, ast.AST):
        fields = [(name, getattr(node, name, None)) for name in node._fields if name != "ctx"]
        parts = [f"{name}={_describe(each)}" for name, each in fields if each not in (None, [])]
        return f"{type(node).__name__}({', '.join(parts)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_describe, node))}]"
    return repr(node)


def _only_binds(statement: ast.stmt) -> bool:
    """Return whether a statement does nothing but bind names: a definition or a constant.

    A decorator may register what it decorates, a call may do anything.
    """
    if isinstance(statement, _Definition):
        return not statement.decorator_list and not _calls(statement)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return not _calls(statement) and all(isinstance(each, ast.Name) for each in targets)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _calls(node: ast.AST) -> bool:
    """Return whether running a statement calls something; bodies of functions are not run."""
    if isinstance(node, ast.Call):
        return True
    inside: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        arguments = node.args
        inside = [*arguments.defaults, *(each for each in arguments.kw_defaults if each)]
        inside += [] if isinstance(node, ast.Lambda) else node.decorator_list
    return any(map(_calls, inside))


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds in its module."""
    if isinstance(statement, _Definition):
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
        elif isinstance(node, _Definition):
            words.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            words.update(alias.name.partition(".")[0] for alias in node.names)
            if isinstance(node, ast.ImportFrom) and node.module:
                words.add(node.module.partition(".")[0])
                words.update(f"{node.module}.{alias.name}" for alias in node.names)
    return words


def _absolute(module: str, node: ast.ImportFrom, *, package: bool) -> str:
    """Return the module that a ``from … import`` names, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + (1 if package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])
