"""Gaussian posteriors in observation space, dense: prior N(m0, K) of n predictors times Gaussian sites.

Site i is exp(b_i f - pi_i f^2 / 2). With Pi = diag(pi) the posterior precision is K^{-1} + Pi, but K may be
singular and pi zero, so everything follows from

    E = (K + Pi^{-1})^{-1} = Pi^{1/2} B^{-1} Pi^{1/2},    B = I + Pi^{1/2} K Pi^{1/2},

which exists for any pi >= 0 (Rasmussen and Williams 2006, section 3.6.3). With B = L L^T, one Cholesky factorisation
and the inverse W of its triangular factor are all the cubic work, two thirds of what an inverse of B takes. Marginal
variances then follow from the diagonal of B^{-1} = W^T W:

    V_i = (1 - [B^{-1}]_ii) / pi_i,     1 - pi_i V_i = [B^{-1}]_ii,

or, where pi_i K_ii is too small for that difference, from V_i = K_ii - K_i^T E K_i, with column K_i of K.

Negative precisions (sites that are not log-concave) are applied in a second step to the posterior of the
positive ones, as the downdate with D = (-Pi)^{1/2}: M = I - D V D must stay positive definite.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.linalg

from pymc_ep.numerics.backend.cholesky import (
    cholesky,
    counts,
    factor_lower,
    gram,
    inverse_factor,
    solve,
    solve_right,
    times,
)
from pymc_ep.numerics.backend.namespace import Array, is_jax, namespace
from pymc_ep.numerics.gaussian.protocol import ROUNDING, first_not_finite, signatures_of

__all__ = [
    "DensePosterior",
    "DensePrior",
]

_SMALL = 1e-7
"""Below this value of pi_i V_i the marginal variance is computed row by row; above it the difference
1 - [B^{-1}]_ii was measured to be right to 4e-9 of V_i."""
_WEAK = 1e-6
"""Value of pi_i K_ii below which nothing is divided by the root of pi_i, since the quotient would lose digits."""
_WEAK_PAIR = 1e-5
"""Value of pi_i V_i below which covariances with site i are not read off the inverse of B: the difference I - B^{-1}
has lost five digits there."""
_CLEAN = 1e-11
"""Residual of the weights, relative to the largest weight, above which the weights are refined once: a smaller limit
costs products, a larger one digits."""


class DensePosterior(NamedTuple):
    """Posterior of n predictors.

    Attributes
    ----------
    mean, variance : array, (n,)
        Marginal moments.
    remainder : array, (n,)
        1 - pi_i V_i, computed without a difference: variance / remainder is the cavity variance of site i.
    weights : array, (n,)
        a with mean = m0 + K a; the derivative of log Z in m0.
    log_det : scalar
        log |I + K Pi|.
    proper : bool scalar
        Whether the posterior is a proper Gaussian; the other fields are meaningless where it is not.
    root : array, (n,)
        s = max(pi, 0)^{1/2}.
    whitener : array, (n, n)
        W = L^{-1}, lower triangular, with B = L L^T of the positive precisions.
    downdate : array, (n, m)
        R with E = s B^{-1} s - R R^T, for the m negative precisions.
    """

    mean: Array
    variance: Array
    remainder: Array
    weights: Array
    log_det: Array
    proper: Array
    root: Array
    whitener: Array
    downdate: Array

    @property
    def drawn_from_prior(self) -> Literal[True]:
        """True: posterior draws are prior draws, shifted by `draw_coordinates`."""
        return True

    @property
    def coordinates(self) -> Array:
        """The weights a, (n,): the posterior mean of any x is its prior mean plus C a, where C = Cov(x, predictors)."""
        return self.weights

    def remaining_variance(self, cross: np.ndarray, prior_variance: np.ndarray) -> np.ndarray:
        """Return the posterior variances, (d,), of x with Cov(x, f) = C = `cross`, (d, n).

        They are the prior variances, `prior_variance`, (d,), less diag(C E C^T). For positive precisions the latter is
        a sum of squares of elements of W s C^T, accurate also where it nearly equals the prior variance.
        """
        # c^T E c = |W s c|^2 - |R^T c|^2 for each row c of C.
        columns = np.asfortranarray((cross * np.asarray(self.root)).T)
        reduced = scipy.linalg.blas.dtrmm(1.0, np.asarray(self.whitener), columns, lower=1)
        gained = cross @ np.asarray(self.downdate)
        explained = np.einsum("ij,ij->j", reduced, reduced) - np.einsum("ij,ij->i", gained, gained)
        return prior_variance - explained

    def draw_coordinates(self, prior_draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the weights, (s, n), that turn prior draws of the predictors into posterior draws (Matheron's rule).

        The weights r also serve any x that is jointly Gaussian with the predictors eta. If (x, eta) is a prior draw
        less the prior means, then x + Cov(x, eta) r is a posterior draw of x less its prior mean.

        Parameters
        ----------
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
        zeta standard normal, which is finite where pi is 0. The negative sites add the draw R zeta', since
        they widen the posterior.
        """
        noise = rng.standard_normal(prior_draws.shape)
        # s B^-1 (s (eta - m0) + zeta) = E (eta - m0 + nu), for nu = s^-1 zeta and E of the positive sites.
        positive = self.root * ((self.root * prior_draws + noise) @ self.whitener.T @ self.whitener)
        centred = self.weights - positive
        if not self.downdate.shape[1]:
            return centred
        return centred + rng.standard_normal((len(prior_draws), self.downdate.shape[1])) @ self.downdate.T

    def precision_matrix(self) -> Array:
        """Return E = (K + Pi^{-1})^{-1}, (n, n), by its limit where pi is 0."""
        positive = gram(self.whitener) * self.root[:, None] * self.root
        return positive - self.downdate @ self.downdate.T if self.downdate.shape[1] else positive


