"""Gaussian factors for comparisons, by three methods, each from the posterior under the present factors.

With m the posterior means of the differences, mu the prior means and A as in the kernel of preferences, factors
exp(b d - p d^2 / 2) have by each method the log evidence

    sum_k [c_k - (b_k - p_k m_k) (m_k - mu_k) / 2] - 1/2 log |A|.

- Expectation propagation matches the moments of a factor and its cavity; c is its `log_z` and two terms of the cavity.
- Laplace's approximation has slope and curvature of log t at m, which is the mode once factors have settled; c = log t.
  It is expectation propagation with cavities of no variance.
- The bound of Jaakkola and Jordan (2000) is the best Gaussian below t under N(m, v); c is the expected log of it, and
  p v / 2. It holds under any factors.

In Laplace's evidence log |A| moves with the mode, whose response is its `Approximation.response`; the other
evidences are stationary in their factors.
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
        ``update(site, at, sites)``, with `at` the posterior under `sites`, returns the variances of the cavities, (P,),
        or zeros, and the new factors as a `Tilted` whose `log_z` is c without terms of the cavity.
    evidence : str
        The log evidence, in words.
    response : callable, optional
        ``response(site, mean, variance)``: derivative of -log |A| / 2, (P,), in the differences at the mode, which have
        these moments. None where the evidence is stationary in the factors.
    matched : bool
        Whether the posterior has the moments of the tilted distributions, which the expansion of its shape needs.
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
