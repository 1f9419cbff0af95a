"""Save the arrays of a running fit at intervals, and resume from them; digests of what it was fitted to."""

import hashlib
import os
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

__all__ = ["Checkpoint", "digest"]

_SECONDS = 30.0
_CALL = "call "
"""Before names of what a fit is of."""


class Checkpoint:
    """A file of named arrays, rewritten at most every half minute.

    Parameters
    ----------
    path : str or path-like, optional
        Without one, nothing is saved.
    call : mapping of str to ndarray, optional
        What a fit is of, in words of messages. It is saved as well, and only a fit of the same resumes.
    """

    def __init__(self, path: str | os.PathLike | None = None, call: Mapping[str, np.ndarray] | None = None):
        self.path, self._call = None if path is None else Path(path), dict(call or {})
        if self.path is not None and not self.path.parent.is_dir():
            raise FileNotFoundError(f"checkpoint={str(path)!r} lies in a folder that there is not; create it.")
        self._written = time.monotonic()

    def load(self) -> dict[str, np.ndarray] | None:
        """Return the saved arrays, or None where there is no file yet.

        Raises
        ------
        ValueError
            For a file that no fit has written, or one of something else.
        """
        if self.path is None or not self.path.exists():
            return None
        try:
            with np.load(self.path) as saved:
                arrays = dict(saved)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"checkpoint={str(self.path)!r} is a file that no fit has written; name another one, or remove it."
            ) from error
        for name, now in self._call.items():
            if not np.array_equal(arrays.pop(_CALL + name, None), now):
                raise ValueError(
                    f"checkpoint={str(self.path)!r} is of a fit with another {name}, which it would go on with; name "
                    f"another file, or remove it."
                )
        return arrays

    def save(self, *, last: bool = False, **arrays: np.ndarray) -> None:
        """Save the arrays if it is time, or in any case at the end; a crash never leaves half a file."""
        if self.path is None or not (last or time.monotonic() - self._written > _SECONDS):
            return
        part = self.path.with_name(self.path.name + ".part")
        with part.open("wb") as file:
            call = {_CALL + name: value for name, value in self._call.items()}
            np.savez(file, allow_pickle=False, **arrays, **call)
        part.replace(self.path)
        self._written = time.monotonic()


def digest(*parts: np.ndarray | str) -> np.ndarray:
    """Return 16 bytes, of type uint8, that hardly ever are those of other arrays or names."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        array = np.frombuffer(part.encode(), dtype=np.uint8) if isinstance(part, str) else np.ascontiguousarray(part)
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(array.data)
    return np.frombuffer(total.digest(), dtype=np.uint8)
