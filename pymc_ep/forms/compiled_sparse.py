"""The sparse linear form as functions of arrays."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from pytensor.tensor.variable import TensorVariable

from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.forms.latent_gaussian import AffineVariable
from pymc_ep.forms.linear_predictors import LinearPredictors
from pymc_ep.forms.sparse_linear import SparseLinear
from pymc_ep.forms.values import AffineMoments, NoiseMoments, Prior
from pymc_ep.linalg.coefficients import FactorPrior
from pymc_ep.linalg.flat import FlatPrior
from pymc_ep.linalg.gaussian import GaussianPrior
from pymc_ep.linalg.namespace import to_jax

__all__ = ["CompiledSparseLinear"]


class _SparseSolver:
    """What stands for a `Solver`: the unknowns are the coordinates, and their precision is that of the sites."""

    name = "unknowns"
    sentence = "in the space of the unknowns"
    improper = True


class CompiledSparseLinear(CompiledLatentGaussian):
    """Compiled functions of a `SparseLinear`, with one more attribute than `CompiledLatentGaussian`: `linear`."""

    form: SparseLinear

    def restart(self, hyper_start: Sequence[np.ndarray]) -> None:
        """Take other initial values, and with them shapes, of the hyperparameters."""
        super().restart(hyper_start)
        self.__dict__.pop("linear", None)

    def solve_in(self, solver: str) -> None:
        """Accept the one solver there is: ``"auto"``."""
        if solver != "auto":
            raise ValueError(f"solver={solver!r} must be 'auto' for a model with a SparseField.")
        self.solver = _SparseSolver()

    @cached_property
    def linear(self) -> LinearPredictors:
        """The linear map from unknowns to predictors."""
        shapes = [tuple(int(n) for n in s) for s in self._noise_shapes(*self.unpack(self.start))]
        return LinearPredictors(self.form, shapes, self._function, lambda: self.unpack(self.start))

    def first_sites(self, prior: Prior) -> tuple[np.ndarray, np.ndarray]:
        """Return sites to start from, shift and precision, (n,) each, under which the posterior is proper.

        Each is the Gaussian that its factor alone suggests for the predictor.
        """
        found = [
            site.site.typical(y.ravel(), *parameters)
            for site, y, parameters in zip(
                self.sites, self.observed(), (tuple(np.asarray(p) for p in group) for group in prior.parameters)
            )
        ]
        sizes = [y.size for y in self.observed()]
        mean, variance = (
            np.concatenate([np.broadcast_to(part, n) for part, n in zip(parts, sizes)]) for parts in zip(*found)
        )
        return mean / variance, 1.0 / variance

    def prior(self, theta: np.ndarray) -> Prior:
        """Evaluate the form at unconstrained hyperparameters `theta`, (p,)."""
        prior = super().prior(theta)
        if self._jax:
            return prior
        return prior._replace(gaussian=FlatPrior.of(self.linear.algebra, self.first_sites(prior)[1]))

    def _gaussian(self, theta: np.ndarray, arrays: list[Any]) -> GaussianPrior | None:
        """Return the dense prior on JAX's device; that of NumPy starts from the sites' parameters, see `prior`."""
        if not self._jax:
            return None
        rows = to_jax(self.linear.matrix.toarray().T)
        return FactorPrior(rows, to_jax(np.zeros(self.linear.size)))

    @property
    def _arrays(self) -> list[TensorVariable]:
        return []

    @property
    def _constants(self) -> Sequence[TensorVariable]:
        return ()

    def _array_cotangents(self, array: Any) -> list[np.ndarray]:
        return []

    def _design(self) -> None:
        return None

    def affine_moments(
        self, theta: np.ndarray, variables: Sequence[AffineVariable] | None = None
    ) -> dict[str, AffineMoments]:
        """Evaluate the maps of affine variables from the unknowns, by default of all those of the form."""
        variables = self.form.affine if variables is None else tuple(variables)
        out = {}
        for variable in variables:
            mean, cross = self._mean_and_map(theta, variable)
            out[variable.name] = AffineMoments(mean, cross, np.asarray(cross.multiply(cross).sum(axis=1)).ravel())
        return out

    def _mean_and_map(self, theta: np.ndarray, variable: AffineVariable) -> tuple[np.ndarray, scipy.sparse.csr_array]:
        """Return what an affine variable is at x = 0, and its map from x with entries, (size, N)."""

        def build() -> tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]:
            mean = self.form.at_zero_noise(variable.expression)
            return self._function(self.form.hyper_values, mean), *self.linear.compile(variable.expression), {}

        mean, push, moves, known = self._for_solver(variable, build)
        own = self.unpack(theta)
        if moves or "map" not in known:
            known["map"] = self.linear.matrix_of(lambda x: np.ravel(push(*own, *self.linear.split(x))))
        return np.asarray(mean(*own)), known["map"]

    def noise_moments(self, theta: np.ndarray) -> list[NoiseMoments]:
        """Return what draws of each block need: which of the unknowns are its own."""
        everything = scipy.sparse.eye_array(self.linear.size, format="csr")
        sizes = self._coefficients(*self.unpack(theta))
        starts = np.cumsum(sizes) - sizes
        return [
            NoiseMoments(everything[start : start + size], scipy.sparse.eye_array(int(size), format="csr"), True)
            for start, size in zip(starts, sizes)
        ]