class DensePrior(NamedTuple):
    """N(m0, K) on n predictors.

    Attributes
    ----------
    covariance : array, (n, n)
        K, possibly singular.
    """

    covariance: Array

    def variances(self) -> Array:
        """Return the prior variances, (n,)."""
        return namespace(self.covariance).diagonal(self.covariance)

    def covariance_matrix(self) -> Array:
        """Return K, (n, n)."""
        return self.covariance

    def is_positive_semidefinite(self) -> bool:
        """Whether K has no negative eigenvalue beyond rounding (1e-9 of the largest variance)."""
        shifted = np.array(self.covariance)
        largest = max(float(np.max(np.abs(shifted.diagonal()))), np.finfo(float).tiny)
        shifted.flat[:: len(shifted) + 1] += 1e-9 * largest
        return factor_lower(shifted.T)[1] == 0

    def regular(self) -> "DensePrior":
        """Return this prior, which is proper."""
        return self

    def signatures(self) -> np.ndarray:
        """Return two numbers for each predictor, (n, 2), equal for identical predictors."""
        return signatures_of(np.asarray(self.covariance))

    def subset(self, index: np.ndarray) -> "DensePrior":
        """Return the prior of the m predictors at `index`, (m,)."""
        return DensePrior(self.covariance[np.ix_(index, index)])

    def cotangent_of_subset(self, index: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Return the derivative in K, (n, n), from the derivative in the covariance of ``subset(index)``, (m, m)."""
        out = np.zeros(self.covariance.shape)
        out[np.ix_(index, index)] = cotangent
        return out

    def undetermined(self) -> np.ndarray:
        """Return an empty array: the prior is proper."""
        return np.zeros(0, dtype=int)

    def not_finite(self) -> tuple[float, int, int] | None:
        """Return the first covariance that is not finite, and the two predictors; None if all are finite."""
        return first_not_finite(np.asarray(self.covariance))

    def posterior(
        self, mean: Array, shift: Array, precision: Array, *, log_concave: bool = False, with_variances: bool = True
    ) -> DensePosterior:
        """Return the posterior under Gaussian sites exp(shift f - precision f^2 / 2).

        Parameters
        ----------
        mean : array, (n,)
            Prior mean.
        shift, precision : array, (n,)
            Natural parameters of the sites.
        log_concave : bool
            Whether all precisions are known not to be negative.
        with_variances : bool
            Of no effect: variances of the predictors are always computed. Other priors may leave NaN instead.
        """
        covariance = self.covariance
        xp = namespace(covariance)
        root = xp.sqrt(xp.maximum(precision, 0.0))
        whitener, log_det, proper = _whitener(covariance, root)
        # [B^-1]_jj = sum_i W_ij^2 = 1 - pi_j V_j.
        remainder = (whitener**2).sum(axis=0) if xp is not np else np.einsum("ij,ij->j", whitener, whitener)
        variance = _marginal_variances(covariance, root, whitener, remainder)
        downdate = xp.zeros((covariance.shape[0], 0))
        if not log_concave and (is_jax(precision) or (precision < 0).any()):
            downdate, extra, log_det_m, proper_m = _negative_sites(covariance, root, whitener, precision)
            variance = variance + extra
            # 1 - pi (V + extra): no terms cancel where pi < 0.
            remainder = xp.where(precision < 0, 1.0 - precision * variance, remainder - precision * extra)
            # |I + K Pi| = |B| |M|, M of the negative sites.
            log_det, proper = log_det + log_det_m, proper & proper_m
        zero = xp.zeros_like(shift)
        prior = DensePosterior(mean, variance, remainder, zero, log_det, proper, root, whitener, downdate)
        return self.shifted(prior, mean, shift, precision)

    def shifted(self, posterior: DensePosterior, mean: Array, shift: Array, precision: Array) -> DensePosterior:
        """Return the posterior for another `shift` and the same `precision`, without a new factorisation.

        The solution starts at the weights a of the given posterior. With large precisions it loses digits to
        cancellation; its residual b - Pi m - a, which is small and free of cancellation, restores them.

        Parameters
        ----------
        posterior : DensePosterior
            A posterior for the same precisions and any shift.
        mean : array, (n,)
            Prior mean.
        shift, precision : array, (n,)
        """
        weights, fitted = posterior.weights, posterior.mean
        for attempt in range(2):
            # (I + Pi K) da = b - Pi (m0 + K a) - a.
            residual = shift - precision * fitted - weights
            if attempt and not is_jax(residual) and np.abs(residual).max() <= _CLEAN * np.abs(weights).max():
                break
            weights = weights + _solved_weights(posterior, self.covariance, residual)
            fitted = mean + times(self.covariance, weights)
        return posterior._replace(mean=fitted, weights=weights)

    def conditioned(self, posterior: DensePosterior, rows: np.ndarray) -> np.ndarray:
        """Return (I + Pi K)^{-1} r for rows r, (s, n); see `pymc_ep.numerics.gaussian.protocol.PredictorPrior`."""
        return _solved_weights(posterior, self.covariance, rows)

    def energy(self, posterior: DensePosterior, mean: Array) -> Array:
        """Return a^T K a, with m - m0 = K a."""
        return (posterior.weights * (posterior.mean - mean)).sum()

    def rounding(self, posterior: DensePosterior) -> Array:
        """Return an estimate of the largest rounding error, see the protocol: ROUNDING times the largest K_ii / V_i.

        Posterior means and variances are differences of terms that grow with K_ii, so that digits cancel under vague
        priors. K itself is a sum of such terms, rounded.
        """
        xp = namespace(self.covariance)
        prior = self.variances()
        left = xp.where(posterior.variance > 0, posterior.variance, np.finfo(float).tiny)
        return ROUNDING * xp.max(xp.where(prior > 0, prior / left, 0.0))

    def posterior_rows(self, posterior: DensePosterior) -> Callable[..., np.ndarray]:
        """Return a function ``block(rows, columns)`` of the posterior covariance V of predictors; see the protocol.

        For positive precisions, V = s^{-1} (I - B^{-1}) s^{-1} = s^{-1} B^{-1} s K = K - K s B^{-1} s K. Under vague
        priors the last form cancels all digits, and is only used for pairs of sites that are both too weak to divide by
        s. The second form is used for pairs with one such site, the first for all other pairs. Negative precisions add
        K R R^T K.
        """
        covariance, root, whitener, variance = (
            np.asarray(a) for a in (self.covariance, posterior.root, posterior.whitener, posterior.variance)
        )
        weak = root**2 * variance < _WEAK_PAIR
        divisor = np.where(weak, 1.0, root)
        whole = np.array(gram(whitener))
        # s^-1 (I - B^-1) s^-1 is -s^-1 B^-1 s^-1 off its diagonal, which is filled with V_i below.
        whole /= -divisor[:, None]
        whole /= divisor
        if weak.any():
            # Columns of weak sites: s^-1 B^-1 s K, and K - K s B^-1 s K among themselves.
            reduced = whitener @ (root[:, None] * covariance[:, weak])
            across = whitener.T @ reduced / divisor[:, None]
            across[weak] = covariance[np.ix_(weak, weak)] - reduced.T @ reduced
            whole[:, weak], whole[weak] = across, across.T
        if posterior.downdate.shape[1]:
            gained = covariance @ np.asarray(posterior.downdate)
            whole += gained @ gained.T
        np.fill_diagonal(whole, variance)
        return lambda rows, columns=slice(None): whole[rows][:, columns]

    def cotangent(self, posterior: DensePosterior, precision: Array) -> np.ndarray:
        """Return d log Z / d K = (a a^T - E) / 2, (n, n)."""
        out = np.array(posterior.precision_matrix())
        out *= -0.5
        weights = np.asarray(posterior.weights)
        out += 0.5 * np.multiply.outer(weights, weights)
        return out


def _solved_weights(posterior: DensePosterior, covariance: Array, gain: Array) -> Array:
    """Return (I - E K) g = (I + Pi K)^{-1} g for g = `gain`, (n,), or for each row of (m, n).

    With g = s h the result is s B^{-1} h, in which no digits cancel where pi K is large. Some s are too small to divide
    by: g_w has the elements of g there and zeros elsewhere, and h has zeros there and g / s elsewhere. The result is
    then g_w + s B^{-1} (h - s K g_w). Negative precisions add R R^T K g.
    """
    xp = namespace(covariance)
    root, whitener, downdate = posterior.root, posterior.whitener, posterior.downdate
    weak = root**2 * xp.diagonal(covariance) < _WEAK
    kept = xp.where(weak, gain, 0.0)
    scaled = xp.where(weak, 0.0, gain / xp.where(weak, 1.0, root))
    if xp is not np or weak.any():
        scaled = scaled - root * times(covariance, kept)
    # (I + Pi K)^-1 (kept + s h) = kept + s B^-1 (h - s K kept).
    response = kept + root * solve(whitener, scaled)
    if not downdate.shape[1]:
        return response
    # E = s B^-1 s - R R^T: -E K gain has the second term R R^T K gain.
    return response + (times(covariance, gain) @ downdate) @ downdate.T


def _whitener(covariance: Array, root: Array) -> tuple[Any, Any, Any]:
    """Return W = L^{-1}, log |B| and whether B = I + s K s = L L^T is positive definite."""
    xp = namespace(covariance)
    n = covariance.shape[0]
    if xp is not np:
        return inverse_factor(xp.eye(n) + covariance * root[:, None] * root)
    if not root.any():
        return np.eye(n, order="F"), 0.0, True
    whitened = covariance * root[:, None]
    whitened *= root
    whitened.flat[:: n + 1] += 1.0
    return inverse_factor(whitened)


def _marginal_variances(covariance: Array, root: Array, whitener: Array, remainder: Array) -> Array:
    """Return diag(K - K s B^{-1} s K), (n,), from the diagonal of B^{-1} wherever that is accurate."""
    xp = namespace(covariance)
    explained = 1.0 - remainder
    small = explained < _SMALL
    # V_i = (1 - [B^-1]_ii) / pi_i.
    by_diagonal = explained / xp.where(small, 1.0, root) ** 2
    if xp is not np:
        from pymc_ep.numerics.backend.cholesky_jax import where_any_jax

        # V_i = K_ii - |W s K_i|^2.
        def by_rows() -> Array:
            return xp.diagonal(covariance) - ((whitener @ (root[:, None] * covariance)) ** 2).sum(axis=0)

        return where_any_jax(small, by_rows, by_diagonal)
    if not root.any():
        return covariance.diagonal().copy()
    if small.any():
        columns = np.asfortranarray((covariance[small] * root).T)
        reduced = scipy.linalg.blas.dtrmm(1.0, whitener, columns, lower=1)
        by_diagonal[small] = covariance.diagonal()[small] - np.einsum("ij,ij->j", reduced, reduced)
    return by_diagonal


def _negative_sites(covariance: Array, root: Array, whitener: Array, precision: Array) -> tuple[Any, Any, Any, Any]:
    """Return the changes that the negative precisions make to the posterior of the positive ones.

    With D = (-Pi)^{1/2}, C = (I - E K) D and V the posterior covariance so far, V D = K C, and
    V + V D M^{-1} D V is the downdated covariance, M = I - D V D; its E is E - C M^{-1} C^T.

    Returns
    -------
    downdate, (n, m) : C L^{-T} with M = L L^T
    extra, (n,) : increase of the variances
    log_det, proper : log |M|, and whether M is positive definite
    """
    xp = namespace(covariance)
    negative = np.flatnonzero(precision < 0) if xp is np else slice(None)
    scale = xp.sqrt(xp.maximum(-precision, 0.0))[negative]
    columns = covariance[:, negative] * scale
    # C = (I - E K) D = D - s B^-1 s K D, and K C = V D.
    spread = -root[:, None] * (whitener.T @ (whitener @ (root[:, None] * columns)))
    spread = spread + (xp.eye(covariance.shape[0])[:, negative] * scale)
    moved = covariance @ spread
    m = xp.eye(scale.shape[0]) - scale[:, None] * moved[negative]
    counts["factorizations"] += 1
    factor, proper = cholesky((m + m.T) / 2)
    downdate = solve_right(spread, factor)
    # diag(V D M^-1 D V) = diag(K R R^T K), as V D = K C and R = C L^-T.
    extra = ((covariance @ downdate) ** 2).sum(axis=1)
    return downdate, extra, 2.0 * xp.log(xp.diagonal(factor)).sum(), proper
