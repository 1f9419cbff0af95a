"""Pairs in Parquet files: each file is a part of the data, and has all pairs of its users."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pymc_ep.datasets.parquet import opened_parquet, parquet_files, require_pyarrow
from pymc_ep.engines.checkpoint import digest
from pymc_ep.engines.partitions import LocalPartitions, Partitions
from pymc_ep.exceptions import InvalidDataError, did_you_mean
from pymc_ep.models.paired_symbols.engine.divided import DividedPairs
from pymc_ep.models.paired_symbols.engine.values import PairCounts
from pymc_ep.models.paired_symbols.kernel import Cells

__all__ = ["Side", "pairs_in_files"]

_COUNT = "count"
"""Column of the number of times that a pair occurs; without it each row counts once."""


class Side(NamedTuple):
    """Users or items: their column in files, their number and their labels.

    Attributes
    ----------
    column : str
        Name of the column: the dim of the rows of the matrix, or ``user`` or ``item`` without one.
    size : int
        Number of rows of the matrix.
    labels : pandas.Index, (I,), optional
        Labels of the rows. Without labels the column holds positions.
    """

    column: str
    size: int
    labels: pd.Index | None = None


class Survey(NamedTuple):
    """Users and numbers of pairs of one part of the data.

    Attributes
    ----------
    users : ndarray, (n,)
        Positions of the users, ascending.
    n_pairs : ndarray, (n,)
        Number of pairs of each of these users.
    n_cells : int
        Number of distinct pairs.
    digest : ndarray
        Hash of the pairs, which does not depend on their order.
    """

    users: np.ndarray
    n_pairs: np.ndarray
    n_cells: int
    digest: np.ndarray


@contextmanager
def pairs_in_files(partitions: Any, sides: tuple[Side, Side], client: Any = None) -> Iterator[DividedPairs]:
    """Provide the pairs of files for a ``with`` block, each file as a part; each file is read once.

    Parameters
    ----------
    partitions : str, path or sequence of these
        As in `parquet_files`.
    sides : pair of Side
    client : distributed.Client, optional
        Cluster whose workers read the files and hold the parts. By default parts are memory-mapped from a temporary
        folder.
    """
    files, read = parquet_files(partitions, "partitions"), partial(load, sides=sides)
    if client is None:
        with tempfile.TemporaryDirectory(prefix="pymc_ep-", ignore_cleanup_errors=True) as folder:
            local = LocalPartitions([_mapped(read(file), Path(folder) / str(k)) for k, file in enumerate(files)])
            yield _divided(local, lambda users: local.add(read(users)), files, sides[0])
        return
    from pymc_ep.engines.partitions.dask import DaskPartitions

    with DaskPartitions(client, read, files) as remote:
        yield _divided(remote, remote.add, files, sides[0])


def load(source: str | np.ndarray, sides: tuple[Side, Side]) -> PairCounts:
    """Return the pairs of the file `source`, users ascending; or, for an array of users, (n,), a part without pairs."""
    if isinstance(source, str):
        users, items, counts = _pairs(source, sides)
        present = np.zeros(sides[0].size, dtype=bool)
        present[users] = True
        rows, users = np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - 1)[users]
    else:
        rows, users, items, counts = source, *np.zeros((3, 0), dtype=np.int32)
    return PairCounts.of(users, items, counts, (len(rows), sides[1].size))._replace(rows=rows)


def survey(pairs: PairCounts) -> tuple[Survey, np.ndarray]:
    """Return the survey of a part, and its number of pairs of each item, (J,)."""
    ends, others, counts = pairs.by_user
    # Most counts are one; leaving these out takes a third of the time.
    repeated = np.flatnonzero(counts != 1.0)
    pairs_digest = digest(pairs.rows, ends, others, repeated, counts[repeated])
    return Survey(pairs.rows, pairs.users, len(others), pairs_digest), pairs.items


def _divided(
    partitions: Partitions, add: Callable[[np.ndarray], None], files: Sequence[str], side: Side
) -> DividedPairs:
    """Return the pairs of files in parts. Users without pairs form further parts, by ``add(users)``.

    Raises
    ------
    InvalidDataError
        If a user is in two files, or there are no pairs.
    """

    def step() -> tuple[list[Survey], np.ndarray]:
        surveys, n_item_pairs = partitions.run(survey)
        return partitions.collect(surveys), n_item_pairs

    surveys, of_items = partitions.attempt(step)
    file_of_user, of_users = np.full(side.size, -1), np.zeros(side.size)
    for k, file_survey in enumerate(surveys):
        if (taken := file_of_user[file_survey.users] >= 0).any():
            user = file_survey.users[np.argmax(taken)]
            label = int(user) if side.labels is None else side.labels[[user]].tolist()[0]
            raise InvalidDataError(
                f"The {side.column} {label!r} has pairs in {files[file_of_user[user]]!r} and in {files[k]!r}; a part "
                f"needs all pairs of its users, as datasets.split_pairs writes them."
            )
        file_of_user[file_survey.users], of_users[file_survey.users] = k, file_survey.n_pairs
    if not of_users.any():
        raise InvalidDataError(f"The files of partitions=, such as {files[0]!r}, have no pairs; give at least one.")
    rows, unseen = [file_survey.users for file_survey in surveys], np.flatnonzero(file_of_user < 0)
    largest = max(map(len, rows))
    for begin in range(0, len(unseen), largest):
        rows.append(unseen[begin : begin + largest])
        add(rows[-1])
    pairs_digest = digest(*sorted(file_survey.digest.tobytes().hex() for file_survey in surveys))
    return DividedPairs(
        partitions, tuple(rows), of_users, of_items, sum(file_survey.n_cells for file_survey in surveys), pairs_digest
    )


def _mapped(pairs: PairCounts, folder: Path) -> PairCounts:
    """Return the pairs with cells that are memory-mapped from files in `folder`, which is created."""
    by_user, by_item = _mapped_cells(pairs.by_user, folder / "user"), _mapped_cells(pairs.by_item, folder / "item")
    return pairs._replace(by_user=by_user, by_item=by_item)


def _mapped_cells(cells: Cells, folder: Path) -> Cells:
    out = []
    try:
        folder.mkdir(parents=True)
        for name, values in cells._asdict().items():
            np.save(folder / f"{name}.npy", values)
            out.append(np.load(folder / f"{name}.npy", mmap_mode="r"))
    except OSError as error:
        raise InvalidDataError(
            f"The pairs of a part need {sum(array.nbytes for array in cells) / 2**20:.0f} MiB in {str(folder)!r}: "
            f"{error.strerror or error}. Name a folder with more space by the environment variable TMPDIR."
        ) from error
    return Cells(*out)


def _pairs(file: str, sides: tuple[Side, Side]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positions of users and items, and counts, of the n rows of a file with counts above zero, (n,) each."""
    table = _table(file, [side.column for side in sides])
    users, items = (_positions(file, table[side.column], side) for side in sides)
    if _COUNT not in table.column_names:
        return users, items, np.ones(len(users))
    counts = _counts(file, table[_COUNT])
    positive = counts > 0
    return users[positive], items[positive], counts[positive]


