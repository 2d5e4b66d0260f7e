"""Track runs of pate with MLflow, in a folder of this machine: ``python mlflow_tracking.py``.

Needs ``pip install "pate-privacy[mlflow]"``. A tracker is a class with two methods
(:class:`pate.Callback`). It is given what may be published, when the run is over: never the number
of private records, a data-dependent ε, or which stages were run anew and how long they took.

MLflow's client is used without its fluent API, which would add the user's name and the path of the
program to each run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # read when the client is made

from mlflow.tracking import MlflowClient

import pate


class MlflowTracker:
    """Writes a run of pate as a run of MLflow."""

    def __init__(self, tracking_uri: str, *, experiment: str = "pate") -> None:
        self.tracking_uri, self.experiment = tracking_uri, experiment
        self.client: MlflowClient | None = None
        self.run_id = ""

    def on_stage(self, name: str, state: str) -> None:
        if self.client is None:  # not before: MLflow notes when an experiment was made
            self.client = MlflowClient(tracking_uri=self.tracking_uri)
            known = self.client.get_experiment_by_name(self.experiment)
            home = known.experiment_id if known else self.client.create_experiment(self.experiment)
            self.run_id = self.client.create_run(home).info.run_id
        self.client.set_tag(self.run_id, f"stage.{name}", state)

    def on_metric(self, name: str, value: float) -> None:
        assert self.client is not None  # stages come first
        self.client.log_metric(self.run_id, name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.client is not None:
            self.client.set_terminated(self.run_id)


if __name__ == "__main__":
    with MlflowTracker(Path("mlruns").absolute().as_uri()) as tracker:
        pate.run("digits", out="runs/tracked", callbacks=[tracker])
    print("Next: mlflow ui --backend-store-uri mlruns")
