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
from pymc_ep.forms.latent_gaussian import LatentGaussian
from pymc_ep.forms.linear_maps import pullback, pushforward
from pymc_ep.forms.probing import MOST_UNKNOWNS, probe
from pymc_ep.linalg.precision import Algebra, plan_algebra

__all__ = ["LinearPredictors"]


class LinearPredictors:
    """D, for the present data.

    Parameters
    ----------
    form : LatentGaussian
        Whose blocks are all flat.
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
        form: LatentGaussian,
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
        return self._of_present_data("matrix", lambda: self.matrix_of(self.forward))

    @property
    def algebra(self) -> Algebra:
        """How D^T diag(pi) D is factorised."""
        shape = self._shapes[0] if len(self._shapes) == 1 else None
        return self._of_present_data("algebra", lambda: plan_algebra(self.matrix, shape))

    def matrix_of(self, forward: Callable[[np.ndarray], np.ndarray]) -> scipy.sparse.csr_array:
        """Return the matrix of any linear map of the unknowns, from its products with vectors (N,)."""
        parts = []
        for block, shape in enumerate(self._shapes):

            def of_block(x: np.ndarray, block: int = block) -> np.ndarray:
                parts = [x.ravel() if i == block else np.zeros(np.prod(s)) for i, s in enumerate(self._shapes)]
                return forward(np.concatenate(parts))

            parts.append(probe(of_block, shape))
            if parts[-1] is None:
                raise UnsupportedModelError(
                    f"A linear map of {self._form.blocks[block].name!r} of shape {shape} is not local, and with more "
                    f"than {MOST_UNKNOWNS} unknowns it cannot be held in entries. Use method='dsb' with "
                    f"variance='perturb-and-map', which takes products with vectors only."
                )
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
