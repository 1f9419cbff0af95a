"""Gaussian posteriors in observation space, dense: prior N(m0, K) of n predictors times Gaussian sites.

Site i is exp(b_i f - pi_i f^2 / 2). With Pi = diag(pi) the posterior precision is K^{-1} + Pi, but K may be
singular and pi zero, so everything follows from

    E = (K + Pi^{-1})^{-1} = Pi^{1/2} B^{-1} Pi^{1/2},    B = I + Pi^{1/2} K Pi^{1/2},

which exists for any pi >= 0 (Rasmussen and Williams 2006, section 3.6.3). One Cholesky factorisation and one
inverse from it are all the cubic work; marginal variances then follow from the diagonal of B^{-1}:

    V_i = (1 - [B^{-1}]_ii) / pi_i,     1 - pi_i V_i = [B^{-1}]_ii,

and, where pi_i K_ii is too small for that difference, from V_i = K_ii - K_i^T E K_i.

Negative precisions (sites that are not log-concave) are applied in a second step to the posterior of the
positive ones, as the downdate with D = (-Pi)^{1/2}: M = I - D V D must stay positive definite.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from pymc_ep.linalg.namespace import is_jax, namespace

__all__ = [
    "DensePosterior",
    "counts",
    "dense_posterior",
    "draw_weights",
    "is_positive_semidefinite",
    "shifted_posterior",
    "spd_inverse",
]

counts = {"factorizations": 0}
"""How often a cubic factorisation has been called, for tests that hold the cost of a sweep."""

_SMALL = 1e-5
"""Below this value of pi_i V_i the marginal variance is computed row by row; above it the difference
1 - [B^{-1}]_ii loses at most five digits."""


class DensePosterior(NamedTuple):
    """Posterior of n predictors.

    Attributes
    ----------
    mean, variance : array, (n,)
        Marginal moments.
    remainder : array, (n,)
        1 - pi_i V_i, computed without that difference: variance / remainder is the cavity variance of site i.
    weights : array, (n,)
        a with mean = m0 + K a; the derivative of log Z in m0.
    log_det : scalar
        log |I + K Pi|.
    proper : bool scalar
        Whether the posterior is a proper Gaussian; the other fields are meaningless where it is not.
    root : array, (n,)
        s = max(pi, 0)^{1/2}.
    inverse : array, (n, n)
        B^{-1} of the positive precisions, symmetric.
    downdate : array, (n, m)
        R with E = s B^{-1} s - R R^T, for the m negative precisions.
    """

    mean: Any
    variance: Any
    remainder: Any
    weights: Any
    log_det: Any
    proper: Any
    root: Any
    inverse: Any
    downdate: Any

    def precision_matrix(self) -> Any:
        """Return E = (K + Pi^{-1})^{-1}, (n, n), by its limit where pi is 0."""
        positive = self.inverse * self.root[:, None] * self.root
        return positive - self.downdate @ self.downdate.T if self.downdate.shape[1] else positive


def dense_posterior(mean: Any, covariance: Any, shift: Any, precision: Any, *, log_concave: bool) -> DensePosterior:
    """Multiply a Gaussian prior by Gaussian sites.

    Parameters
    ----------
    mean : array, (n,)
    covariance : array, (n, n)
        Prior moments; the covariance may be singular.
    shift, precision : array, (n,)
        Natural parameters of the sites.
    log_concave : bool
        Whether all precisions are known not to be negative.
    """
    xp = namespace(covariance)
    root = xp.sqrt(xp.maximum(precision, 0.0))
    inverse, log_det, proper = _whitened_inverse(covariance, root)
    diagonal = xp.diagonal(inverse)
    variance = _marginal_variances(covariance, root, inverse)
    remainder = diagonal
    downdate = xp.zeros((covariance.shape[0], 0))
    if not log_concave and (is_jax(precision) or (precision < 0).any()):
        downdate, extra, log_det_m, proper_m = _negative_sites(covariance, root, inverse, precision)
        variance = variance + extra
        remainder = xp.where(precision < 0, 1.0 - precision * variance, diagonal - precision * extra)
        log_det, proper = log_det + log_det_m, proper & proper_m

    found = DensePosterior(mean, variance, remainder, shift, log_det, proper, root, inverse, downdate)
    return shifted_posterior(found, mean, covariance, shift, precision)


def shifted_posterior(
    posterior: DensePosterior, mean: Any, covariance: Any, shift: Any, precision: Any
) -> DensePosterior:
    """Return the posterior for another `shift` of the same `precision`: products with vectors only.

    With large precisions the first solution for the weights loses digits to cancellation; its residual
    b - Pi m - a, which is small and free of that, restores them.
    """
    root, inverse, downdate = posterior.root, posterior.inverse, posterior.downdate

    def respond(gain: Any) -> Any:
        """Return (I - E K) gain."""
        moved = covariance @ gain
        return gain - root * (inverse @ (root * moved)) + downdate @ (downdate.T @ moved)

    weights = respond(shift - precision * mean)
    weights = weights + respond(shift - precision * (mean + covariance @ weights) - weights)
    return posterior._replace(mean=mean + covariance @ weights, weights=weights)


def _whitened_inverse(covariance: Any, root: Any) -> tuple[Any, Any, Any]:
    """Return the inverse and log-determinant of B = I + s K s."""
    xp = namespace(covariance)
    n = covariance.shape[0]
    if xp is np:
        if not root.any():
            return np.eye(n), 0.0, True
        whitened = covariance * root[:, None]
        whitened *= root
        whitened.flat[:: n + 1] += 1.0
        return spd_inverse(whitened)
    return spd_inverse(xp.eye(n) + covariance * root[:, None] * root)


def _marginal_variances(covariance: Any, root: Any, inverse: Any) -> Any:
    """Return diag(K - K s B^{-1} s K), by the diagonal of B^{-1} wherever that is accurate."""
    xp = namespace(covariance)
    explained = 1.0 - xp.diagonal(inverse)
    small = explained < _SMALL
    by_diagonal = explained / xp.where(small, 1.0, root) ** 2
    if xp is np:
        if small.any():
            rows = covariance[small] * root
            by_diagonal[small] = covariance.diagonal()[small] - np.einsum("ij,ij->i", rows @ inverse, rows)
        return by_diagonal
    rows = covariance * root
    by_rows = xp.diagonal(covariance) - xp.einsum("ij,ij->i", rows @ inverse, rows)
    return xp.where(small, by_rows, by_diagonal)


def _negative_sites(covariance: Any, root: Any, inverse: Any, precision: Any) -> tuple[Any, Any, Any, Any]:
    """Apply the negative precisions to the posterior of the positive ones.

    With D = (-Pi)^{1/2}, C = (I - E K) D and V the posterior covariance so far, V D = K C, and
    V + V D M^{-1} D V is the downdated covariance, M = I - D V D; its E is E - C M^{-1} C^T.

    Returns
    -------
    downdate, (n, m) : C L^{-T} with M = L L^T
    extra, (n,) : what the variances gain
    log_det, proper : of M
    """
    xp = namespace(covariance)
    negative = np.flatnonzero(precision < 0) if xp is np else slice(None)
    scale = xp.sqrt(xp.maximum(-precision, 0.0))[negative]
    columns = covariance[:, negative] * scale
    spread = -root[:, None] * (inverse @ (root[:, None] * columns))
    spread = spread + (xp.eye(covariance.shape[0])[:, negative] * scale)
    moved = covariance @ spread
    m = xp.eye(scale.shape[0]) - scale[:, None] * moved[negative]
    counts["factorizations"] += 1
    factor, proper = _cholesky((m + m.T) / 2)
    downdate = _solve_right(spread, factor)
    extra = ((covariance @ downdate) ** 2).sum(axis=1)
    return downdate, extra, 2.0 * xp.log(xp.diagonal(factor)).sum(), proper


def _cholesky(matrix: Any) -> tuple[Any, Any]:
    if is_jax(matrix):
        from pymc_ep.linalg.dense_jax import cholesky_jax

        return cholesky_jax(matrix)
    factor, info = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1)
    return (factor, True) if info == 0 else (np.eye(len(matrix)), False)


def _solve_right(matrix: Any, factor: Any) -> Any:
    """Return matrix @ inv(factor).T for a lower triangular factor."""
    if is_jax(matrix):
        from pymc_ep.linalg.dense_jax import solve_right_jax

        return solve_right_jax(matrix, factor)
    return scipy.linalg.solve_triangular(factor, matrix.T, lower=True).T


def spd_inverse(matrix: Any) -> tuple[Any, Any, Any]:
    """Return the inverse, the log-determinant and whether `matrix` is positive definite.

    Parameters
    ----------
    matrix : array, (n, n)
        Symmetric. A NumPy array is overwritten.

    Returns
    -------
    inverse : array, (n, n)
        Symmetric; undefined where `matrix` is not positive definite.
    log_det : scalar
    proper : bool scalar
    """
    counts["factorizations"] += 1
    if is_jax(matrix):
        from pymc_ep.linalg.dense_jax import spd_inverse_jax

        return spd_inverse_jax(matrix)
    # A C-ordered symmetric matrix is its own Fortran-ordered transpose: LAPACK works in place.
    factor, info = scipy.linalg.lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if info != 0:
        return matrix, np.nan, False
    log_det = 2.0 * np.log(factor.diagonal()).sum()
    inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
    return _mirror_lower(inverse), log_det, True


def is_positive_semidefinite(matrix: np.ndarray) -> bool:
    """Whether a symmetric matrix has no negative eigenvalue beyond rounding (1e-9 of its largest variance)."""
    shifted = np.array(matrix)
    shifted.flat[:: len(shifted) + 1] += 1e-9 * max(float(np.max(np.abs(matrix.diagonal()))), np.finfo(float).tiny)
    return scipy.linalg.lapack.dpotrf(shifted.T, lower=1, overwrite_a=1, clean=0)[1] == 0


def _mirror_lower(matrix: np.ndarray, block: int = 256) -> np.ndarray:
    """Copy the lower triangle onto the upper one, by blocks that fit the cache, in place."""
    n = len(matrix)
    for start in range(0, n, block):
        stop = min(start + block, n)
        corner = matrix[start:stop, start:stop]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T
    return matrix


def draw_weights(posterior: DensePosterior, prior_draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn prior draws of the predictors into the weights that make them posterior draws (Matheron's rule).

    Anything jointly Gaussian with eta is updated by the same weights: if (x, eta) are a prior draw about their
    means, then x + Cov(x, eta) r is a posterior draw about the prior mean of x.

    Parameters
    ----------
    posterior : DensePosterior
    prior_draws : ndarray, (s, n)
        Draws of eta - m0 under the prior.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, (s, n)
        The weights r.

    Notes
    -----
    With pseudo-observation noise nu ~ N(0, Pi^{-1}), r = a - E (eta - m0) - E nu, and E nu = s B^{-1} zeta with
    zeta standard normal, which is finite where pi is 0. The negative sites add the draw R L^{-1} zeta', since
    they widen the posterior.
    """
    root, inverse, downdate = posterior.root, posterior.inverse, posterior.downdate
    noise = rng.standard_normal(prior_draws.shape)
    positive = root * ((root * prior_draws + noise) @ inverse)
    centred = posterior.weights - positive
    if not downdate.shape[1]:
        return centred
    return centred + rng.standard_normal((len(prior_draws), downdate.shape[1])) @ downdate.T
