"""A thousand recipes made wrong on purpose, by what their models say may stand there.

Every key of every section gets values of other kinds, sizes and depths, in the file or by
``--set``; keys and sections are misspelt, repeated and left out. Each of them ends in one line and
exit code 2, and nothing is charged. What the models let pass is carried out: it succeeds, or ends
in one line before the charge; only a student may fail after it, and a better one finishes the run.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from copy import deepcopy
from typing import Any

import pytest
from harness import RECIPE, CommandServer, Raw, toml
from pydantic import BaseModel

from dpsgd.recipe import DpsgdRecipe
from pate.accounting import Ledger
from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe as PateRecipe
from pate.recipes.read import read_recipe
from pate.studies.compare.recipe import CompareRecipe

MALFORMED = 340  # for each kind of recipe
CARRIED_OUT = {"pate": 40, "dpsgd": 30, "compare": 10}
MEMORY = 2 << 30
DATA = {"name": "tiny", "source": "tiny.npz", "public": 30, "test": 30, "accept_unprotected": True}
STUDENT = {"model": "centroids:Centroids"}
RECIPES: dict[str, tuple[type[BaseModel], tuple[str, ...], dict[str, Any]]] = {
    "pate": (PateRecipe, ("pate", "run", "--engine", "serial", "--plugin-path", "plugins"), RECIPE),
    "dpsgd": (
        DpsgdRecipe,
        ("dpsgd", "train", "--plugin-path", "plugins"),
        {
            "kind": "dpsgd",
            "data": DATA,
            "features": {"pca": {"dimension": 3, "noise_multiplier": 8.0}},
            "model": {"hidden": [4]},
            "training": {"steps": 4, "lot_size": 20, "learning_rate": 0.5},
            "clipping": {"rule": "flat", "max_norm": 1.0},
            "privacy": {"epsilon": 6.0, "delta": 1e-3, "accountant": "moments"},
        },
    ),
    "compare": (
        CompareRecipe,
        ("pate", "compare", "--engine", "serial", "--plugin-path", "plugins"),
        {
            "kind": "compare",
            "data": DATA,
            "compare": {"epsilons": [8.0], "seeds": 1, "delta": 1e-3},
            "pate": {
                "teachers": {"count": 6, **STUDENT},
                "aggregate": {"mechanism": "gnmax", "queries": 5},
                "student": STUDENT,
            },
            "dpsgd": {
                "model": {"hidden": [4]},
                "training": {"steps": 2, "lot_size": 20, "learning_rate": 0.5},
                "privacy": {"accountant": "moments"},
            },
        },
    ),
}

# As TOML has it. None of them is right everywhere; most are wrong nearly everywhere.
HOSTILE = [
    "true", "false", '""', '"text"', '" "', "0", "-1", "3", "1.5", "-0.0", "nan", "inf", "-inf",
    "1e308", "1e-320", "-1e-9", "9223372036854775808", "1" + "0" * 30, "1" + "0" * 400,
    "[]", "[[]]", "[1, \"a\"]", "[true]", "[nan]", "[-1]", "{}", '{ a = 1 }', "{ a = { b = [] } }",
    "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "0x7fffffffffffffffffffffff",
    '"../../etc/passwd"', '"/dev/zero"', '"."', '"a/b"', '"os:system"', '"builtins:eval"',
    '"no_such_module:thing"', '"tiny.toml"', '"ε"', '"\\u0000"', '"\\n"', '"\\u001b[31mred"',
    '"\\u202e"', '"\\ud800"', '"' + "x" * 5000 + '"', "[" * 60 + "]" * 60, "[" * 2000 + "]" * 2000,
    "[" + "1, " * 5000 + "]", "= 1", "", '"', "[", "1 2", "\x00", "\udcff", "'''",
]  # fmt: skip
# For --set: a command line cannot hold a zero byte.
SETTABLE = [value for value in HOSTILE if "\x00" not in value]


def keys(model: type[BaseModel], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every section and every key that a recipe may have, in sections of sections too."""
    found = []
    for name, field in model.model_fields.items():
        found.append((*above, name))
        for inner in models_in(field.annotation):
            found += keys(inner, (*above, name))
    return found


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [each for part in getattr(annotation, "__args__", ()) for each in models_in(part)]