def _table(file: str, columns: list[str]) -> Any:
    """Return an Arrow table of a file's `columns`, strings dictionary-encoded, and of its column of counts, if any."""
    require_pyarrow("partitions= reads")
    with opened_parquet(file, "partitions") as opened:
        names = opened.schema_arrow.names
    if missing := [name for name in columns if name not in names]:
        raise InvalidDataError(
            f"{file!r} has no column {missing[0]!r}, as the dim of the model is called; its columns are "
            f"{', '.join(map(repr, names)) or 'none'}.{did_you_mean(missing[0], names)}"
        )
    with opened_parquet(file, "partitions", read_dictionary=columns) as opened:
        return opened.read(columns + [_COUNT] * (_COUNT in names))


def _positions(file: str, column: Any, side: Side) -> np.ndarray:
    """Return the positions of the labels of an Arrow column among the rows of `side`, (n,)."""
    from pyarrow import types

    _require_values(file, column, side.column, "a label is needed in each row")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    of_labels = np.dtype(np.int64) if side.labels is None else side.labels.dtype
    if len(column) and _is_number(kind) != (of_labels.kind in "iuf"):
        expected = "numbers" if of_labels.kind in "iuf" else f"of type {of_labels}"
        raise InvalidDataError(
            f"{file!r} has {side.column!r} of type {kind}, but labels of {side.column!r} in the model are {expected}; "
            f"write that column anew."
        )
    if side.labels is None:
        values = column.cast(kind).to_numpy()
        cure = f"but {side.column!r} has positions 0 to {side.size - 1}, as it has no labels in the model"
        _require((values >= 0) & (values < side.size) & _whole(values), file, column, side.column, cure)
        return values.astype(np.int32)
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    position_of = side.labels.get_indexer(encoded.dictionary.to_pandas()).astype(np.int32)
    positions = position_of[encoded.indices.to_numpy()]
    _require(positions >= 0, file, column, side.column, f"which is no label of the model's {side.column!r}")
    return positions


def _counts(file: str, column: Any) -> np.ndarray:
    """Return the counts of an Arrow column, (n,)."""
    _require_values(file, column, _COUNT, "a count is needed in each row")
    if len(column) and not _is_number(column.type):
        raise InvalidDataError(f"{file!r} has counts of type {column.type}; write whole numbers.")
    values = column.to_numpy().astype(float)
    _require((values >= 0) & _whole(values), file, column, _COUNT, "counts are whole numbers of at least 0")
    return values


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind))


def _whole(values: np.ndarray) -> np.ndarray | bool:
    return values % 1 == 0 if values.dtype.kind == "f" else True


def _require_values(file: str, column: Any, name: str, reason: str) -> None:
    """Raise for the first row of an Arrow column without a value."""
    _require(~column.is_null(nan_is_null=True).to_numpy(), file, column, name, reason)


def _require(holds: np.ndarray, file: str, column: Any, name: str, reason: str) -> None:
    """Raise InvalidDataError for the first row of an Arrow column at which `holds`, (n,), is false."""
    if not holds.all():
        k = int(np.argmin(holds))
        value = column[k].as_py()
        shown = repr(value) if isinstance(value, str) else str(value)
        raise InvalidDataError(
            f"{file!r} has {shown} as {name!r} in row {k}, counted from zero; {reason}. Correct that row."
        )
