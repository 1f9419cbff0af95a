"""Checks that arrays of a model's data have lengths that fit together, before anything is computed."""

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

from pymc import Model
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.basic import Alloc, infer_static_shape
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_ep.distributions.shapes import Shape, shape_error, written
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.queries import depends_on
from pymc_ep.graphs.random_nodes import parameter_positions

__all__ = ["require_lengths", "require_lengths_of"]


_KNOWN: WeakKeyDictionary[Model, dict[TensorVariable, tuple]] = WeakKeyDictionary()
"""Shapes of the data behind each observed variable that have passed the check, by model."""


def require_lengths(model: Model) -> None:
    """Raise where there are no observations, or where shared data have lengths that do not belong together.

    Two lengths of an axis belong together where they are equal, or where one of them is 1 by the type of its variable:
    PyTensor does not broadcast data that merely happen to have the length 1.

    Raises
    ------
    InvalidDataError
        The message names the variable, the two shapes, and the shapes of all data that the variable depends on.
    """
    checked = _KNOWN.setdefault(model, {})
    for rv in model.observed_RVs:
        observed = model.rvs_to_values[rv]
        graphs = [observed, *(rv.owner.inputs[place] for place in parameter_positions(rv.owner))]
        data = _shared_arrays(graphs)
        shapes = tuple(v.get_value(borrow=True).shape for v in data)
        if checked.get(rv) == shapes:
            continue
        observed_shape = _lengths([observed])[0][observed].type.shape
        _require_observations(model, rv, observed_shape)
        lengths, pair = _lengths(graphs if data else [])
        if pair is not None:
            raise InvalidDataError(
                f"The observations of {rv.name!r} have shape {written(observed_shape)}, and arrays of the shapes "
                f"{written(pair[0])} and {written(pair[1])} meet in its distribution. Give both as many values, in the "
                f"same shape.{_shapes_of(data)}"
            )
        if data:
            _require_parameters(model, rv, graphs, [lengths[v].type.shape for v in graphs], data)
        checked[rv] = shapes
    require_lengths_of(model, [])


def require_lengths_of(model: Model, names: Sequence[str]) -> None:
    """Raise where shared data behind the named variables have present lengths that do not fit together.

    Of a random variable, the data behind its parameters are checked. Data behind potentials are always checked.
    """
    for name in [*names, *(potential.name for potential in model.potentials)]:
        if (variable := model.named_vars.get(name)) is None:
            continue
        random = variable in model.basic_RVs
        graphs = [variable.owner.inputs[k] for k in parameter_positions(variable.owner)] if random else [variable]
        if (data := _shared_arrays(graphs)) and (pair := _lengths(graphs)[1]) is not None:
            raise InvalidDataError(
                f"Arrays of the shapes {written(pair[0])} and {written(pair[1])} meet in {name!r}. Give both as many "
                f"values, in the same shape.{_shapes_of(data)}"
            )


def _require_observations(model: Model, rv: TensorVariable, shape: Shape) -> None:
    """Raise where an observed variable has no observations.

    A distribution of vectors may have none, as for paired symbols that are in files.
    """
    if 0 not in shape or rv.owner.op.ndim_supp:
        return
    name = rv.name.removesuffix("_observed")
    if f"{name}_unobserved" in model.named_vars:
        raise InvalidDataError(f"All values of {name!r} are missing; observe at least one.")
    raise InvalidDataError(f"{rv.name!r} has no observations; pass at least one.")


def _require_parameters(
    model: Model,
    rv: TensorVariable,
    graphs: Sequence[TensorVariable],
    shapes: Sequence[Shape],
    data: Sequence[SharedVariable],
) -> None:
    """Raise where the lengths of a parameter and of the observations do not fit together.

    The observations are `graphs[0]`, the parameters the others. Only distributions of independent observations are
    checked.
    """
    if not _elementwise(rv.owner):
        return
    for graph, shape in zip(graphs[1:], shapes[1:]):
        if _first_difference([(graphs[0].type.shape, shapes[0]), (graph.type.shape, shape)]) is not None:
            what = "predictor" if depends_on([graph], model.free_RVs) else "parameter beside the predictor"
            raise shape_error(rv.name, shapes[0], shape, what, more=_shapes_of(data))


