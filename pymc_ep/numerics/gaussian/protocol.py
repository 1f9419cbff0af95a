"""Protocol of a Gaussian prior on n predictors and of its posterior under Gaussian sites.

Implementations: `observation_space`, `coefficient_space`, `sparse_coefficient_space` and `flat_prior`. Methods of a
prior take the posterior that it returned. Both are NamedTuples of arrays, so that JAX can trace them.
"""

from collections.abc import Callable, Iterator
from typing import Literal, Protocol, TypeVar

import numpy as np

from pymc_ep.exceptions import first_index
from pymc_ep.numerics.backend.namespace import Array

__all__ = [
    "ROUNDING",
    "CoordinatePrior",
    "GaussianPosterior",
    "GaussianPrior",
    "PredictorPrior",
    "first_not_finite",
    "signatures_of",
]

ROUNDING = 4 * np.finfo(float).eps
"""Rounding error of a number, relative to the largest number that it is computed from: a few operations of half a unit
each."""


class _Posterior(Protocol):
    """Posterior of n predictors under Gaussian sites exp(b f - pi f^2 / 2)."""

    @property
    def mean(self) -> Array:
        """Marginal means, (n,)."""

    @property
    def variance(self) -> Array:
        """Marginal variances V, (n,)."""

    @property
    def remainder(self) -> Array:
        """1 - pi_i V_i, (n,): variance / remainder is the cavity variance of site i."""

    @property
    def weights(self) -> Array:
        """The derivative a of log Z in the prior mean, (n,)."""

    @property
    def log_det(self) -> Array:
        """log |I + K Pi|."""

    @property
    def proper(self) -> Array:
        """Whether the posterior is a proper Gaussian; the other members are meaningless where it is not."""

    @property
    def coordinates(self) -> Array:
        """Posterior mean of the prior's coordinates, (c,): the mean of x moves by Cov(x, coordinates) times this."""

    def remaining_variance(self, cross: np.ndarray, prior_variance: np.ndarray) -> np.ndarray:
        """Return the posterior variances, (d,), of x with Cov(x, coordinates) = `cross`, (d, c)."""

    def __iter__(self) -> Iterator[Array]:
        """Iterate over the fields, as NamedTuples do."""

    def _replace(self, **fields: Array) -> Array:
        """Return a copy with other fields, as NamedTuples do."""