def written(content: dict[str, Any]) -> bytes:
    """A recipe as a file: plain keys first, then sections of one line for each key."""
    lines = [f"{key} = {toml(each)}" for key, each in content.items() if not isinstance(each, dict)]
    for section, inside in content.items():
        if isinstance(inside, dict):
            lines += [f"[{section}]", *(f"{key} = {toml(each)}" for key, each in inside.items())]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def place(content: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            return
    content[path[-1]] = value


def misspelt(word: str, rng: random.Random) -> str:
    spot = rng.randrange(len(word))
    return rng.choice([
        word[:spot] + word[spot + 1 :] or "x", word[:spot] + word[spot] + word[spot:],
        word.upper(), f"{word}s", f'"{word} "', f'"{word}.x"', '""', "x" * 300, '"\\u0007"', "ö",
    ])  # fmt: skip


def mutated(
    content: dict[str, Any], paths: list[tuple[str, ...]], rng: random.Random
) -> tuple[dict[str, Any], list[str]]:
    """A recipe with one or two mistakes, and words for the command line."""
    content, words = deepcopy(content), []
    for _ in range(rng.choice([1, 1, 1, 2])):
        path, way = rng.choice(paths), rng.random()
        if way < 0.55:
            place(content, path, Raw(rng.choice(HOSTILE)))
        elif way < 0.8:
            words += ["--set", f"{'.'.join(path)}={rng.choice(SETTABLE)}"]
        elif way < 0.9:
            wrong = (*path[:-1], misspelt(path[-1], rng))
            place(content, wrong, rng.choice([1, 1.5, True, "x", [], {}]))
        elif way < 0.95:
            content.pop(path[0], None)
        else:
            words += ["--set", rng.choice(["", "=", "a", "a=1", ".=1", "a.b.c.d=1", "data="])]
    return content, words


def forget_accountant(content: Any) -> None:
    for key in list(content) if isinstance(content, dict) else ():
        if key == "accountant":
            del content[key]
        else:
            forget_accountant(content[key])


def damaged(text: bytes, rng: random.Random) -> bytes:
    """A file that is cut, doubled, or no text."""
    cut = rng.randrange(len(text))
    broken = [text[:cut], text[:cut] + b"\xff\xfe" + text[cut:], text * 2, b"", b"\0" * 9]
    return rng.choice(broken)


def accepted(path: Any, words: list[str], model: type[BaseModel]) -> bool:
    """Whether the recipe holds by its own rules; another end than refusal is a defect too."""
    try:
        read_recipe(str(path), words[1::2], model)
    except InvalidInput:
        return False
    return True


def charged(project: Any) -> list[str]:
    found = []
    for file in (project.folder / "data" / "ledgers").glob("*.ledger"):
        with Ledger.open(file) as ledger:
            found += [charge.release for charge in ledger.charges()]
    return found


def one_line(done: Any, program: str) -> str | None:
    """What is wrong with how a command ended; None if it is as it should be."""
    if "Traceback" in done.stdout + done.stderr:
        return "a traceback: " + done.stderr.strip().rpartition("\n")[2][:300]
    if done.returncode == 0:
        return None
    if done.returncode not in (2, 3) and "not enough memory" not in done.stderr:
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    if not re.fullmatch(rf"{program}: [^\n]{{10,}}\n", done.stderr):
        return f"not one line: {done.stderr[:300]!r}"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", done.stderr):
        return f"a control character: {done.stderr[:300]!r}"
    if len(done.stderr) > 1000:
        return f"a line of {len(done.stderr)} characters: {done.stderr[:100]}…"
    return None


class Campaign:
    """Recipes of one kind, and a server that tries them in a project."""

    def __init__(self, project: Any, kind: str, rng: random.Random) -> None:
        self.project, self.rng = project, rng
        self.model, self.words, self.good = RECIPES[kind]
        self.recipe = project.folder / "tiny.toml"
        self.recipe.write_bytes(written(self.good))
        first = [*self.words[:2], "tiny.toml", *self.words[2:]]
        self.server = CommandServer(project, first)
        self.wrong: dict[str, str] = {}  # faults by their kind, with the first recipe that had one

    def forget(self) -> None:
        """As if nothing had been run."""
        for folder in (self.project.folder / "runs", self.project.folder / "data" / "ledgers"):
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, text: bytes, more: list[str]) -> Any:
        self.recipe.write_bytes(text)
        program, command, *options = self.words
        words = (program, command, "tiny.toml", *options, *more)
        return self.server.call(*words, seconds=300, memory=MEMORY)

    def attempt(
        self, content: dict[str, Any], more: list[str], *, malformed: bool, text: bytes
    ) -> None:
        self.forget()
        done = self.run(text, more)
        fault = one_line(done, self.words[0])
        if fault is None and malformed and done.returncode != 2:
            fault = f"exit code {done.returncode} for a malformed recipe"
        paid = charged(self.project)
        if fault is None and done.returncode and paid and not self.finishes(content, more, paid):
            fault = f"charged, and then: {done.stderr}"
        if fault is not None:
            changed = [line[:200] for line in text.split(b"\n") if line not in written(self.good)]
            name = re.sub(r"[\d.]+|--set \S+|key \S+", "#", fault)[:60]
            self.wrong.setdefault(name, f"{fault}\n  {changed} {[word[:200] for word in more]}")

    def finishes(self, content: dict[str, Any], more: list[str], paid: list[str]) -> bool:
        """Whether a good student completes what another one could not, on the same charge."""
        if "student" not in self.good:
            return False
        again = [word for word in more[1::2] if not word.startswith("student.")]
        better = written(content | {"student": self.good["student"]})
        done = self.run(better, [word for each in again for word in ("--set", each)])
        return done.returncode == 0 and charged(self.project)[: len(paid)] == paid


@pytest.mark.parametrize("kind", RECIPES)
def test_malformed_recipes(project, kind, rng):
    campaign = Campaign(project, kind, rng)
    paths = keys(campaign.model)
    left = {True: MALFORMED, False: CARRIED_OUT[kind]}
    with contextlib.closing(campaign.server):
        while any(left.values()):
            content, more = mutated(campaign.good, paths, rng)
            if rng.random() < 0.2:  # the best of all accountants, which takes seconds
                forget_accountant(content)
            text = written(content)
            if rng.random() < 0.06:
                text = damaged(text, rng)
            campaign.recipe.write_bytes(text)
            malformed = not accepted(campaign.recipe, more, campaign.model)
            if left[malformed]:
                left[malformed] -= 1
                campaign.attempt(content, more, malformed=malformed, text=text)
    faults = "\n".join(campaign.wrong.values())
    assert not faults, f"{len(campaign.wrong)} kinds of defects:\n{faults}"
