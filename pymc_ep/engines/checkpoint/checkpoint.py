"""The checkpoint of a fit: the states of its loops, and what identifies the fit.

A fit is determined by its model and its options, and consists of loops: the steps of an engine, for one or many values
of the hyperparameters, in an order that follows from the results of earlier loops. A loop has a *record*, named by the
arrays that the loop starts from. A fit that was ended is run anew, and each of its loops goes on from its record; loops
that had finished are at their end at once. Optimisers, random generators and emulators between the loops thereby return
to their earlier states, without being saved themselves.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic as _now
from types import TracebackType
from typing import Any, Self

import numpy as np

from pymc_ep.engines.checkpoint.file_format import Contents, FileLock, digest, read, remove_parts, write
from pymc_ep.engines.checkpoint.state_layout import Flat, flattened, restored

__all__ = ["UNRECORDED", "Checkpoint", "Record"]

_CURE = "name another file, or remove it"
_NAMED = 4
"""Most differences of fits in a message, so that it stays readable."""


class Checkpoint:
    """A file of the states of a fit, locked by one process at a time while a ``with`` block lasts.

    It is written at the start of the block, with a new state if the time since the last write exceeds the time that
    this write took, and at the end of the block. If the fit is `done` at the end, the file is removed instead, unless
    `keep`.

    Parameters
    ----------
    path : str or path-like, optional
        Without one, nothing is saved.
    identity : mapping of str to str, optional
        Values that identify the fit, by their names in messages: a fit goes on only where all are the same.
    keep : bool
        Whether the file stays when the fit is done.

    Attributes
    ----------
    done : bool
        Whether nothing is left to go on with, as after a fit that converged; set by the caller.
    failure : str
        Why the last write failed, such as a full disk; empty where it succeeded. After a failure the file has the
        states of the last write that succeeded.

    Raises
    ------
    OSError
        On entry, if the file cannot be written, or belongs to a fit that is under way.
    ValueError
        On entry, if the file is no checkpoint, a damaged one, or one of another fit.

    Warns
    -----
    RuntimeWarning
        Once, if the file can no longer be written; the fit goes on.
    """

    def __init__(
        self, path: str | os.PathLike | None = None, identity: Mapping[str, str] | None = None, *, keep: bool = False
    ):
        self.path, self._identity, self._keep = None if path is None else Path(path), dict(identity or {}), keep
        self.done, self.failure, self._warned = False, "", False
        self._known: dict[str, Flat] = {}
        self._latest: dict[str, Callable[[], Flat]] = {}
        self._added: dict[str, str] = {}
        self._written, self._cost, self._unsaved = 0.0, 0.0, False

    def __enter__(self) -> Self:
        if self.path is None:
            return self
        if "\0" in str(self.path):
            raise ValueError(f"checkpoint={str(self.path)!r} holds a null character, which no file name may.")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"{self._name} lies in a folder that does not exist; create it.")
        try:
            is_folder = self.path.is_dir()
        except OSError as error:
            raise self._unwritable(error) from error
        if is_folder:
            raise IsADirectoryError(f"{self._name} is a folder; name a file in it.")
        try:
            self._lock = FileLock(self.path)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{self._name} is that of a fit that is under way; wait for its end, or name another file."
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._open(self.path)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.path is None:
            return
        finished = self.done and not self._keep if kind is None else not (self._known or self._latest)
        try:
            # After an error before the first state there is nothing to go on with either.
            if finished:
                self.path.unlink(missing_ok=True)
            else:
                self._save_at_end()
        finally:
            self._lock.release()

    def identify(self, name: str, value: str) -> None:
        """Add a value, known only within the block, to the identity; raise if the file is of a fit with another one."""
        if self._added.setdefault(name, value) != value:
            raise self._of_another([name])

    def record(self, *start: np.ndarray | str) -> "Record":
        """Return the record of a loop, named by `start`: arrays and words from which no other loop starts."""
        return UNRECORDED if self.path is None else Record(self, digest(*start).tobytes().hex())

    def recorded(self, key: str) -> Flat | None:
        """Return the saved state of the record of this key; None where there is none yet."""
        return self._known.get(key)

    def offer(self, key: str, state: Callable[[], Any]) -> None:
        """Keep ``state``, a function that returns a record's latest state; write the file if that is due."""
        self._latest[key] = lambda: flattened(state())
        self._unsaved = True
        if _now() - self._written >= self._cost:
            self._save()

    def settle(self, key: str) -> None:
        """Evaluate a record's latest state now, by the function that `offer` kept, since it may be gone later."""
        if key in self._latest:
            self._known[key] = self._latest.pop(key)()

    def unfit(self, why: str) -> ValueError:
        """Return the error for a record that is not of this fit, with the reason `why`."""
        return ValueError(f"{self._name} does not fit to this call, as {why}; {_CURE}.")

    @property
    def _name(self) -> str:
        return f"checkpoint={str(self.path)!r}"

    def _open(self, path: Path) -> None:
        try:
            contents = read(path)
        except ValueError as error:
            raise ValueError(f"{self._name} {error}; {_CURE}.") from error
        except OSError as error:
            raise type(error)(f"{self._name} cannot be read ({error.strerror or error}); {_CURE}.") from error
        if contents is not None:
            names = dict.fromkeys([*self._identity, *contents.identity])
            if other := [name for name in names if contents.identity.get(name) != self._identity.get(name)]:
                raise self._of_another(other)
            self._added, self._known = contents.added, contents.records
        remove_parts(path)
        try:
            self._write(path)
        except OSError as error:
            raise self._unwritable(error) from error

    def _of_another(self, names: list[str]) -> ValueError:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ValueError(
            f"{self._name} is of a fit with another {', another '.join(names[:_NAMED])}{more}, which it would go on "
            f"with; {_CURE}."
        )

    def _unwritable(self, error: OSError) -> OSError:
        return type(error)(
            f"{self._name} cannot be written ({error.strerror or error}); name a file in a folder that can be, on a "
            f"disk with space."
        )

    def _save_at_end(self) -> None:
        if self._unsaved:
            self._save()

    def _save(self) -> None:
        """Write the file; warn once where that fails."""
        assert self.path is not None
        try:
            self._write(self.path)
            self.failure = ""
        except OSError as error:
            self.failure = f"{self._name} could not be written: {error.strerror or error}"
        if self.failure and not self._warned:
            self._warned = True
            why = f"{self.failure}. The fit goes on, and resumes from the last one written; free space for the next."
            warnings.warn(why, RuntimeWarning, stacklevel=2)

    def _write(self, path: Path) -> None:
        began = _now()
        try:
            for key in list(self._latest):
                self.settle(key)
            write(path, Contents(self._identity, self._added, self._known))
            self._unsaved = False
        finally:
            self._written = _now()
            self._cost = self._written - began


