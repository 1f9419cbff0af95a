"""Pairs written to Parquet files, all pairs of a user in one."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pymc_ep.datasets.parquet import opened_parquet, parquet_files, require_pyarrow
from pymc_ep.exceptions import InvalidDataError, did_you_mean

__all__ = ["split_pairs"]

_ROWS = 2**20
"""Number of rows that are read from files at a time."""


def split_pairs(
    source: pd.DataFrame | str | os.PathLike | Sequence[str | os.PathLike],
    folder: str | os.PathLike,
    *,
    n: int,
    user: str = "user",
) -> list[Path]:
    """Write a long table of pairs to `n` Parquet files, which ``fit(partitions=)`` takes: all rows of a user in one.

    Parameters
    ----------
    source : pandas.DataFrame, or Parquet files
        Files are named as in ``fit(partitions=)``: by a pattern such as ``"views/*.parquet"``, a folder, a path, or a
        sequence of paths. They are read in pieces, so that they may be larger than memory.
    folder : path-like
        Where the files are written; a new folder, or one without Parquet files.
    n : int
        Number of files: a few for each machine, each far smaller than the memory of a machine.
    user : str
        Column of the users. A hash of the label, the same on every machine, decides upon the file.

    Returns
    -------
    list of Path
        ``part-0000.parquet`` and so on. A run that is interrupted leaves none of them.

    Raises
    ------
    InvalidDataError
        For `n` below one, an unknown column of users, rows without a user, an empty table, files of different columns,
        a folder that already has Parquet files, and a source that names no files, a file twice, or files that are not
        Parquet.
    ImportError
        Without PyArrow, which the extra ``dask`` installs.

    Examples
    --------
    >>> frame = pd.DataFrame({"user": ["Bo", "Al", "Bo"], "item": [7, 7, 5]})
    >>> paths = split_pairs(frame, folder, n=4)  # doctest: +SKIP
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise InvalidDataError(f"n={n!r} must be a whole number of files, at least 1.")
    require_pyarrow("split_pairs writes")
    import pyarrow
    from pyarrow import parquet

    pieces = _pieces(source)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.glob("*.parquet")):
        raise InvalidDataError(f"{str(target)!r} has Parquet files; name a new folder, or remove them.")
    paths = [target / f"part-{k:04d}.parquet" for k in range(n)]
    unfinished = [path.with_suffix(".unfinished") for path in paths]
    schema = None
    try:
        with ExitStack() as opened:
            writers: list[Any] = []
            for piece in pieces:
                _require_users(piece, user)
                if schema is not None:
                    _require_columns(piece, schema.names)
                rows = pyarrow.Table.from_pandas(piece, schema=schema, preserve_index=False)
                if schema is None:
                    schema = rows.schema
                    writers = [opened.enter_context(parquet.ParquetWriter(path, schema)) for path in unfinished]
                labels = piece[user].astype(object) if piece[user].dtype == "category" else piece[user]
                file_numbers = pd.util.hash_array(labels.to_numpy()) % np.uint64(n)
                for k, writer in enumerate(writers):
                    if (mask := file_numbers == k).any():
                        writer.write_table(rows.filter(mask))
        if schema is None:
            raise InvalidDataError("The table has no rows, so there are no pairs to write; give at least one.")
        for before, after in zip(unfinished, paths):
            before.replace(after)
    finally:
        for path in unfinished:
            path.unlink(missing_ok=True)
    return paths


def _pieces(source: Any) -> Iterator[pd.DataFrame]:
    """Return an iterator over pieces of the table, each of some of its rows."""
    if isinstance(source, pd.DataFrame):
        return iter([source] if len(source) else [])
    return _pieces_of(parquet_files(source, "source"))


def _pieces_of(files: Sequence[str]) -> Iterator[pd.DataFrame]:
    for file in files:
        with opened_parquet(file, "source") as opened:
            for batch in opened.iter_batches(batch_size=_ROWS):
                yield batch.to_pandas()


def _require_users(piece: pd.DataFrame, user: str) -> None:
    if user not in piece:
        columns = list(map(str, piece.columns))
        raise InvalidDataError(
            f"The table has no column {user!r}; its columns are {', '.join(map(repr, columns))}."
            f"{did_you_mean(user, columns)}"
        )
    if (missing := piece[user].isna().to_numpy()).any():
        raise InvalidDataError(
            f"The column {user!r} has no label in row {int(np.argmax(missing))}, counted from zero; drop rows without."
        )


def _require_columns(piece: pd.DataFrame, columns: list[str]) -> None:
    """Raise unless a piece has the columns of the first one, in any order."""
    if differing := sorted(set(columns).symmetric_difference(piece.columns)):
        raise InvalidDataError(
            f"Files of source= have different columns: {', '.join(map(repr, differing))} "
            f"{'is' if len(differing) == 1 else 'are'} not in all of them. Drop what not all have."
        )
