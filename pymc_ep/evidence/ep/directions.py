"""Second-order corrections where sites have two predictors: their third cumulants along four directions.

With predictors zeta in posterior standard deviations, R their correlations at one site, and kappa the third central
moments of its tilted density, the ratio of that density to the posterior is 1 + h : He_3(zeta) / 6 with
h = R^-1 (x) R^-1 (x) R^-1 kappa. A symmetric tensor of two dimensions is a sum of cubes,

    h = a_1 (1, 0)^3 + a_2 (0, 1)^3 + a_3 (1, 1)^3 + a_4 (1, -1)^3,

so that a site of two predictors enters the sums of `pymc_ep.evidence.ep.cumulants` and `pymc_ep.evidence.ep.shape` as
four sites do, with the predictors zeta_1, zeta_2, zeta_1 + zeta_2 and zeta_1 - zeta_2, but for pairs of these.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from pymc_ep.evidence.ep.cumulants import Correction, all_cumulants, inverse_sd
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.sweep import KNOWN, group_slices
from pymc_ep.sites.rows_of_two import ROWS
from pymc_ep.sites.two_predictors import CompiledTwoPredictorSite

__all__ = ["MOST_ROWS", "Directions", "directions_at"]

MOST_ROWS = 3000
"""Most rows of predictors with directions: the correlations of these, four for three rows, take 128 MB."""
_COUPLED = 1e-9
"""Least 1 - rho^2 of both predictors of a site: where one is a function of the other."""


class Directions(NamedTuple):
    """Directions of all sites.

    Attributes
    ----------
    skewness : ndarray, (k,)
        h along each direction of unit posterior variance.
    correlation : ndarray, (k, k)
    site : ndarray of int, (k,)
        The site that each belongs to.
    predictor : ndarray of int, (k,)
        The row of a predictor, or -1 for sums and differences.
    """

    skewness: np.ndarray
    correlation: np.ndarray
    site: np.ndarray
    predictor: np.ndarray

    @property
    def _terms(self) -> np.ndarray:
        """h_i h_j rho_ij^2, zero within a site, (k, k)."""
        terms = self.skewness[:, None] * self.skewness * self.correlation**2
        terms[self.site[:, None] == self.site] = 0.0
        return terms

    def correction(self) -> Correction:
        """Return the correction of the log evidence, by directions."""
        return Correction(np.einsum("ij,ij->i", self._terms, self.correlation) / 12.0)

    def variance_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of predictors, and the shares by which exact posterior variances exceed EP's."""
        own = np.flatnonzero(self.predictor >= 0)
        rows = self.correlation[own]
        return self.predictor[own], 0.5 * np.einsum("ij,ij->i", rows @ self._terms, rows)


def directions_at(at: EvidenceAt) -> Directions:
    """Return the directions of all sites at a fit that converged."""
    sweep, prior = at.run.state.sweep, at.problem.prior
    mean, variance = np.asarray(sweep.cavity_mean), np.asarray(sweep.cavity_variance)
    covariance = np.asarray(prior.posterior_rows(sweep.posterior)(slice(None), slice(None)))
    scale = inverse_sd(np.asarray(sweep.posterior.variance))
    correlation = covariance * scale[:, None] * scale
    groups = zip(at.repeats.sites, at.problem.observed, at.problem.parameters, group_slices(at.problem.observed))
    places: list[tuple[np.ndarray, ...]] = []
    skewness, sites, predictors = [], [], []
    for site, y, values, here in groups:
        rows = np.arange(here.start, here.stop)
        if site.site.predictors == 1:
            h, _ = all_cumulants([site], [y], [values], mean[here], variance[here])
            places.append((rows,))
        else:
            rows, second, _ = rows.reshape(ROWS, -1)
            safe = np.where(variance[here] > 0, variance[here], KNOWN)
            third = cast(CompiledTwoPredictorSite, site).third_moments(y, mean[here], safe, *values)
            s_1, s_2 = scale[rows], scale[second]
            kappa = third * np.array([s_1**3, s_1**2 * s_2, s_1 * s_2**2, s_2**3])
            h = _cubes(_dual(kappa, correlation[rows, second])).ravel()
            places.append((rows, second))
        skewness.append(h)
        predictors += [*places[-1], np.full(len(h) - len(rows) * len(places[-1]), -1)]
        # The row of a site's first predictor is the number of the site.
        sites.append(np.resize(rows, len(h)))
    found = _along(places, _along(places, correlation).T)
    sd = np.sqrt(np.maximum(found.diagonal(), 0.0))
    unit, predictor = inverse_sd(sd**2), np.concatenate(predictors)
    return Directions(
        np.concatenate(skewness) * np.where(predictor >= 0, 1.0, sd**3),
        found * unit[:, None] * unit,
        np.concatenate(sites),
        predictor,
    )


def _along(places: Sequence[tuple[np.ndarray, ...]], rows: np.ndarray) -> np.ndarray:
    """Return what rows, (n, m), are along the directions of each group, (k, m)."""
    parts = []
    for place in places:
        first, *second = (rows[own] for own in place)
        parts += [first, *second, *(part for other in second for part in (first + other, first - other))]
    return np.concatenate(parts)


def _dual(kappa: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """Return h_111, h_112, h_122 and h_222, (4, n), of third moments in that order and correlations, (n,)."""
    det = np.maximum(1.0 - rho**2, _COUPLED)
    inverse = np.array([[1.0 / det, -rho / det], [-rho / det, 1.0 / det]])
    tensor = kappa[np.array([[[0, 1], [1, 2]], [[1, 2], [2, 3]]])]
    h = np.einsum("abcn,adn,ben,cfn->defn", tensor, inverse, inverse, inverse)
    return np.array([h[0, 0, 0], h[0, 0, 1], h[0, 1, 1], h[1, 1, 1]])


def _cubes(h: np.ndarray) -> np.ndarray:
    """Return the weights of the cubes of the four axes, (4, n)."""
    return np.array([h[0] - h[2], h[3] - h[1], 0.5 * (h[2] + h[1]), 0.5 * (h[2] - h[1])])
