"""Artifacts of stages: levels, manifests, an atomic store, and typed results."""

from pate.artifacts.manifest import Level, digest_of, fingerprint
from pate.artifacts.store import Artifact, Draft, Store, open_alone
from pate.errors import StoreError

__all__ = [
    "Artifact",
    "Draft",
    "Level",
    "Store",
    "StoreError",
    "digest_of",
    "fingerprint",
    "open_alone",
]
