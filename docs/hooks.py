"""The site beyond its pages: executed tutorials, files from outside this folder, docstrings.

MkDocs calls the ``on_…`` functions while it builds; mkdocstrings loads :class:`Docstrings`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import posixpath
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import griffe
import jupytext
import nbformat
from mkdocs.structure.files import File
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
EXECUTED = ROOT / "build" / "tutorials"  # a notebook for each state of its source and the packages

# Files of the repository that are pages of the site, and their places there.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "data/README.md": "reference/data-sets.md",
} | {f"docs/tutorials/{each.name}": f"tutorials/{each.stem}.md" for each in TUTORIALS}


def on_config(config: Any) -> Any:
    """List the tutorials in the navigation, in the order of their index."""
    index = (ROOT / "docs" / "tutorials" / "index.md").read_text(encoding="utf-8")
    tutorials = next(section["Tutorials"] for section in config.nav if "Tutorials" in section)
    tutorials += [f"tutorials/{name}.md" for name in re.findall(r"\((\w+)\.py\)", index)]
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the executed tutorials and the pages that are kept outside of this folder."""
    for source, place in PAGES.items():
        if source.endswith(".md"):
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, place, content=text))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        notebooks = list(pool.map(execute, TUTORIALS))
    for source, notebook in zip(TUTORIALS, notebooks, strict=True):
        text, pictures = as_page(notebook, name=source.stem)
        contents = {f"{source.stem}.md": text, f"{source.stem}.ipynb": nbformat.writes(notebook)}
        for name, content in (contents | pictures).items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lead links to where the site has their targets, and colour examples as a session."""
    places = {place: source for source, place in PAGES.items()}
    place = page.file.src_uri
    here = posixpath.dirname(places.get(place, f"docs/{place}"))

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups(default="")
        file = posixpath.normpath(posixpath.join(here, target))
        if not target or not (ROOT / file).exists():
            return found[0]
        if file not in PAGES and not file.startswith("docs/"):
            return f"`{file}`" if text == file else text  # a file that the site does not have
        there = PAGES.get(file, file.removeprefix("docs/"))
        return f"[{text}]({posixpath.relpath(there, posixpath.dirname(place))}{anchor})"

    markdown = re.sub(r"(?<!!)\[([^]\[]*)\]\(([^)#\s]*)(#[^)\s]*)?\)", link, markdown)
    return re.sub(r"(?ms)^```python\n(>>>.*?)\n*^```$", r"```pycon\n\1\n```", markdown)


def execute(source: Path, *, claims: str | None = None) -> Any:
    """Return the notebook of a tutorial with its outputs, as kept if nothing changed since.

    With ``claims``, code that raises if the text is wrong, it is executed in any case.
    """
    read = [source, *sorted([*ROOT.glob("pate/**/*.py"), *ROOT.glob("dpsgd/**/*.py")])]
    state = hashlib.sha256(b"".join(hashlib.sha256(each.read_bytes()).digest() for each in read))
    kept = EXECUTED / f"{source.stem}-{state.hexdigest()[:16]}.ipynb"
    if claims is None and kept.exists():
        return nbformat.read(kept, as_version=4)
    notebook = jupytext.read(source)
    notebook.cells.append(nbformat.v4.new_code_cell(claims or ""))
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            timeout=600,
            resources={"metadata": {"path": folder}},
        )
        own = {"PATE_DATA": folder, "XDG_DATA_HOME": folder, "PYTHONPATH": str(ROOT)}
        client.execute(env=os.environ | own)
    del notebook.cells[-1]
    EXECUTED.mkdir(parents=True, exist_ok=True)
    for old in EXECUTED.glob(f"{source.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(notebook, kept)
    return notebook


def as_page(notebook: Any, *, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(f'<div class="output">{data["text/html"]}</div>')
            elif "image/png" in data:
                picture = f"{name}_{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![Plot that the code above draws]({picture})")
            elif output.get("name") != "stderr":  # progress and warnings
                text = html.escape(data.get("text/plain") or output.text)
                parts.append(f'<div class="output"><pre>{text}</pre></div>')
    parts.append(f"[Download this page as a notebook]({name}.ipynb)")
    return "\n\n".join(parts), pictures


class Docstrings(griffe.Extension):
    """Docstrings as griffe reads them: guarantees in a box, examples in a section of their own."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that was loaded."""
        if obj.docstring is None:
            return
        text = re.sub(r":\w+:`(?:~[\w.]*\.)?([^`]+)`", r"`\1`", obj.docstring.value)
        guarantee = r"(?m)^Guarantees:\n((?:(?: {4}.*)?(?:\n|\Z))+)"
        boxes = [f'!!! abstract "Guarantee"\n\n{body}' for body in re.findall(guarantee, text)]
        text = re.sub(guarantee, "", text)
        opening, *sections = re.split(r"(?m)^(?=[A-Z]\w+\n-{3})", text)
        opening = re.sub(r"(?m)^>>> (?:.+(?:\n|\Z))+", r"```pycon\n\g<0>\n```\n", opening)
        if sections and not any(each.startswith("Examples\n") for each in sections):
            sections[-1] = re.sub(r"(?m)^(?=>>> )", "Examples\n--------\n", sections[-1], count=1)
        obj.docstring.value = "\n".join([opening, *boxes, "", *sections])
