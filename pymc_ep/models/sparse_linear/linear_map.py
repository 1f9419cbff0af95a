"""Linear map D, (n, N), from the unknowns of a sparse linear form to its predictors, as products and as a matrix."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache, cached_property, partial
from typing import Any, TypeVar

import numpy as np
import pytensor.tensor as pt
import scipy.sparse
from pytensor.compile import Function
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import Reshape
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.jacobian_products import pullback, pushforward
from pymc_ep.graphs.shared_values import exchanged
from pymc_ep.models.sparse_linear.blocks import Blocks
from pymc_ep.models.sparse_linear.factor_rows import FactorRows, Product
from pymc_ep.models.sparse_linear.form import SparseLinear
from pymc_ep.models.sparse_linear.probing import MOST_UNKNOWNS, probe
from pymc_ep.numerics import memory
from pymc_ep.numerics.backend.namespace import Array, jax_device, to_jax
from pymc_ep.numerics.iterative.conjugate_gradients import jacobi, splitting
from pymc_ep.numerics.precision.orthonormal import Basis, Orthonormal, joined
from pymc_ep.numerics.precision.plan import Algebra, dense_need, plan_algebra, require_memory
from pymc_ep.operators import LinearMap
from pymc_ep.operators.apply import ApplyLinearMap

__all__ = ["LinearPredictors"]

Built = TypeVar("Built")

_WIDE = 64
"""Mean number of entries in a row above which the operator's own products are used in place of the entries: a
convolution with 21 x 21 taps takes less than a tenth of the time by the fast Fourier transform."""


class LinearPredictors:
    """The linear map D, (n, N), at the present data, or at the data of a fit.

    Parameters
    ----------
    form : SparseLinear
    shapes : sequence of tuple of int
        Shapes of the blocks.
    compile_function : callable
        (inputs, outputs) -> compiled function.
    theta : callable
        Returns unconstrained hyperparameters, one array each; any values will do, as D is constant.
    noise : callable
        Returns a list: the precisions of all observations, (m,), at each of several hyperparameters. It is empty if
        precisions depend on the unknowns.
    plan : callable, optional
        ``plan(D) -> Algebra`` on a device, in place of the algebras on the CPU.

    Attributes
    ----------
    size : int
        Number N of unknowns, all blocks ravelled and joined.
    ends : ndarray of int, (blocks,)
        Index after the last unknown of each block.
    """

    def __init__(
        self,
        form: SparseLinear,
        shapes: Sequence[tuple[int, ...]],
        compile_function: Callable[..., Function],
        theta: Callable[[], Sequence[np.ndarray]],
        noise: Callable[[], Sequence[np.ndarray]],
        plan: Callable[[scipy.sparse.csr_array], Algebra] | None = None,
    ):
        self._form, self._blocks, self._compile = form, Blocks(shapes), compile_function
        self._theta, self._noise, self._device_plan = theta, noise, plan
        self.ends, self.size = self._blocks.ends, self._blocks.size
        self._fitted_data: Mapping[SharedVariable, np.ndarray] = {}
        self._data: list[Any] | None = None
        self._known: dict[str, Any] = {}

    def with_maps(self, form: SparseLinear) -> "LinearPredictors":
        """Return the map D of `form`, which differs from this map's form only in the operators of its potentials."""
        other = copy(self)
        potentials = range(len(form.groups), len(form.factors))
        other._form = form
        other._known = {"ends": self._factor_ends}
        other._known["rows"] = [*self._rows[: len(form.groups)], *(other._read(factor) for factor in potentials)]
        return other

    def at_data(self, data: Mapping[SharedVariable, np.ndarray]) -> "LinearPredictors":
        """Return the map with shared variables at `data`, the data of a fit, whatever their present values."""
        other = copy(self)
        other._fitted_data, other._data, other._known = data, None, {}
        return other

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return D x, (n,), for x (N,)."""
        return np.concatenate([rows.forward(x) for rows in self._rows])

    def adjoint(self, v: np.ndarray) -> np.ndarray:
        """Return D^T v, (N,), for v (n,)."""
        # D = [D_1; ...; D_F] has D^T v = sum_f D_f^T v_f.
        pairs = zip(self._rows, np.split(v, self._factor_ends[:-1]))
        return sum((rows.adjoint(values) for rows, values in pairs), start=np.zeros(self.size))

    def normal(self, weights: np.ndarray) -> Product:
        """Return v -> D^T diag(weights) D v, for weights (n,) and v (N,)."""
        # D^T diag(w) D = sum_f D_f^T diag(w_f) D_f, whose terms are diagonal where each site has one unknown at most.
        factors = list(zip(self._rows, np.split(weights, self._factor_ends[:-1])))
        single = [factor for factor in factors if factor[0].single]
        diagonal = self._diagonal([rows for rows, _ in single], [w for _, w in single])
        others = [rows.normal(w) for rows, w in factors if not rows.single]

        def apply(v: np.ndarray) -> np.ndarray:
            out = diagonal * v
            for add in others:
                add(v, out)
            return out

        return apply

    @property
    def matrix(self) -> scipy.sparse.csr_array:
        """The matrix of D, (n, N).

        Raises
        ------
        UnsupportedModelError
            If a map has no matrix: its outputs depend on unknowns far apart, and it has too many unknowns.
        """
        return self._cached_for_data("matrix", self._stack)

    @property
    def algebra(self) -> Algebra:
        """Algebra that factorises D^T diag(pi) D.

        Raises
        ------
        UnsupportedModelError
            If a map has no matrix, see `matrix`.
        InvalidDataError
            If a factor does not fit into memory; the message has its size, and names methods that need no factor.
        """
        what = "algebra" if self._device_plan is None else f"algebra on {jax_device()}"
        return self._cached_for_data(what, self._plan)

    @property
    def rows_on_jax(self) -> Array:
        """D^T as a dense array of JAX, (N, n).

        Raises
        ------
        UnsupportedModelError
            If a map has no matrix, see `matrix`.
        InvalidDataError
            If dense algebra does not fit into memory; the message says how much it needs.
        """

        def build() -> Array:
            memory.require_memory(*dense_need(self.matrix), on_jax=True)
            return to_jax(self.matrix.toarray().T)

        return self._cached_for_data(f"rows on {jax_device()}", build)

    def _plan(self) -> Algebra:
        if self._device_plan is not None:
            return self._device_plan(self.matrix)
        basis = self._basis
        if basis is None or not self._single_unknowns or basis.squared_adjoint is None:
            return self._by_entries()
        observed = scipy.sparse.vstack([rows.entries for rows in self._observation_rows], format="csr")
        algebra = Orthonormal(observed, basis, lambda: self._cached_for_data("by entries", self._by_entries))
        # Precisions that are equal at one value of the hyperparameters may be so by chance, hence two. If later ones
        # differ all the same, the algebra by entries is used.
        noise = self._noise()
        even = noise and all(algebra.common_precision(weights) is not None for weights in noise)
        return algebra if even else self._by_entries()

    def _by_entries(self) -> Algebra:
        algebra = plan_algebra(self.matrix, self._blocks.shapes[0] if len(self._blocks.shapes) == 1 else None)
        require_memory(algebra)
        return algebra

    def preconditioner(self, weights: np.ndarray) -> Product:
        """Return an approximate inverse of D^T diag(weights) D, as a function of vectors (N,).

        The inverse is by `splitting` if all potentials are on orthonormal coefficients, and observations are either of
        single unknowns or through one operator with a `function_of_normal`. Otherwise it is the inverse of the matrix's
        diagonal, for which an orthonormal map without entries counts by the mean of its weights.
        """
        factors, basis = np.split(weights, self._factor_ends[:-1]), self._basis
        root = None if basis is None else self._root(factors)
        if basis is None or root is None:
            return jacobi(self._diagonal(self._rows, factors))
        # A = H + W^T Pi W, with Pi the weights of the potentials, which are the last sites.
        return splitting(root, basis.forward, basis.adjoint, weights[-basis.size :])

    def _root(self, factors: Sequence[np.ndarray]) -> Callable[[float], Product] | None:
        """Return a -> (v -> (I + H / a)^{-1/2} v) for the precision H of the observations; None if unknown."""
        if self._single_unknowns:
            return partial(_root_of_diagonal, self._diagonal(self._observation_rows, factors))
        operators = self._operators(self._form.groups[0].predictor) if len(self._form.groups) == 1 else None
        if operators is None or len(operators[0]) > 1:
            return None
        linear_map = operators[0][0]
        weights = factors[0].reshape(linear_map.output_shape)
        if linear_map.function_of_normal(weights, np.ones_like) is None:
            return None

        def root(shift: float) -> Product:
            # (1 + h / a)^-1/2 of each eigenvalue h of H = X^T diag(w) X.
            function = linear_map.function_of_normal(weights, lambda value: (1.0 + value / shift) ** -0.5)
            assert function is not None, "a map that has one function of these weights has all"
            return lambda vector: function(vector.reshape(linear_map.input_shape)).ravel()

        return root

    def _diagonal(self, rows: Sequence[FactorRows], factors: Sequence[np.ndarray]) -> np.ndarray:
        """Return the diagonal of the sum of some factors' precisions D_f^T diag(w_f) D_f, (N,)."""
        # sum_j D_ji^2 w_j; without entries mean(w), the mean diagonal of W^T diag(w) W for a square orthonormal W.
        diagonals = (
            np.full(self.size, w.mean()) if factor_rows.squares is None else factor_rows.squares @ w
            for factor_rows, w in zip(rows, factors)
        )
        return sum(diagonals, start=np.zeros(self.size))

    def matrix_of(self, forward: Product) -> scipy.sparse.csr_array | None:
        """Return the matrix of any linear map of the unknowns, from its products with vectors (N,).

        None if outputs depend on unknowns far apart in a block of more than `MOST_UNKNOWNS` unknowns.
        """
        matrices = []
        for block, shape in enumerate(self._blocks.shapes):

            def of_block(x: np.ndarray, block: int = block) -> np.ndarray:
                return forward(self._blocks.embedded(x, block))

            matrix = probe(of_block, shape)
            if matrix is None:
                return None
            matrices.append(matrix)
        return scipy.sparse.hstack(matrices, format="csr")

    def split(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the part of x, (N,), that belongs to each block, in the block's shape."""
        return self._blocks.split(x)

    def compile(self, expression: TensorVariable) -> tuple[Callable[..., Any], list[str]]:
        """Return the linear part of an affine expression: a function of hyperparameters and the blocks of x.

        The names of the hyperparameters that it depends on are returned as well.
        """
        blocks = self._form.blocks
        # The linear part of f(x) maps x to sum_b (d f / d x_b) x_b over blocks b.
        tangents = [block.noise.type(f"{block.name}_tangent") for block in blocks]
        tangent_images = [pushforward(expression, block.noise, tangent) for block, tangent in zip(blocks, tangents)]
        return self._of_hyperparameters(
            tangents, pt.add(*tangent_images) if len(tangent_images) > 1 else tangent_images[0]
        )

    def compile_adjoint(self, expression: TensorVariable) -> tuple[Callable[..., Any], list[str]]:
        """Return the adjoint of an affine expression's linear part: a function of hyperparameters and a vector.

        The vector has the size of the expression, the result is (N,). The names of the hyperparameters that the
        function depends on are returned as well.
        """
        flat = expression.ravel()
        cotangent = flat.type("cotangent")
        # (d f / d x_b)^T v of each block b.
        gradients = [pullback(flat, block.noise, cotangent).ravel() for block in self._form.blocks]
        return self._of_hyperparameters([cotangent], pt.concatenate(gradients))

    @property
    def _rows(self) -> list[FactorRows]:
        return self._cached_for_data("rows", lambda: [self._read(f) for f in range(len(self._form.factors))])

    @property
    def _factor_ends(self) -> np.ndarray:
        def build() -> np.ndarray:
            sizes = self._compile([], [pt.as_tensor(f.observed).size for f in self._form.factors])()
            return np.cumsum([int(size) for size in sizes])

        return self._cached_for_data("ends", build)

    @property
    def _observation_rows(self) -> list[FactorRows]:
        return self._rows[: len(self._form.groups)]

    @property
    def _basis(self) -> Basis | None:
        """Rows of the potentials, if they form one orthonormal basis; else None."""
        return self._cached_for_data("basis", self._find_basis)

    def _find_basis(self) -> Basis | None:
        if len(self._blocks.shapes) > 1 or not all(
            block_map is not None and block_map[1].orthonormal for block_map in self._form.maps
        ):
            return None
        potentials = slice(len(self._form.groups), None)
        sizes_and_rows = zip(np.diff(self._factor_ends, prepend=0)[potentials], self._rows[potentials])
        return joined([Basis(int(size), r.forward, r.adjoint, r.squared_adjoint) for size, r in sizes_and_rows])

    @property
    def _single_unknowns(self) -> bool:
        """Whether each observation depends on one unknown at most."""
        return all(rows.single for rows in self._observation_rows)

    def _stack(self) -> scipy.sparse.csr_array:
        for factor, rows in zip(self._form.factors, self._rows):
            if rows.entries is None:
                without = "" if self._device_plan is None else " and without compile_kwargs= and device="
                raise UnsupportedModelError(
                    f"A linear map behind {factor.name!r} is not local, and with more than {MOST_UNKNOWNS} unknowns "
                    f"it cannot be held in entries. Use method='dsb' with variance='perturb-and-map'{without}, which "
                    f"takes products with vectors only."
                )
        return scipy.sparse.vstack([rows.entries for rows in self._rows], format="csr")

    def _read(self, factor: int) -> FactorRows:
        position = factor - len(self._form.groups)
        block_map = self._form.maps[position] if position >= 0 else None
        if block_map is not None:
            return self._of_operator(*block_map)
        predictor = self._form.factors[factor].predictor
        operators = self._operators(predictor)
        forward, adjoint = self._compiled(predictor) if operators is None else self._blocks.products(*operators)
        entries = None if operators is None else self._blocks.matrix(*operators)
        if entries is None:
            entries = self.matrix_of(forward)
        if entries is not None and entries.nnz <= _WIDE * entries.shape[0]:
            return FactorRows.held(entries)
        return FactorRows(entries, forward, adjoint)

    def _compiled(self, predictor: TensorVariable) -> tuple[Product, Product]:
        """Return the products with a linear map and its adjoint; the adjoint is compiled at its first call."""
        push, hyper = self._constant(*self.compile(predictor)), self._theta()
        pull = cache(lambda: self._constant(*self.compile_adjoint(predictor)))

        def forward(x: np.ndarray) -> np.ndarray:
            with exchanged(self._fitted_data):
                return np.ravel(push(*hyper, *self.split(x)))

        def adjoint(v: np.ndarray) -> np.ndarray:
            with exchanged(self._fitted_data):
                return np.asarray(pull()(*hyper, v))

        return forward, adjoint

    def _of_operator(self, block: int, linear_map: LinearMap) -> FactorRows:
        """Return the rows of a potential's operator on a block, with the operator's own products, which are fast."""
        forward, adjoint = self._blocks.products([linear_map], block)

        def squared_adjoint(v: np.ndarray) -> np.ndarray:
            out = linear_map.squared_adjoint(v.reshape(linear_map.output_shape))
            assert out is not None, "a map that has a squared adjoint has it for all vectors"
            return self._blocks.embedded(out, block)

        squares = None if linear_map.squared_adjoint(np.zeros(linear_map.output_shape)) is None else squared_adjoint
        # Wavelets have thousands of entries in each row of a coarse level, which may be too many to hold.
        matrix = linear_map.matrix() if self.size <= MOST_UNKNOWNS or linear_map.few_entries else None
        if matrix is not None:
            entries = self._blocks.on_all(matrix, block)
        else:
            entries = self.matrix_of(forward) if self.size > MOST_UNKNOWNS and squares is None else None
        return FactorRows(entries, forward, adjoint, squares, partial(self._blocks.normal, linear_map, block))

    def _operators(self, predictor: TensorVariable) -> tuple[list[LinearMap], int] | None:
        """Return the operators applied to a block to give a predictor, the last applied first, and the block's index.

        None if the predictor has other Ops than operators and reshapes.
        """
        noise, maps = [block.noise for block in self._form.blocks], []
        while predictor not in noise:
            node = predictor.owner
            if node is not None and isinstance(node.op, ApplyLinearMap):
                maps.append(node.op.linear_map)
            elif node is None or not isinstance(node.op, Reshape):
                return None
            predictor = node.inputs[0]
        return (maps, noise.index(predictor)) if maps else None

    def _cached_for_data(self, what: str, build: Callable[[], Built]) -> Built:
        """Return the value named `what` from a cache that is emptied once any shared variable has other data."""
        with exchanged(self._fitted_data):
            data = [v.get_value(borrow=True) for v in self._shared]
            if self._data is None or any(new is not old for new, old in zip(data, self._data)):
                self._known, self._data = {}, data
            if what not in self._known:
                self._known[what] = build()
            return self._known[what]

    @cached_property
    def _shared(self) -> list[SharedVariable]:
        return [v for v in ancestors([self._form.predictor]) if isinstance(v, SharedVariable)]

    def _of_hyperparameters(
        self, inputs: Sequence[TensorVariable], output: TensorVariable
    ) -> tuple[Callable[..., Any], list[str]]:
        """Compile a function of hyperparameters and `inputs`; also return the hyperparameters it depends on."""
        function = self._compile([*self._form.hyper_values, *inputs], self._form.at_zero_noise(output))
        graph = function.graph
        return function, [name for name, v in zip(self._form.hyper_names, graph.inputs) if graph.clients[v]]

    def _constant(self, function: Callable[..., Any], moving: Sequence[str]) -> Callable[..., Any]:
        """Return the function; raise UnsupportedModelError if there are `moving` hyperparameters that it depends on."""
        if moving:
            names = ", ".join(repr(block.name) for block in self._form.blocks)
            raise UnsupportedModelError(
                f"The hyperparameter {moving[0]!r} takes part in a linear map of {names}. Sparse linear models need "
                f"maps that are constant: put a scale into the potential of the SparseField, or the noise, instead."
            )
        return function


def _root_of_diagonal(diagonal: np.ndarray, shift: float) -> Product:
    """Return v -> (I + H / a)^{-1/2} v for H with this diagonal, (N,), and a = `shift`."""
    scale = (1.0 + diagonal / shift) ** -0.5
    # Not `scale.__mul__`: NumPy reuses the memory of a large array whose only reference is its bound method.
    return lambda vector: scale * vector
