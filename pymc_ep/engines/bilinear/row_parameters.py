"""What rows with independent entries and rows with covariances have in common: divergences, and numbers for ascent.

The unknowns of a row are its mean, and the log variances of its entries or the lower triangle of the Cholesky factor of
its covariance, in which such bounds are concave (Challis and Barber 2013). Columns that are points have a mean alone.
"""

from typing import Any, NamedTuple

import numpy as np

from pymc_ep.engines.bilinear.values import AnyRows, MatrixPrior
from pymc_ep.kernels.inner_products import FactoredRows, Rows
from pymc_ep.numerics.optimise.batched_lbfgs import Scale

__all__ = [
    "FIRST_VARIANCE",
    "Divergence",
    "divergence",
    "factored",
    "independent",
    "packed",
    "packed_gradient",
    "packed_scale",
    "total_derivative",
    "unpacked",
]

FIRST_VARIANCE = 0.1
"""Of entries to start from, at most: pairs of these are feasible."""


class Divergence(NamedTuple):
    """Minus the divergence of rows from their prior.

    Attributes
    ----------
    value : ndarray, (I, K)
        Its sum over a row is that row's.
    of_prior : MatrixPrior
        Derivatives in the prior.
    """

    value: np.ndarray
    of_prior: MatrixPrior


def packed(rows: AnyRows, points: np.ndarray) -> np.ndarray:
    """Return means, and log variances or entries of factors in columns that are no points, (I, p)."""
    if isinstance(rows, Rows):
        return np.hstack([rows.mean, np.log(rows.variance[:, ~points])])
    return np.hstack([rows.mean, rows.factor[:, *_lower(points)]])


def unpacked(values: np.ndarray, points: np.ndarray, kind: type = Rows) -> AnyRows:
    """Return the rows of that kind that `packed` came from."""
    mean, spread = np.ascontiguousarray(values[:, : len(points)]), values[:, len(points) :]
    if kind is Rows:
        variance = np.zeros((len(values), len(points)))
        variance[:, ~points] = np.exp(spread)
        return Rows(mean, variance)
    factor = np.zeros((len(values), len(points), len(points)))
    factor[:, *_lower(points)] = spread
    return FactoredRows(mean, factor)


def packed_gradient(derivative: Any, rows: AnyRows, points: np.ndarray) -> np.ndarray:
    """Return derivatives in what `packed` gives from those in the numbers of the rows."""
    if isinstance(rows, Rows):
        return np.hstack([derivative.mean, (derivative.variance * rows.variance)[:, ~points]])
    return np.hstack([derivative.mean, derivative.factor[:, *_lower(points)]])


