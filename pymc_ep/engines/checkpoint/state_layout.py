"""States as arrays and back: nested tuples of arrays, numbers and None, never unpickled.

The layout of a state is JSON: numbers and None as they are, ``{"array": k}`` for the k-th array, and lists that begin
with the name of a tuple's class. A class is looked up among the classes of the engine's state.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
from scipy.sparse import csr_array

__all__ = ["Flat", "flattened", "restored"]

_KINDS = "biuf"
"""Kinds of data types of a state: flags and numbers."""


class Flat(NamedTuple):
    """A state as its layout and its arrays."""

    layout: Any
    arrays: list[np.ndarray]


def flattened(state: Any) -> Flat:
    """Return layout and arrays of a state; raise TypeError for parts other than tuples, arrays, numbers and None."""
    arrays: list[np.ndarray] = []

    def layout(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            # NumPy's float64 is a float as well.
            return float(value) if isinstance(value, float) else value
        if isinstance(value, csr_array):
            return ["csr_array", *value.shape, *map(layout, (value.data, value.indices, value.indptr))]
        if isinstance(value, tuple):
            return [type(value).__name__, *map(layout, value)]
        if (array := np.asarray(value)).dtype.kind not in _KINDS:
            raise TypeError(f"A state that checkpoints hold has arrays and numbers, and no {type(value).__name__}.")
        arrays.append(array)
        return {"array": len(arrays) - 1}

    return Flat(layout(state), arrays)


def restored(flat: Flat, like: Any) -> Any:
    """Return the state from its layout and arrays, with the classes, types and shapes of `like`, another state.

    An array that is empty in `like`, such as a history, may have any length.

    Raises
    ------
    ValueError
        If the state differs from `like` in classes, types or shapes, or an array has NaN.
    """
    classes = {named_tuple.__name__: named_tuple for named_tuple in _classes(type(like), like)}

    def value(layout: Any) -> Any:
        if isinstance(layout, dict):
            return _sound(flat.arrays[layout["array"]])
        if not isinstance(layout, list):
            return layout
        name, *elements = layout
        if name == "csr_array":
            return csr_array(tuple(map(value, elements[2:])), shape=tuple(elements[:2]))
        return tuple(map(value, elements)) if name == "tuple" else classes[name](*map(value, elements))

    try:
        state = value(flat.layout)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"it holds parts that are none of a {type(like).__name__}") from error
    _require_like(state, like, type(like).__name__)
    return state


def _sound(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in _KINDS:
        raise ValueError(f"it holds an array of type {array.dtype}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError("it holds an array with NaN")
    return array


def _require_like(state: Any, like: Any, name: str) -> None:
    """Raise unless a state has the types and shapes of another one."""
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        if type(state) is not type(like) and not hasattr(state, "_fields"):
            raise ValueError(f"its {name} is no {type(like).__name__}")
        # Rows may have got covariances since.
        for field in set(like._fields).intersection(state._fields):
            _require_like(getattr(state, field), getattr(like, field), field)
    elif isinstance(like, tuple) and isinstance(state, tuple) and len(state) == len(like):
        for k, pair in enumerate(zip(state, like)):
            _require_like(*pair, f"{name}[{k}]")
    elif isinstance(like, np.ndarray):
        shape = np.shape(state)
        free = like.ndim > 0 and len(like) == 0
        same = shape[1:] == like.shape[1:] and len(shape) == like.ndim if free else shape == like.shape
        if not isinstance(state, np.ndarray) or state.dtype != like.dtype or not same:
            raise ValueError(f"its {name} is not of type {like.dtype} and shape {like.shape}")
    elif isinstance(like, bool | int | float) and not isinstance(state, bool | int | float):
        raise ValueError(f"its {name} is no number")


def _classes(hint: Any, value: Any = None) -> Iterator[type]:
    """Yield the classes of named tuples within a type and a value of it."""
    seen: set[Any] = set()

    def of_type(hint: Any) -> Iterator[type]:
        if hint in seen:
            return
        seen.add(hint)
        if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
            yield hint
            for element in get_type_hints(hint).values():
                yield from of_type(element)
        for element in get_args(hint):
            if isinstance(element, type) or get_args(element):
                yield from of_type(element)

    yield from of_type(hint)
    for element in value if isinstance(value, tuple) else ():
        yield from _classes(type(element), element)
