"""Protocol of a Gaussian prior on n predictors and of its posterior under Gaussian sites.

The predictors f have the prior N(m0, K). Site i is exp(b_i f_i - pi_i f_i^2 / 2), and Pi = diag(pi). Z is the integral
of the prior times the sites, and V_i is the posterior variance of f_i.

Implementations: `observation_space`, `coefficient_space`, `sparse_coefficient_space`, `sparse_precision` and
`flat_prior`. Where a method takes a posterior, the same prior has returned it. Priors and posteriors are
NamedTuples; JAX can trace them where all their fields are arrays.
"""

from collections.abc import Callable, Iterator
from typing import Literal, Protocol, TypeVar

import numpy as np

from pymc_ep.exceptions import first_index
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.memory import chunks

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
"""Rounding error of a result, relative to the largest term in its computation: it allows for a few operations, each of
which rounds by half a unit in the last place."""


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
        """The gradient a of log Z with respect to the prior mean m0, (n,)."""

    @property
    def log_det(self) -> Array:
        """log |I + K Pi|."""

    @property
    def proper(self) -> Array:
        """Whether the posterior is a proper Gaussian; the other members are meaningless where it is not."""

    @property
    def coordinates(self) -> Array:
        """Multipliers q, (c,): with a matrix C, (d, c), any jointly Gaussian x, (d,), has the posterior mean E x + C q.

        Under a `PredictorPrior` q is the weights a, and C = Cov(x, f). Under a `CoordinatePrior` q is the posterior
        mean of the coordinates z, and C has their effects on x: it is Cov(x, z) for standard normal z.
        """

    def remaining_variance(self, cross: np.ndarray, prior_variance: np.ndarray) -> np.ndarray:
        """Return the posterior variances, (d,), of x with prior variances, (d,), and C = `cross`; see `coordinates`."""

    def __iter__(self) -> Iterator[Array]:
        """Iterate over the fields, as NamedTuples do."""

    def _replace(self, **fields: Array) -> Array:
        """Return a copy with some fields replaced, as NamedTuples do."""


