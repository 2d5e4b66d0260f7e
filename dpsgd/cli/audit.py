"""``dpsgd audit``: the same command as ``pate audit``, which attacks runs of either package."""

from __future__ import annotations

from pate.cli.audit import audit

__all__ = ["audit"]
