"""Gaussian posteriors in coefficient space: n predictors m0 + R^T v of p < n independent standard normals v.

With sites exp(b f - Pi f^2 / 2), the posterior precision of v is B = I + R Pi R^T, which has the determinant of
I + K Pi for K = R^T R. A coefficient may also have a flat prior: its entry of I is then 0, and nothing else changes as
long as the sites determine it. With B = L L^T and W = L^{-1},

    E v = B^{-1} R g,   g = b - Pi m0,        V_i = |W r_i|^2,        E = (K + Pi^{-1})^{-1} = Pi - Pi R^T B^{-1} R Pi,

where r_i is a column of R. Nothing of size n by n is formed, and negative precisions are no different from others as
long as B is positive definite.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import scipy.linalg

from pymc_ep.numerics.backend.cholesky import inverse_factor
from pymc_ep.numerics.backend.namespace import Array, is_jax, namespace
from pymc_ep.numerics.backend.twofold import twofold_product
from pymc_ep.numerics.gaussian.protocol import ROUNDING, first_not_finite, signatures_of
from pymc_ep.numerics.memory import chunks

__all__ = ["CoefficientPosterior", "FactorPrior", "dependent", "rounding_of_pivots", "shifted_posterior", "widened"]

_FAR = 1e5
"""Distance of prior and posterior mean, in posterior standard deviations, from which their difference is computed in
twice the precision. Below, eleven digits of the difference are left."""
_WIDE = 10.0
"""Standard deviation of the predictors under the Gaussian that replaces a flat prior in a first iterate: wide on the
scale of a log or logit link."""
_DEPENDENT = 1e-11
"""Pivot of the correlation matrix of the effects of flat coefficients below which they are linearly dependent: a
smaller limit takes rounding, 1e-16 times their number, for information; a larger one refuses nearly collinear
designs."""


class CoefficientPosterior(NamedTuple):
    """Posterior of n predictors and of the p coefficients behind them.

    Attributes
    ----------
    mean, variance : array, (n,)
        Marginal moments of the predictors.
    remainder : array, (n,)
        1 - pi_i V_i.
    weights : array, (n,)
        a = b - Pi E[f]: the derivative of log Z in m0.
    log_det : scalar
        log |B|: for a flat coefficient the prior's density counts as (2 pi)^{-1/2}.
    proper : bool scalar
        Whether B is positive definite; the other fields are meaningless where it is not.
    coordinates : array, (p,)
        E[v]: the posterior mean of x with Cov(x, v) = C is its prior mean plus C E[v].
    whitener : array, (p, p)
        W, lower triangular.
    rounding : scalar
        Relative rounding error of standard deviations, by `rounding_of_pivots`.
    """

    mean: Array
    variance: Array
    remainder: Array
    weights: Array
    log_det: Array
    proper: Array
    coordinates: Array
    whitener: Array
    rounding: Array

    @property
    def drawn_from_prior(self) -> Literal[False]:
        """False: the coefficients are drawn directly."""
        return False

    def solve(self, b: Array) -> Array:
        """Return B^{-1} b, (p,)."""
        return self.whitener.T @ (self.whitener @ b)

    def remaining_variance(self, cross: np.ndarray, prior_variance: np.ndarray) -> np.ndarray:
        """Return the posterior variances, (d,), of x = C v, for C = `cross`, (d, p), dense or sparse."""
        # c^T B^-1 c = |W c|^2 for each row c of C.
        half = cross @ np.asarray(self.whitener).T
        return np.einsum("ij,ij->i", half, half)

    def draw_coordinates(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return posterior draws of v, (size, p)."""
        # v = E v + W^T z has the covariance W^T W = B^-1.
        return self.coordinates + rng.standard_normal((size, len(self.coordinates))) @ np.asarray(self.whitener)

    def log_ratio(self, draws: np.ndarray, prior_precision: np.ndarray) -> np.ndarray:
        """Return the log ratio, (s,), of posterior to prior density at draws of v, (s, p).

        The density of a flat prior counts as (2 pi)^{-1/2}.
        """
        residual = np.asfortranarray((draws - self.coordinates).T)
        # (v - E v)^T B (v - E v) = |L^T (v - E v)|^2, with L^T = W^-T.
        normal = scipy.linalg.blas.dtrsm(1.0, np.asarray(self.whitener), residual, lower=1, trans_a=1)
        squares = prior_precision @ draws.T**2 - np.einsum("ij,ij->j", normal, normal)
        return 0.5 * squares + 0.5 * float(self.log_det)


