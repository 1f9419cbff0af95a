"""Calls from several threads at once.

A function of PyTensor keeps its arguments and intermediate results in itself, so that two calls of it must not overlap.
Compilation relies on flags that are global, and a model is read, compiled, and given other data for a moment. Each has
a lock: one a function, one for all compilation, one a model. They are taken in the order model, compilation, function,
so that no thread waits for another in a circle.

PyTensor holds the interpreter's lock while it computes, so that little runs beside a function in any case.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from inspect import signature
from threading import Lock, RLock
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import pymc as pm
import pytensor
from pytensor.graph.basic import Variable

__all__ = ["CompiledFunction", "compiled_function", "compiled_property", "compiling", "one_at_a_time"]

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

_COMPILATION = RLock()
_FUNCTIONS: "WeakSet[CompiledFunction]" = WeakSet()
_MODELS: WeakKeyDictionary = WeakKeyDictionary()
"""Lock of each model."""
_UNDER_WAY: list[str] = []
"""PyTensor's C compiler before all calls under way, once for each of these."""


class CompiledFunction:
    """A compiled function whose calls from several threads follow one another. Made by `compiled_function`.

    Attributes
    ----------
    graph : FunctionGraph
        What is computed, after all rewrites.
    index_error : callable, optional
        Returns what is raised for an index out of range.
    """

    def __init__(self, function: Any) -> None:
        self.graph = function.maker.fgraph
        self._function = function
        self.index_error: Callable[[IndexError], Exception] | None = None
        self.renew_lock()
        _FUNCTIONS.add(self)

    def __call__(self, *values: Any) -> Any:
        """Return what the function of PyTensor returns."""
        try:
            with self._lock:
                return self._function(*values)
        except IndexError as error:
            if self.index_error is None:
                raise
            raise self.index_error(error) from error

    def renew_lock(self) -> None:
        """Replace the lock by one that is free."""
        self._lock = Lock()


def compiled_function(
    inputs: Iterable[Variable], outputs: Any, *, trust_input: bool = False, **options: Any
) -> CompiledFunction:
    """Compile a function that threads may share.

    Parameters
    ----------
    inputs : iterable of Variable
    outputs : Variable or sequence of Variable
    trust_input : bool
        Whether calls skip PyTensor's checks of the inputs' types.
    **options
        For `pytensor.function`.
    """
    with _COMPILATION:
        function = pytensor.function(list(inputs), outputs, **options)
    function.trust_input = trust_input
    return CompiledFunction(function)


@contextmanager
def compiling(**flags: Any) -> Iterator[None]:
    """Keep other threads from compiling within a ``with`` block, under temporary flags of PyTensor."""
    with _COMPILATION, pytensor.config.change_flags(**flags):
        yield


class compiled_property(cached_property[Value]):
    """A cached property that compiles, computed by one thread only."""

    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Any:
        """Return the value; once known it is in the instance, and this is not called."""
        with _COMPILATION:
            return super().__get__(instance, owner)


def one_at_a_time(call: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Make calls for the same `model`, an argument or that of the context, follow one another in all threads.

    The compiled functions of a model are cached with it, and so are its data, which predictions exchange for a moment.
    """
    place = list(signature(call).parameters).index("model")

    @wraps(call)
    def alone(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        model = kwargs.get("model", args[place] if len(args) > place else None)
        model = pm.Model.get_context(error_if_none=False) if model is None else model
        if not isinstance(model, pm.Model):
            return call(*args, **kwargs)  # which says what is wrong
        with _COMPILATION:
            lock = _MODELS.setdefault(model, RLock())
        with lock, _compiler_kept():
            return call(*args, **kwargs)

    return alone


@contextmanager
def _compiler_kept() -> Iterator[None]:
    """Leave PyTensor's C compiler as it was before all calls under way.

    PyTensor switches it off for a moment while it builds some graphs, in all threads, and `compiling` does too: two
    threads that do so in turn would leave it off for good.
    """
    with _COMPILATION:
        _UNDER_WAY.append(_UNDER_WAY[0] if _UNDER_WAY else pytensor.config.cxx)
    try:
        yield
    finally:
        with _COMPILATION:
            compiler = _UNDER_WAY.pop()
            if pytensor.config.cxx != compiler:
                pytensor.config.cxx = compiler


def _free_locks() -> None:
    """Free, in a forked process, the locks of threads that it has not."""
    _MODELS.clear()
    for function in _FUNCTIONS:
        function.renew_lock()
    _COMPILATION.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_COMPILATION.acquire, after_in_parent=_COMPILATION.release, after_in_child=_free_locks)
