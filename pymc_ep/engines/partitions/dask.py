"""Partitions on the workers of a Dask cluster.

A part stays with one worker: its data and values are in a dictionary of that process. A call submits one task to each
worker, and no task depends on another. If a worker is lost, its parts are loaded anew, together with their kept
values, which this process sends. Parts are spread evenly over the workers, and again when workers join.
"""

import os
import signal
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import reduce
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

import distributed
import numpy as np

from pymc_ep.engines.interrupt import is_interrupt
from pymc_ep.engines.partitions.base import Function, added
from pymc_ep.exceptions import ClusterError
from pymc_ep.numerics.backend.threads_numba import limit_threads

__all__ = ["DaskPartitions"]

Result = TypeVar("Result")
"""Result of a step."""

_TERM_BYTES = 2**28
"""Suitable size of a term, B, 256 MiB: larger ones need fewer calls, of some milliseconds each, but more memory."""
_SMALL = 2**20
"""Largest size, B, of terms that this process combines, in the order of the parts, and of shared values that are sent
with each task: a few milliseconds of a network."""
_POLL = 0.5
"""Time between two checks that all workers are still there, s."""
_PATIENCE = 60.0
"""Longest wait for a worker, s: a nanny takes some seconds to start one again."""
_RETURN = 5.0
"""Longest wait for as many workers as there were before one was lost, s. Workers that come back later get parts at the
next step."""
_MOST_LOSSES = 10
"""Largest number of losses of workers within one step; more have a cause that repeating the step does not remove."""

_LOSSES = (
    f"Workers were lost {_MOST_LOSSES} times in one step. See their logs: they may run out of memory, which smaller "
    f"files or more workers mend."
)


class _Lost(Exception):
    """A part is not where it was: its worker is lost, or was started again."""


class _Part(NamedTuple):
    """A part on its worker: its data and its values by key."""

    data: Any
    values: dict[int, Any]


_PARTS: dict[tuple[str, int], _Part] = {}
"""Parts that this process holds when it is a worker, by fit and number of the part."""
_ONE_AT_A_TIME = threading.RLock()
"""Held by a task while it runs, as the kernels have threads of their own."""


class Placed:
    """Handles: the fit, the key under which each part has its value, and any copy of the values in this process."""

    def __init__(self, fit: str, key: int, copy: list[Any] | None):
        self.fit, self.key, self.copy = fit, key, copy


