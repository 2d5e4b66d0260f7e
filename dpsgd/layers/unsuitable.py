"""The error of a model that cannot be trained privately."""

from __future__ import annotations

from pate.errors import PateError


class UnsuitableModel(PateError):
    """A model whose examples' gradients cannot be told apart, or not exactly."""
