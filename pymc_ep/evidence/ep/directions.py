"""Second-order corrections where sites have two predictors: their third cumulants along four directions.

Let zeta be the two predictors of a site, standardised under the posterior, R their posterior correlations, and kappa
the third central moments of the tilted density in zeta. The ratio of tilted to posterior density is
1 + h : He_3(zeta) / 6 with the tensor h = R^-1 (x) R^-1 (x) R^-1 kappa. A symmetric tensor of two dimensions is a sum
of cubes,

    h = a_1 (1, 0)^3 + a_2 (0, 1)^3 + a_3 (1, 1)^3 + a_4 (1, -1)^3.

A site of two predictors therefore enters the sums of `pymc_ep.evidence.ep.cumulants` and `pymc_ep.evidence.ep.shape` as
four sites of the predictors zeta_1, zeta_2, zeta_1 + zeta_2 and zeta_1 - zeta_2. Pairs among these four are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dpstrf

from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.evidence.ep.cumulants import Correction, all_cumulants, inverse_sd
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.sweep import KNOWN, Kinds, group_slices
from pymc_ep.sites.rows_of_two import ROWS, covariance_of, precision_rows
from pymc_ep.sites.two_predictors import CompiledJointSite

__all__ = ["MOST_ROWS", "Directions", "direction_map", "directions_at", "pairs_of"]

MOST_ROWS = 3000
"""Most rows whose directions are formed. With four directions for three rows, their correlations take 128 MB."""
_COUPLED = 1e-9
"""Least 1 - rho^2, with rho the correlation of a site's two predictors, and least variance of their standardised sum or
difference: below it one predictor counts as a function of the other."""


@dataclass(frozen=True, eq=False)
class Directions:
    """The k directions of all sites, linear functions of the n rows, in the order of `direction_map`.

    Attributes
    ----------
    skewness : ndarray, (k,)
        Weight in h of the cube of each direction, scaled to unit posterior variance.
    correlation : ndarray, (k, k)
        Posterior correlations of the directions.
    site : ndarray of int, (k,)
        Site of each direction, as the index of the row of its first predictor.
    of_rows : sparse array, (n, k)
        Coefficients of the rows in each direction, a column.
    """

    skewness: np.ndarray
    correlation: np.ndarray
    site: np.ndarray
    of_rows: sparse.csc_array

    @cached_property
    def root(self) -> np.ndarray:
        """F, (k, r), with F F^T = `correlation` of rank r, by a Cholesky factor with pivots (Higham 2002, 10.3).

        The rank is at most that of the rows' covariance: the number of predictors, or of coefficients.
        """
        factor, pivots, rank, _ = dpstrf(self.correlation, lower=1)
        out = np.empty((len(factor), rank))
        out[pivots - 1] = np.tril(factor)[:, :rank]
        return out

    @cached_property
    def _terms(self) -> np.ndarray:
        """h_i h_j rho_ij^2 of directions i and j, (k, k); zero for two directions of one site."""
        terms = self.skewness[:, None] * self.skewness * self.correlation**2
        terms[self.site[:, None] == self.site] = 0.0
        return terms

    def correction(self) -> Correction:
        """Return the correction of the log evidence, with one share for each direction."""
        # Share of direction i: sum_j h_i h_j rho_ij^3 / 3! / 2.
        return Correction(np.einsum("ij,ij->i", self._terms, self.correlation) / 12.0)

    @cached_property
    def variance_errors(self) -> np.ndarray:
        """Relative excess of exact posterior variances over EP's along the directions, (k,)."""
        # dV_i / V_i = sum_{j < k} rho_ij rho_ik h_j h_k rho_jk^2 = (F (F^T T F) F^T)_ii / 2, of the terms T.
        return 0.5 * np.einsum("ij,ij->i", self.root @ (self.root.T @ (self._terms @ self.root)), self.root)

    def precisions(self, w: np.ndarray, pairs: Sequence[slice]) -> np.ndarray:
        """Return the precisions of the rows, (n,), that are equivalent to precisions w, (k,), along the directions.

        `pairs` are the rows of the groups of sites of two predictors.
        """
        # Elements 11, 22 and 12 at each site of D diag(w) D^T, with D = of_rows.
        out = self.of_rows.power(2) @ w
        by_row = self.of_rows.tocsr()
        for rows in pairs:
            first, second, _ = np.arange(rows.start, rows.stop).reshape(ROWS, -1)
            out[rows] = precision_rows(out[first], out[second], by_row[first].multiply(by_row[second]) @ w)
        return out


