"""Gaussian factors of comparisons by three methods, each computed from the posterior under the present factors.

A comparison of two items has the probability t(d), d the difference of their utilities; its Gaussian factor is
exp(b d - p d^2 / 2). The prior mean of d is mu, its posterior mean m and variance v. With a constant c of the method,
the log evidence of a user with comparisons k is

    sum_k [c_k - (b_k - p_k m_k) (m_k - mu_k) / 2] - 1/2 log |A|,

where A is as in `pymc_ep.models.preferences.kernel.body`.

- Expectation propagation matches posterior moments to the moments of t times the cavity, the tilted distribution. With
  Z_t, its integral, and v_c, the variance of the cavity, c is log Z_t + log(1 + p v_c) / 2 + v_c (b - p m)^2 / 2.
- Laplace's approximation takes slope and curvature of log t at m, which is the mode once factors have settled; c is
  log t(m). It equals expectation propagation with cavities of variance zero.
- Jaakkola and Jordan's (2000) factor is the Gaussian below t whose expected log under N(m, v) is largest; c is this
  expected log plus p v / 2. Any factors of this kind give a lower bound on the log evidence.

Once factors have settled, the log evidences of the first and the last method are stationary in them. Laplace's is not:
log |A| changes with the mode, at the rate that `Approximation.response` returns.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_ep.models.preferences.engine.values import Sites
from pymc_ep.models.preferences.kernel import Differences
from pymc_ep.sites.base import Tilted
from pymc_ep.sites.compiled import CompiledSite

__all__ = ["BOUND", "EXPECTATION", "MODE", "Approximation"]

_WON = np.ones(1)
"""Outcome of every comparison, whose first item is the winner."""


class Approximation(NamedTuple):
    """Treatment of the factors of comparisons by a method.

    Attributes
    ----------
    update : callable
        ``update(site, at, sites)`` takes the posterior `at` under `sites`. It returns the variances of the cavities,
        (P,), zeros without cavities, and the new factors as a `Tilted`, whose `log_z` is c without terms of the cavity.
    evidence : str
        Name of the log evidence, for messages.
    response : callable, optional
        ``response(site, mean, variance)`` takes the posterior moments of the differences, (P,) each. It returns the
        derivative of -log |A| / 2 in each difference at the mode, (P,). None where the evidence is stationary in the
        factors.
    matched : bool
        Whether posterior and tilted moments are equal, as the correction of the posterior's shape requires.
    """

    update: Callable[[CompiledSite, Differences, Sites], tuple[np.ndarray, Tilted]]
    evidence: str
    response: Callable[[CompiledSite, np.ndarray, np.ndarray], np.ndarray] | None = None
    matched: bool = False


def _by_moments(site: CompiledSite, at: Differences, sites: Sites) -> tuple[np.ndarray, Tilted]:
    # Cavity: 1 / v_c = 1 / v - p, m_c = m - v_c (b - p m).
    cavity = at.variance / (1.0 - sites.precision * at.variance)
    centre = at.mean - cavity * (sites.shift - sites.precision * at.mean)
    return cavity, site.moments(_WON, centre, cavity)


def _by_mode(site: CompiledSite, at: Differences, sites: Sites) -> tuple[np.ndarray, Tilted]:
    log_t, slope, curvature, _ = site.log_density_derivatives(_WON, at.mean)
    # p = -(log t)''(m) and b = (log t)'(m) + p m.
    none = np.zeros_like(at.mean)
    return none, Tilted(log_t, at.mean, none, slope, -curvature)


def _by_bound(site: CompiledSite, at: Differences, sites: Sites) -> tuple[np.ndarray, Tilted]:
    bound = site.bounded(_WON, at.mean, at.variance)
    # -KL of posterior and prior has the term sum_k p_k v_k / 2, as tr(S^-1 C) = n - tr(H C) for C = (S^-1 + H)^-1.
    constant = bound.value + 0.5 * sites.precision * at.variance
    return np.zeros_like(at.mean), Tilted(constant, at.mean, at.variance, bound.gradient, bound.precision)


def _mode_response(site: CompiledSite, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    # d log |A| / dp_k = v_k and dp / dd = -(log t)'''.
    return 0.5 * variance * site.log_density_derivatives(_WON, mean)[3]


EXPECTATION = Approximation(_by_moments, "log evidence of the comparisons by expectation propagation", matched=True)
MODE = Approximation(_by_mode, "log evidence of the comparisons by Laplace's approximation", _mode_response)
BOUND = Approximation(_by_bound, "lower bound on the log evidence of the comparisons by Jaakkola and Jordan")
