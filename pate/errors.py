"""All errors that this project raises on purpose, under one root.

PateError
├── InvalidInput        a value, a file or an option that breaks a stated rule
│   └── MissingFile         a file that a recipe names is not there
├── UnsupportedEvent    an event the chosen accountant has no theorem for
├── MissingPackage      a package that is needed is not installed
├── ConditionsFail      a theorem's conditions do not hold, so its number is not given
├── StoreError          a file or artifact is missing, damaged, or cannot be read or written
├── TeacherError        a teacher cannot be trained, or breaks the rules of a teacher
├── OutOfMemory         a device is too small for one network
└── LedgerError         the ledger cannot be read, written or trusted
    ├── BudgetExceeded      the charge would pass the budget; nothing was spent
    ├── MixedComposition    the charge relies on another composition rule than the ledger
    ├── ReleaseConflict     a release id was reused for something else
    └── SpendNeeded         continuing would pay again, which needs --spend
"""

from __future__ import annotations

from pate._format import format_epsilon, format_remaining

IN_EXTRA = {  # modules, and the optional dependencies that each comes with
    "flwr": "federated",
    "lightgbm": "boosting",
    "mlflow": "mlflow",
    "pyarrow": "parquet",
    "ray": "ray",
    "xgboost": "boosting",
}


class PateError(Exception):
    """Root of all errors this project raises on purpose; its text is one clear sentence."""

    exit_code = 2  # of a command line that ends with it


class InvalidInput(PateError, ValueError):
    """A value, a file or an option breaks a stated rule."""


class MissingFile(InvalidInput):
    """A file that a recipe names is not there."""


class MissingPackage(PateError):
    """A package that is needed is not installed; the text has the command that installs it."""

    def __init__(self, module: str) -> None:
        package = module.partition(".")[0]
        extra = f"[{IN_EXTRA[package]}]" if package in IN_EXTRA else ""
        super().__init__(f"{package} is not installed; run: pip install 'pate-privacy{extra}'")


class UnsupportedEvent(PateError, TypeError):
    """No reviewed bound exists for this event under this accountant."""


class ConditionsFail(PateError):
    """A theorem's conditions do not hold here; no number is better than a wrong one."""


class TeacherError(PateError):
    """A teacher cannot be trained, or breaks the rules of a teacher.

    Guarantees:
        The text names the rule and places in code; it holds no record, label or prediction.
    """


class OutOfMemory(PateError):
    """A device is too small for one network: the run stops, and no teacher abstains.

    Guarantees:
        Never taken for a teacher's failure: otherwise whatever else uses the device would decide
        which teachers vote.
    """


class StoreError(PateError):
    """A file or artifact is missing, damaged, closed to the reader, or cannot be written."""


class LedgerError(PateError):
    """The ledger cannot be read, written or trusted."""


class BudgetExceeded(LedgerError):
    """The charge would pass the budget; nothing was spent."""

    exit_code = 3

    def __init__(
        self, *, needed: float, spent: float, budget: float, why: str = "", shares: str = ""
    ) -> None:
        self.needed = needed
        self.spent = spent
        self.budget = budget
        self.left = max(0.0, budget - spent)
        self.shares = shares  # of the ledgers of a data set, where there is more than one
        text = why or f"this charge would {self.excess}; nothing was charged"
        both = f"; with it the data set would come to {shares}" if shares else ""
        super().__init__(f"{text}{both}")

    @property
    def excess(self) -> str:
        """The values in words, to follow "would"."""
        return (
            f"bring ε to {format_epsilon(self.needed)}, past the budget of {self.budget:.6g} "
            f"(spent {format_epsilon(self.spent)}, left {format_remaining(self.left)})"
        )

    def with_reason(self, why: str) -> BudgetExceeded:
        """Return the same error with another explanation."""
        return BudgetExceeded(
            needed=self.needed,
            spent=self.spent,
            budget=self.budget,
            why=why,
            shares=self.shares,
        )


class MixedComposition(LedgerError):
    """Charges under a fixed moment and charges under a plan cannot share one ledger."""


class ReleaseConflict(LedgerError):
    """One release id names two different charges."""


class SpendNeeded(LedgerError):
    """Continuing would pay again; the user must confirm it with ``--spend``."""

    exit_code = 3