class DaskPartitions:
    """Parts of the data on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
    load : callable
        ``load(source)`` returns the data of a part. It runs on the workers, and again for the parts of a lost worker.
    sources : sequence
        One of each part, such as a file.

    Raises
    ------
    ClusterError
        If there are no workers.

    Notes
    -----
    Terms of up to 1 MiB are added up in the order of the parts, whatever worker has them. Larger ones are added up by
    each worker first, so that their rounding depends on which parts it has.

    Workers free the parts when the partitions are closed or no longer referenced. Workers that share the terminal of
    this process ignore Ctrl-C once they have parts: an interrupted fit still needs their values for its summary.
    """

    def __init__(self, client: Any, load: Callable[[Any], Any], sources: Sequence[Any]):
        self._client, self._load, self._sources = client, load, list(sources)
        self._fit, self._next = uuid.uuid4().hex, 0
        self._at: dict[int, str] = {}
        self._known: set[str] = set()
        self._placed: weakref.WeakSet[Placed] = weakref.WeakSet()
        self._released: list[int] = []
        self._freed = weakref.finalize(self, _free, client, self._fit)
        self._restored()

    @property
    def n(self) -> int:
        """Number of parts."""
        return len(self._sources)

    @property
    def term_bytes(self) -> int:
        """Suitable size of a term, B."""
        return _TERM_BYTES

    def add(self, source: Any) -> None:
        """Load a further part, which earlier handles do not include."""
        self._sources.append(source)
        self._placed.clear()
        self._restored()

    def place(self, values: Sequence[Any]) -> Placed:
        """Send values, one for each part, to the parts, keep a copy in this process, and return their handles."""
        if len(values) != self.n:
            raise ValueError(f"{self.n} parts need as many values, and got {len(values)}.")
        handles = self._handles(list(values))
        tasks = self._by_worker().items()
        self._on_workers(
            {worker: (_store, numbers, handles.key, [values[k] for k in numbers]) for worker, numbers in tasks}
        )
        return handles

    def run(
        self,
        function: Function,
        *local: Placed,
        shared: Sequence[Any] = (),
        combine: Callable[[Any, Any], Any] | None = None,
    ) -> tuple[Placed, Any]:
        """Call a function at each part; see `Partitions.run`."""
        handles, combine = self._handles(None), combine or added
        released = list(self._released)
        shared_values = self._brought(tuple(shared), broadcast=True)
        keys = [self._key(placed) for placed in local]
        arguments = (function, keys, handles.key, combine, released)
        by_worker = self._on_workers(
            {worker: (_call, numbers, shared_values, *arguments) for worker, numbers in self._by_worker().items()}
        )
        # Those of a call that fails are released by the next.
        del self._released[: len(released)]
        terms = sorted((pair for pairs in by_worker.values() for pair in pairs), key=lambda pair: pair[0])
        return handles, reduce(combine, (term for _, term in terms))

    def collect(self, handles: Placed) -> list[Any]:
        """Return the values of all parts, in their order."""
        key = self._key(handles)
        if handles.copy is not None:
            return handles.copy
        by_worker = self._on_workers({worker: (_values, numbers, key) for worker, numbers in self._by_worker().items()})
        values = dict(pair for pairs in by_worker.values() for pair in pairs)
        return [values[number] for number in range(self.n)]

    def keep(self, *handles: Placed) -> None:
        """Copy values to this process, so that they outlast their workers."""
        for placed in handles:
            placed.copy = self.collect(placed)

    def attempt(self, step: Callable[[], Result]) -> Result:
        """Return the result of a step; where workers are lost, restore kept values elsewhere, and repeat the step."""
        for _ in range(_MOST_LOSSES):
            try:
                if not self._known.issuperset(self._workers()):
                    self._restored()
                return step()
            except _Lost:
                self._restored()
        raise ClusterError(_LOSSES)

    def close(self) -> None:
        """Free the parts and their values on all workers."""
        self._on_workers({worker: (_retained, []) for worker in set(self._at.values()) & set(self._workers())})
        self._freed.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Workers that are lost hold nothing.
        with suppress(_Lost, OSError):
            self.close()

    def _handles(self, copy: list[Any] | None) -> Placed:
        self._next += 1
        handles = Placed(self._fit, self._next, copy)
        self._placed.add(handles)
        weakref.finalize(handles, _release, weakref.ref(self), handles.key)
        return handles

    def _key(self, handles: Placed) -> int:
        """Return the key of handles, which must be of these partitions."""
        if not isinstance(handles, Placed) or handles.fit != self._fit:
            raise ValueError(
                "The handles are of other partitions; pass those that place() or run() of the same ones returned."
            )
        return handles.key

    def _by_worker(self) -> dict[str, list[int]]:
        """Return the numbers of the parts of each worker that has any, by address."""
        out: dict[str, list[int]] = {}
        for number, worker in self._at.items():
            out.setdefault(worker, []).append(number)
        return out

    def _workers(self) -> list[str]:
        """Return the addresses of the present workers."""
        return list(self._client.scheduler_info(n_workers=-1)["workers"])

    def _submit(self, at: str, function: Callable[..., Any], numbers: Sequence[int], *arguments: Any) -> Any:
        options = {"workers": [at], "allow_other_workers": False, "pure": False, "retries": 0}
        brought = [self._brought(argument, workers=[at]) for argument in arguments]
        return self._client.submit(function, self._fit, list(numbers), *brought, **options)

    def _brought(self, value: Any, **where: Any) -> Any:
        """Return a small value itself, or the future of a large one, which is sent separately from the task."""
        if _size(value) <= _SMALL:
            return value
        return _guarded(lambda: self._client.scatter([value], hash=False, **where))[0]

    def _on_workers(self, tasks: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Return the result of one task on each worker, by address; raise `_Lost` where a worker is lost."""
        futures: dict[str, Any] = {}
        try:
            for worker, task in tasks.items():
                futures[worker] = self._submit(worker, *task)
            while not _guarded(lambda: _finished(list(futures.values()))):
                # A task that is pinned to a lost worker waits for ever.
                if not set(futures) <= set(self._workers()):
                    raise _Lost
            for future in futures.values():
                if future.status == "error" and not isinstance(error := future.exception(), distributed.KilledWorker):
                    raise error
            return dict(zip(futures, _guarded(lambda: self._client.gather(list(futures.values())))))
        except BaseException:
            self._client.cancel(list(futures.values()))
            raise

    def _restored(self) -> None:
        """Spread the parts evenly over the workers, and load each part on its worker unless it is there."""
        for _ in range(_MOST_LOSSES):
            try:
                alive = self._waited_for()
                if fresh := [worker for worker in alive if worker not in self._known]:
                    self._client.run(_ignore_interrupts, *_terminal(), workers=fresh, on_error="ignore")
                before = self._by_worker()
                held = self._on_workers({worker: (_retained, before.get(worker, [])) for worker in alive})
                self._at = _spread(self.n, held)
                assigned = self._by_worker()
                self._on_workers({worker: (_retained, assigned.get(worker, [])) for worker in alive})
                missing = {
                    worker: [number for number in numbers if number not in held[worker]]
                    for worker, numbers in assigned.items()
                }
                self._on_workers({worker: self._loading(numbers) for worker, numbers in missing.items() if numbers})
                self._known = set(alive)
                return
            except _Lost:
                continue
        raise ClusterError(_LOSSES)

    def _loading(self, numbers: list[int]) -> tuple[Any, ...]:
        """Return the task that loads parts, with the values that were kept."""
        kept = [
            (placed.key, [placed.copy[number] for number in numbers])
            for placed in list(self._placed)
            if placed.copy is not None
        ]
        return _load, numbers, self._load, [self._sources[number] for number in numbers], kept

    def _waited_for(self) -> list[str]:
        """Return the addresses of the workers; wait for a first one, and up to `_RETURN` for lost ones to come back."""
        began = time.monotonic()
        while len(alive := self._workers()) < max(1, len(self._known)):
            waited = time.monotonic() - began
            if alive and waited > _RETURN:
                break
            if waited > _PATIENCE:
                raise ClusterError(
                    "The cluster of client= has no workers, nor had any for a minute; start some, such as with "
                    "cluster.scale(2)."
                )
            time.sleep(_POLL)
        return alive


def _guarded(fetch: Callable[[], Result]) -> Result:
    """Return the result of a fetch; raise `_Lost` for errors of communication."""
    try:
        return fetch()
    except (CancelledError, distributed.KilledWorker, OSError) as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise _Lost from error


def _finished(futures: list[Any]) -> bool:
    """Wait for tasks, but not for long; return whether all are finished."""
    try:
        distributed.wait(futures, timeout=_POLL)
    except TimeoutError:
        return False
    return True


def _spread(n: int, held: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """Return the worker of each of n parts, given the parts of each worker; numbers of parts differ by one at most."""
    order = sorted(held, key=lambda worker: -len(held[worker]))
    share, more = divmod(n, len(order))
    room = {worker: share + (k < more) for k, worker in enumerate(order)}
    kept = {worker: held[worker][: room[worker]] for worker in order}
    out = {number: worker for worker, numbers in kept.items() for number in numbers}
    left = iter([number for number in range(n) if number not in out])
    for worker, numbers in kept.items():
        out.update((number, worker) for number in islice(left, room[worker] - len(numbers)))
    return dict(sorted(out.items()))


def _release(partitions: "weakref.ref[DaskPartitions]", key: int) -> None:
    """Let the workers drop the values of a key at the next call."""
    if (owner := partitions()) is not None:
        owner._released.append(key)


def _free(client: Any, fit: str) -> None:
    """Let the workers drop the parts of a fit, without waiting: the collector of garbage runs in any thread."""
    if client.status == "running":
        client.loop.add_callback(client.run, _retained, fit, [], on_error="ignore")


def _terminal() -> tuple[str, int]:
    """Return the host and the process group of this process: a terminal sends Ctrl-C to all processes of a group."""
    return socket.gethostname(), os.getpgid(0) if hasattr(os, "getpgid") else -1


def _ignore_interrupts(*terminal: Any) -> None:
    """Ignore Ctrl-C in a worker process of the given terminal; run by its main thread."""
    if _terminal() == terminal and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _held(fit: str, number: int) -> _Part:
    """Return a part of this worker; raise `_Lost` if it is not there."""
    if (fit, number) not in _PARTS:
        raise _Lost
    return _PARTS[fit, number]


def _load(
    fit: str,
    numbers: Sequence[int],
    load: Callable[[Any], Any],
    sources: Sequence[Any],
    kept: Sequence[tuple[int, Sequence[Any]]],
) -> None:
    """Load parts on this worker, with kept values: pairs of a key and its value for each of these parts."""
    for k, (number, source) in enumerate(zip(numbers, sources)):
        _PARTS[fit, number] = _Part(load(source), {key: _owned(values[k]) for key, values in kept})


def _retained(fit: str, numbers: Sequence[int]) -> list[int]:
    """Drop all parts of the fit but the given ones; return the numbers of the parts that this worker still has."""
    for key in [key for key in list(_PARTS) if key[0] == fit and key[1] not in numbers]:
        del _PARTS[key]
    return [number for number in numbers if (fit, number) in _PARTS]


def _store(fit: str, numbers: Sequence[int], key: int, values: Sequence[Any]) -> None:
    for number, value in zip(numbers, values):
        _held(fit, number).values[key] = _owned(value)


def _values(fit: str, numbers: Sequence[int], key: int) -> list[tuple[int, Any]]:
    """Return the number of each part, with its value of a key."""
    return [(number, _value(_held(fit, number), key)) for number in numbers]


def _value(partition: _Part, key: int) -> Any:
    if key not in partition.values:
        raise RuntimeError(
            "A value is no longer with its part: its worker was lost, or its handles were released. Keep what outlasts "
            "a step by keep(), and hold the handles themselves."
        )
    return partition.values[key]


def _call(
    fit: str,
    numbers: Sequence[int],
    shared: Sequence[Any],
    function: Function,
    keys: Sequence[int],
    key: int,
    combine: Callable[[Any, Any], Any],
    released: Sequence[int],
) -> list[tuple[int, Any]]:
    """Call a function at parts of this worker; return numbers of parts with terms, large terms combined into one."""
    with _ONE_AT_A_TIME:
        # The threads of a worker are those of its kernels: several workers may share a machine.
        limit_threads(distributed.get_worker().state.nthreads)
        terms, shared_values = [], _owned(tuple(shared))
        for number in numbers:
            partition = _held(fit, number)
            for released_key in released:
                partition.values.pop(released_key, None)
            partition.values[key], term = function(
                partition.data, *(_value(partition, argument_key) for argument_key in keys), *shared_values
            )
            terms.append((number, term))
            if len(terms) > 1 and _size(term) > _SMALL:
                terms = [(terms[0][0], reduce(combine, (summand for _, summand in terms)))]
        return terms


def _size(value: Any) -> int:
    """Return the size of the arrays in nested tuples, B."""
    if isinstance(value, tuple | list):
        return sum(map(_size, value))
    return int(value.nbytes) if isinstance(value, np.ndarray) else 0


def _owned(value: Any) -> Any:
    """Return a value with copies in place of the read-only arrays in its nested tuples.

    Arrays from another process are read-only, and kernels would be compiled anew for such arrays.
    """
    if isinstance(value, tuple):
        elements = [_owned(element) for element in value]
        return type(value)(*elements) if hasattr(value, "_fields") else tuple(elements)
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value.copy()
    return value