def packed_scale(rows: AnyRows, of_cells: Any, prior: MatrixPrior, points: np.ndarray) -> Scale:
    """Return about the inverse of minus the Hessian in what `packed` gives.

    In the mean that is the precision of the best Gaussian, 1 / V - 2 dB/da with the cells' part of B. In a log variance
    it is a half, as if the variance were its best. In a factor L it is that of log|L| - |R^{-1} L|^2 / 2 at the best
    one, R: in the entries of R^{-1} L it is one, and two on the diagonal.
    """
    full, k, tiny = isinstance(rows, FactoredRows), len(points), np.finfo(float).tiny
    of_variance = np.einsum("idd->id", of_cells.covariance) if full else of_cells.variance
    variance = 1.0 / np.maximum(prior.precision - 2.0 * of_variance, tiny)
    if not full:
        return np.hstack([variance, np.full((len(variance), int((~points).sum())), 2.0)])
    lower, columns = _lower(points), np.flatnonzero(~points)
    free = np.ix_(np.arange(len(variance)), columns, columns)
    precision = (-2.0 * of_cells.covariance + prior.full_precision)[free]
    # Reversed, P = U U^T with an upper triangle, and U^{-T} is the lower one of P^{-1}.
    reverse = np.linalg.cholesky(precision[:, ::-1, ::-1])[:, ::-1, ::-1]
    root = np.zeros((len(variance), k, k))
    root[free] = np.linalg.inv(reverse).swapaxes(1, 2)
    weights = np.tril(np.ones((k, k))) - 0.5 * np.eye(k)

    def scale(which: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        here, slopes = root[which], np.zeros((len(which), k, k + 1))
        slopes[:, *lower] = gradients[:, k:]
        slopes[:, :, k] = gradients[:, :k]
        along = here.swapaxes(1, 2) @ slopes
        along[:, :, :k] *= weights
        out = here @ along
        mean = np.where(points, variance[which] * gradients[:, :k], out[:, :, k])
        return np.hstack([mean, out[:, *lower]])

    return scale


def divergence(rows: AnyRows, prior: MatrixPrior, points: np.ndarray) -> Divergence:
    """Return minus the divergence of rows from their prior.

    Of points it is the log prior density, and zero where that is flat. With a covariance the entropy of an entry is
    that given those before it.
    """
    away, precision = rows.mean - prior.mean, 1.0 / prior.variance
    flat, own = precision == 0.0, np.where(points, 1.0, rows.conditional_sd**2)
    entropy = np.where(points, -np.log(2 * np.pi), 1.0)
    second = (away**2 + rows.variance) * precision
    value = np.where(flat, 0.0, 0.5 * (entropy + np.log(np.where(flat, 1.0, own * precision)) - second))
    of_mean, of_variance = away * precision, 0.5 * (second - 1.0) * precision
    if prior.covariance is None:
        return Divergence(value, MatrixPrior(of_mean, of_variance))
    d, precision = len(prior.covariance), np.linalg.inv(prior.covariance)
    pulled = away[:, :d] @ precision
    if isinstance(rows, Rows):
        traces = precision.diagonal() * rows.variance[:, :d]
        spread = np.diag(rows.variance[:, :d].sum(axis=0))
    else:
        factor = rows.factor[:, :d, :d]
        traces = np.einsum("de,iek,idk->id", precision, factor, factor, optimize=True)
        spread = np.einsum("idk,iek->de", factor, factor, optimize=True)
    # Every factor has its share of the prior's log determinant.
    log_root = np.linalg.slogdet(prior.covariance)[1] / d
    value[:, :d] = 0.5 * (entropy[:d] + np.log(own[:, :d]) - log_root - pulled * away[:, :d] - traces)
    of_mean[:, :d], of_variance[:, :d] = pulled, 0.0
    of_covariance = 0.5 * (precision @ spread @ precision + pulled.T @ pulled - len(away) * precision)
    return Divergence(value, MatrixPrior(of_mean, of_variance, of_covariance))


def total_derivative(
    of_cells: Any, of_prior_mean: np.ndarray, rows: AnyRows, prior: MatrixPrior, points: np.ndarray
) -> AnyRows:
    """Return derivatives in the numbers of the rows: of cells, given in moments, less the divergence.

    The divergence's in a mean is that in the prior's but for the sign. Derivatives in spreads of points mean nothing.
    """
    mean = of_cells.mean - of_prior_mean
    if isinstance(rows, Rows):
        own = np.where(points, 0.0, 0.5 / np.where(points, 1.0, rows.variance) - 0.5 * prior.precision)
        return Rows(mean, of_cells.variance + own)
    factor = np.tril((2.0 * of_cells.covariance - prior.full_precision) @ rows.factor)
    np.einsum("idd->id", factor)[:] += np.where(points, 0.0, 1.0 / np.where(points, 1.0, rows.conditional_sd))
    return FactoredRows(mean, factor)


def factored(rows: AnyRows) -> FactoredRows:
    """Return the same rows by factors of their covariances."""
    if isinstance(rows, FactoredRows):
        return rows
    return FactoredRows(rows.mean, np.sqrt(rows.variance)[:, :, None] * np.eye(rows.mean.shape[1]))


def independent(rows: AnyRows) -> Rows:
    """Return the nearest rows of independent entries: with the variances of each entry given all others.

    Pairs that were feasible are so again, as the diagonal of A^{-1} - B is positive then.
    """
    if isinstance(rows, Rows):
        return rows
    points = rows.conditional_sd == 0.0
    inverse = np.linalg.inv(rows.factor + points[:, :, None] * np.eye(rows.mean.shape[1]))
    return Rows(rows.mean, np.where(points, 0.0, 1.0 / (inverse**2).sum(axis=1)))


def _lower(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the lower triangle is, without the columns of points."""
    row, column = np.tril_indices(len(points))
    free = ~(points[row] | points[column])
    return row[free], column[free]
