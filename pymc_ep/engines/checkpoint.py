"""Save the arrays of a running fit at intervals, and resume from them."""

import os
import time
import zipfile
from pathlib import Path

import numpy as np

__all__ = ["Checkpoint"]

_SECONDS = 30.0


class Checkpoint:
    """A file of named arrays, rewritten at most every half minute.

    Parameters
    ----------
    path : str or path-like, optional
        Without one, nothing is saved.
    """

    def __init__(self, path: str | os.PathLike | None):
        self.path = None if path is None else Path(path)
        if self.path is not None and not self.path.parent.is_dir():
            raise FileNotFoundError(f"checkpoint={str(path)!r} lies in a folder that there is not; create it.")
        self._written = time.monotonic()

    def load(self) -> dict[str, np.ndarray] | None:
        """Return the saved arrays, or None where there is no file yet."""
        if self.path is None or not self.path.exists():
            return None
        try:
            with np.load(self.path) as saved:
                return dict(saved)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"checkpoint={str(self.path)!r} is a file that no fit has written; name another one, or remove it."
            ) from error

    def save(self, *, last: bool = False, **arrays: np.ndarray) -> None:
        """Save the arrays if it is time, or in any case at the end; a crash never leaves half a file."""
        if self.path is None or not (last or time.monotonic() - self._written > _SECONDS):
            return
        part = self.path.with_name(self.path.name + ".part")
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        part.replace(self.path)
        self._written = time.monotonic()