def _elementwise(node: Apply) -> bool:
    """Whether a random variable has independent elements, each with its own element of each parameter."""
    op = node.op
    return not getattr(op, "ndim_supp", 1) and not any(getattr(op, "ndims_params", None) or [1])


def _shared_arrays(graphs: Sequence[Variable]) -> list[SharedVariable]:
    """Return the named shared arrays that graphs depend on, such as `pymc.Data`, sorted by name."""
    shared = {v for v in ancestors(graphs) if isinstance(v, SharedVariable) and v.name}
    return sorted((v for v in shared if getattr(v.type, "ndim", 0)), key=lambda v: str(v.name))


def _shapes_of(data: Sequence[SharedVariable]) -> str:
    """Return the last sentence of a message: the shapes of the data, and how to set several at once."""
    named = (f"{v.name!r} has shape {written(v.get_value(borrow=True).shape)}" for v in data)
    return f" Of its data, {', '.join(named)}; pm.set_data takes several at once."


def _lengths(graphs: Sequence[Variable]) -> tuple[dict[Variable, Variable], tuple[Shape, Shape] | None]:
    """Return, by variable of `graphs`, one whose type has the present shape; and the first two shapes that do not fit.

    The pair of shapes is None if all fit together. Nothing is compiled: each operation is applied anew, to inputs of
    the new types, up to the first shapes that do not fit.
    """
    typed: dict[Variable, Variable] = {v: _with_length(v) for v in ancestors(graphs) if v.owner is None}
    for node in io_toposort([], list(graphs)):
        inputs = [typed[v] for v in node.inputs]
        if (pair := _first_difference(list(_together(node, inputs)))) is not None:
            return typed, pair
        try:
            outputs = node.op.make_node(*inputs).outputs
        except Exception:  # An operation that requires the types that it was made of: its lengths stay unknown.
            outputs = node.outputs
        typed.update(zip(node.outputs, outputs))
    return typed, None


def _with_length(variable: Variable) -> Variable:
    if not isinstance(variable, SharedVariable) or not isinstance(variable.type, DenseTensorType):
        return variable
    value = variable.get_value(borrow=True)
    if value.ndim == 0 and value.dtype.kind in "iu":  # the length of a dim
        return TensorConstant(variable.type, value)
    return variable.type.clone(shape=value.shape)()


def _together(node: Apply, inputs: Sequence[Variable]) -> Iterator[tuple[Shape, Shape]]:
    """Yield the shape in the type, and the present shape, of each array that a node combines element by element."""
    if isinstance(node.op, Alloc):
        target = infer_static_shape(inputs[1:])[1]
        yield node.inputs[0].type.shape, inputs[0].type.shape
        yield (None,) * len(target), target
    elif isinstance(node.op, Elemwise):
        yield from ((old.type.shape, new.type.shape) for old, new in zip(node.inputs, inputs))
    elif isinstance(node.op, RandomVariable | SymbolicRandomVariable) and _elementwise(node):
        yield from ((node.inputs[k].type.shape, inputs[k].type.shape) for k in parameter_positions(node))


def _first_difference(arrays: Sequence[tuple[Shape, Shape]]) -> tuple[Shape, Shape] | None:
    """Return the first two present shapes that do not fit together, or None.

    `arrays` has, for each array, the shape in its type and the present one.
    """
    first: dict[int, tuple[int, Shape]] = {}
    for of_type, shape in arrays:
        for axis, (always, length) in enumerate(zip(reversed(of_type), reversed(shape))):
            if always != 1 and length is not None:
                other, whole = first.setdefault(axis, (length, shape))
                if other != length:
                    return whole, shape
    return None
