"""From private data to a publishable student, and an ε one can trust.

Names are loaded when they are first used, so that ``import pate`` stays light.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pate._namesake import namesake_warning

if TYPE_CHECKING:
    from pate.accounting import Guarantee as Guarantee
    from pate.accounting import Ledger as Ledger
    from pate.accounting import compose as compose
    from pate.aggregation import AggregatedVotes as AggregatedVotes
    from pate.aggregation import aggregate_votes as aggregate_votes
    from pate.api import Run as Run
    from pate.api import TrainedRun as TrainedRun
    from pate.api import audit as audit
    from pate.api import compare as compare
    from pate.api import forget as forget
    from pate.api import open_run as open_run
    from pate.api import release as release
    from pate.api import run as run
    from pate.api import sweep as sweep
    from pate.components import make_components as make_components
    from pate.ensemble import Ensemble as Ensemble
    from pate.ensemble import train_teachers as train_teachers
    from pate.ensemble import vote as vote
    from pate.errors import BudgetExceeded as BudgetExceeded
    from pate.errors import InvalidInput as InvalidInput
    from pate.errors import PateError as PateError
    from pate.estimator import PATEClassifier as PATEClassifier
    from pate.mechanisms import ConfidentGnmax as ConfidentGnmax
    from pate.mechanisms import GaussianCounts as GaussianCounts
    from pate.mechanisms import GaussianNoisyMax as GaussianNoisyMax
    from pate.mechanisms import GumbelNoisyMax as GumbelNoisyMax
    from pate.mechanisms import InteractiveGnmax as InteractiveGnmax
    from pate.mechanisms import LaplaceCounts as LaplaceCounts
    from pate.mechanisms import LaplaceNoisyMax as LaplaceNoisyMax
    from pate.pipeline.callbacks import Callback as Callback
    from pate.planner.plan import plan as plan
    from pate.randomness import secure_generator as secure_generator
    from pate.record_votes import RecordVotes as RecordVotes
    from pate.record_votes import count_record_votes as count_record_votes
    from pate.record_votes import make_cells as make_cells
    from pate.releases.student import load_student as load_student
    from pate.releases.verify import verify as verify
    from pate.students.count_smoothing import label_inputs as label_inputs
    from pate.students.count_smoothing import smooth_counts as smooth_counts
    from pate.studies.compare import Comparison as Comparison
    from pate.votes import Votes as Votes

__version__ = "0.1.0"

# Every public name, and the module it is loaded from.
_HOMES = {
    "AggregatedVotes": "pate.aggregation",
    "BudgetExceeded": "pate.errors",
    "Callback": "pate.pipeline.callbacks",
    "Comparison": "pate.studies.compare",
    "ConfidentGnmax": "pate.mechanisms",
    "Ensemble": "pate.ensemble",
    "GaussianCounts": "pate.mechanisms",
    "GaussianNoisyMax": "pate.mechanisms",
    "Guarantee": "pate.accounting",
    "InteractiveGnmax": "pate.mechanisms",
    "InvalidInput": "pate.errors",
    "GumbelNoisyMax": "pate.mechanisms",
    "LaplaceCounts": "pate.mechanisms",
    "LaplaceNoisyMax": "pate.mechanisms",
    "Ledger": "pate.accounting",
    "PATEClassifier": "pate.estimator",
    "RecordVotes": "pate.record_votes",
    "Run": "pate.api",
    "TrainedRun": "pate.api",
    "aggregate_votes": "pate.aggregation",
    "open_run": "pate.api",
    "plan": "pate.planner.plan",
    "release": "pate.api",
    "run": "pate.api",
    "PateError": "pate.errors",
    "Votes": "pate.votes",
    "audit": "pate.api",
    "compare": "pate.api",
    "compose": "pate.accounting",
    "forget": "pate.api",
    "count_record_votes": "pate.record_votes",
    "load_student": "pate.releases.student",
    "label_inputs": "pate.students.count_smoothing",
    "make_cells": "pate.record_votes",
    "make_components": "pate.components",
    "secure_generator": "pate.randomness",
    "smooth_counts": "pate.students.count_smoothing",
    "sweep": "pate.api",
    "train_teachers": "pate.ensemble",
    "verify": "pate.releases.verify",
    "vote": "pate.ensemble",
}

__all__ = ["__version__", *_HOMES]

if (_message := namesake_warning()) is not None:
    # Not warnings.warn, which adds a line of source code, and with -W error would end the import.
    print(f"pate: {_message}", file=sys.stderr)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
