"""Structures of graphs: two graphs that differ only in their data have the same structure.

The structure of a graph is all that decides how its outputs follow from its inputs and data: the operations with their
properties, in the order of a walk from the outputs, the places of their inputs, all types with their static shapes, and
the values of constants that are no data. Data are shared variables and constant arrays, except arrays of one value and
short arrays of integers, which may be shapes. A function that takes the data as further inputs serves every graph of
the same structure.

A graph has no structure, and shares its function with no other graph, where equal operations may have unequal results.
Such are operations that neither PyTensor, PyMC nor this package define, operations with properties other than numbers
and names, and random ones. A graph that computes large arrays from constants alone has no structure either: PyTensor
computes them once as it compiles, but with data as inputs every call would compute them.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from pytensor import config
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.basic import Alloc, AllocDiag
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType

__all__ = ["Structure", "structure_of"]

_SHORT = 8
"""Largest length of an integer constant that is part of the structure by its value, as it may hold sizes."""
_KNOWN = ("pytensor", "pymc", "pymc_ep")
"""Packages whose operations are equal only if they compute the same."""
_MOST_WORK = 20_000
"""Multiplications of one operation on constants alone from which on calls that repeat them take notably longer."""
_PLAIN = (bool, int, float, str, type(None), np.dtype)


class Structure(NamedTuple):
    """Structure of a graph, and its data.

    Attributes
    ----------
    key : hashable
        Equal for graphs of equal structure.
    data : tuple of Variable
        Constants and shared variables, in the order of the walk, which is the same for equal structures.
    """

    key: Hashable
    data: tuple[Variable, ...]


class _NoStructureError(Exception):
    """Raised where a graph has no structure, and so shares its function with no other."""


def structure_of(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Structure | None:
    """Return the structure of the graph from inputs to outputs; None where it has none."""
    places: dict[Variable, int] = {}
    words: list[Hashable] = [config.floatX, len(inputs)]
    data: list[Variable] = []
    sizes: dict[Variable, float] = {}
    try:
        for variable in inputs:
            words.append((_type(variable), *_hints(variable)))
            places[variable] = len(places)
        if len(places) != len(inputs):
            return None
        for step in _walk(outputs, places):
            if isinstance(step, Variable):
                produced = [step]
                if isinstance(step, Constant):
                    sizes[step] = _size(step, 1.0)
                if _is_data(step):
                    data.append(step)
                    words.append("data")
                else:
                    words.append(_value(step))
            else:
                produced = step.outputs
                _require_cheap(step, sizes)
                words.append((_operation(step.op), *(places[v] for v in step.inputs), len(produced)))
            for variable in produced:
                words.append((_type(variable), *_hints(variable)))
                places[variable] = len(places)
    except _NoStructureError:
        return None
    return Structure((*words, *(places[v] for v in outputs)), tuple(data))


def _walk(outputs: Iterable[Variable], seen: dict[Variable, int]) -> Iterator[Apply | Variable]:
    """Yield nodes and leaves behind the outputs, each after all that it depends on.

    The caller adds each yielded leaf, and all outputs of each yielded node, to `seen`, which holds the inputs at first.
    """
    pending = list(reversed(list(outputs)))
    while pending:
        variable = pending.pop()
        if variable in seen:
            continue
        node = variable.owner
        if node is None:
            yield variable
        elif unknown := [v for v in node.inputs if v not in seen]:
            pending += [variable, *reversed(unknown)]
        else:
            yield node


def _require_cheap(node: Apply, sizes: dict[Variable, float]) -> None:
    """Raise if a node takes long work on constants alone; enter the numbers of elements of its results in `sizes`.

    An elementwise operation takes one step for each element. A product of matrices, (n, k) and (k, m), takes n k m
    steps, the root of the product of the three numbers of elements. A result without a static shape counts as large as
    the largest input.
    """
    if not all(v in sizes for v in node.inputs):
        return
    input_sizes = [sizes[v] for v in node.inputs]
    output_sizes = [_size(v, max(input_sizes, default=1.0)) for v in node.outputs]
    sizes |= zip(node.outputs, output_sizes)
    linear = isinstance(node.op, Alloc | AdvancedSubtensor | Elemwise)
    work = max(*input_sizes, *output_sizes, 1.0) if linear else math.sqrt(math.prod([*input_sizes, *output_sizes]))
    if work >= _MOST_WORK and not isinstance(node.op, DimShuffle | Reshape | Subtensor):
        raise _NoStructureError


def _size(variable: Variable, unknown: float) -> float:
    shape = getattr(variable.type, "shape", ())
    return unknown if None in shape else float(math.prod(shape))


def _is_data(leaf: Variable) -> bool:
    """Whether a leaf is an array that a function may take as an input."""
    if not isinstance(leaf.type, DenseTensorType):
        return False
    if isinstance(leaf, SharedVariable):
        if getattr(leaf, "default_update", None) is not None:
            raise _NoStructureError
        return True
    if not isinstance(leaf, Constant) or leaf.type.ndim == 0:
        return False
    return leaf.data.size > (1 if leaf.data.dtype.kind == "f" else _SHORT)


def _value(leaf: Variable) -> Hashable:
    """Return the value of a constant that is no data."""
    if not isinstance(leaf, Constant):
        raise _NoStructureError
    value = leaf.data
    if isinstance(leaf.type, DenseTensorType | ScalarType):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise _NoStructureError
        return array.dtype.str, array.shape, array.tobytes()
    if value is None:
        return None
    if isinstance(value, slice):
        bounds = value.start, value.stop, value.step
        if all(bound is None or type(bound) is int for bound in bounds):
            return "slice", *bounds
    raise _NoStructureError


def _type(variable: Variable) -> Hashable:
    if not isinstance(variable.type, DenseTensorType | ScalarType | NoneTypeT | SliceType):
        raise _NoStructureError
    return variable.type


def _hints(variable: Variable) -> list[str]:
    """Return names of further properties of a variable that PyTensor's rewrites use, such as positive definiteness.

    Constants have none: their properties follow from their values, and inputs that stand for data have none either.
    """
    if isinstance(variable, Constant):
        return []
    return sorted(name for name, value in vars(variable.tag).items() if value is True)


def _operation(op: Op) -> Hashable:
    """Return the operation, or a key for it, such that equality means equal results; raise where this is uncertain."""
    package = type(op).__module__.partition(".")[0]
    names = getattr(op, "__props__", None)
    if package not in _KNOWN:
        raise _NoStructureError
    if package != "pytensor" and (names is None or not all(_is_plain(getattr(op, name)) for name in names)):
        raise _NoStructureError
    for name in ("scalar_op", "core_op"):
        if (inner := getattr(op, name, None)) is not None:
            _operation(inner)
    if (graph := getattr(op, "fgraph", None)) is None:
        return op
    if (structure := structure_of(graph.inputs, graph.outputs)) is None:
        raise _NoStructureError
    if isinstance(op, AllocDiag) and not structure.data:
        # Equal only if it is the same, in the older PyTensor.
        return AllocDiag, op.axis1, op.axis2, op.offset, structure.key
    return op


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)