class Record:
    """States of one loop of a fit, as its checkpoint keeps them; see `Checkpoint.record`."""

    def __init__(self, checkpoint: Checkpoint, key: str):
        self._checkpoint, self._key = checkpoint, key

    def state(self, like: Any) -> Any:
        """Return the recorded state from which the loop goes on; None without one.

        Raises
        ------
        ValueError
            If the state differs from `like` in classes, types or shapes, or has NaN.
        """
        flat = self._checkpoint.recorded(self._key)
        if flat is None:
            return None
        try:
            return restored(flat, like)
        except ValueError as error:
            raise self._checkpoint.unfit(str(error)) from error

    def keep(self, state: Callable[[], Any]) -> None:
        """Keep ``state``, a function that returns the loop's latest state; it is called when the file is written."""
        self._checkpoint.offer(self._key, state)

    def close(self) -> None:
        """At the end of the loop, call the last function passed to `keep`, and keep the state that it returns."""
        self._checkpoint.settle(self._key)


class _Unrecorded(Record):
    """Record of a loop without a checkpoint."""

    def __init__(self) -> None:
        pass

    def state(self, like: Any) -> None:
        """Return None."""

    def keep(self, state: Callable[[], Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


UNRECORDED = _Unrecorded()
"""Record of loops that no checkpoint keeps."""
