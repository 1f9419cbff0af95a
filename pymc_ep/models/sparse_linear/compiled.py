"""The sparse linear form as functions of arrays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import scipy.sparse
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.sparse.linalg import LinearOperator

from pymc_ep.engines.prior import FactorValues, Prior, perturbed
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.graphs.shared_values import exchanged
from pymc_ep.models.latent_gaussian.form import AffineVariable
from pymc_ep.models.latent_gaussian.site_functions import NOTHING, EvaluatedRows, SiteFunctions
from pymc_ep.models.latent_gaussian.values import AffineMoments, NoiseMoments
from pymc_ep.models.sparse_linear.form import SparseLinear
from pymc_ep.models.sparse_linear.linear_map import LinearPredictors
from pymc_ep.numerics.backend.namespace import Array, to_jax
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.flat_prior import FlatPrior
from pymc_ep.sites import NORMAL

__all__ = ["CompiledSparseLinear"]

_ROW_RATIO = 64
"""Least ratio of columns to rows at which the matrix of a map is computed by rows, from products with the adjoint. The
adjoint has to be compiled first, which costs as much as many products."""
_MOST_NUMBERS = 2**24
"""Largest number of entries, zeros included, of a matrix that is computed by rows: it is dense at first, 128 MiB."""


class _SparseSolver:
    """Stand-in for a `Solver`: as unknowns have a flat prior, the posterior precision is from the sites alone."""

    name = "unknowns"
    sentence = "in the space of the unknowns"
    improper = True
    exact = ""


class CompiledSparseLinear(SiteFunctions):
    """Compiled functions of a `SparseLinear`; for parameters see `SiteFunctions`."""

    form: SparseLinear
    _fitted_data: Mapping[SharedVariable, np.ndarray] = MappingProxyType({})
    sweep = 1e4
    """Multiplications that take as long as one sweep, divided by `work`: measured as 3e9 on a picture of 64 x 64, with
    `work` 3e5."""

    def __init__(self, form: SparseLinear, hyper_start: Sequence[np.ndarray], compile_kwargs: dict | None = None):
        super().__init__(form, hyper_start, compile_kwargs)
        # Fields are images, of which few draws are wanted.
        self.most_draws = 1000 if all(linear_map is None for linear_map in form.maps) else 25

    def restart(self, hyper_start: Sequence[np.ndarray]) -> None:
        """Set other initial values, and thereby shapes, of the hyperparameters."""
        super().restart(hyper_start)
        self.__dict__.pop("linear", None)

    def solve_in(self, solver: str) -> None:
        """Set the solver; the only one is ``"auto"``."""
        if solver != "auto":
            raise ValueError(f"solver={solver!r} must be 'auto' for a model with a SparseField.")
        self.solver = _SparseSolver()

    @property
    def work(self) -> float:
        """Multiplications of a factorisation by nested dissection, about N^1.5 for N unknowns on a grid."""
        return float(self.linear.size) ** 1.5

    @cached_property
    def linear(self) -> LinearPredictors:
        """The linear map from unknowns to predictors."""
        shapes = [tuple(int(n) for n in s) for s in self.rows.noise_shapes(*self.unpack(self.start))]
        plan = import_module("pymc_ep.numerics.precision.dense_jax").dense_on_device if self.on_jax else None
        return LinearPredictors(
            self.form, shapes, self.function, lambda: self.unpack(self.start), self._noise_precisions, plan
        )

    def _noise_precisions(self) -> list[np.ndarray]:
        """Return two arrays, (m,): the precisions of all observations at two values of the hyperparameters.

        The list is empty unless all likelihoods are Gaussian.
        """
        if any(group.site is not NORMAL for group in self.form.groups):
            return []
        ends = sum(y.size for y in self.observed()[: len(self.form.groups)])
        return [self.first_sites(self.factors_at(theta))[1][:ends] for theta in (self.start, perturbed(self.start))]

    @property
    def period(self) -> int | None:
        """Pixels after which translates of all potentials' maps repeat, their largest `LinearMap.period`, or None."""
        return (
            max((block_map[1].period or 0 for block_map in self.form.maps if block_map is not None), default=0) or None
        )

    def translated(self, shift: tuple[int, int]) -> "CompiledSparseLinear":
        """Return the form with potentials on a grid moved by (rows, columns), pixels; compiled functions are shared."""
        maps = tuple(
            None if block_map is None else (block_map[0], block_map[1].translated(shift))
            for block_map in self.form.maps
        )
        other = self.shallow_copy()
        other.form = replace(self.form, maps=maps)
        other.linear = self.linear.with_maps(other.form)
        return other

    def fitted_to(self, data: Mapping[SharedVariable, np.ndarray]) -> Self:
        """Return the form with its factors at `data`, the data of a fit, and its affine variables at the present data.

        Both have the same unknowns, so that the posterior of these given the fitted data determines the variables.
        """
        other = self.shallow_copy()
        other._fitted_data, other.linear = data, self.linear.at_data(data)
        return other

    def first_sites(self, prior: Prior | FactorValues) -> tuple[np.ndarray, np.ndarray]:
        """Return shift and precision, (n,) each, of the sites at which a fit starts; their posterior is proper.

        Each site has the typical mean and variance of the predictor under its factor alone.
        """
        return self.typical_sites(prior)

    def prior(self, theta: np.ndarray) -> Prior:
        """Evaluate the form at unconstrained hyperparameters `theta`, (p,)."""
        with exchanged(self._fitted_data):
            factors = self.factors_at(theta)
            if self.on_jax:
                flat = to_jax(np.zeros(self.linear.size))
                return Prior(factors.mean, FactorPrior(self.linear.rows_on_jax, flat), *factors[1:])
            flat_prior = FlatPrior.of(self.linear.algebra, self.first_sites(factors)[1])
            return Prior(factors.mean, flat_prior, *factors[1:])

    def factors_at(self, theta: np.ndarray) -> FactorValues:
        """Evaluate the form as `prior` does, without the field `gaussian`, which needs entries of the linear map."""
        with exchanged(self._fitted_data):
            return self._factors(theta)[0]

    @property
    def _arrays(self) -> list[TensorVariable]:
        return []

    @property
    def _constants(self) -> Sequence[TensorVariable]:
        return ()

    def describe(self) -> str:
        """Return a description of the form, one line per part."""
        form = self.form
        lines = ["form             unknowns under sparse potentials and univariate sites (sparse linear)"]
        shapes = self.rows.noise_shapes(*self.unpack(self.start))
        for block, shape in zip(form.blocks, shapes):
            lines.append(f"latent           {block.name}: {'x'.join(str(int(n)) for n in shape) or '1'} values")
        lines += self._describe_groups()
        try:
            how = self.linear.algebra.sentence
        except (UnsupportedModelError, InvalidDataError) as error:
            how = f"products with vectors only ({error})"
        return "\n".join([*lines, f"solver           {self.solver.sentence}; {how}"])

    def _array_cotangents(self, array: Array) -> list[np.ndarray]:
        return []

    def _solver_key(self) -> tuple[Any, ...]:
        return ()

    def affine_moments(
        self, theta: np.ndarray, variables: Sequence[AffineVariable] | None = None
    ) -> dict[str, AffineMoments]:
        """Return moments of affine variables, by default of all: values at zero unknowns, and maps from the unknowns.

        A map without a matrix of entries is a `LinearOperator`; the squared norms of its rows are then given as zeros.
        """
        variables = self.form.affine if variables is None else tuple(variables)
        out = {}
        for variable in variables:
            mean, cross = self._mean_and_map(theta, variable)
            has_entries = scipy.sparse.issparse(cross)
            out[variable.name] = AffineMoments(
                mean, cross, cross.power(2).sum(axis=1) if has_entries else np.zeros(mean.size)
            )
        return out

    def _mean_and_map(self, theta: np.ndarray, variable: AffineVariable) -> tuple[np.ndarray, Any]:
        """Return an affine variable at x = 0, in its shape, and its map from x, (size, N): matrix or operator."""
        at_zero, push, changes, cached = self._affine(variable)
        hyper = self.unpack(theta)
        mean = np.asarray(at_zero(*hyper))
        if changes or "map" not in cached:
            cached["map"] = self._map_of(variable, hyper, push, mean.size)
        return mean, cached["map"]

    def _map_of(
        self, variable: AffineVariable, hyper: Sequence[np.ndarray], push: Callable[..., Any], size: int
    ) -> scipy.sparse.csr_array | LinearOperator:
        def forward(x: np.ndarray) -> np.ndarray:
            return np.ravel(push(*hyper, *self.linear.split(x)))

        by_rows = size * self.linear.size <= _MOST_NUMBERS and size * _ROW_RATIO <= self.linear.size
        entries = None if by_rows else self.linear.matrix_of(forward)
        if entries is not None:
            return entries
        pull, _ = self._for_solver((variable, "adjoint"), lambda: self.linear.compile_adjoint(variable.expression))
        if by_rows:
            # Row i of a map M is M^T e_i.
            return scipy.sparse.csr_array(np.array([pull(*hyper, unit) for unit in np.eye(size)]))
        return LinearOperator((size, self.linear.size), forward, lambda v: np.asarray(pull(*hyper, v)), dtype=float)

    def affine_values(
        self, theta: np.ndarray, variable: AffineVariable, unknowns: Iterable[np.ndarray]
    ) -> list[np.ndarray]:
        """Return the value of an affine variable, in its shape, at each vector of unknowns, (N,)."""
        mean, push, *_ = self._affine(variable)
        hyper = self.unpack(theta)
        base = np.asarray(mean(*hyper))
        # f(x) = f(0) + M x.
        return [base + push(*hyper, *self.linear.split(x)) for x in unknowns]

    def _affine(self, variable: AffineVariable) -> tuple[Callable[..., Any], Callable[..., Any], bool, dict]:
        """Compile an affine variable: value at x = 0, linear part, whether that part may change, cache of its map.

        It may change with hyperparameters or shared data. The map is a matrix or operator, see `_mean_and_map`.
        """

        def build() -> tuple[Callable[..., Any], Callable[..., Any], bool, dict]:
            mean = self.form.at_zero_noise(variable.expression)
            push, moving = self.linear.compile(variable.expression)
            data = any(isinstance(v, SharedVariable) for v in ancestors([variable.expression]))
            return self.function(self.form.hyper_values, mean), push, bool(moving) or data, {}

        return self._for_solver(variable, build)

    def noise_rows(self, thetas: np.ndarray, precomputed: EvaluatedRows = NOTHING) -> list[list[NoiseMoments]]:
        """Return `NoiseMoments` for each theta and block; their map, (size, N), selects the block's unknowns."""
        everything = scipy.sparse.eye_array(self.linear.size, format="csr")
        sizes = self._coefficients(*self.unpack(thetas[0]))
        starts = np.cumsum(sizes) - sizes
        selections = [
            NoiseMoments(everything[start : start + size], scipy.sparse.eye_array(int(size), format="csr"), True)
            for start, size in zip(starts, sizes)
        ]
        return [selections] * len(thetas)
