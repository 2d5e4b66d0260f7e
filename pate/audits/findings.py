"""The finding of one attack: the value type that every attack returns and the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pate.audits.roc import Roc

FloatArray = NDArray[np.float64]

LABELS, TABLE = "released labels", "noised table"  # targets

FIRM = 0.9999
"""The confidence at which a claim is contradicted: sound code is, in one of 10 000 audits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finding:
    """The result of one attack on one target. PRIVATE.

    Parameters
    ----------
    attack : str
        The attack, such as ``"LiRA (offline)"``.
    target : str
        What was attacked, such as ``"student"`` or ``"model without privacy"``.
    knowledge : str
        What the attacker knew, in a phrase.
    source : str
        The paper, as author and year.
    epsilon : float or None
        The lower bound on ε that the attack shows; None where it shows none.
    delta : float
        The δ for which the bound holds.
    confidence : float or None
        The probability with which the bound holds; None where it is exact.
    firm_epsilon : float or None
        The bound at a confidence of :data:`FIRM`, by which a claim is contradicted where
        ``epsilon`` is less sure.
    largest_possible : float or None
        The largest ε that an attack of this size could have shown.
    values : mapping of str to float
        Other results by name, such as ``"TPR at 0.1 % FPR"``.
    curve : Roc, optional
        The ROC curve of members against others.
    note : str
        A sentence for the reader, where one is needed.
    publishable : bool
        Whether it follows from coins, secret noise and public settings, and from no private record.
    """

    attack: str
    target: str
    knowledge: str
    source: str
    epsilon: float | None = None
    delta: float = 0.0
    confidence: float | None = None
    firm_epsilon: float | None = None
    largest_possible: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    curve: Roc | None = None
    note: str = ""
    publishable: bool = False

    def contradicts(self, claimed: float) -> bool:
        """Return whether the attack shows more than the claimed ε, at a confidence of FIRM."""
        sure = self.confidence is None or self.confidence >= FIRM
        shown = self.epsilon if sure else self.firm_epsilon
        return shown is not None and shown > claimed

    def as_json(self) -> dict[str, Any]:
        """Return everything but the curve, as plain values."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in plain.items() if name != "curve"} | {
            "values": dict(self.values)
        }
