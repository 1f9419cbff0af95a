"""Cavities of sites of one or several predictors, and their terms in EP's log evidence.

A site of several predictors has a row for each predictor and for the sum of each two, see `pymc_ep.sites.rows_of_many`.
The variances of the rows determine the posterior covariance V of the predictors, and the precisions of the rows the
site's matrix Pi. With V = L L^T and M = I - power L^T Pi L, the cavity has the covariance L M^-1 L^T. For two
predictors this is written out by elements, which takes a fraction of the time.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array, namespace
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior
from pymc_ep.sites import rows_of_many
from pymc_ep.sites.rows_of_two import ROWS, covariance_of, precision_of, precision_rows, slopes_of

__all__ = ["FLAT", "Cavities", "JointRows", "cavities", "change_of_sites", "without_negative"]

JointRows = tuple[slice, int]
"""Rows of a group of sites of several predictors, and the number of predictors of a site."""

FLAT = 1e-9
"""Share 1 - pi_i V_i of the posterior precision below which the cavity of a Gaussian site counts as flat or improper.
Well above the rounding of that difference, and far below the share of any site that matters."""
_IMPROPER = -1.0
"""Value in place of the variance of an improper cavity."""


class Cavities(NamedTuple):
    """Posterior divided by ``site**power``, (n,) each.

    Attributes
    ----------
    mean, variance : array
        Moments of each row; the variance is not positive where the cavity is improper.
    log_widened : array
        log |I + power Pi V|, with V the cavity's covariance; in the first row of a site, and zero in its others.
    pull : array
        power a^T V a, with the slope a = b - Pi m of the site at the posterior mean m; in the same rows.
    """

    mean: Array
    variance: Array
    log_widened: Array
    pull: Array


def cavities(
    posterior: GaussianPosterior,
    precision: Array,
    power: float,
    exact: Array = False,
    flat: float = 1.0,
    joint: Sequence[JointRows] = (),
) -> Cavities:
    """Return the cavities of all sites.

    The slope b - pi m of a site at the posterior mean m equals ``posterior.weights``, which is used in its place: where
    sites are precise, the difference loses digits.

    Parameters
    ----------
    posterior : GaussianPosterior
    precision : array, (n,)
        Precisions of the sites.
    power : float
        Fraction of a site that is removed.
    exact : array of bool, (n,)
        Which sites are Gaussian. The cavity of a Gaussian site may be improper, as where the precisions of the other
        sites, such as mixtures with two peaks, add up to a negative one. A proper Gaussian then replaces it, by default
        the posterior. The evidence does not depend on its variance: the site's term equals log t at the posterior mean.
    flat : float
        Precision of this Gaussian, relative to the posterior's. The gradient in a parameter of the site, at a fixed
        cavity, is right only where `flat` is small.
    joint : sequence of (slice, int)
        Rows of each group of sites of several predictors, and their number of predictors.
    """
    xp = namespace(posterior.mean)
    # 1 - power pi V, from 1 - pi V as the posterior has it, without cancellation.
    kept = (1.0 - power) + power * posterior.remainder
    kept = xp.where(exact & (kept <= FLAT), flat, kept)
    slope = posterior.weights
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # Cavity: 1/v = 1/V - power pi, with the mean m - power v a, where a = b - pi m.
        variance = posterior.variance / kept
        cavity = Cavities(
            posterior.mean - power * variance * slope,
            variance,
            xp.log(1.0 + power * precision * variance),
            power * variance * slope**2,
        )
        for rows, predictors in joint:
            mean, marginal_variance, row_slope, site_precision = (
                array[rows] for array in (posterior.mean, posterior.variance, slope, precision)
            )
            if predictors == 2:
                fields = _of_pair(mean, marginal_variance, row_slope, site_precision, power)
            else:
                fields = _of_many(mean, marginal_variance, row_slope, site_precision, power, predictors)
            for field, value in zip(cavity, fields):
                field[rows] = value.ravel()
    return cavity


def change_of_sites(
    posterior: GaussianPosterior, d_precision: Array, d_slope: Array, joint: Sequence[JointRows] = ()
) -> Array:
    """Return the largest change of a site, free of the predictors' units, see `pymc_ep.evidence.ep.sweep.Sweep`.

    `d_precision` and `d_slope`, (n,), are the changes of precisions and of slopes at the posterior mean.
    """
    xp = namespace(posterior.mean)
    curvature, slope = xp.abs(d_precision) * posterior.variance, xp.abs(d_slope) * xp.sqrt(xp.abs(posterior.variance))
    # With V = L L^T: elements of L^T dPi L, and of L^T da.
    for rows, predictors in joint:
        if predictors > 2:
            root = _root(np.asarray(posterior.variance)[rows], predictors)
            back = root.transpose(0, 2, 1)
            of_sites = back @ rows_of_many.precisions(np.asarray(d_precision)[rows], predictors) @ root
            moved = back @ rows_of_many.slopes(np.asarray(d_slope)[rows], predictors)[..., None]
            for values, changes in ((curvature, of_sites), (slope, moved)):
                values[rows] = np.tile(np.abs(changes).max(axis=(1, 2)), rows_of_many.number_of_rows(predictors))
            continue
        l_1, l_21, l_2 = _factor(np.asarray(posterior.variance)[rows])
        w_11, w_12, w_22 = _whitened(np.asarray(d_precision)[rows], l_1, l_21, l_2)
        s_1, s_2 = slopes_of(np.asarray(d_slope)[rows])
        curvature[rows] = np.abs([w_11, w_22, w_12]).ravel()
        slope[rows] = np.abs([l_1 * s_1 + l_21 * s_2, l_2 * s_2, np.zeros_like(s_2)]).ravel()
    return xp.maximum(xp.max(curvature), xp.max(slope))


def without_negative(precision: np.ndarray, variance: np.ndarray, joint: Sequence[JointRows]) -> np.ndarray:
    """Return precisions, (n,), with negative ones set to zero; for pairs, the negative eigenvalues of L^T Pi L.

    Here Pi is the precision of a site of two predictors, and V = L L^T their covariance, from the variances of rows,
    (n,). Sites of more than two predictors are log-concave, and stay as they are.
    """
    out = np.maximum(precision, 0.0)
    for rows, predictors in joint:
        if predictors > 2:
            # Their sites are log-concave in all predictors.
            out[rows] = precision[rows]
            continue
        l_1, l_21, l_2 = _factor(variance[rows])
        # l_2^2 = V_22 (1 - rho^2), with 1 - rho^2 at least `FLAT`, so that L has an inverse.
        l_2 = np.maximum(l_2, np.sqrt(FLAT) * np.sqrt(variance[rows].reshape(ROWS, -1)[1]))
        w_11, w_12, w_22 = _whitened(precision[rows], l_1, l_21, l_2)
        # With L^T Pi L = Q Lambda Q^T, the positive part of Pi is L^-T Q max(Lambda, 0) Q^T L^-1.
        values, axes = np.linalg.eigh(np.array([[w_11, w_12], [w_12, w_22]]).transpose(2, 0, 1))
        kept = (axes * np.maximum(values, 0.0)[:, None, :]) @ axes.transpose(0, 2, 1)
        factor = np.zeros_like(kept)
        factor[:, 0, 0], factor[:, 1, 0], factor[:, 1, 1] = l_1, l_21, l_2
        inverse = np.linalg.inv(factor)
        positive_part = inverse.transpose(0, 2, 1) @ kept @ inverse
        out[rows] = precision_rows(positive_part[:, 0, 0], positive_part[:, 1, 1], positive_part[:, 0, 1])
    return out


def _factor(variance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the elements 11, 21 and 22, (n,) each, of the Cholesky factor of V, from the variances of rows, (3 n,)."""
    v_1, v_2, v_12 = covariance_of(variance)
    l_1 = np.sqrt(v_1)
    l_21 = np.divide(v_12, l_1, out=np.zeros_like(l_1), where=l_1 > 0)
    return l_1, l_21, np.sqrt(np.maximum(v_2 - l_21**2, 0.0))


