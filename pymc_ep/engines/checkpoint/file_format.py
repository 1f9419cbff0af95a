"""Files of arrays that are written whole or not at all, and read without unpickling anything."""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.engines.checkpoint.state_layout import Flat

__all__ = ["Contents", "FileLock", "digest", "read", "remove_parts", "write"]

_FORMAT = "pymc_ep checkpoint 1"
"""First words of the header."""
_HEADER, _DIGEST = "header", "digest"
"""Names of the two entries of the file that are not arrays of a state."""


class Contents(NamedTuple):
    """Contents of a checkpoint.

    Attributes
    ----------
    identity, added : dict of str to str
        Values that identify the fit, by their names in messages; and such values that are known only while it runs.
    records : dict of str to Flat
        States of the loops of the fit.
    """

    identity: dict[str, str]
    added: dict[str, str]
    records: dict[str, Flat]


def digest(*values: np.ndarray | str) -> np.ndarray:
    """Return the BLAKE2b digest of arrays and strings, 16 bytes of type uint8."""
    total = hashlib.blake2b(digest_size=16)
    for value in values:
        array = np.frombuffer(value.encode(), dtype=np.uint8) if isinstance(value, str) else np.ascontiguousarray(value)
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(array.data)
    return np.frombuffer(total.digest(), dtype=np.uint8)


def write(path: Path, contents: Contents) -> None:
    """Write a file, replacing any earlier one, such that after a crash either of the two is there, complete.

    The file is written under a random temporary name, at which there is neither a file nor a link, and then renamed.
    """
    arrays, header = _as_arrays(contents)
    descriptor, name = tempfile.mkstemp(prefix=_prefix(path), suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # Before NumPy 2.2, `allow_pickle=False` would be saved as an array; `flattened` lets no object through.
            np.savez(file, **arrays, **header)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk, where the system can."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot; the file is whole all the same.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> Contents | None:
    """Return the contents of a file; None where there is none.

    Raises
    ------
    ValueError
        If the file is no checkpoint, of another version, or damaged; the message says which.
    OSError
        If the file cannot be read.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        try:
            with np.load(file, allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files}
            header, total = json.loads(arrays.pop(_HEADER).tobytes()), arrays.pop(_DIGEST)
            same_format, whole = header["format"] == _FORMAT, np.array_equal(total, _digest_of(header, arrays))
            contents = Contents(header["identity"], header["added"], _flat_records(header["records"], arrays))
        # NumPy, zipfile, zlib and json fail in many ways on bytes that are not theirs.
        except Exception as error:
            raise ValueError("is a file that no fit has written, or a damaged one") from error
    if not same_format:
        raise ValueError("is a file of another version of this package")
    if not whole:
        raise ValueError("is damaged, or was changed since it was written")
    return contents


def _flat_records(layouts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Flat]:
    return {
        key: Flat(layout, [arrays[f"{number}_{k}"] for k in range(count)])
        for number, (key, (layout, count)) in enumerate(layouts.items())
    }


def remove_parts(path: Path) -> None:
    """Remove files left by processes that were killed within `write`."""
    # Neither a pattern of names, as names may hold a star, nor those of another file, whose name goes on after a dot.
    pattern = re.compile(rf"{re.escape(_prefix(path))}[^.]+\.part")
    for leftover in path.parent.iterdir():
        if pattern.fullmatch(leftover.name):
            leftover.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    return f".{path.name}."


def _as_arrays(contents: Contents) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the arrays of all states by name, and the header with their layouts and the digest of all."""
    arrays: dict[str, np.ndarray] = {}
    layouts: dict[str, Any] = {}
    for number, (key, flat) in enumerate(contents.records.items()):
        layouts[key] = flat.layout, len(flat.arrays)
        arrays |= {f"{number}_{k}": array for k, array in enumerate(flat.arrays)}
    header = {"format": _FORMAT, "identity": contents.identity, "added": contents.added, "records": layouts}
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    return arrays, {_HEADER: text, _DIGEST: _digest_of(header, arrays)}


def _digest_of(header: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return digest(json.dumps(header), *(value for name in sorted(arrays) for value in (name, arrays[name])))


class FileLock:
    """Lock on a path for one process, freed when the process ends in any way.

    The lock is on a second file in the same folder, as the file at the path is replaced again and again.

    Raises
    ------
    BlockingIOError
        If another process holds the lock.
    """

    def __init__(self, path: Path):
        self._path = path.with_name(f"{_prefix(path)}lock")
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            try:
                _lock(self._descriptor)
                if self._is_at_path():
                    return
            except BaseException:
                os.close(self._descriptor)
                raise
            # The holder before has just removed it.
            os.close(self._descriptor)

    def release(self) -> None:
        """Free the path for others."""
        if sys.platform == "win32":
            os.close(self._descriptor)
            self._path.unlink(missing_ok=True)
        else:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            # File systems without locks; writes are whole all the same.
            return
