"""Labels as written → class numbers 0 … c−1.

Guarantees:
    * **The class names are public, and so is their number.** They are printed, they shape every
      teacher and every vote. So they come from ``classes`` in the recipe or from the labels of
      public and test records; a private label beyond them is an error, not a new class.
    * No message shows a label.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput

_WHOLE = re.compile(r"([+-]?\d{1,18})(?:\.0*)?")


def encode(
    columns: Sequence[tuple[str, NDArray[Any] | None]], *, classes: Sequence[str] | None = None
) -> tuple[list[NDArray[np.int64] | None], tuple[str, ...]]:
    """Class numbers for each column of labels, and the names they stand for.

    Names are the sorted union over all columns: by value where all of them are whole numbers,
    else by spelling. ``columns`` pairs the place (for messages) with the labels.

    >>> encode([("a.csv", np.array(["10", "9"])), ("b.csv", np.array(["9", "9"]))])
    ([array([1, 0]), array([0, 0])], ('9', '10'))
    """
    texts = [(where, None if raw is None else _texts(raw, where)) for where, raw in columns]
    found = sorted({name for _, text in texts if text is not None for name in set(text)})
    whole = {name: match for name in found if (match := _WHOLE.fullmatch(name))}
    if found and len(whole) == len(found):
        plain = {name: str(int(match[1])) for name, match in whole.items()}
        texts = [
            (where, None if text is None else [plain[name] for name in text])
            for where, text in texts
        ]
        found = sorted(set(plain.values()), key=int)
    names = tuple(found) if classes is None else tuple(classes)
    if len(names) < 2:
        raise InvalidInput(
            f"the labels of {columns[0][0]} name {len(names)} class; classification needs 2 or more"
        )
    number = {name: index for index, name in enumerate(names)}
    encoded: list[NDArray[np.int64] | None] = []
    for where, text in texts:
        if text is None:
            encoded.append(None)
            continue
        if not number.keys() >= set(text):
            raise InvalidInput(
                f"{where} holds a label that is not among the {len(names)} classes of the recipe; "
                "add it to classes or remove those records"
            )
        encoded.append(np.array([number[name] for name in text], dtype=np.int64))
    return encoded, names


def _texts(raw: NDArray[Any], where: str) -> list[str]:
    if raw.ndim != 1:
        raise InvalidInput(
            f"the labels of {where} have shape {raw.shape}; give one for each record"
        )
    if raw.dtype.kind == "f":
        if not np.isfinite(raw).all():
            raise InvalidInput(f"a label of {where} is missing (NaN) or infinite; fill it in")
        if not np.array_equal(raw, np.floor(raw)) or np.abs(raw).max(initial=0) >= 2**53:
            raise InvalidInput(f"the labels of {where} hold fractions; labels are classes")
        raw = raw.astype(np.int64)
    elif raw.dtype.kind == "b":
        raw = raw.astype(np.int64)
    elif raw.dtype.kind not in "iuUO":
        raise InvalidInput(f"the labels of {where} are {raw.dtype}, not class names or numbers")
    names = [str(label).strip() for label in raw.tolist()]
    if any(name in ("", "None") for name in names):
        raise InvalidInput(f"a label of {where} is missing; fill it in or remove the record")
    if not all(map(is_text, names)):
        raise InvalidInput(
            f"the name of a class of {where} is not Unicode text; rename the label, or the folder"
        )
    return names


def is_text(name: str) -> bool:
    """Whether a name can be written in UTF-8: that of a folder in another encoding cannot.

    >>> is_text("ε"), is_text("\\udcff")
    (True, False)
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