def direction_map(variance: np.ndarray, pairs: Sequence[slice]) -> sparse.csc_array:
    """Return the directions as linear functions of the rows, (n, k), scaled to unit posterior variance.

    The first n belong to the rows, with zeta_1 + zeta_2 for the row of eta_1 + eta_2. The differences zeta_1 - zeta_2
    of all sites of two predictors follow. A direction without variance is zero.

    Parameters
    ----------
    variance : ndarray, (n,)
        Posterior variances of the rows.
    pairs : sequence of slice
        Rows of the sites of two predictors.
    """
    n, scale = len(variance), inverse_sd(variance)
    if not pairs:
        return sparse.csc_array((scale, np.arange(n), np.arange(n + 1)), shape=(n, n))
    row, column, value = [np.arange(n)], [np.arange(n)], [scale.copy()]
    for first, second, place, unit, sign in _sums_and_differences(variance, pairs):
        if place.start < n:
            value[0][place] = 0.0
        row += [np.arange(n)[first], np.arange(n)[second]]
        column += [np.arange(place.start, place.stop)] * 2
        value += [unit * scale[first], sign * unit * scale[second]]
    entries = np.concatenate(value), (np.concatenate(row), np.concatenate(column))
    return sparse.csc_array(entries, shape=(n, _number_of_directions(n, pairs)))


def _number_of_directions(n: int, pairs: Sequence[slice]) -> int:
    """Return k: the number of rows, n, and of sites of two predictors."""
    return n + sum(rows.stop - rows.start for rows in pairs) // ROWS


def _sums_and_differences(
    variance: np.ndarray, pairs: Sequence[slice]
) -> Iterator[tuple[slice, slice, slice, np.ndarray, float]]:
    """Yield the directions u (zeta_1 + zeta_2), then u (zeta_1 - zeta_2), of each group of c sites.

    Each is a tuple of the rows of eta_1, the rows of eta_2, the indices of the directions, u, (c,), and the sign. With
    zeta = eta / V^1/2, for posterior variances V of the rows, (n,), u is (2 +- 2 rho)^-1/2.
    """
    end, scale = len(variance), inverse_sd(variance)
    for rows in pairs:
        count = (rows.stop - rows.start) // ROWS
        first, second, both = (slice(rows.start + j * count, rows.start + (j + 1) * count) for j in range(ROWS))
        rho = covariance_of(variance[rows])[2] * scale[first] * scale[second]
        yield first, second, both, inverse_sd(_variance_along(rho, 1.0)), 1.0
        yield first, second, slice(end, end + count), inverse_sd(_variance_along(rho, -1.0)), -1.0
        end += count


def _correlations(covariance: np.ndarray, variance: np.ndarray, pairs: Sequence[slice]) -> np.ndarray:
    """Return the correlations D^T C D of directions, (k, k), from the covariance C of the rows, (n, n).

    They are computed by sums of slices: products with the sparse D take four times as long.
    """
    n, scale = len(variance), inverse_sd(variance)
    combined, k = list(_sums_and_differences(variance, pairs)), _number_of_directions(n, pairs)
    out = np.empty((k, k))
    out[:n, :n] = covariance * scale[:, None] * scale
    for first, second, place, unit, sign in combined:
        out[place, :n] = (out[first, :n] + sign * out[second, :n]) * unit[:, None]
    for first, second, place, unit, sign in combined:
        out[:, place] = (out[:, first] + sign * out[:, second]) * unit
    return out


def pairs_of(form: CompiledSiteForm) -> list[slice]:
    """Return the rows of each group of sites of two predictors, among the rows of all observations."""
    return Kinds.of(form.sites).pairs(form.residuals())


