"""Pairs in Parquet files: a part of the data is a file, which has all pairs of its users."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pymc_ep.engines.checkpoint import digest
from pymc_ep.engines.paired_symbols.divided import DividedPairs
from pymc_ep.engines.paired_symbols.values import PairCounts
from pymc_ep.engines.partitions import LocalPartitions
from pymc_ep.exceptions import InvalidDataError, did_you_mean
from pymc_ep.kernels.paired_symbols import Cells

__all__ = ["Side", "Survey", "assigned", "files_of", "load", "pairs_in_files", "survey"]

_COUNT = "count"
"""Column of the number of times that a pair occurs; without it each row counts once."""


class Side(NamedTuple):
    """Users or items, as files name them.

    Attributes
    ----------
    column : str
        Column of the labels, named as the dim of the rows.
    size : int
        Number of rows.
    labels : ndarray, (I,), optional
        Labels of the rows; without these files hold positions.
    """

    column: str
    size: int
    labels: np.ndarray | None = None


class Survey(NamedTuple):
    """Users and numbers of pairs of a file.

    Attributes
    ----------
    users : ndarray, (n,)
        Positions of the users of the file, ascending.
    n_user_pairs, n_item_pairs : ndarray, (n,) and (J,)
        Number of pairs of each of these users, and of each item.
    n_cells : int
        Number of distinct pairs.
    digest : ndarray
        Of the pairs, whatever their order.
    """

    users: np.ndarray
    n_user_pairs: np.ndarray
    n_item_pairs: np.ndarray
    n_cells: int
    digest: np.ndarray


def files_of(partitions: Any) -> tuple[str, ...]:
    """Return the files that ``partitions=`` names: a pattern, a folder, a file, or a sequence of files.

    Raises
    ------
    InvalidDataError
        If there are none, or a file is named twice.
    """
    if isinstance(partitions, str | os.PathLike):
        named = Path(partitions)
        # A pattern may be absolute, which Path.glob does not take.
        found = sorted(glob(str(named / "*.parquet" if named.is_dir() else named)))  # noqa: PTH207
    else:
        found = [os.fspath(one) for one in partitions]
    if not found:
        raise InvalidDataError(f"partitions={partitions!r} names no file; give a pattern such as 'pairs/*.parquet'.")
    if missing := [one for one in found if not Path(one).is_file()]:
        raise InvalidDataError(f"partitions= names {missing[0]!r}, which is no file; correct that path.")
    if twice := [one for one in found if found.count(one) > 1]:
        raise InvalidDataError(f"partitions= names {twice[0]!r} twice; name each file once.")
    return tuple(found)


def survey(file: str, sides: tuple[Side, Side]) -> Survey:
    """Return the users of a file, numbers of pairs and a digest."""
    key, counts = _distinct(file, sides)
    users, items = np.divmod(key, sides[1].size)
    some, place = np.unique(users, return_inverse=True)
    of_items = np.bincount(items, counts, minlength=sides[1].size)
    return Survey(some, np.bincount(place, counts), of_items, len(key), digest(key, counts))


def assigned(files: Sequence[str], surveys: Sequence[Survey], side: Side) -> tuple[np.ndarray, ...]:
    """Return the users of each part, ascending; those that no file has go where users are fewest.

    Raises
    ------
    InvalidDataError
        If a user is in two files.
    """
    part = np.full(side.size, -1)
    for k, one in enumerate(surveys):
        taken = part[one.users]
        if (taken >= 0).any():
            user = one.users[np.argmax(taken >= 0)]
            label = int(user) if side.labels is None else side.labels.tolist()[user]
            raise InvalidDataError(
                f"The {side.column} {label!r} has pairs in {files[part[user]]!r} and in {files[k]!r}; a part needs all "
                f"pairs of its users, as datasets.split_pairs writes them."
            )
        part[one.users] = k
    left = np.flatnonzero(part < 0)
    sizes = np.array([len(one.users) for one in surveys])
    # Those without pairs fill up the parts, the smallest first.
    for k in np.argsort(sizes, kind="stable"):
        room = -(-side.size // len(sizes)) - sizes[k]
        part[left[: max(room, 0)]], left = k, left[max(room, 0) :]
    part[left] = np.argmin(sizes)
    order = np.argsort(part, kind="stable")
    return tuple(np.split(order, np.searchsorted(part[order], np.arange(1, len(sizes)))))


def load(source: tuple[str, np.ndarray], sides: tuple[Side, Side], folder: str | None = None) -> PairCounts:
    """Return the pairs of a part, whose users are numbered by their place in its rows.

    Parameters
    ----------
    source : (str, ndarray)
        The file and the users of the part.
    sides : pair of Side
    folder : str, optional
        Folder of this part, in which its pairs are kept and mapped into memory; without it they are in memory.
    """
    file, rows = source
    key, counts = _distinct(file, sides)
    users, items = np.divmod(key, sides[1].size)
    pairs = PairCounts.of(np.searchsorted(rows, users), items, counts, (len(rows), sides[1].size))
    if folder is None:
        return pairs
    by_user, by_item = _mapped(Path(folder) / "user", pairs.by_user), _mapped(Path(folder) / "item", pairs.by_item)
    return pairs._replace(by_user=by_user, by_item=by_item)


@contextmanager
def pairs_in_files(partitions: Any, sides: tuple[Side, Side], client: Any = None) -> Iterator[DividedPairs]:
    """Provide the pairs of files as parts.

    Parameters
    ----------
    partitions : str, path or sequence of these
        As in `files_of`.
    sides : pair of Side
    client : distributed.Client, optional
        Whose workers read the files and hold a part each; without it parts are mapped from a temporary folder.
    """
    files = files_of(partitions)
    ask = partial(survey, sides=sides)
    surveys = [ask(file) for file in files] if client is None else client.gather(client.map(ask, files, pure=False))
    if not sum(one.n_cells for one in surveys):
        raise InvalidDataError(f"The files of partitions={partitions!r} have no pairs; give at least one.")
    rows = assigned(files, surveys, sides[0])
    of_users = np.zeros(sides[0].size)
    for one in surveys:
        of_users[one.users] = one.n_user_pairs
    of_items = np.sum([one.n_item_pairs for one in surveys], axis=0)
    n_cells = sum(one.n_cells for one in surveys)
    found = digest(*sorted(one.digest.tobytes().hex() for one in surveys))
    sources = list(zip(files, rows))
    if client is None:
        with tempfile.TemporaryDirectory(prefix="pymc_ep-", ignore_cleanup_errors=True) as folder:
            loaded = [load(one, sides, f"{folder}/{k}") for k, one in enumerate(sources)]
            yield DividedPairs(LocalPartitions(loaded), rows, of_users, of_items, n_cells, found)
        return
    from pymc_ep.engines.partitions.dask import DaskPartitions

    with DaskPartitions(client, partial(load, sides=sides), sources) as parts:
        yield DividedPairs(parts, rows, of_users, of_items, n_cells, found)


def _mapped(folder: Path, cells: Cells) -> Cells:
    """Return cells that are mapped from files in a new folder."""
    out = []
    try:
        folder.mkdir(parents=True)
        for name, values in cells._asdict().items():
            np.save(folder / f"{name}.npy", values)
            out.append(np.load(folder / f"{name}.npy", mmap_mode="r"))
    except OSError as error:
        raise InvalidDataError(
            f"The pairs of a part need {sum(part.nbytes for part in cells) / 2**20:.0f} MiB in {str(folder)!r}: "
            f"{error.strerror or error}. Name a folder with more space by the environment variable TMPDIR."
        ) from error
    return Cells(*out)


def _distinct(file: str, sides: tuple[Side, Side]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct pairs of a file, ascending, as user times the number of items plus item, and their counts."""
    table = _table(file, [side.column for side in sides])
    users, items = (_positions(file, table[side.column], side) for side in sides)
    times = _counts(file, table[_COUNT]) if _COUNT in table else np.ones(len(table))
    key, place = np.unique(users * sides[1].size + items, return_inverse=True)
    counts = np.bincount(place, times, minlength=len(key))
    return key[counts > 0], counts[counts > 0]


