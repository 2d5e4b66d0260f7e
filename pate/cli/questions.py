"""Reports of the calculator: from the options of a question to tables and JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pate.cli.options import ConversionName
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from pate.accounting import Conversion, Event, LogMoments
    from pate.accounting.calibrate import Epsilon
    from pate.accounting.moments import FloatArray
    from pate.mechanisms import Mechanism
    from pate.votes import Votes

Report = dict[str, Any]


@dataclass(frozen=True)
class Terms:
    """δ, the conversion and the grid of λ that all figures of one report share."""

    delta: float
    conversion: Conversion
    grid: FloatArray | None
    max_moment: int | None

    @classmethod
    def of(cls, delta: float, conversion: ConversionName, max_moment: int | None) -> Terms:
        from pate._validate import check_delta
        from pate.accounting import Conversion, integer_moments

        check_delta(delta)
        grid = None if max_moment is None else integer_moments(max_moment)
        return cls(delta, Conversion(conversion.value), grid, max_moment)

    def convert(self, total: LogMoments) -> Report:
        return total.guarantee(delta=self.delta, conversion=self.conversion).as_json()

    def epsilon(self) -> Epsilon:
        from pate.accounting.calibrate import moments_epsilon

        return moments_epsilon(delta=self.delta, conversion=self.conversion, moments=self.grid)

    def as_json(self) -> Report:
        return {"delta": self.delta, "conversion": self.conversion, "max_moment": self.max_moment}


@dataclass(frozen=True)
class Question:
    """A noisy-max question: votes or a number of queries, and perhaps a target."""

    cast: Votes | None
    queries: int | None
    target: float | None
    terms: Terms

    def answer(self, kind: type[Mechanism], *, noise: float | None) -> Report:
        """The report of a mechanism with one noise; the noise or the queries may be found."""
        from pate.accounting import compose

        key = str(kind.calibrated)

        def with_noise(value: float) -> Mechanism:
            return kind.from_keys({key: value})

        asked = self.queries if self.cast is None else self.cast.queries
        amount, count, solved = solve(
            (key, noise),
            ("queries", asked),
            self.target,
            lambda value: with_noise(value).answer_event,
            self.terms.epsilon(),
        )
        mechanism = with_noise(amount)
        caps = mechanism.caps(queries=count, answers=count)
        report: Report = {"mechanism": kind.name, key: amount, "queries": count}
        if self.cast is not None:
            report |= described(self.cast)
        report |= {"target_epsilon": self.target, "found": solved}
        report["data_independent"] = self.terms.convert(compose(caps, self.terms.grid))
        if self.cast is not None:
            total = mechanism.data_dependent_cost(self.cast.counts, moments=self.terms.grid)
            report["data_dependent"] = self.terms.convert(total)
        return report | self.terms.as_json()


def plain(
    mechanism: str,
    noise_name: str,
    noise: float | None,
    sensitivity: float,
    queries: int | None,
    target: float | None,
    terms: Terms,
    event: Callable[[float], Event],
    json: bool,
) -> None:
    """The report of a plain mechanism that is asked several times."""
    from pate.accounting import Repeated, compose

    if not 0 < sensitivity < float("inf"):
        raise InvalidInput(f"--sensitivity is {sensitivity}; it must be finite and above zero")
    count = queries if queries is not None or (target is not None and noise is not None) else 1
    multiplier = None if noise is None else noise / sensitivity
    multiplier, count, solved = solve(
        (noise_name, multiplier), ("queries", count), target, event, terms.epsilon()
    )
    total = compose([Repeated(event(multiplier), count)], terms.grid)
    report = {
        "mechanism": mechanism,
        noise_name: multiplier * sensitivity,
        "sensitivity": sensitivity,
        "queries": count,
        "target_epsilon": target,
        "found": solved,
        "data_independent": terms.convert(total),
    }
    show(report | terms.as_json(), json=json)


def solve(
    noise: tuple[str, float | None],
    count: tuple[str, int | None],
    target: float | None,
    event: Callable[[float], Event],
    epsilon: Epsilon,
) -> tuple[float, int, str | None]:
    """Noise and count; whichever is missing is found for the target. Also says which it was."""
    from pate.accounting.calibrate import most, smallest_noise

    (noise_name, amount), (count_name, times) = noise, count
    flags = [f"--{name.replace('_', '-')}" for name in (noise_name, count_name)]
    if amount is not None and times is not None:
        if target is not None:
            raise InvalidInput(f"--target-epsilon needs one of {flags[0]} and {flags[1]} left open")
        return amount, times, None
    if target is None:
        missing = [
            flag for flag, given in zip(flags, (amount, times), strict=True) if given is None
        ]
        raise InvalidInput(f"give {' and '.join(missing)}, or --target-epsilon to find it")
    if times is not None:
        return smallest_noise(event, count=times, target=target, epsilon=epsilon), times, noise_name
    if amount is None:
        raise InvalidInput(f"--target-epsilon needs {flags[0]} or {flags[1]}")
    found = most(event(amount), target=target, epsilon=epsilon)
    if found == 0:
        raise InvalidInput(
            f"with {flags[0]} {amount:g} not even one of them stays within ε {target:g}"
        )
    return amount, found, count_name


def read_votes(
    path: Path | None,
    queries: int | None,
    labels: bool,
    counts: bool,
    abstentions: bool,
    classes: int | None,
) -> Votes | None:
    """The votes of a file, as its flags say they are to be read; None without a file."""
    if path is None:
        if labels or counts or abstentions or classes:
            raise InvalidInput("--labels, --counts, --abstentions and --classes go with --votes")
        return None
    from pate.votes import read_counts, read_labels

    if labels and counts:
        raise InvalidInput("--labels and --counts contradict each other")
    note_private_votes(path)
    if not labels:
        if classes:
            raise InvalidInput("--classes goes with --labels; counts have a column for each class")
        cast = read_counts(path, abstentions=abstentions, certain=counts)
        if not counts and cast.queries > 1 and (cast.counts == cast.counts[0]).all():
            typer.echo(
                f"pate: all {cast.queries} rows are the same; read as counts of {cast.teachers} "
                "teachers (if they are labels of teachers that agree, add --labels)",
                err=True,
            )
        return cast.first(queries)
    cast = read_labels(path, classes=classes, abstentions=abstentions).first(queries)
    if classes is None:
        typer.echo(
            f"pate: {cast.classes} classes, taken from the largest label; if there are more, say "
            "so with --classes, or the data-dependent ε is too small",
            err=True,
        )
    return cast


def read_baseline(path: Path, cast: Votes) -> FloatArray:
    """What a student expects of the votes: teachers × its probabilities."""
    import numpy as np

    from pate.votes import load_table

    table = load_table(path)
    if table.dtype.kind not in "fiu":
        raise InvalidInput(f"{path} holds {table.dtype}, not probabilities")
    probabilities = np.asarray(table[: cast.queries], dtype=np.float64)
    if probabilities.shape != cast.counts.shape:
        raise InvalidInput(f"{path} must hold a probability for each query and class of the votes")
    if not np.all((probabilities >= 0) & (np.abs(probabilities.sum(axis=1) - 1) < 1e-6)[:, None]):
        raise InvalidInput(f"the rows of {path} must be probabilities that sum to one")
    return cast.teachers * probabilities


def described(cast: Votes) -> Report:
    """How large the votes are."""
    return {"queries": cast.queries, "classes": cast.classes, "teachers": cast.teachers}


def _finite(value: Any) -> Any:
    """JSON knows no infinity: an unbounded ε is the string "inf"."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return "inf" if value == float("inf") else value