def _whitened(rows: np.ndarray, l_1: np.ndarray, l_21: np.ndarray, l_2: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the elements 11, 12 and 22 of L^T Pi L, (n,) each, from the precisions of rows, (3 n,)."""
    # L has the rows (l_1, 0) and (l_21, l_2).
    p_1, p_2, cross = precision_of(rows)
    return (
        l_1**2 * p_1 + 2.0 * l_1 * l_21 * cross + l_21**2 * p_2,
        l_2 * (l_1 * cross + l_21 * p_2),
        l_2**2 * p_2,
    )


def _of_pair(
    mean: np.ndarray, variance: np.ndarray, slope: np.ndarray, precision: np.ndarray, power: float
) -> tuple[np.ndarray, ...]:
    """Return the fields of `Cavities` for n sites of two predictors, (3, n) each, from arrays of their rows, (3 n,)."""
    l_1, l_21, l_2 = _factor(variance)
    w_11, w_12, w_22 = _whitened(precision, l_1, l_21, l_2)
    # M = I - power L^T Pi L.
    m_11, m_12, m_22 = 1.0 - power * w_11, -power * w_12, 1.0 - power * w_22
    det = m_11 * m_22 - m_12**2
    proper = (m_11 > 0.0) & (det > FLAT**2)
    det = np.where(proper, det, 1.0)
    # Rows of L M^-1, and the covariance L M^-1 L^T.
    h_11, h_12 = l_1 * m_22 / det, -l_1 * m_12 / det
    h_21, h_22 = (l_21 * m_22 - l_2 * m_12) / det, (l_2 * m_11 - l_21 * m_12) / det
    v_1, v_12, v_2 = l_1 * h_11, h_11 * l_21 + h_12 * l_2, h_21 * l_21 + h_22 * l_2
    # Cavity mean m - power V a, with the covariance V of the cavity.
    a_1, a_2 = slopes_of(slope)
    first, second = (
        moment - power * move
        for moment, move in zip(mean.reshape(ROWS, -1), (v_1 * a_1 + v_12 * a_2, v_12 * a_1 + v_2 * a_2))
    )
    none = np.zeros_like(det)
    variances: list[Any] = [np.where(proper, moment, _IMPROPER) for moment in (v_1, v_2, v_1 + v_2 + 2.0 * v_12)]
    pull = power * (v_1 * a_1**2 + 2.0 * v_12 * a_1 * a_2 + v_2 * a_2**2)
    # |I + power Pi V| = |I + power L^T Pi L M^-1| = 1 / |M|, as M + power L^T Pi L = I.
    return (
        np.array([first, second, first + second]),
        np.array(variances),
        np.array([-np.log(det), none, none]),
        np.array([pull, none, none]),
    )


def _root(variance: np.ndarray, predictors: int) -> np.ndarray:
    """Return L, (n, D, D), with V = L L^T, for D predictors, from the variances of r rows of each site, (r n,)."""
    covariance = rows_of_many.covariances(variance, predictors)
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:  # of predictors that are functions of others, or known
        # V = Q Lambda Q^T: L = Q Lambda^1/2, which is not triangular.
        values, axes = np.linalg.eigh(covariance)
        return axes * np.sqrt(np.maximum(values, 0.0))[:, None, :]


def _of_many(
    mean: np.ndarray, variance: np.ndarray, slope: np.ndarray, precision: np.ndarray, power: float, predictors: int
) -> tuple[np.ndarray, ...]:
    """Return the fields of `Cavities` for n sites of several predictors, (r n,) elements each, from their r rows."""
    root = _root(variance, predictors)
    back = root.transpose(0, 2, 1)
    # M; then the cavity's covariance L M^-1 L^T, and log |I + power Pi V| = -log |M|.
    kept = np.eye(predictors) - power * back @ rows_of_many.precisions(precision, predictors) @ root
    proper = _is_proper(kept)
    kept = np.where(proper[:, None, None], kept, np.eye(predictors))
    covariance = root @ np.linalg.solve(kept, back)
    slopes = rows_of_many.slopes(slope, predictors)
    moved = (covariance @ slopes[..., None])[..., 0]
    centre = mean.reshape(-1, len(root))[:predictors].T - power * moved
    rows = rows_of_many.variance_rows(covariance).reshape(-1, len(root))
    first = np.arange(len(rows))[:, None] == 0
    return (
        rows_of_many.sums(centre),
        np.where(proper, rows, _IMPROPER),
        np.where(first, -np.linalg.slogdet(kept)[1], 0.0),
        np.where(first, power * (slopes * moved).sum(axis=1), 0.0),
    )


def _is_proper(kept: np.ndarray) -> np.ndarray:
    """Return whether all eigenvalues of each of n symmetric matrices, (n, D, D), exceed `FLAT`, (n,)."""
    try:
        np.linalg.cholesky(kept - FLAT * np.eye(kept.shape[1]))
    except np.linalg.LinAlgError:
        return np.linalg.eigvalsh(np.nan_to_num(kept, nan=-1.0))[:, 0] > FLAT
    return np.ones(len(kept), dtype=bool)