class _DrawnFromPrior(_Posterior, Protocol):
    """A posterior whose draws are shifted draws of the prior (Matheron's rule)."""

    @property
    def drawn_from_prior(self) -> Literal[True]:
        """Tells this kind from the other."""

    def draw_coordinates(self, prior_draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the shift of each coordinate, (s, c), for prior draws of the predictors about m0, (s, n)."""


class _DrawnByItself(_Posterior, Protocol):
    """A posterior whose coordinates are drawn directly."""

    @property
    def drawn_from_prior(self) -> Literal[False]:
        """Tells this kind from the other."""

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return the posterior covariance of the coordinates times b, (c,) or (c, m)."""

    def draw_coordinates(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of the coordinates, (size, c)."""

    def log_ratio(self, draws: np.ndarray, prior_precision: np.ndarray) -> np.ndarray:
        """Return the log of posterior over prior density, (s,), of coordinates, (s, c), independent under the prior."""


GaussianPosterior = _DrawnFromPrior | _DrawnByItself
"""Either kind of posterior; `drawn_from_prior` discriminates them."""


_PART = 2**17
"""Numbers in a part of a matrix, 1 MB, that is copied at a time."""
P = TypeVar("P", bound=_Posterior)
"""Type of the posterior that a prior returns and takes."""


class GaussianPrior(Protocol[P]):
    """N(m0, K) on n predictors. The mean is an argument of the methods, since it changes while K does not."""

    def variances(self) -> Array:
        """Return the prior variances, (n,)."""

    def covariance_matrix(self) -> Array:
        """Return K, (n, n)."""

    def is_positive_semidefinite(self) -> bool:
        """Whether K has no negative eigenvalue beyond rounding."""

    def regular(self) -> Array:
        """Return a proper prior for a first iterate: itself, or one near it."""

    def signatures(self) -> np.ndarray | None:
        """Return two numbers a predictor, (n, 2), equal for predictors that are the same; None without `subset`."""

    def subset(self, index: np.ndarray) -> Array:
        """Return the prior of some of the predictors, (m,)."""

    def cotangent_of_subset(self, index: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Return the derivative in this prior's array, given it in the array of ``subset(index)``."""

    def undetermined(self) -> np.ndarray:
        """Return the coordinates that neither prior nor predictors determine; empty if the prior is proper."""

    def not_finite(self) -> tuple[float, int, int] | None:
        """Return the first number of the prior that is not finite, with its coordinate and predictor."""

    def posterior(
        self, mean: Array, shift: Array, precision: Array, *, log_concave: bool = False, with_variances: bool = True
    ) -> P:
        """Multiply by Gaussian sites; with `log_concave` no site has a negative precision.

        Without `with_variances` only what concerns the coordinates need be computed: variances of predictors, and what
        is left of their precision, may be NaN.
        """

    def shifted(self, posterior: P, mean: Array, shift: Array, precision: Array) -> Array:
        """Return the posterior for another `shift` of the same `precision`: products with vectors only."""

    def energy(self, posterior: P, mean: Array) -> Array:
        """Return (m - m0)^T K^{-1} (m - m0), scalar, for the posterior mean m and the prior mean m0 = `mean`."""

    def rounding(self, posterior: P) -> Array:
        """Return the rounding error of posterior means and variances, in posterior standard deviations or relative."""

    def posterior_rows(self, posterior: P) -> Callable[..., np.ndarray]:
        """Return the posterior covariance as a function: ``rows`` and ``columns`` are slices or indices, (k, m).

        Without ``columns`` it returns whole rows, (k, n).
        """

    def cotangent(self, posterior: P, precision: Array) -> np.ndarray | None:
        """Return the derivative of log Z in the prior's array, of its shape; None where that is constant."""

    def __iter__(self) -> Iterator[Array]:
        """Iterate over the prior's arrays: first the one that `cotangent` belongs to."""


class PredictorPrior(GaussianPrior[P], Protocol[P]):
    """A prior whose coordinates are the predictors' weights, and whose posterior is `drawn_from_prior`."""

    def conditioned(self, posterior: P, rows: np.ndarray) -> np.ndarray:
        """Return (I + Pi K)^{-1} r for rows r, (s, n).

        Of x with the prior covariance C with eta, C times this is the posterior covariance of x and eta times r.
        """


class CoordinatePrior(GaussianPrior[P], Protocol[P]):
    """A prior with independent coordinates, whose posterior is not `drawn_from_prior`."""

    @property
    def precision(self) -> Array:
        """Prior precisions of the coordinates, (c,)."""

    @property
    def design(self) -> Array:
        """The effects of the coordinates on the predictors, (n, c): a matrix of any kind."""


def signatures_of(rows: np.ndarray) -> np.ndarray:
    """Return two random combinations of each row of a matrix, (n, 2): to the bit the same for equal rows."""
    weights = np.random.default_rng(0).standard_normal((2, rows.shape[1]))
    out, step = np.empty((len(rows), 2)), max(1, _PART // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        chunk = np.ascontiguousarray(rows[start : start + step])
        for column, weight in enumerate(weights):
            # Not a matrix product, whose order of summation depends on the place of the row.
            out[start : start + step, column] = (chunk * weight).sum(axis=1)
    return out


def first_not_finite(matrix: np.ndarray) -> tuple[float, int, int] | None:
    """Return the first element of a matrix that is not finite, with row and column."""
    if np.isfinite(matrix).all():
        return None
    row, column = first_index(~np.isfinite(matrix))
    return float(matrix[row, column]), row, column