def _table(file: str, columns: list[str]) -> pd.DataFrame:
    """Return the columns of a file, and the counts where there are any."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("partitions= reads Parquet files by PyArrow: pip install 'pymc-ep[dask]'") from error
    try:
        with parquet.ParquetFile(file) as opened:
            known = opened.schema_arrow.names
            if missing := [name for name in columns if name not in known]:
                raise InvalidDataError(
                    f"{file!r} has no column {missing[0]!r}, as the dim of the model is called; its columns are "
                    f"{', '.join(map(repr, known)) or 'none'}.{did_you_mean(missing[0], known)}"
                )
            return opened.read(columns + [_COUNT] * (_COUNT in known)).to_pandas()
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidDataError(
            f"{file!r} of partitions= can't be read as Parquet: {error}. Write it again, or leave it out."
        ) from error


def _positions(file: str, column: pd.Series, side: Side) -> np.ndarray:
    """Return the positions of labels."""
    _require(column.notna().to_numpy(), file, column, "a label is needed in each row")
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    of_labels = np.dtype(np.int64) if side.labels is None else np.asarray(side.labels).dtype
    numbers = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
    if len(column) and numbers != (of_labels.kind in "iuf"):
        kind = "numbers" if of_labels.kind in "iuf" else f"of type {of_labels}"
        raise InvalidDataError(
            f"{file!r} has {side.column!r} of type {column.dtype}, but labels of {side.column!r} in the model are "
            f"{kind}; write that column anew."
        )
    if side.labels is not None:
        found = pd.Index(side.labels).get_indexer(column)
        _require(found >= 0, file, column, f"which is no label of the model's {side.column!r}")
        return found.astype(np.int64)
    whole = (column >= 0) & (column < side.size) & (column % 1 == 0) if len(column) else column.astype(bool)
    cure = f"but {side.column!r} has positions 0 to {side.size - 1}, as it has no labels in the model"
    _require(whole.to_numpy(), file, column, cure)
    return column.to_numpy().astype(np.int64)


def _counts(file: str, column: pd.Series) -> np.ndarray:
    _require(column.notna().to_numpy(), file, column, "a count is needed in each row")
    if len(column) and not pd.api.types.is_numeric_dtype(column.dtype):
        raise InvalidDataError(f"{file!r} has counts of type {column.dtype}; write whole numbers.")
    values = column.to_numpy().astype(float)
    _require((values >= 0) & (values % 1 == 0), file, column, "counts are whole numbers of at least 0")
    return values


def _require(holds: np.ndarray, file: str, column: pd.Series, reason: str) -> None:
    """Raise for the first row of a column where something does not hold."""
    if not holds.all():
        k = int(np.argmin(holds))
        value = column.iloc[k]
        shown = repr(value) if isinstance(value, str) else str(value)
        raise InvalidDataError(
            f"{file!r} has {shown} as {column.name!r} in row {k}, counted from zero; {reason}. Correct that row."
        )
