"""What travels through a cluster's memory, unreadable to whoever has not its key.

Ray keeps small arguments in the memory of the processes that need them. Large ones lie in a store
that all processes of a node see, and which Ray writes to a disk when it is full. So all that a task
takes along is sealed, and its key goes by itself, as a small argument.

>>> key = new_key()
>>> unseal(seal({"n": 1}, key), key)
{'n': 1}
"""

from __future__ import annotations

import pickle
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from pate.engines.on_ray.parcels import ParcelError
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 26  # bytes under one seal: as much again is needed while it is worked on
_NONCE_BYTES = 12


@final
@dataclass(frozen=True, slots=True)
class Sealed:
    """Something under seal: its bytes say nothing but how many they are."""

    chunks: tuple[tuple[bytes, NDArray[Any]], ...] = field(repr=False)  # nonce, hidden bytes


def new_key() -> bytes:
    """A key for one task, or for one thing that many tasks read."""
    return secrets.token_bytes(32)


def seal(content: object, key: bytes) -> Sealed:
    """Puts anything that Ray could send under seal.

    Guarantees:
        ChaCha20-Poly1305 (RFC 8439) with a fresh nonce for each chunk: without the key nothing can
        be learned but the size, and what was changed, cut or put in another order is not opened.
    """
    import numpy as np

    cipher, plain = _cipher(key), memoryview(pickle.dumps(content, protocol=5))
    starts = range(0, len(plain), _CHUNK)
    chunks = []
    for number, start in enumerate(starts):
        nonce = secrets.token_bytes(_NONCE_BYTES)
        hidden = cipher.encrypt(nonce, plain[start : start + _CHUNK], _place(number, len(starts)))
        chunks.append((nonce, np.frombuffer(hidden, dtype=np.uint8)))
    return Sealed(tuple(chunks))


def unseal(sealed: Any, key: bytes) -> Any:
    """What was put under seal with this key, and not changed since.

    Only whoever has the key can have made it: a driver, or the task it gave the key to. Ray takes
    what its workers send without that.
    """
    from cryptography.exceptions import InvalidTag

    try:
        cipher, plain = _cipher(key), bytearray()
        for number, (nonce, hidden) in enumerate(sealed.chunks):
            place = _place(number, len(sealed.chunks))
            plain += cipher.decrypt(nonce, memoryview(hidden), place)
    except (InvalidTag, AttributeError, TypeError, ValueError):
        raise ParcelError("something arrived other than it was sent") from None
    if not plain:
        raise ParcelError("something arrived other than it was sent")
    return pickle.loads(plain)


def _place(number: int, chunks: int) -> bytes:
    """Which chunk of how many: part of what the seal vouches for."""
    return f"{number} of {chunks}".encode()


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    except ImportError:
        raise InvalidInput(
            "the engine 'ray' needs the package cryptography, which is not installed: "
            "pip install 'pate[ray]'"
        ) from None
    return ChaCha20Poly1305(key)