class _DrawnFromPrior(_Posterior, Protocol):
    """A posterior whose draws are shifted draws of the prior (Matheron's rule)."""

    @property
    def drawn_from_prior(self) -> Literal[True]:
        """True: distinguishes this kind of posterior from `_DrawnByItself`."""

    def draw_coordinates(self, prior_draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return shifts of the coordinates, (s, c), from s prior draws of f - m0, (s, n).

        A prior draw of x plus C times the shift of the same row is a posterior draw of x; for C see `coordinates`.
        """


class _DrawnByItself(_Posterior, Protocol):
    """A posterior whose coordinates are drawn directly."""

    @property
    def drawn_from_prior(self) -> Literal[False]:
        """False: distinguishes this kind of posterior from `_DrawnFromPrior`."""

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return the posterior covariance of the coordinates times b, (c,) or (c, m)."""

    def draw_coordinates(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of the coordinates, (size, c)."""

    def log_ratio(self, draws: np.ndarray, prior_precision: np.ndarray) -> np.ndarray:
        """Return the log ratio, (s,), of posterior to prior density at draws of the coordinates, (s, c).

        The coordinates are independent under the prior, with precisions `prior_precision`, (c,).
        """


GaussianPosterior = _DrawnFromPrior | _DrawnByItself
"""Either kind of posterior; `drawn_from_prior` discriminates them."""


_PART = 2**17
"""Number of elements in a part of a matrix that is copied at a time, 1 MB."""
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
        """Return a proper prior from which iterations can start: this prior, or one near it."""

    def signatures(self) -> np.ndarray | None:
        """Return two numbers for each predictor, (n, 2), equal for identical predictors; None if it has no `subset`."""

    def subset(self, index: np.ndarray) -> Array:
        """Return the prior of the m predictors at `index`, (m,)."""

    def cotangent_of_subset(self, index: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Return the derivative of a scalar in this prior's first array, of the array's shape.

        `cotangent` is the scalar's derivative in the first array of ``subset(index)``.
        """

    def undetermined(self) -> np.ndarray:
        """Return indices of coordinates that neither prior nor predictors determine; empty if the prior is proper."""

    def not_finite(self) -> tuple[float, int, int] | None:
        """Return the first element of the prior's array that is not finite, its coordinate and its predictor.

        The result is None if all elements are finite.
        """

    def posterior(
        self, mean: Array, shift: Array, precision: Array, *, log_concave: bool = False, with_variances: bool = True
    ) -> P:
        """Return the posterior for prior mean `mean` and sites exp(shift f - precision f^2 / 2), (n,) each.

        With `log_concave` no site has a negative precision. Without `with_variances` the posterior's fields `variance`
        and `remainder` may be NaN.
        """

    def shifted(self, posterior: P, mean: Array, shift: Array, precision: Array) -> Array:
        """Return the posterior for another `shift` and the same `precision`, without a new factorisation."""

    def energy(self, posterior: P, mean: Array) -> Array:
        """Return (m - m0)^T K^{-1} (m - m0), scalar, for the posterior mean m and the prior mean m0 = `mean`."""

    def rounding(self, posterior: P) -> Array:
        """Return an estimate of the largest rounding error of posterior means, in posterior standard deviations.

        The same number is an estimate of the largest relative rounding error of posterior variances.
        """

    def posterior_rows(self, posterior: P) -> Callable[..., np.ndarray]:
        """Return a function ``block(rows, columns)`` that returns blocks, (k, m), of the posterior covariance.

        `rows` and `columns` are slices or indices of k and of m predictors. Without `columns` the function returns
        whole rows, (k, n).
        """

    def cotangent(self, posterior: P, precision: Array) -> np.ndarray | None:
        """Return the derivative of log Z in the prior's first array, of its shape; None if the array is constant.

        A prior with several arrays that depend on parameters joins the derivatives in all of them in one array.
        """

    def __iter__(self) -> Iterator[Array]:
        """Iterate over the prior's fields; `cotangent` is the derivative in the first."""


class PredictorPrior(GaussianPrior[P], Protocol[P]):
    """A prior whose coordinates are the predictors themselves, and whose posterior is `drawn_from_prior`.

    The posterior's `coordinates` are its `weights` a, and its mean is m0 + K a.
    """

    def conditioned(self, posterior: P, rows: np.ndarray) -> np.ndarray:
        """Return (I + Pi K)^{-1} r for rows r, (s, n).

        For a variable x with prior covariance C = Cov(x, f), C times the result is the posterior covariance of x and f
        times r.
        """


class CoordinatePrior(GaussianPrior[P], Protocol[P]):
    """A prior with independent coordinates, whose posterior is not `drawn_from_prior`."""

    @property
    def precision(self) -> Array:
        """Prior precisions of the coordinates, (c,)."""

    @property
    def design(self) -> Array:
        """The matrix, (n, c), dense, sparse or known by its products, of effects of the coordinates on predictors."""


def signatures_of(rows: np.ndarray) -> np.ndarray:
    """Return two random linear combinations of the elements of each row, (n, 2), identical for equal rows."""
    weights = np.random.default_rng(0).standard_normal((2, rows.shape[1]))
    out = np.empty((len(rows), 2))
    for chunk in chunks(len(rows), rows.shape[1], _PART):
        contiguous = np.ascontiguousarray(rows[chunk])
        for column, weight in enumerate(weights):
            # Not a matrix product, whose order of summation depends on the place of the row.
            out[chunk, column] = (contiguous * weight).sum(axis=1)
    return out


def first_not_finite(matrix: np.ndarray) -> tuple[float, int, int] | None:
    """Return the first element of a matrix that is not finite, with row and column; None if all are finite."""
    if np.isfinite(matrix).all():
        return None
    row, column = first_index(~np.isfinite(matrix))
    return float(matrix[row, column]), row, column
