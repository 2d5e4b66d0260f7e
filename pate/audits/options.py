"""The extent of an audit, and its results as they come in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from pate._validate import check_whole
from pate.audits.findings import Finding
from pate.engines.progress import Show
from pate.engines.worker import limited_threads
from pate.errors import ConditionsFail, InvalidInput, TeacherError

ATTACKS = ("leave-one-out", "membership", "canaries")

_MOST_SECONDS = 120.0  # that shadow models of one target may take, unless their number is given
_SHADOWS = 16
_LEAST_CANARIES = 5  # all guesses of fewer are right by chance in more than 5 of 100 audits


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The extent of an audit.

    Parameters
    ----------
    attacks : sequence of str
        Which of ``leave-one-out``, ``membership`` and ``canaries``.
    records : int, optional
        The most records to leave out, sampled by class; all if left out.
    canaries : int, optional
        The number of canaries; by default as many as suit the run.
    shadows : int, optional
        Shadow models for each target; by default 16 where that takes no more than two minutes. None
        are trained for 0.
    seed : int
        Seeds samples and shadow models; coins and noise of canaries are secret.
    report : callable
        Receives a line before each part.
    progress : Show, optional
        Opens a display of progress.
    """

    attacks: Sequence[str] = ATTACKS
    records: int | None = None
    canaries: int | None = None
    shadows: int | None = None
    seed: int = 0
    report: Callable[[str], None] = field(default=lambda text: None)
    progress: Show | None = None

    def __post_init__(self) -> None:
        for each in self.attacks:
            if each not in ATTACKS:
                raise InvalidInput(f"attacks holds {each!r}; choose from {', '.join(ATTACKS)}")
        if not self.attacks:
            raise InvalidInput(f"no attacks are chosen; choose from {', '.join(ATTACKS)}")
        if self.records is not None:
            check_whole("records", self.records, least=1)
        if self.canaries is not None and check_whole("canaries", self.canaries) < _LEAST_CANARIES:
            raise InvalidInput(
                f"{self.canaries} canaries can show no ε with a confidence of 95 %; use "
                f"{_LEAST_CANARIES} or more"
            )
        if self.shadows is not None and check_whole("shadows", self.shadows) in (1, 2, 3):
            raise InvalidInput(f"shadows is {self.shadows}; give 4 or more, or 0 for none")


class Results:
    """Findings as they come in, and what was skipped."""

    def __init__(self, options: AuditOptions) -> None:
        self.options = options
        self.findings: list[Finding] = []
        self.skipped: list[str] = []
        self.notes: list[str] = []
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str, *, threads: int | None = 1) -> Iterator[None]:
        """Run one part; what it cannot do is a sentence among the results, and no failure.

        Most parts are thousands of small calls, for which threads spend their time waiting for one
        another: on a busy machine ten times as much as one thread takes. None leaves them alone.
        """
        self.options.report(f"{name} …")
        start = time.perf_counter()
        try:
            with nullcontext() if threads is None else limited_threads(threads):
                yield
        # What was asked for may not suit the model, or the number of records.
        except (ConditionsFail, TeacherError, InvalidInput) as error:
            if isinstance(error, InvalidInput) and not self.findings:
                raise  # nothing is lost
            self.skipped.append(f"{name}: {error}.")
        self.seconds[name] = time.perf_counter() - start

    def affordable_shadows(
        self,
        target: str,
        once: Callable[[], object] | None = None,
        *,
        seconds: float = 0.0,
    ) -> int:
        """Return the number of shadow models of a target: by the time of one training.

        ``once`` makes one, where it is not known how long that takes.
        """
        asked = self.options.shadows
        if asked is not None:
            return asked
        if once is not None:
            start = time.process_time()  # of this program alone, however busy the machine is
            try:
                once()
            except ConditionsFail as error:
                self.skipped.append(f"Shadow models of the {target}: {error}.")
                return 0
            seconds = time.process_time() - start
        total = seconds * _SHADOWS
        if total <= _MOST_SECONDS:
            return _SHADOWS
        self.skipped.append(
            f"Shadow models, LiRA and RMIA on the {target}: {_SHADOWS} trainings would take about "
            f"{total / 60:.0f} minutes; --shadows {_SHADOWS} makes them."
        )
        return 0
