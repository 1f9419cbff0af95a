"""Rebuilding of graphs of all observations as graphs of a single one, with free predictor and parameters."""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc, get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.predictor import AffineTest, first_not_affine, names_of, operation_of
from pymc_ep.graphs.queries import apply_path, stacked_column
from pymc_ep.graphs.random_nodes import is_random, parameter_positions, with_parameters

__all__ = ["Rebuilder"]

_SELECTIONS = (DimShuffle, Subtensor, AdvancedSubtensor, Reshape, Alloc, SpecifyShape)
"""Operations whose output elements are elements of their first input; they commute with elementwise operations."""


class Rebuilder:
    """Rebuilder of graphs for single observations.

    Graphs that are free of noise and not constant are leaves. Each becomes a site parameter, in the order of the
    traversal. Selections of elements commute with elementwise operations: they are collected on the path to a leaf, and
    applied to the leaf.

    Attributes
    ----------
    leaves : list of TensorVariable
        Graphs of the site parameters.
    predictor : TensorVariable
        The affine graph after all selections.
    """

    def __init__(
        self,
        name: str,
        eta: TensorVariable,
        dependent: set,
        affine: AffineTest,
        observed: TensorVariable | None = None,
    ):
        self.name = name
        self._observed = observed
        self._y: Any = None
        self.eta = eta
        self.predictor = eta
        self.dependent = dependent
        self.affine = affine
        self.leaves: list[TensorVariable] = []
        self._positions: dict[tuple, int] = {}
        # Cache of graphs created here, so that a second traversal finds the same leaves as the first.
        self._created: dict[tuple, TensorVariable] = {}

    def __call__(
        self,
        node: Apply,
        graphs: Sequence[TensorVariable],
        eta: Any,
        values: Sequence[Any] | None,
        path: tuple = (),
        *,
        wide: bool = False,
    ) -> TensorVariable:
        """Return a distribution with predictor `eta` and site parameters `values`.

        If `values` is None, collect the leaves. `graphs` are the parameters of the distribution, which may differ from
        the inputs of its node. `path` has the selections that apply to its draws. If `wide`, scalar parameters are
        broadcast to the shape of `eta`.
        """
        ndims = getattr(node.op, "ndims_params", None) or [0] * len(graphs)
        parameters = [
            self._vector(graph, path, eta, values) if ndim else self._rebuilt(graph, path, eta, values)
            for graph, ndim in zip(graphs, ndims, strict=True)
        ]
        if wide:
            parameters = [
                parameter if ndim else pt.broadcast_to(parameter, pt.broadcast_shape(parameter, eta))
                for parameter, ndim in zip(parameters, ndims)
            ]
        return with_parameters(node, parameters)

    def density(self, graph: TensorVariable, eta: Any, values: Sequence[Any] | None, y: Any) -> TensorVariable:
        """Return the graph of a log density at `y` with predictor `eta` and site parameters `values`.

        If `values` is None, collect the leaves.
        """
        self._y = y if self._observed is None else pt.as_tensor(y).astype(self._observed.dtype)
        return self._rebuilt(graph, (), eta, values)

    def _vector(self, graph: TensorVariable, path: tuple[Apply, ...], eta: Any, values: Any) -> TensorVariable:
        """Return a rebuilt parameter that is a vector for each observation, such as the weights of a mixture."""
        count = graph.type.shape[-1]
        if count is None or path:
            raise self._not_elementwise_error(graph)
        columns = [self._rebuilt(self._column(graph, k), path, eta, values) for k in range(count)]
        return pt.stack(pt.broadcast_arrays(*columns), axis=-1)

    def _column(self, graph: TensorVariable, k: int) -> TensorVariable:
        if graph not in self.dependent:
            return self._created.setdefault((graph, k), graph[..., k])
        column = stacked_column(graph, k)
        if column is None:
            raise self._not_elementwise_error(graph)
        return column

    def _rebuilt(self, graph: Any, path: tuple[Apply, ...], eta: Any, values: Any) -> Any:
        if graph is self.eta:
            self.predictor = apply_path(path, graph)
            return eta
        if graph is self._observed and not path:
            return self._y
        node = graph.owner
        if is_random(graph):
            # Components of a mixture must have equal numbers of dimensions.
            return self(node, [node.inputs[i] for i in parameter_positions(node)], eta, values, path, wide=True)
        if graph not in self.dependent:
            return self._leaf(graph, path, values)
        if node is None:
            raise self._not_elementwise_error(graph)
        if isinstance(node.op, Elemwise):
            ways = [(*self._broadcast_node(v, graph), *path) if path else () for v in node.inputs]
            inputs = [self._rebuilt(v, way, eta, values) for v, way in zip(node.inputs, ways, strict=True)]
            return node.op.make_node(*inputs).outputs[0]
        if isinstance(node.op, CheckAndRaise):
            return self._rebuilt(node.inputs[0], path, eta, values)
        if isinstance(node.op, _SELECTIONS) and node.inputs[0] in self.dependent:
            return self._rebuilt(node.inputs[0], (node, *path), eta, values)
        raise self._not_elementwise_error(graph)

    def _broadcast_node(self, narrow: TensorVariable, wide: TensorVariable) -> tuple[Apply, ...]:
        """Return the node that broadcasts `narrow` to the shape of `wide`, as a tuple; empty for equal shapes."""
        if narrow.type.broadcastable == wide.type.broadcastable:
            return ()
        return (self._created.setdefault((narrow, wide), pt.broadcast_to(narrow, wide.shape)).owner,)

    def _leaf(self, graph: Any, path: tuple[Apply, ...], values: Any) -> Any:
        if not isinstance(graph.type, TensorType):
            return graph
        try:
            return pt.constant(get_underlying_scalar_constant_value(graph), dtype=graph.dtype)
        except NotScalarConstantError:
            pass
        place = self._positions.get((graph, path))
        if place is None:
            place = self._positions[graph, path] = len(self.leaves)
            self.leaves.append(apply_path(path, graph))
        value = pt.dscalar() if values is None else values[place]
        return value if graph.dtype.startswith("float") else pt.round(value).astype(graph.dtype)

    def _not_elementwise_error(self, graph: TensorVariable) -> UnsupportedModelError:
        why = (
            f"{operation_of(graph)}, which is not elementwise, so that observations do not depend on one predictor "
            f"value each. Rewrite that term, or name all but the latent variables in it in latent=[...]."
        )
        first = first_not_affine(graph, self.affine)
        if first is graph:
            stands = f"Between the predictor of {self.name!r} and its distribution stands the operation"
            return UnsupportedModelError(f"{stands} {why}")
        return UnsupportedModelError(
            f"The predictor of {self.name!r} is not affine in the latent variables: the operation "
            f"{operation_of(first)} is applied to {names_of(first, list(self.affine.noise))} before {why}"
        )
