"""Calls from several threads at once.

A function of PyTensor stores its arguments and intermediate results, so that two calls of it must not overlap.
Compilation relies on global flags. Public functions compile graphs of a model, and some exchange the model's data for
a moment. There is one lock for each function, one for all compilation, and one for each model. A thread takes them in
the order model, compilation, function, so that threads do not wait for each other in a circle.

PyTensor holds the interpreter's lock while it computes, so that little else runs during a call in any case.
"""

import gc
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from inspect import signature
from threading import Lock, RLock
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import pymc as pm
import pytensor
from pytensor.graph.basic import Constant, Variable

from pymc_ep.modes import KeptMode
from pymc_ep.structure import structure_of

__all__ = ["CompiledFunction", "compiled_function", "compiled_property", "compiling", "one_at_a_time"]

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

_COMPILATION = RLock()
_FUNCTIONS: "WeakSet[_LockedFunction]" = WeakSet()
_SHARED: "OrderedDict[Hashable, _LockedFunction]" = OrderedDict()
"""Compiled functions by the structure of their graph and their options, the one used last at the end."""
_MOST_SHARED = 128
"""Largest number of functions in `_SHARED`: enough for some six models, in 30 MiB."""
_PLAIN_OPTIONS = {"mode", "on_unused_input"}
"""Options that a function in `_SHARED` may have."""
_MODELS: WeakKeyDictionary = WeakKeyDictionary()
"""Lock of each model."""
_UNDER_WAY: list[str] = []
"""Name of PyTensor's C compiler before the first of the calls under way; an entry for each of these calls."""


class _LockedFunction:
    """A function of PyTensor whose calls follow one another."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.renew_lock()
        _FUNCTIONS.add(self)

    def __call__(self, *values: Any) -> Any:
        # Elementwise operations do so in PyTensor, each by itself.
        with self._lock, np.errstate(all="ignore"):
            return self.function(*values)

    def renew_lock(self) -> None:
        """Replace the lock by one that is free."""
        self._lock = Lock()


class CompiledFunction:
    """A compiled function whose calls from several threads follow one another. Made by `compiled_function`.

    Attributes
    ----------
    graph : FunctionGraph
        The computation, after all rewrites. Data may be its last inputs.
    index_error : callable, optional
        Returns the exception to raise for an index out of range.
    """

    def __init__(self, function: _LockedFunction, data: Sequence[Variable]) -> None:
        self.graph = function.function.maker.fgraph
        self.index_error: Callable[[IndexError], Exception] | None = None
        self._function, self._data = function, data

    def __call__(self, *values: Any) -> Any:
        """Return the values of the PyTensor function."""
        data = (v.data if isinstance(v, Constant) else v.get_value(borrow=True) for v in self._data)
        try:
            return self._function(*values, *data)
        except IndexError as error:
            if self.index_error is None:
                raise
            raise self.index_error(error) from error


def compiled_function(
    inputs: Iterable[Variable], outputs: Any, *, trust_input: bool = False, **options: Any
) -> CompiledFunction:
    """Compile a function that threads may share.

    A function in a `KeptMode` is also shared by all graphs of the same structure, see `pymc_ep.structure`. Hence a
    second model that differs only in its data compiles nothing.

    Parameters
    ----------
    inputs : iterable of Variable
    outputs : Variable or sequence of Variable
    trust_input : bool
        Whether calls skip PyTensor's checks of the inputs' types.
    **options
        For `pytensor.function`.
    """
    inputs, single = list(inputs), isinstance(outputs, Variable)
    outputs = outputs if single else list(outputs)
    with compiling():
        kept = isinstance(options.get("mode"), KeptMode) and options.keys() <= _PLAIN_OPTIONS
        structure = structure_of(inputs, [outputs] if single else outputs) if kept else None
        if structure is None:
            return CompiledFunction(_made(inputs, outputs, trust_input, options), ())
        key = structure.key, single, trust_input, tuple(sorted(options.items()))
        if key not in _SHARED:
            places = {variable: variable.type() for variable in structure.data}
            extended = options | {"givens": places}
            _SHARED[key] = _made([*inputs, *places.values()], outputs, trust_input, extended)
            if len(_SHARED) > _MOST_SHARED:
                _SHARED.popitem(last=False)
        _SHARED.move_to_end(key)
        return CompiledFunction(_SHARED[key], structure.data)


def _made(inputs: list[Variable], outputs: Any, trust_input: bool, options: Mapping[str, Any]) -> _LockedFunction:
    function = pytensor.function(inputs, outputs, **options)
    function.trust_input = trust_input
    return _LockedFunction(function)


@contextmanager
def compiling(**flags: Any) -> Iterator[None]:
    """Keep other threads from compiling within a ``with`` block, under temporary flags of PyTensor.

    Graphs built in the block do not record the lines of code that built them, which only PyTensor's own errors would
    show. No garbage is collected.
    """
    with _COMPILATION, _uncollected(), pytensor.config.change_flags(traceback__limit=0, **flags):
        yield


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage within a ``with`` block.

    Graphs are full of reference cycles in use. Collections find nothing to free, and would take up to a third of the
    time of a compilation. The block is for the thread that holds the lock of compilation. A block inside another one
    changes nothing.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class compiled_property(cached_property[Value]):
    """A cached property that compiles, computed by one thread only."""

    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Any:
        """Return the value, and store it in the instance, so that later accesses do not call this method."""
        if instance is None:
            return self
        with compiling():
            return super().__get__(instance, owner)


def one_at_a_time(call: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Return a function like `call` whose calls for the same model, also from several threads, follow one another.

    The model is the argument `model`, or the model of the context. Such calls share the model's cached functions and
    its data, which predictions exchange for a moment.
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
    """Set PyTensor's C compiler, after the block, to the one before all calls under way.

    PyTensor switches the compiler off in all threads while it builds some graphs, and so does ``compiling(cxx="")``.
    Where two threads do this at overlapping times, the second would restore the state "off" for good.
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
    """Free, in a forked process, the locks that threads of its parent held."""
    _MODELS.clear()
    for function in _FUNCTIONS:
        function.renew_lock()
    _COMPILATION.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_COMPILATION.acquire, after_in_parent=_COMPILATION.release, after_in_child=_free_locks)
