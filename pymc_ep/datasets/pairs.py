"""Counts of pairs and their coordinates from long tables, and the .inter files of RecBole."""

import os
from typing import IO, NamedTuple

import numpy as np
import pandas as pd
from scipy.sparse import coo_array, csr_array

from pymc_ep.exceptions import InvalidDataError, did_you_mean

__all__ = ["PairTable", "from_pairs", "label_codes", "read_inter", "require_columns", "require_each"]

_INTER_TYPES = {"token": str, "token_seq": str, "float": float, "float_seq": str}
_WANTED = "with their types, separated by tabs, such as 'user_id:token\\titem_id:token\\trating:float'"


class PairTable(NamedTuple):
    """Counts of pairs with the labels of both sides.

    Attributes
    ----------
    counts : scipy.sparse.csr_array of int64, (users, items)
        Number of times that each pair occurs; zeros are not stored.
    coords : dict of str to ndarray
        Labels of the rows, (users,), and of the columns, (items,), by the names of the table's columns.
    """

    counts: csr_array
    coords: dict[str, np.ndarray]


def from_pairs(
    frame: pd.DataFrame | str | os.PathLike | IO[str], user: str, item: str, count: str | None = None
) -> PairTable:
    """Return the sparse matrix of counts and the coordinates of a long table, with one pair of user and item a row.

    Parameters
    ----------
    frame : pandas.DataFrame, or path-like or text file
        The table. A path or an open file is read by `read_inter`.
    user, item : str
        Columns of the labels of both sides, which also name the dims. Labels are of any type that can be sorted.
    count : str, optional
        Column of the counts: whole numbers of at least zero. By default each row counts once.

    Returns
    -------
    PairTable
        ``counts``, (users, items), and ``coords``. Rows of the same pair are added up. Labels are sorted, categories in
        their own order; categories without rows are left out, and labels whose counts are all zero are kept.

    Raises
    ------
    InvalidDataError
        For an empty table, unknown columns, missing labels, and counts that are missing, negative or fractional.

    Examples
    --------
    >>> frame = pd.DataFrame({"user": ["Bo", "Al", "Bo"], "item": [7, 7, 5], "plays": [2, 1, 4]})
    >>> counts, coords = from_pairs(frame, "user", "item", count="plays")
    >>> counts.toarray().tolist()
    [[0, 1], [4, 2]]
    >>> model = pm.Model(coords=coords | {"factor": range(20)})
    """
    if not isinstance(frame, pd.DataFrame):
        if not (isinstance(frame, str | os.PathLike) or hasattr(frame, "read")):
            raise InvalidDataError(
                f"from_pairs takes a pandas DataFrame or the path of an .inter file, not {type(frame).__name__}; "
                f"convert it, such as with pd.DataFrame(...)."
            )
        frame = read_inter(frame)
    require_columns(frame, [user, item] if count is None else [user, item, count])
    if not len(frame):
        raise InvalidDataError(f"The table has no rows, so no pairs of {user!r} and {item!r}; give at least one.")
    (rows, users), (columns, items) = (label_codes(frame[name], name) for name in (user, item))
    times = np.ones(len(frame), dtype=np.int64) if count is None else _times(frame[count], count)
    counts = coo_array((times, (rows, columns)), shape=(len(users), len(items))).tocsr()
    counts.eliminate_zeros()
    return PairTable(counts, {user: users, item: items})


def require_columns(frame: pd.DataFrame, names: list[str]) -> None:
    """Raise unless the names are strings, and name different columns of the table."""
    columns = list(frame.columns)
    for name in names:
        if name not in columns:
            raise InvalidDataError(
                f"The table has no column {name!r}; its columns are {', '.join(map(repr, columns)) or 'none'}."
                f"{did_you_mean(name, map(str, columns))}"
            )
        if columns.count(name) > 1:
            raise InvalidDataError(f"{columns.count(name)} columns are named {name!r}; rename all but one.")
        if names.count(name) > 1:
            raise InvalidDataError(f"The column {name!r} is given twice; each argument takes another one.")
        if not isinstance(name, str):
            raise InvalidDataError(
                f"The column {name!r} has no string for a name, as dims have; rename it, such as with "
                f"frame.rename(columns={{{name!r}: 'user'}})."
            )


def require_each(holds: np.ndarray, column: pd.Series, name: str, reason: str) -> None:
    """Raise InvalidDataError for the first row of a column at which `holds`, (n,), is False."""
    if not holds.all():
        k = int(np.argmin(holds))
        value = column.iloc[k]
        shown = repr(value) if isinstance(value, str) else str(value)
        raise InvalidDataError(f"The column {name!r} has {shown} in row {k}, counted from zero; {reason}")


