"""Everything an audit found, as values and as files. PRIVATE."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pate._files import write_atomically
from pate._format import format_epsilon, format_remaining
from pate.audits.findings import FIRM, Finding, FloatArray
from pate.errors import InvalidInput

FORMAT = 1
_MODE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the attacked release states of itself: the guarantee that findings are held against.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    protects : str
        Between whom it holds, as a phrase.
    """

    epsilon: float
    delta: float
    protects: str = "one record added or removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """One of the most exposed records. PRIVATE.

    Parameters
    ----------
    record : int
        Its row among the private records, from 0; of a user, that of the first record.
    label : str
        Its class.
    epsilon : float
        Its realised ε.
    changed : int
        The number of queries on which leaving it out changes a vote.
    """

    record: int
    label: str
    epsilon: float
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audit:
    """The results of all attacks on one run or model. PRIVATE.

    Parameters
    ----------
    subject : str
        What was attacked, in a few words.
    claims : mapping of str to Claim
        The guarantee of each target that has one; other targets, such as a model without privacy,
        are for comparison.
    findings : tuple of Finding
        One for each attack and target, in the order in which they were made.
    realised : ndarray of float64, optional
        The realised ε of each record that was left out.
    exposed : tuple of Exposed
        The most exposed records.
    skipped : tuple of str
        Attacks that were not made, and why, a sentence each.
    notes : tuple of str
        Sentences that belong beside the results.
    faults : tuple of str
        Conditions of the guarantee that shards or votes do not meet, a clause each.
    one_population : bool
        Whether members and others of membership attacks were divided at random: a curve above what
        a claim allows then contradicts it, and is otherwise perhaps of two populations.
    seconds : mapping of str to float
        The time of each part.
    methods : mapping of str to Audit
        Of a comparison, the audit of each method; empty otherwise.
    """

    subject: str
    claims: Mapping[str, Claim]
    findings: tuple[Finding, ...]
    realised: FloatArray | None = None
    exposed: tuple[Exposed, ...] = ()
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    one_population: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    methods: Mapping[str, Audit] = field(default_factory=dict)

    @property
    def claim(self) -> Claim | None:
        """The guarantee of all targets that have one; None if none has, or theirs differ."""
        kinds = list(dict.fromkeys(self.claims.values()))
        return kinds[0] if len(kinds) == 1 else None

    def covers(self, finding: Finding) -> bool:
        """Return whether a claim is about the target of a finding."""
        return finding.target in self.claims

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """The findings that show more than is claimed, of sound code one in 10 000 audits."""
        certain = self.leaks if self.one_population else ()
        return tuple(
            each
            for each in self.findings
            # A throwaway training with canaries may have a plan, and so a claim, of its own.
            if self.covers(each)
            and each.contradicts(each.values.get("claimed ε", self.claims[each.target].epsilon))
        ) + tuple(each for each in certain if each.epsilon is None)

    @property
    def contradicted(self) -> bool:
        """Whether the claim cannot be right."""
        return bool(self.faults or self.contradictions)

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """The membership attacks whose curve is above what its claim allows, beyond chance.

        Guarantees:
            Of members and others that were divided at random, so does less than one curve in a
            million of a sound release: :meth:`pate.audits.roc.Roc.exceeds`, by Kairouz, Oh &
            Viswanath 2015. Records of two populations differ without any leak.
        """
        return tuple(
            each
            for each in self.findings
            if self.covers(each)
            and each.curve is not None
            and each.curve.exceeds(
                epsilon=self.claims[each.target].epsilon, delta=self.claims[each.target].delta
            )
        )

    @property
    def best(self) -> Finding | None:
        """The finding with the largest lower bound on a claimed ε; None where there is none."""
        bounded = [each for each in self.findings if self.covers(each) and each.epsilon is not None]
        return max(bounded, key=lambda each: each.epsilon or 0.0, default=None)

    def strongest(self, *, covered: bool) -> Finding | None:
        """Return the membership attack of the largest advantage on what a claim covers, or not."""
        curves = [
            each
            for each in self.findings
            if each.curve is not None and self.covers(each) is covered
        ]
        return max(curves, key=lambda each: each.values["advantage"], default=None)

    @property
    def publishable(self) -> str | None:
        """A sentence that may be published, where one follows from made-up canaries alone.

        Guarantees:
            Gradient canaries live on coordinates that no record's gradient reaches, and from the
            noised count of a canary's cell the records in it are taken off: what is seen follows
            from coins, lots, noise and public settings, and from no private record. Of all other
            findings nothing may be published: canaries among teachers are seen through votes,
            which private records decide too.
        """
        if self.methods:
            known = {name: audit.publishable for name, audit in self.methods.items()}
            return " ".join(f"{name}: {each}" for name, each in known.items() if each) or None
        found = next((e for e in self.findings if e.publishable and self.covers(e)), None)
        if found is None or found.epsilon is None or self.claim is None:
            return None
        return (
            f"An audit with {found.values['canaries']:.0f} canaries, none a private record, in one "
            f"training, shows ε ≥ {format_remaining(found.epsilon)} at δ = {found.delta:g} with "
            f"{100 * (found.confidence or 1):g} % confidence, where "
            f"{format_epsilon(self.claim.epsilon)} is claimed{self._by_chance(found)}. It could "
            f"have shown {format_remaining(found.largest_possible or 0.0)}."
        )

    def _by_chance(self, found: Finding) -> str:
        """Return what belongs beside a bound above the claim that does not contradict it."""
        above = (found.epsilon or 0.0) > self.claims[found.target].epsilon
        if not above or found.firm_epsilon is None or found.confidence is None:
            return ""
        return (
            f", as chance lets {100 * (1 - found.confidence):.0f} of 100 audits of sound code; at "
            f"{100 * FIRM:g} % confidence it is {format_remaining(found.firm_epsilon)}"
        )

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        if not self.claims:
            return "No guarantee is claimed, so there is nothing to contradict."
        each = dict.fromkeys(format_epsilon(claim.epsilon) for claim in self.claims.values())
        claimed = ", ".join(each)
        if self.faults:
            return (
                f"CONTRADICTED: {'; '.join(self.faults)}. The claimed ε = {claimed} does not hold; "
                "do not publish."
            )
        if wrong := self.contradictions:
            names = ", ".join(dict.fromkeys(each.attack for each in wrong))
            return (
                f"CONTRADICTED: {names} shows more than the claimed ε = {claimed}. Do not publish: "
                "the noise, the accounting or the code is at fault (of sound code one audit in "
                "10 000 says so)."
            )
        if leaks := self.leaks:
            names = ", ".join(
                dict.fromkeys(f"{each.attack} on the {each.target}" for each in leaks)
            )
            return (
                f"SUSPECT: {names} tells private from test records better than the claimed ε = "
                f"{claimed} allows. Unless the two come from different populations (other years, "
                "places or files), the model leaks: do not publish it before that is known."
            )
        found = self.best
        if found is None or found.epsilon is None:
            return f"No attack bounds ε from below; the claim of ε = {claimed} stands untested."
        return (
            f"Nothing contradicts the claimed ε = {claimed}; the largest lower bound is "
            f"{format_remaining(found.epsilon)} ({found.attack}){self._by_chance(found)}."
        )

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "format": FORMAT,
            "level": "PRIVATE",
            "subject": self.subject,
            "claimed": {target: asdict(claim) for target, claim in self.claims.items()},
            "contradicted": self.contradicted,
            "suspect": bool(self.leaks),
            "verdict": self.verdict,
            "findings": [
                each.as_json() | {"covered_by_claim": self.covers(each)} for each in self.findings
            ],
            "realised": None
            if self.realised is None
            else {"records": len(self.realised), "epsilons": np.round(self.realised, 9).tolist()},
            "exposed": [asdict(each) for each in self.exposed],
            "publishable": self.publishable,
            "skipped": list(self.skipped),
            "notes": list(self.notes),
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
        }

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write ``audit.json``, ``audit.html`` and plots into a folder, for its owner alone.

        Plots of an earlier audit that this one does not have are removed.

        Guarantees:
            Every file has mode 0600; a folder that has to be made has 0700.
        """
        from pate.audits.page import render_audit
        from pate.audits.plots import IMAGE_FILES, image_files

        place = Path(folder)
        if place.exists() and not place.is_dir():
            raise InvalidInput(f"{place} exists and is not a directory")
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"
        files = {"audit.html": render_audit(self).encode(), **image_files(self)}
        files["audit.json"] = text.encode()
        for name, content in files.items():
            write_atomically(place / name, content, mode=_MODE, make_parents=True)
        for name in IMAGE_FILES.values():  # of an earlier audit, with other attacks
            if name not in files:
                (place / name).unlink(missing_ok=True)
        return tuple(place / name for name in sorted(files))


def lines(audit: Audit) -> Sequence[str]:
    """Return the results as a table of text: for a terminal, and PRIVATE like all of it."""
    heading = ("attack", "target", "ε shown", "of at most", "TPR at 1 % FPR", "advantage")
    rows = [heading]
    for each in audit.findings:
        rows.append(
            (
                each.attack,
                each.target,
                "–" if each.epsilon is None else format_remaining(each.epsilon),
                "–" if each.largest_possible is None else format_remaining(each.largest_possible),
                _percent(each.values.get("TPR at 1 % FPR")),
                _percent(each.values.get("advantage")),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    table = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [*table, "", *(f"Not made: {each}" for each in audit.skipped), audit.verdict]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
