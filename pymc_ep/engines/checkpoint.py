"""Checkpoints: arrays of a running fit saved at intervals, to resume from; digests of data."""

import hashlib
import os
import time
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

__all__ = ["Checkpoint", "digest"]

_SECONDS = 30.0
"""Least time between two saves, s. Trades off writing of large states against the work lost in a crash."""
_CALL = "call "
"""Prefix of the saved arrays that identify the fit."""


class Checkpoint:
    """A file of named arrays, rewritten at most every half minute.

    Parameters
    ----------
    path : str or path-like, optional
        Without one, nothing is saved.
    call : mapping of str to ndarray, optional
        Arrays that identify the fit, by their names in error messages. They are saved too, and a fit resumes only
        if they are equal.

    Attributes
    ----------
    failure : str
        Why the last save failed, such as a full disk; empty where it did not. The file is then that of the save before.
    """

    def __init__(self, path: str | os.PathLike | None = None, call: Mapping[str, np.ndarray] | None = None):
        self.path, self._call = None if path is None else Path(path), dict(call or {})
        if self.path is not None and not self.path.parent.is_dir():
            raise FileNotFoundError(f"checkpoint={str(path)!r} lies in a folder that does not exist; create it.")
        self._written, self.failure = time.monotonic(), ""

    @property
    def due(self) -> bool:
        """Whether half a minute has passed since the last save."""
        return self.path is not None and time.monotonic() - self._written > _SECONDS

    def load(self) -> dict[str, np.ndarray] | None:
        """Return the saved arrays, or None where there is no file yet.

        Raises
        ------
        ValueError
            If the file is no checkpoint, or one of another fit.
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
        """Save the arrays if a save is due or if `last`; the file is replaced atomically.

        Warns
        -----
        RuntimeWarning
            If the file can't be written, once; the fit goes on.
        """
        if self.path is None or not (last or self.due):
            return
        part = self.path.with_name(self.path.name + ".part")
        failed = self.failure
        try:
            with part.open("wb") as file:
                call = {_CALL + name: value for name, value in self._call.items()}
                np.savez(file, allow_pickle=False, **arrays, **call)
            part.replace(self.path)
            self.failure = ""
        except OSError as error:
            part.unlink(missing_ok=True)
            self.failure = f"checkpoint={str(self.path)!r} could not be written: {error.strerror or error}"
        if self.failure and not failed:
            why = f"{self.failure}. The fit goes on, and resumes from the last one written; free space for the next."
            warnings.warn(why, RuntimeWarning, stacklevel=2)
        self._written = time.monotonic()


def digest(*parts: np.ndarray | str) -> np.ndarray:
    """Return the BLAKE2b digest of arrays and strings, 16 bytes of type uint8."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        array = np.frombuffer(part.encode(), dtype=np.uint8) if isinstance(part, str) else np.ascontiguousarray(part)
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(array.data)
    return np.frombuffer(total.digest(), dtype=np.uint8)
