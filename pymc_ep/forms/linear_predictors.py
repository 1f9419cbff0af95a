"""The linear map D from all unknowns of a sparse linear form to all its predictors, as products and as a matrix."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy.sparse
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.linear_maps import pullback, pushforward
from pymc_ep.forms.probing import MOST_UNKNOWNS, probe
from pymc_ep.forms.sparse_linear import SparseLinear
from pymc_ep.linalg.conjugate_gradients import jacobi, splitting
from pymc_ep.linalg.precision import Algebra, plan_algebra

__all__ = ["LinearPredictors"]


class LinearPredictors:
    """D, for the present data.

    Parameters
    ----------
    form : SparseLinear
    shapes : sequence of tuple of int
        Of the blocks.
    compile_function : callable
        Takes inputs and outputs, returns the function.
    theta : callable
        Returns any unconstrained hyperparameters, split.

    Attributes
    ----------
    size : int
        Number N of unknowns, those of all blocks ravelled and joined.
    ends : ndarray of int, (blocks,)
        Where the unknowns of each block end.
    """

    def __init__(
        self,
        form: SparseLinear,
        shapes: Sequence[tuple[int, ...]],
        compile_function: Callable[..., Callable[..., Any]],
        theta: Callable[[], Sequence[np.ndarray]],
    ):
        self._form, self._shapes, self._compile, self._theta = form, list(shapes), compile_function, theta
        self.ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        self.size = int(self.ends[-1])
        self._data: list[Any] | None = None
        self._known: dict[str, Any] = {}

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return D x, (n,), for x (N,)."""
        return np.asarray(self._forward(*self._theta(), *self.split(x))).astype(float, copy=False)

    def adjoint(self, v: np.ndarray) -> np.ndarray:
        """Return D^T v, (N,), for v (n,)."""
        return np.asarray(self._adjoint(*self._theta(), v))

    @property
    def matrix(self) -> scipy.sparse.csr_array:
        """D with its entries, (n, N).

        Raises
        ------
        UnsupportedModelError
            Where a map is neither local nor small.
        """
        return self._of_present_data("matrix", lambda: scipy.sparse.vstack(self._matrices(), format="csr"))

    @property
    def algebra(self) -> Algebra:
        """How D^T diag(pi) D is factorised."""
        shape = self._shapes[0] if len(self._shapes) == 1 else None
        return self._of_present_data("algebra", lambda: plan_algebra(self.matrix, shape))

    def preconditioner(self, weights: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return an approximate inverse of D^T diag(weights) D, as a function of vectors (N,).

        Where all observations are of single unknowns and the one potential is on orthonormal coefficients, that of
        `splitting`; otherwise the diagonal. An orthonormal map whose entries are not held has the mean weight on it.
        """
        factors = np.split(weights, self._factor_ends[:-1])
        squares = self._of_present_data("squares", self._squares)
        diagonals = [
            np.full(self.size, w.mean()) if square is None else square @ w for square, w in zip(squares, factors)
        ]
        split = self._of_present_data("split", self._splits)
        if not split:
            return jacobi(sum(diagonals))
        (_, linear_map), shape = self._form.maps[0], self._shapes[0]
        return splitting(
            sum(diagonals[:-1]),
            lambda x: np.ravel(linear_map.forward(x.reshape(shape))),
            lambda v: np.ravel(linear_map.adjoint(v.reshape(linear_map.output_shape))),
            factors[-1],
        )

    def _splits(self) -> bool:
        """Whether D is rows of one entry each over a single orthonormal map."""
        if len(self._shapes) > 1 or len(self._form.maps) > 1 or not self._form.maps[0][1].orthonormal:
            return False
        known = [self._entries(factor) for factor in range(len(self._form.groups))]
        return all(matrix is not None and np.diff(matrix.indptr).max(initial=0) <= 1 for matrix in known)

    def _squares(self) -> list[scipy.sparse.csr_array | None]:
        """Return of each factor its squared entries, (N, n of the factor), or None where they are not held."""
        found = []
        for factor in range(len(self._form.factors)):
            matrix = self._entries(factor)
            found.append(None if matrix is None else matrix.power(2).T.tocsr())
        return found

    @cached_property
    def _factor_ends(self) -> np.ndarray:
        sizes = self._compile([], [f.observed.size for f in self._form.factors])()
        return np.cumsum([int(size) for size in sizes])

    def _matrices(self) -> list[scipy.sparse.csr_array]:
        matrices = [self._entries(factor) for factor in range(len(self._form.factors))]
        missing = [f.name for f, matrix in zip(self._form.factors, matrices) if matrix is None]
        if missing:
            raise UnsupportedModelError(
                f"A linear map behind {missing[0]!r} is not local, and with more than {MOST_UNKNOWNS} unknowns it "
                f"cannot be held in entries. Use method='dsb' with variance='perturb-and-map', which takes products "
                f"with vectors only."
            )
        return matrices

    def _entries(self, factor: int) -> scipy.sparse.csr_array | None:
        """Return the rows of D of one factor, or None where they are too many to hold."""
        return self._of_present_data(f"factor {factor}", lambda: self._read(factor))

    def _read(self, factor: int) -> scipy.sparse.csr_array | None:
        position = factor - len(self._form.groups)
        known = self._form.maps[position] if position >= 0 else None
        matrix = known[1].matrix() if known is not None and self.size <= MOST_UNKNOWNS else None
        if known is None or matrix is None:
            push, moving = self.compile(self._form.factors[factor].predictor)
            push = self._constant(push, moving)
            own = self._theta()
            return self.matrix_of(lambda x: np.ravel(push(*own, *self.split(x))))
        parts = [scipy.sparse.csr_array((matrix.shape[0], int(np.prod(shape)))) for shape in self._shapes]
        parts[known[0]] = matrix
        return scipy.sparse.hstack(parts, format="csr")

    def matrix_of(self, forward: Callable[[np.ndarray], np.ndarray]) -> scipy.sparse.csr_array | None:
        """Return the matrix of any linear map of the unknowns, from its products with vectors (N,).

        None where it is not local and there are too many unknowns.
        """
        parts = []
        for block, shape in enumerate(self._shapes):

            def of_block(x: np.ndarray, block: int = block) -> np.ndarray:
                parts = [x.ravel() if i == block else np.zeros(int(np.prod(s))) for i, s in enumerate(self._shapes)]
                return forward(np.concatenate(parts))

            part = probe(of_block, shape)
            if part is None:
                return None
            parts.append(part)
        return scipy.sparse.hstack(parts, format="csr")

    def split(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the parts of x, (N,), that belong to the blocks, in their shapes."""
        return [part.reshape(s) for part, s in zip(np.split(x, self.ends[:-1]), self._shapes)]

    def _of_present_data(self, what: str, build: Callable[[], Any]) -> Any:
        data = [v.get_value(borrow=True) for v in self._shared]
        if self._data is None or any(new is not old for new, old in zip(data, self._data)):
            self._known, self._data = {}, data
        if what not in self._known:
            self._known[what] = build()
        return self._known[what]

    @cached_property
    def _shared(self) -> list[SharedVariable]:
        return [v for v in ancestors([self._form.predictor]) if isinstance(v, SharedVariable)]

    def compile(self, expression: TensorVariable) -> tuple[Callable[..., Any], list[str]]:
        """Return the linear part of an affine expression as a function of hyperparameters and parts of x.

        Also returned are the names of the hyperparameters that take part.
        """
        blocks = self._form.blocks
        tangents = [block.noise.type(f"{block.name}_tangent") for block in blocks]
        parts = [pushforward(expression, block.noise, tangent) for block, tangent in zip(blocks, tangents)]
        return self._of_hyperparameters(tangents, pt.add(*parts) if len(parts) > 1 else parts[0])

    @cached_property
    def _forward(self) -> Callable[..., Any]:
        return self._constant(*self.compile(self._form.predictor))

    @cached_property
    def _adjoint(self) -> Callable[..., Any]:
        cotangent = self._form.predictor.type("cotangent")
        parts = [pullback(self._form.predictor, block.noise, cotangent) for block in self._form.blocks]
        return self._constant(*self._of_hyperparameters([cotangent], pt.concatenate([part.ravel() for part in parts])))

    def _of_hyperparameters(
        self, inputs: Sequence[TensorVariable], output: TensorVariable
    ) -> tuple[Callable[..., Any], list[str]]:
        """Compile a function of hyperparameters and more; say which hyperparameters take part."""
        function = self._compile([*self._form.hyper_values, *inputs], self._form.at_zero_noise(output))
        graph = function.maker.fgraph
        return function, [name for name, v in zip(self._form.hyper_names, graph.inputs) if graph.clients[v]]

    def _constant(self, function: Callable[..., Any], moving: Sequence[str]) -> Callable[..., Any]:
        """Return the function, in which no hyperparameter may take part."""
        if moving:
            names = ", ".join(repr(block.name) for block in self._form.blocks)
            raise UnsupportedModelError(
                f"The hyperparameter {moving[0]!r} takes part in a linear map of {names}. Sparse linear models need "
                f"maps that are constant: put a scale into the potential of the SparseField, or the noise, instead."
            )
        return function