def show(report: Report, *, json: bool) -> None:
    """Prints a report: a table for people, or JSON for machines."""
    report = {key: value for key, value in report.items() if key == "moment" or value is not None}
    if json:
        import json as encoder

        typer.echo(encoder.dumps(_finite(report), allow_nan=False))
        return
    from pate.cli.tables import show_report

    show_report(report)


def note_private_votes(path: Path) -> None:
    """Warn where a vote file lies in a run's private folder, and record the look there."""
    import contextlib
    import json
    from datetime import UTC, datetime

    from pate.report.caveats import LOOKS

    run = _run_of(path)
    if run is None:
        return
    typer.echo(
        f"pate: {path} holds private votes; settings chosen by what follows are tuned on private "
        "data, and no ε accounts for that: `pate plan` chooses without them",
        err=True,
    )
    with contextlib.suppress(OSError):  # a copy one may only read
        line = json.dumps({"when": datetime.now(UTC).isoformat(timespec="seconds")})
        with (run / "private" / LOOKS).open("a") as file:
            file.write(line + "\n")


def _run_of(path: Path) -> Path | None:
    """Return the run in whose private folder a file lies."""
    for folder in path.absolute().parents:
        if folder.name == "private" and (folder.parent / "recipe.json").is_file():
            return folder.parent
    return None
