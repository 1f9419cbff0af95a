"""Weighted points, (m, p), that represent a density of few dimensions p, and its integral."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.special import gammaincinv, gammaln, logsumexp, ndtri

from pymc_ep.numerics.interpolation.stratified_draws import nearest

__all__ = ["Cloud", "bridged", "by_cells", "outermost", "tails", "weighted"]

_LOG2_POINTS = 14
"""Binary logarithm of the number of weighted points, 16384. At the least relative effective sample size accepted, a
tenth, they count as 1600 draws."""
_FREEDOM, _WIDER = 5.0, 1.2
"""Degrees of freedom and scale, in standard deviations, of the Student-t proposal: tails heavier than most densities'
keep the importance weights bounded."""
_ITERATIONS, _SETTLED = 100, 1e-8
"""Most iterations of bridge sampling, and the change of the log integral, in nats, at which they end: far below its
Monte Carlo error."""

LogDensity = Callable[[np.ndarray], np.ndarray]
"""Maps rows, (m, p), to log densities, (m,), not normalised."""


class Cloud(NamedTuple):
    """Weighted points that represent a density, and its integral.

    Attributes
    ----------
    z : ndarray, (m, p)
    weights : ndarray, (m,)
        Adding up to one.
    log_integral : float
        Log of the integral of the density.
    """

    z: np.ndarray
    weights: np.ndarray
    log_integral: float

    @property
    def effective(self) -> float:
        """Relative effective sample size of the weights."""
        return float(1.0 / (len(self.weights) * (self.weights**2).sum()))

    def within(self, region: np.ndarray) -> "Cloud":
        """Return the cloud of the density restricted to a region: `region`, (m,), is true at points within it."""
        share = self.weights[region].sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.where(region, self.weights, 0.0) / share
            return Cloud(self.z, weights, float(self.log_integral + np.log(share)))


def weighted(log_density: LogDensity, draws: np.ndarray, share: float = 1.0) -> Cloud:
    """Return points of a Sobol sequence with importance weights; the proposal is fitted to draws, (m, p).

    Their number is `share`, at most 1, times 16384, rounded up to a power of two. The proposal is a multivariate
    Student-t distribution with the moments of the draws, widened by `_WIDER` (Geweke 1989).
    """
    p = draws.shape[1]
    centre, factor = _moments(draws)
    uniform = np.clip(
        scipy.stats.qmc.Sobol(p + 1, seed=0).random_base2(_LOG2_POINTS + int(np.log2(share))), 1e-12, 1.0 - 1e-12
    )
    # Student-t: z = mu + s L x (nu / chi^2_nu)^1/2, x standard normal, from quantiles.
    chi_square = 2.0 * gammaincinv(_FREEDOM / 2.0, uniform[:, p])
    white = _WIDER * ndtri(uniform[:, :p]) / np.sqrt(chi_square / _FREEDOM)[:, None]
    z = centre + white @ factor.T
    # Its density, where (z - mu)^T (s^2 L L^T)^-1 (z - mu) = |white|^2 / s^2 and |s L| = s^p |L|.
    log_t = (
        gammaln((_FREEDOM + p) / 2.0)
        - gammaln(_FREEDOM / 2.0)
        - 0.5 * p * np.log(_FREEDOM * np.pi * _WIDER**2)
        - np.log(np.diagonal(factor)).sum()
        - 0.5 * (_FREEDOM + p) * np.log1p((white**2).sum(axis=1) / (_FREEDOM * _WIDER**2))
    )
    log_weights = log_density(z) - log_t
    total = logsumexp(log_weights)
    return Cloud(z, np.exp(log_weights - total), float(total - np.log(len(z))))


def bridged(log_density: LogDensity, draws: np.ndarray, rng: np.random.Generator) -> Cloud:
    """Return draws of the density, (m, p), unchanged, with its integral by bridge sampling.

    A Gaussian with the moments of one half of the draws is bridged to the other half by the iteration of Meng and Wong
    (1996, equation 4.1), whose error depends on the Gaussian's overlap with the density.
    """
    p = draws.shape[1]
    fitted, rest = np.array_split(rng.permutation(draws), 2)
    centre, factor = _moments(fitted)
    drawn = centre + rng.standard_normal(rest.shape) @ factor.T

    def log_ratio(points: np.ndarray) -> np.ndarray:
        white = scipy.linalg.solve_triangular(factor, (points - centre).T, lower=True)
        log_normal = -0.5 * ((white**2).sum(axis=0) + p * np.log(2 * np.pi)) - np.log(np.diagonal(factor)).sum()
        return log_density(points) - log_normal

    at_rest, at_drawn = log_ratio(rest), log_ratio(drawn)
    log_r = float(np.median(at_rest))
    for _ in range(_ITERATIONS):
        # The number of draws is the same on both sides and cancels.
        # r <- sum_drawn l / (l + r) over sum_rest 1 / (l + r), with the ratio l of density and Gaussian.
        above = logsumexp(at_drawn - np.logaddexp(at_drawn, log_r))
        below = logsumexp(-np.logaddexp(at_rest, log_r))
        log_r, before = float(above - below), log_r
        if abs(log_r - before) < _SETTLED:
            break
    return Cloud(draws, np.full(len(draws), 1.0 / len(draws)), log_r)


def by_cells(
    represent: Callable[[LogDensity, np.ndarray], Cloud], log_density: LogDensity, draws: np.ndarray, peaks: np.ndarray
) -> Cloud:
    """Return the clouds of a density on the Voronoi cell of each of its peaks, (k, p), joined by their integrals.

    `represent` makes the cloud of a cell from its log density and draws. Chains hardly move between peaks that are far
    apart, so that the number of draws in a cell does not show its mass.
    """
    if len(peaks) == 1:
        return represent(log_density, draws)
    cell, clouds = nearest(draws, peaks), []
    for j in range(len(peaks)):

        def within(z: np.ndarray, index: int = j) -> np.ndarray:
            return np.where(nearest(z, peaks) == index, log_density(z), -np.inf)

        clouds.append(represent(within, draws[cell == j]))
    logs = np.array([cloud.log_integral for cloud in clouds])
    total = float(logsumexp(logs))
    # Cell j has the share exp(log_j - total) of the integral.
    weights = [cloud.weights * np.exp(log - total) for cloud, log in zip(clouds, logs)]
    return Cloud(np.concatenate([cloud.z for cloud in clouds]), np.concatenate(weights), total)


def tails(points: np.ndarray, weights: np.ndarray, fits: np.ndarray, least: float) -> list[tuple[int, np.ndarray]]:
    """Return the tails of weighted points, (m, p): points that are beyond all fits, (n, p), on one side of a column.

    Returns
    -------
    list of tuple
        For each tail with a mass above `least`: its column, and the indices of its points in outward order.
    """
    tail_places = []
    for k, (column, near) in enumerate(zip(points.T, fits.T)):
        for outwards in (column - near.max(), near.min() - column):
            where = np.flatnonzero(outwards > 0.0)
            if weights[where].sum() > least:
                tail_places.append((k, where[np.argsort(outwards[where])]))
    return tail_places


def outermost(where: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return two indices from a tail `where`, indices in outward order: up to them lie 0.5 and 0.9 of its mass."""
    mass = np.cumsum(weights[where])
    return where[np.searchsorted(mass, mass[-1] * np.array([0.5, 0.9]))]


def _moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of draws, (m, p), and the Cholesky factor of their covariance, (p, p)."""
    return draws.mean(axis=0), np.linalg.cholesky(np.atleast_2d(np.cov(draws, rowvar=False)))
