"""Width of a posterior along lines, by quadrature: the check of cumulants where sites ignore their observations.

EP's posterior of predictor i has the mean m_i and the variance V_ii. Along the line eta_j(s) = m_j + s c_j with
c_j = V_ij / V_ii^{1/2}, on which s is standard normal under EP's posterior, the exact posterior is proportional to

    f(s) = exp(-s^2 / 2) prod_j t_j(eta_j(s)) / g_j(eta_j(s))

for likelihoods t_j and their Gaussian sites g_j. Where all predictors depend on one coefficient f is its posterior.
"""

from typing import NamedTuple

import numpy as np

from pymc_ep.evidence.ep.cumulants import inverse_sd
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.sweep import group_slices

__all__ = ["Line", "widest_line"]

_PLACES = np.concatenate([np.arange(-60.0, -10.0, 0.25), np.arange(-10.0, 10.0, 0.1), np.arange(10.0, 60.1, 0.25)])
"""Values of s at which f is evaluated. Standard deviations of single predictors are right to 1e-3."""
_MOST_LINES = 4
"""Most lines that are looked at: of the predictors with the most negative shares pi_i V_ii of their sites in their
posterior precision, which is where observations contradict the others."""
_PARALLEL = 0.95
"""Correlation of two predictors from which they have one line."""


class Line(NamedTuple):
    """Width of the posterior along a line.

    Attributes
    ----------
    row : int
        Index of the predictor.
    wider : float
        Standard deviation of s, 1 where EP is exact.
    """

    row: int
    wider: float


def widest_line(at: EvidenceAt) -> Line | None:
    """Return the line with the largest standard deviation of those that are looked at; None if there are none."""
    state, posterior = at.run.state, at.run.state.sweep.posterior
    variance = np.asarray(posterior.variance)
    share, scale = np.asarray(state.precision) * variance, inverse_sd(variance)
    covariance = at.problem.prior.posterior_rows(posterior)
    chosen: list[int] = []
    lines = []
    # Many predictors may have parallel lines: a few for each line are tried.
    for row in np.argsort(share, kind="stable")[: _MOST_LINES**2]:
        if share[row] >= 0.0 or len(chosen) == _MOST_LINES:
            break
        slopes = np.asarray(covariance(np.array([row])))[0] * scale[row]
        if np.any(np.abs(slopes[chosen] * scale[chosen]) > _PARALLEL):
            continue
        chosen.append(int(row))
        lines.append(_along(at, int(row), slopes))
    return max(lines, key=lambda line: line.wider, default=None)


def _along(at: EvidenceAt, row: int, slopes: np.ndarray) -> Line:
    """Return the line of predictor number `row`, along which predictors have slopes c_j, (m,)."""
    state = at.run.state
    predictors = np.asarray(state.sweep.posterior.mean) + _PLACES[:, None] * slopes
    log_density = -0.5 * _PLACES**2
    groups = zip(at.repeats.sites, at.problem.observed, at.problem.parameters, group_slices(at.problem.observed))
    for site, y, values, rows in groups:
        if site.site.gaussian:
            continue
        eta = predictors[:, rows]
        log_t = np.asarray(site.log_density(y, eta, *values))
        log_density += (log_t - state.shift[rows] * eta + 0.5 * state.precision[rows] * eta**2).sum(axis=1)
    weights = np.exp(log_density - log_density.max()) * np.gradient(_PLACES)
    weights /= weights.sum()
    return Line(row, float(np.sqrt(weights @ (_PLACES - weights @ _PLACES) ** 2)))
