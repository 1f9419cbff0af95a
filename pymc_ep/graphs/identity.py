"""Digests of the definitions of a model's variables, the same in every process that builds the same model.

PyTensor compares graphs only within one process. Here a graph becomes a sequence of words, strings and arrays, which is
hashed. A node becomes its operation, the values of the operation's properties, and the numbers of the node's inputs. A
constant becomes its value. Another variable of the model becomes its name, so that each variable has a digest of its
own. The state of a random generator is left out.
"""

import types
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from pymc import Model
from pytensor.compile import Function
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.type import Type
from pytensor.tensor.random.type import RandomType

from pymc_ep.engines.checkpoint import digest

__all__ = ["definitions", "hexadecimal", "observations"]


def hexadecimal(*words: np.ndarray | str) -> str:
    """Return the digest of arrays and strings as hexadecimal text."""
    return digest(*words).tobytes().hex()


def definitions(model: Model) -> dict[str, str]:
    """Return, by name, the digest of each variable's definition: its graph and its transform."""
    names = {variable: name for name, variable in model.named_vars.items()}
    out = {}
    for variable in (*model.basic_RVs, *model.deterministics, *model.potentials):
        transform = model.rvs_to_transforms.get(variable)
        others = {v: name for v, name in names.items() if v is not variable}
        out[variable.name] = hexadecimal(*_graph([variable], others), *_words(transform))
    return out


def observations(model: Model) -> dict[str, str]:
    """Return, by name, the digest of the values of each observed variable, and of each variable that holds data."""
    values = {rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs}
    values |= {data.name: data for data in model.data_vars}
    return {name: hexadecimal(*_graph([value], {})) for name, value in values.items()}


def _graph(outputs: list[Variable], names: Mapping[Variable, str]) -> Iterator[np.ndarray | str]:
    """Yield the words of the graphs of `outputs`, in which variables of `names` are described by their names."""
    places: dict[Variable, int] = {}
    pending = list(reversed(outputs))
    while pending:
        variable = pending.pop()
        if variable in places:
            continue
        node = None if variable in names else variable.owner
        if node is None:
            places[variable] = len(places)
            yield from _leaf(variable, names)
        elif unknown := [v for v in node.inputs if v not in places]:
            pending += [variable, *reversed(unknown)]
        else:
            yield from _operation(node)
            yield str([places[v] for v in node.inputs])
            places |= {v: len(places) + k for k, v in enumerate(node.outputs)}
    yield str([places[v] for v in outputs])


def _operation(node: Apply) -> Iterator[np.ndarray | str]:
    yield from _words(node.op)
    for variable in node.outputs:
        yield str(variable.type)


def _leaf(variable: Variable, names: Mapping[Variable, str]) -> Iterator[np.ndarray | str]:
    if variable in names:
        yield f"variable {names[variable]}"
    elif isinstance(variable.type, RandomType):
        yield "random generator"
    elif isinstance(variable, Constant):
        yield from _words(variable.data)
    elif isinstance(variable, SharedVariable):
        yield from _words(variable.get_value(borrow=True))
    else:
        yield f"input {variable.type}"


def _words(value: Any, seen: tuple[int, ...] = ()) -> Iterator[np.ndarray | str]:
    """Yield the words of a value: of an operation, a number, an array, a container, a function or an object.

    `seen` has the ids of the values that contain it, at which a cycle ends.
    """
    if id(value) in seen:
        yield "cycle"
        return
    seen = (*seen, id(value))
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.dtype | slice | Type):
        yield repr(value)
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        yield from _words(array.tolist(), seen) if array.dtype.hasobject else (array,)
    elif scipy.sparse.issparse(value):
        table = value.tocoo()
        yield from (np.array(table.shape), table.row, table.col, table.data)
    elif isinstance(value, Mapping):
        for key, element in value.items():
            yield from _words(key, seen)
            yield from _words(element, seen)
    elif isinstance(value, list | tuple):
        yield str(len(value))
        for element in value:
            yield from _words(element, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(hexadecimal(*_words(element, seen)) for element in value)
    elif isinstance(value, Variable):
        yield from _graph([value], {})
    elif isinstance(value, type | types.BuiltinFunctionType | np.ufunc):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    elif isinstance(value, types.MethodType):
        yield from _words((value.__func__, value.__self__), seen)
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _words((value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, cells), seen)
    elif isinstance(value, types.CodeType):
        yield from _words((value.co_code, value.co_names, value.co_consts), seen)
    elif isinstance(value, Op) and getattr(value, "fgraph", None) is not None:
        yield from _inner(value, seen)
    elif not isinstance(value, types.ModuleType | Function):
        yield from _words(_properties(value), seen)


def _inner(op: Op, seen: tuple[int, ...]) -> Iterator[np.ndarray | str]:
    """Yield the words of an operation with an inner graph, whose inputs are named by their positions."""
    graph = op.fgraph
    yield from _graph(list(graph.outputs), {variable: f"inner {k}" for k, variable in enumerate(graph.inputs)})
    yield from _words(getattr(op, "info", None), seen)


def _properties(value: Any) -> dict[str, Any]:
    """Return the values that define an object: the properties by which PyTensor compares it, or its attributes.

    Cached properties are left out, as they follow from other attributes.
    """
    if (names := getattr(value, "__props__", None)) is not None:
        return {name: getattr(value, name) for name in names}
    kind = type(value)
    attributes = sorted(getattr(value, "__dict__", {}).items())
    return {
        name: attribute for name, attribute in attributes if not isinstance(getattr(kind, name, None), cached_property)
    }
