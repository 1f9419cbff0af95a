"""Shape of the posterior of each user's utilities beyond EP's Gaussian, as in `pymc_ep.evidence.ep.shape`."""

import numpy as np

from pymc_ep.evidence.ep.fit import Shape
from pymc_ep.evidence.ep.shape import MOST_PAIRED, most_removed, pair_shape, used_skewness
from pymc_ep.models.preferences.engine.values import Sites
from pymc_ep.models.preferences.kernel import Comparisons, Differences
from pymc_ep.sites.compiled import CompiledSite

__all__ = ["shape_of_users"]

_WON = np.ones(1)
"""Outcome of every comparison, whose first item is the winner."""


def shape_of_users(comparisons: Comparisons, at: Differences, sites: Sites, site: CompiledSite) -> Shape:
    """Return skewness and corrections of width of the differences' posteriors under settled factors, (P,) each.

    Users with over 2,000 skewed comparisons keep EP's Gaussian.
    """
    # Cavity: 1 / v_c = 1 / v - p, m_c = m - v_c (b - p m).
    share = sites.precision * at.variance
    cavity = at.variance / (1.0 - share)
    centre = at.mean - cavity * (sites.shift - sites.precision * at.mean)
    # Comparisons that are left out have no factor.
    skewness = np.where(sites.precision == 0.0, 0.0, site.cumulants(_WON, centre, cavity)[0])
    out, squares = np.zeros((4, len(skewness))), comparisons.square_ends
    for u in range(comparisons.n_users):
        _, pairs = comparisons.of_user(u)
        used = used_skewness(skewness[pairs], at.variance[pairs])
        skewed = np.flatnonzero(used)
        if not 0 < len(skewed) <= MOST_PAIRED:
            continue
        places = pairs.start + skewed
        white = at.whitened[squares[u] : squares[u + 1]].reshape(comparisons.n_items(u), -1)
        rows = white[comparisons.firsts[places]] - white[comparisons.seconds[places]]
        # Rows of length one, whose inner products are the posterior correlations of the differences.
        rows /= np.sqrt(at.variance[places])[:, None]
        out[0, places] = used[skewed]
        out[1, places], removed = pair_shape(used[skewed], rows @ rows.T, most_removed(share[pairs])[skewed])
        # Precisions p - w / v; the shifts that keep the means m are added below.
        out[3, places] = -removed / at.variance[places]
    out[2] = out[3] * at.mean
    return Shape(*out)
