"""What stands between a model and private training, as values that can be listed and counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing about one module of a model.

    A serious problem would break the guarantee or the training, and stops it. The others are
    notes: the model trains as it is, and the note says what to expect.

    >>> print(Problem(where="0", kind="ReLU", what="works in place", remedy="nothing to do"))
    0 (ReLU): works in place; nothing to do
    """

    where: str  # dotted name of the module; '' is the model itself
    kind: str  # name of its type
    what: str
    remedy: str
    fixable: bool = False  # by dpsgd.fix
    serious: bool = False

    def __str__(self) -> str:
        return f"{self.where or 'the model'} ({self.kind}): {self.what}; {self.remedy}"
