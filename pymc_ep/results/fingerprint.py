"""Short numbers that tell whether data are the same."""

import hashlib

import numpy as np

__all__ = ["digest"]


def digest(*parts: np.ndarray | str) -> np.ndarray:
    """Return 16 bytes, of type uint8, that hardly ever are those of other arrays or names."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        array = np.frombuffer(part.encode(), dtype=np.uint8) if isinstance(part, str) else np.ascontiguousarray(part)
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(array.data)
    return np.frombuffer(total.digest(), dtype=np.uint8)