def _variance_along(rho: np.ndarray, sign: float) -> np.ndarray:
    """Return the variance of zeta_1 + sign zeta_2, (n,), from correlations rho, (n,); zero where it is rounding."""
    variance = 2.0 + 2.0 * sign * rho
    return np.where(variance > _COUPLED, variance, 0.0)


def directions_at(at: EvidenceAt, chosen: np.ndarray | None = None) -> Directions:
    """Return the directions at a fit that converged: of all sites, or of the sites with the rows `chosen`.

    `chosen`, (m,), are ascending indices that include all rows of a site, or none of them.
    """
    sweep, prior = at.run.state.sweep, at.problem.prior
    rows = np.arange(len(at.problem.mean)) if chosen is None else chosen
    covariance = np.asarray(prior.posterior_rows(sweep.posterior)(rows, rows))
    posterior, mean, variance = (
        np.asarray(array)[rows] for array in (sweep.posterior.variance, sweep.cavity_mean, sweep.cavity_variance)
    )
    groups, pairs, start = [], [], 0
    observed = at.problem.observed
    for site, y, parameters, group_slice in zip(
        at.repeats.sites, observed, at.problem.parameters, group_slices(observed)
    ):
        local = rows[(rows >= group_slice.start) & (rows < group_slice.stop)] - group_slice.start
        places = slice(start, start + len(local))
        start = places.stop
        groups.append((site, places, [np.asarray(array)[local] for array in (y, *parameters)]))
        pairs += [places] * (site.site.predictors > 1)
    scale, of_rows = inverse_sd(posterior), direction_map(posterior, pairs)
    end, k = of_rows.shape
    skewness, number = np.zeros(k), np.arange(k)
    for site, places, (y, *values) in groups:
        if site.site.predictors == 1:
            skewness[places], _ = all_cumulants([site], [y], [values], mean[places], variance[places])
            continue
        first, second, both = np.arange(places.start, places.stop).reshape(ROWS, -1)
        apart = end + np.arange(len(first))
        end += len(first)
        safe = np.where(variance[places] > 0, variance[places], KNOWN)
        third = cast(CompiledJointSite, site).third_moments(y, mean[places], safe, *values)
        s_1, s_2 = scale[first], scale[second]
        kappa = third * np.array([s_1**3, s_1**2 * s_2, s_1 * s_2**2, s_2**3])
        rho = covariance[first, second] * s_1 * s_2
        skewness[first], skewness[second], of_sum, of_difference = _cubes(_dual(kappa, rho))
        # a_3 (zeta_1 + zeta_2)^3 = a_3 (2 + 2 rho)^3/2 x^3 with x of unit variance, and so for the difference.
        skewness[both] = of_sum * _variance_along(rho, 1.0) ** 1.5
        skewness[apart] = of_difference * _variance_along(rho, -1.0) ** 1.5
        number[second] = number[both] = number[apart] = first
    return Directions(skewness, _correlations(covariance, posterior, pairs), number, of_rows)


def _dual(kappa: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """Return h_111, h_112, h_122 and h_222, (4, n), from third moments kappa, (4, n), and correlations rho, (n,)."""
    det = np.maximum(1.0 - rho**2, _COUPLED)
    inverse = np.array([[1.0 / det, -rho / det], [-rho / det, 1.0 / det]])
    # kappa_abc stands at the number of its indices that are 2.
    tensor = kappa[np.array([[[0, 1], [1, 2]], [[1, 2], [2, 3]]])]
    h = np.einsum("abcn,adn,ben,cfn->defn", tensor, inverse, inverse, inverse)
    return np.array([h[0, 0, 0], h[0, 0, 1], h[0, 1, 1], h[1, 1, 1]])


def _cubes(h: np.ndarray) -> np.ndarray:
    """Return the weights a_1, ..., a_4 of the cubes, (4, n), from h_111, h_112, h_122 and h_222, (4, n)."""
    # h_111 = a_1 + a_3 + a_4, h_112 = a_3 - a_4, h_122 = a_3 + a_4, h_222 = a_2 + a_3 - a_4.
    return np.array([h[0] - h[2], h[3] - h[1], 0.5 * (h[2] + h[1]), 0.5 * (h[2] - h[1])])
