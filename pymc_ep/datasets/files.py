"""Files of public collections that users download, as this package may not distribute them."""

import gzip
import os
from pathlib import Path
from typing import IO, NamedTuple

__all__ = ["Collection"]


class Collection(NamedTuple):
    """A folder of files as their publishers name them; each may be compressed with gzip.

    Attributes
    ----------
    folder : str
        Name of the folder.
    source : str
        Source of the collection, for the message.
    terms : str
        Terms of use.
    """

    folder: str
    source: str
    terms: str

    def open(self, file: str, path: str | os.PathLike | None, encoding: str = "utf-8") -> IO[str]:
        """Open a file for reading.

        Parameters
        ----------
        file : str
        path : path-like or None
            The folder; by default `folder` within the one that the environment variable ``PYMC_EP_DATA`` names.
        encoding : str

        Raises
        ------
        FileNotFoundError
            If there is no such file; the message has the source of the collection.
        """
        root = os.environ.get("PYMC_EP_DATA") or None
        folder = Path(path) if path is not None else root and Path(root) / self.folder
        if folder:
            if (plain := folder / file).exists():
                return plain.open(encoding=encoding)
            if (packed := folder / f"{file}.gz").exists():
                return gzip.open(packed, "rt", encoding=encoding)
        where = f"is not in {folder}" if folder else "was not looked for, as PYMC_EP_DATA is not set"
        raise FileNotFoundError(
            f"{file} {where}. Get it from {self.source} ({self.terms}), and pass the folder as path=, or name the one "
            f"that holds {self.folder!r} in the environment variable PYMC_EP_DATA."
        )
