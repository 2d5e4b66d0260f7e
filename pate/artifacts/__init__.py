"""What a stage reads and writes: levels, manifests, and a store that is atomic and careful."""

from pate.artifacts.drafts import Draft
from pate.artifacts.fingerprint import digest_of, fingerprint
from pate.artifacts.levels import Level
from pate.artifacts.store import Artifact, Store, open_alone
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
