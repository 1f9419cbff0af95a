"""Files of public collections that users download, as this package may not distribute them."""

import csv
import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pandas as pd

from pymc_ep.exceptions import InvalidDataError

__all__ = ["Collection", "read_table", "require_counts"]

_MOST = 2.0**53
"""Largest count: doubles, in which models compute, skip whole numbers from here on."""


class Collection(NamedTuple):
    """A folder of files as their publishers name them; each may be compressed with gzip.

    Attributes
    ----------
    folder : str
        Name of the folder.
    source : str
        Where to get the collection, for messages.
    terms : str
        Terms of use.
    """

    folder: str
    source: str
    terms: str

    def open(
        self, file: str, path: str | os.PathLike | None, encoding: str = "utf-8"
    ) -> AbstractContextManager[IO[str]]:
        """Open a file as text for a ``with`` block, in which errors of its content become an InvalidDataError.

        Parameters
        ----------
        file : str
            Name of the file, without ``.gz``.
        path : path-like or None
            Folder of the file; by default ``$PYMC_EP_DATA/<folder>``, by the environment variable and `folder`.
        encoding : str

        Raises
        ------
        FileNotFoundError
            If there is no such file; the message has the source of the collection.
        InvalidDataError
            From the block, in place of a ValueError, an IndexError or an error of gzip; the message has the path.
        """
        root = os.environ.get("PYMC_EP_DATA") or None
        folder = Path(path) if path is not None else root and Path(root) / self.folder
        if folder:
            if (plain := folder / file).exists():
                return _reading(plain.open(encoding=encoding), plain)
            if (packed := folder / f"{file}.gz").exists():
                return _reading(gzip.open(packed, "rt", encoding=encoding), packed)
        where = f"is not in {folder}" if folder else "was not looked for, as PYMC_EP_DATA is not set"
        raise FileNotFoundError(
            f"{file} {where}. Get it from {self.source} ({self.terms}), and pass the folder as path=, or name the one "
            f"that holds {self.folder!r} in the environment variable PYMC_EP_DATA."
        )


@contextmanager
def _reading(lines: IO[str], path: Path) -> Iterator[IO[str]]:
    """Close a file after a ``with`` block, and name it in errors of its content."""
    try:
        with lines:
            yield lines
    except UnicodeDecodeError:
        raise  # loaders try another encoding
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidDataError(f"{path} is damaged or cut off ({error}); get the file again.") from error
    except (ValueError, IndexError) as error:
        raise InvalidDataError(f"{path} is not as published: {error}. Get the file again.") from error


def read_table(lines: IO[str], sep: str, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a table with columns `names`, by default from the first line; raise ValueError if their number differs."""
    names = next(csv.reader([next(lines, "")], delimiter=sep)) if names is None else names
    # Without names: pandas would take a surplus first column for labels of the rows.
    table = pd.read_csv(lines, sep=sep, header=None)
    if table.shape[1] != len(names):
        raise ValueError(f"it has {table.shape[1]} columns, and {', '.join(names)} are {len(names)}")
    return table.set_axis(list(names), axis=1)


def require_counts(table: pd.DataFrame, name: str) -> pd.Series:
    """Return a column as integers; raise a ValueError for the first row without a count of at least zero."""
    values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float)
    bad = ~((values >= 0) & (values == np.floor(values)) & (values <= _MOST))
    if bad.any():
        k = int(np.argmax(bad))
        raise ValueError(
            f"row {k}, counted from zero, has {table[name].iloc[k]} as {name!r}, and a whole number from 0 to 2**53 is "
            f"needed"
        )
    return pd.Series(values.astype(np.int64), table.index, name=name)
