"""What travels through a cluster's memory, unreadable to whoever has not its key.

Ray keeps small arguments in the memory of the processes that need them. Large ones lie in a store
that all processes of a node see, and which Ray writes to a disk when it is full. So all that a task
takes along is sealed, and its key goes by itself, as a small argument.

>>> key = new_key()
>>> unseal(seal({"n": 1}, key), key)
{'n': 1}
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from pate.engines.on_ray.parcels import ParcelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY_BYTES = 32
_CHUNK = 1 << 24  # bytes: as much again is needed while one is worked on


@final
@dataclass(frozen=True, slots=True)
class Sealed:
    """Something under seal: its bytes say nothing but how many they are."""

    nonce: bytes
    tag: bytes
    data: NDArray[Any] = field(repr=False)  # bytes

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.data)


def new_key() -> bytes:
    """A key for one task, or for one thing that many tasks read."""
    return secrets.token_bytes(KEY_BYTES)


def seal(content: object, key: bytes | None) -> Any:
    """Puts anything that can be pickled under seal; without a key it stays as it is.

    Guarantees:
        * Without the key, nothing can be learned but the size: the bytes are combined with the
          output of SHAKE-256 (FIPS 202) for key and nonce, which is drawn anew each time.
        * What was changed is not opened: the tag is HMAC-SHA-256 of nonce and bytes, under a key
          of its own.
    """
    import numpy as np

    if key is None:
        return content
    plain = np.frombuffer(pickle.dumps(content, protocol=5), dtype=np.uint8)
    nonce = secrets.token_bytes(KEY_BYTES)
    hidden = _combined(plain, key, nonce)
    return Sealed(nonce, _tag(hidden, key, nonce), hidden)


def unseal(sealed: Any, key: bytes | None) -> Any:
    """What was put under seal with this key, and not changed since."""
    if key is None:
        return sealed
    if not isinstance(sealed, Sealed) or not hmac.compare_digest(
        sealed.tag, _tag(sealed.data, key, sealed.nonce)
    ):
        raise ParcelError("something arrived other than it was sent")
    return pickle.loads(_combined(sealed.data, key, sealed.nonce).data)


def _combined(data: NDArray[Any], key: bytes, nonce: bytes) -> NDArray[Any]:
    import numpy as np

    result = np.empty_like(data)
    for number, start in enumerate(range(0, len(data), _CHUNK)):
        chunk = data[start : start + _CHUNK]
        stream = hashlib.shake_256(b"stream" + key + nonce + number.to_bytes(8, "big"))
        pad = np.frombuffer(stream.digest(len(chunk)), dtype=np.uint8)
        np.bitwise_xor(chunk, pad, out=result[start : start + _CHUNK])
    return result


def _tag(data: NDArray[Any], key: bytes, nonce: bytes) -> bytes:
    own_key = hashlib.shake_256(b"tag" + key).digest(KEY_BYTES)
    tag = hmac.new(own_key, nonce, hashlib.sha256)
    tag.update(data.data)
    return tag.digest()