class FactorPrior(NamedTuple):
    """The predictors m0 + R^T v, where each v_j is standard normal or has a flat prior.

    Attributes
    ----------
    rows : array, (p, n)
        R.
    precision : array, (p,)
        1, or 0 where the prior is flat.
    """

    rows: Array
    precision: Array

    @property
    def design(self) -> Array:
        """R^T, (n, p)."""
        return self.rows.T

    def variances(self) -> Array:
        """Return the prior variances, (n,), with a flat coefficient counted as standard normal."""
        return _column_squares(self.rows)

    def covariance_matrix(self) -> Array:
        """Return K, (n, n), with flat coefficients counted as standard normal."""
        return self.rows.T @ self.rows

    def is_positive_semidefinite(self) -> bool:
        """Return True: the covariance is a Gram matrix R^T R."""
        return True

    def regular(self) -> "FactorPrior":
        """Return this prior with wide Gaussians in place of flat priors, for a first iterate."""
        if np.asarray(self.precision).all():
            return self
        sd = widened(_column_squares(self.rows.T), self.rows.shape[1], self.precision)
        return FactorPrior(self.rows * sd[:, None], namespace(self.rows).ones_like(sd))

    def signatures(self) -> np.ndarray:
        """Return two numbers for each predictor, (n, 2), equal for identical predictors."""
        return signatures_of(np.asarray(self.rows).T)

    def subset(self, index: np.ndarray) -> "FactorPrior":
        """Return the prior of the m predictors at `index`, (m,)."""
        return FactorPrior(self.rows[:, index], self.precision)

    def cotangent_of_subset(self, index: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Return the derivative in R, (p, n), from the derivative in the `rows` of ``subset(index)``, (p, m)."""
        out = np.zeros(self.rows.shape)
        out[:, index] = cotangent
        return out

    def undetermined(self) -> np.ndarray:
        """Return indices of a smallest set of flat coefficients without which the others' effects are independent."""
        flat = np.flatnonzero(np.asarray(self.precision) == 0)
        rows = np.asarray(self.rows)[flat]
        return flat[dependent(rows @ rows.T)]

    def not_finite(self) -> tuple[float, int, int] | None:
        """Return the first element of R that is not finite, its coefficient and predictor; None if all are finite."""
        return first_not_finite(np.asarray(self.rows))

    def posterior(
        self, mean: Array, shift: Array, precision: Array, *, log_concave: bool = False, with_variances: bool = True
    ) -> CoefficientPosterior:
        """Return the posterior under Gaussian sites.

        For arguments see `pymc_ep.numerics.gaussian.observation_space.DensePrior.posterior`.
        """
        xp = namespace(self.rows)
        p = self.rows.shape[0]
        gram = sum((self.rows[:, block] * precision[block]) @ self.rows[:, block].T for block in self._blocks())
        # B = diag(prior precision) + R Pi R^T.
        diagonal = self.precision + xp.diagonal(gram)
        whitener, log_det, proper = inverse_factor(xp.diag(self.precision) + gram)
        blocks = self._blocks() if with_variances else []
        # V_i = |W r_i|^2.
        pieces = [_column_squares(_triangular_product(whitener, self.rows[:, block])) for block in blocks]
        variance = xp.concatenate(pieces) if with_variances else xp.full(len(mean), xp.nan)
        zero = xp.zeros_like(shift)
        prior = CoefficientPosterior(
            mean,
            variance,
            1.0 - precision * variance,
            zero,
            log_det,
            proper,
            xp.zeros(p),
            whitener,
            rounding_of_pivots(diagonal, xp.diagonal(whitener)),
        )
        return self.shifted(prior, mean, shift, precision)

    def shifted(
        self, posterior: CoefficientPosterior, mean: Array, shift: Array, precision: Array
    ) -> CoefficientPosterior:
        """Return the posterior for another `shift` and the same `precision`, without a new factorisation."""
        return shifted_posterior(self.rows.T, self.precision, posterior, mean, shift, precision)

    def energy(self, posterior: CoefficientPosterior, mean: Array) -> Array:
        """Return the sum of squares of E[v] over coefficients without flat priors.

        It equals a^T (m - m0), in which digits cancel where the prior is wide.
        """
        return (self.precision * posterior.coordinates**2).sum()

    def rounding(self, posterior: CoefficientPosterior) -> Array:
        """Return the relative rounding error of posterior standard deviations, which vague priors do not increase."""
        return posterior.rounding

    def posterior_rows(self, posterior: CoefficientPosterior) -> Callable[..., np.ndarray]:
        """Return a function ``block(rows, columns)`` of R^T B^{-1} R; see the protocol."""
        half = np.asarray(_triangular_product(posterior.whitener, self.rows))
        # R^T B^-1 R = (W R)^T (W R).
        return lambda rows, columns=slice(None): half[:, rows].T @ half[:, columns]

    def cotangent(self, posterior: CoefficientPosterior, precision: Array) -> np.ndarray:
        """Return d log Z / d R, (p, n): with d log Z / d K = (a a^T - E) / 2 it is E[v] a^T - B^{-1} R Pi."""
        inverse = posterior.whitener.T @ posterior.whitener
        out = np.multiply.outer(np.asarray(posterior.coordinates), np.asarray(posterior.weights))
        for block in self._blocks():
            out[:, block] -= np.asarray(inverse @ self.rows[:, block]) * precision[block]
        return out

    def _blocks(self) -> list[slice]:
        """Return slices that partition the predictors, so that no full copy of R is made."""
        p, n = self.rows.shape
        return [slice(n)] if is_jax(self.rows) else chunks(n, p)


def shifted_posterior(
    design: Array, prior_precision: Array, posterior: CoefficientPosterior, mean: Array, shift: Array, precision: Array
) -> CoefficientPosterior:
    """Return the posterior for another `shift` and the same `precision`; `design` is R^T, (n, p), of any kind.

    `design` may be dense, sparse or known by its products. Two steps of iterative refinement begin at the coefficients
    of the given posterior: the second removes the rounding of the first. Where the prior mean m0 is far from the
    posterior mean, the terms of m0 + R^T v cancel. With NumPy the sum is then computed in twice the precision at the
    refined coefficients, and two more steps begin there.
    """
    coordinates, rows = posterior.coordinates, design.T
    for _ in range(2):
        # Residual R (b - Pi (m0 + R^T v)) - P v of B v = R (b - Pi m0), for P the prior precision.
        weights = shift - precision * (mean + design @ coordinates)
        residual = rows @ weights - prior_precision * coordinates
        coordinates = coordinates + posterior.solve(residual)
    if not is_jax(mean) and mean @ mean > _FAR**2 * posterior.variance.sum():
        near, moved = twofold_product(mean, design, coordinates), np.zeros_like(coordinates)
        for _ in range(2):
            weights = shift - precision * (near + design @ moved)
            residual = rows @ weights - prior_precision * (coordinates + moved)
            moved = moved + posterior.solve(residual)
        fitted, coordinates = near + design @ moved, coordinates + moved
    else:
        fitted = mean + design @ coordinates
    return posterior._replace(mean=fitted, weights=shift - precision * fitted, coordinates=coordinates)


def rounding_of_pivots(diagonal: Array, whitened: Array) -> Array:
    """Return the relative rounding error of the pivots of B, from the diagonals of B and of W, (p,) each.

    A pivot is a diagonal element less what earlier coefficients explain of it: digits cancel where sites determine a
    combination of coefficients far better than the coefficients themselves. Scales of coefficients have no effect.
    """
    # B_jj / L_jj^2, as W_jj = 1 / L_jj.
    return ROUNDING * (diagonal * whitened**2).max(initial=1.0)


def widened(squares: Array, n: int, precision: Array) -> Array:
    """Return standard deviations, (p,): 10 / sqrt(squares / n), of a wide prior, where `precision` is 0, else 1.

    `squares`, (p,), are the sums of squares of each coefficient's effects on n predictors. Where `squares` and
    `precision` are 0 the result is 10.
    """
    xp = namespace(squares)
    sizes = xp.sqrt(squares / n)
    return xp.where(precision == 0, _WIDE / xp.where(sizes > 0, sizes, 1.0), 1.0)


def dependent(gram: np.ndarray) -> np.ndarray:
    """Return the indices of a smallest set of vectors, of Gram matrix `gram`, without which the rest is independent."""
    # Pivoted Cholesky factor of the correlations; pivots beyond the rank are dependent.
    length = np.sqrt(gram.diagonal())
    length = np.where(length > 0, length, 1.0)
    _, pivots, rank, _ = scipy.linalg.lapack.dpstrf(gram / np.multiply.outer(length, length), lower=1, tol=_DEPENDENT)
    return np.sort(pivots[rank:] - 1)


def _triangular_product(whitener: Array, rows: Array) -> Array:
    if is_jax(whitener):
        return whitener @ rows
    return scipy.linalg.blas.dtrmm(1.0, whitener, np.asfortranarray(rows), lower=1)


def _column_squares(rows: Array) -> Array:
    return (rows**2).sum(axis=0) if is_jax(rows) else np.einsum("ij,ij->j", rows, rows)