def label_codes(column: pd.Series, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each row's label among the sorted labels, (n,), and these labels."""
    cure = f"a label is needed in each row. Drop rows without, with frame.dropna(subset=[{name!r}])."
    require_each(column.notna().to_numpy(), column, name, cure)
    try:
        codes, labels = pd.factorize(column, sort=True)
    except TypeError as error:
        raise InvalidDataError(
            f"The labels of the column {name!r} cannot be sorted ({error}); make them of one type, such as with "
            f"frame[{name!r}].astype(str)."
        ) from error
    return codes, np.asarray(labels)


def _times(column: pd.Series, name: str) -> np.ndarray:
    """Return a column of counts as integers, (n,)."""
    cure = f"a count is needed in each row. Drop rows without, with frame.dropna(subset=[{name!r}]), or give them 0."
    require_each(column.notna().to_numpy(), column, name, cure)
    numbers = column.infer_objects()
    if numbers.dtype.kind not in "biuf":
        raise InvalidDataError(
            f"The column {name!r} has the type {column.dtype}, such as {column.iloc[0]!r} in row 0, but counts are "
            f"numbers; convert it with pd.to_numeric(frame[{name!r}])."
        )
    values = numbers.to_numpy(dtype=float)
    cure = "counts are at least 0. Correct or drop that row."
    require_each(values >= 0, column, name, cure)
    cure = "counts are whole numbers. Round it, or leave count= out, so that each row counts once."
    require_each(np.isfinite(values) & (values == np.floor(values)), column, name, cure)
    if values.sum() >= 2.0**63:
        raise InvalidDataError(
            f"The counts of the column {name!r} add up to {values.sum():.3g}, which integers of 64 bits cannot hold; "
            f"count in larger units. The largest is in row {int(values.argmax())}."
        )
    return numbers.to_numpy(dtype=np.int64)


def read_inter(path: str | os.PathLike | IO[str]) -> pd.DataFrame:
    r"""Return the table of an ``.inter`` file of RecBole [1]_.

    Fields are separated by tabs. The header has the name and the type of each column, such as
    ``user_id:token\titem_id:token\trating:float``.

    Parameters
    ----------
    path : path-like or text file
        A file in UTF-8, or one that is open for reading.

    Returns
    -------
    pandas.DataFrame
        A column for each field, by its name without the type: ``float`` as numbers, and ``token``, ``token_seq`` and
        ``float_seq`` as strings, ``"NA"`` and ``"007"`` unchanged. Empty fields are missing values.

    Raises
    ------
    InvalidDataError
        For a header without types, rows of more fields than the header, and ``float`` fields that are no numbers.

    References
    ----------
    .. [1] W. X. Zhao et al. (2021), RecBole: towards a unified, comprehensive and efficient framework for
       recommendation algorithms, CIKM. Atomic files: https://recbole.io/docs/user_guide/data/atomic_files.html
    """
    file = "The file" if hasattr(path, "read") else str(path)
    lines = _inter_lines(file, path)
    types = _inter_types(file, lines.iloc[0].fillna("").tolist())
    table = lines.iloc[1:].reset_index(drop=True).set_axis(list(types), axis=1)
    for name in (name for name, kind in types.items() if kind is float):
        numbers = pd.to_numeric(table[name], errors="coerce").astype(float)
        cure = "fields of the type float are numbers, or empty where missing. Correct it, or declare the type token."
        require_each((numbers.notna() | table[name].isna()).to_numpy(), table[name], name, cure)
        table[name] = numbers
    return table


def _inter_lines(file: str, path: str | os.PathLike | IO[str]) -> pd.DataFrame:
    """Return the fields of an .inter file as strings, with the header as the first row."""
    try:
        # Quotation marks are parts of tokens, and words such as NA are tokens.
        options = {"dtype": str, "quoting": 3, "keep_default_na": False, "na_values": [""]}
        encoding = getattr(path, "encoding", None) or "utf-8-sig"
        return pd.read_csv(path, sep="\t", header=None, encoding=encoding, **options)
    except pd.errors.EmptyDataError:
        raise InvalidDataError(f"{file} is empty; its first line has the names of columns {_WANTED}.") from None
    except pd.errors.ParserError as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        raise InvalidDataError(
            f"{file} has a row of more fields than its header has ({reason}); remove tabs within fields."
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidDataError(
            f"{file} is not in UTF-8 ({error}); pass the file opened with its encoding, such as "
            f"open(..., encoding='latin-1')."
        ) from error


def _inter_types(file: str, header: list[str]) -> dict[str, type]:
    """Return the type of each column of an .inter file by its name without the type."""
    types: dict[str, type] = {}
    for field in header:
        name, *kinds = field.split(":")
        if not name or len(kinds) != 1:
            raise InvalidDataError(
                f"{file} has {field!r} in its header, in place of one name with its type. A header has the names of "
                f"columns {_WANTED}; read other tables with pandas, such as with pd.read_csv."
            )
        if kinds[0] not in _INTER_TYPES:
            raise InvalidDataError(
                f"{file} has the column {name!r} of the unknown type {kinds[0]!r}; types are {', '.join(_INTER_TYPES)}."
                f"{did_you_mean(kinds[0], _INTER_TYPES)}"
            )
        if name in types:
            raise InvalidDataError(f"{file} has two columns named {name!r}; rename one in its header.")
        types[name] = _INTER_TYPES[kinds[0]]
    return types
