"""Parquet files by PyArrow, which is optional: their names, and how they are opened."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

from pymc_ep.exceptions import InvalidDataError

__all__ = ["opened_parquet", "parquet_files", "require_pyarrow"]


def require_pyarrow(purpose: str) -> None:
    """Raise an ImportError with its cure unless PyArrow is installed; `purpose` begins the message."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{purpose} Parquet files by PyArrow: pip install 'pymc-ep[dask]'") from error


def parquet_files(named: str | os.PathLike | Sequence[str | os.PathLike], argument: str) -> tuple[str, ...]:
    """Return the files that an argument names: a pattern, a folder, a file, or a sequence of files.

    Raises
    ------
    InvalidDataError
        If there are none, or a file is named twice.
    """
    if isinstance(named, str | os.PathLike):
        path = Path(named)
        # A pattern may be absolute, which Path.glob does not take.
        paths = sorted(glob(str(path / "*.parquet" if path.is_dir() else path)))  # noqa: PTH207
    else:
        paths = [os.fspath(path_name) for path_name in named]
    if not paths:
        raise InvalidDataError(f"{argument}={named!r} names no file; give a pattern such as 'pairs/*.parquet'.")
    if missing := [path_name for path_name in paths if not Path(path_name).is_file()]:
        raise InvalidDataError(f"{argument}= names {missing[0]!r}, which is no file; correct that path.")
    if twice := [path_name for path_name in paths if paths.count(path_name) > 1]:
        raise InvalidDataError(f"{argument}= names {twice[0]!r} twice; name each file once.")
    return tuple(paths)


@contextmanager
def opened_parquet(file: str, argument: str, **options: Any) -> Iterator[Any]:
    """Open a file for a ``with`` block as a `pyarrow.parquet.ParquetFile`; `argument` named it, for messages.

    Raises
    ------
    InvalidDataError
        If it can't be opened or read.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file, **options) as opened:
            yield opened
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidDataError(
            f"{file!r} of {argument}= can't be read as Parquet: {error}. Write it again, or leave it out."
        ) from error
