"""Gaussian rows as packed coordinates for optimisation, and their divergence from the prior.

The packed coordinates of a row, (p,), are its mean, then the log variances of its entries. With covariances, the mean
is followed by the lower triangle of the Cholesky factor: in these coordinates, bounds of concave log likelihoods are
concave (Challis and Barber 2013). Columns that are point estimates have a mean only.
"""

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import numpy as np

from pymc_ep.models.bilinear.engine.values import AnyRows, MatrixPrior
from pymc_ep.models.bilinear.kernel import FactoredRows, Rows
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.optimise.batched_lbfgs import Scale

__all__ = [
    "FIRST_VARIANCE",
    "Divergence",
    "divergence",
    "factored",
    "independent",
    "packed",
    "packed_derivative",
    "packed_scale",
    "unpacked",
]

FIRST_VARIANCE = 0.1
"""Largest variance of an entry at the start. The product of two such variances is below 1, so that E e^f exists."""
_FEW = 2**17
"""Largest number of entries for which NumPy is used. Numba takes a fifth of the time, but first two seconds to compile,
more than a fit of fewer entries gains."""


class Divergence(NamedTuple):
    """Minus the Kullback-Leibler divergence of rows from their prior.

    Attributes
    ----------
    value : ndarray, (I,)
        Minus the divergence of each row.
    of_prior : MatrixPrior
        Derivatives of the sum of `value` in the moments of the prior.
    """

    value: np.ndarray
    of_prior: MatrixPrior


def packed(rows: AnyRows, points: np.ndarray) -> np.ndarray:
    """Return the packed coordinates of rows, (I, p); columns that are `points` have a mean only."""
    if isinstance(rows, Rows):
        return np.hstack([rows.mean, np.log(rows.variance[:, ~points])])
    return np.hstack([rows.mean, rows.factor[:, *_lower_triangle(points)]])


def unpacked(values: np.ndarray, points: np.ndarray, kind: type = Rows) -> AnyRows:
    """Return the rows, of class `kind`, with the packed coordinates `values`, (I, p)."""
    mean, spread = np.ascontiguousarray(values[:, : len(points)]), values[:, len(points) :]
    if kind is Rows:
        if not points.any():
            return Rows(mean, np.exp(spread, out=np.empty(mean.shape)))
        variance = np.zeros((len(values), len(points)))
        variance[:, ~points] = np.exp(spread)
        return Rows(mean, variance)
    factor = np.zeros((len(values), len(points), len(points)))
    factor[:, *_lower_triangle(points)] = spread
    return FactoredRows(mean, factor)


def packed_scale(rows: AnyRows, of_cells: Array, prior: MatrixPrior, points: np.ndarray) -> Scale:
    """Return the approximate inverse negative Hessian of the bound in packed coordinates, a `Scale`.

    It is the inverse of the negative Hessian at the best Gaussian, block by block. Let C be the bound's sum over cells,
    with the derivatives `of_cells` in the moments of rows. The negative Hessian is

    - in the mean, the best Gaussian's precision: p - 2 dC/da, with the prior precision p and the variance a of an
      entry, or P - 2 dC/dA, with the prior precision matrix P and the covariance A of a row;
    - in a log variance, 1/2, its value at the best variance;
    - in a factor L, the negative Hessian of log|L| - |R^{-1} L|^2 / 2 at the best factor R: in the entries of R^{-1} L
      it is 1 off the diagonal and 2 on it.
    """
    full, k, tiny = isinstance(rows, FactoredRows), len(points), np.finfo(float).tiny
    of_variance = np.einsum("idd->id", of_cells.covariance) if full else of_cells.variance
    variance = 1.0 / np.maximum(prior.precision - 2.0 * of_variance, tiny)
    if not full:
        return np.hstack([variance, np.full((len(variance), int((~points).sum())), 2.0)])
    lower, columns = _lower_triangle(points), np.flatnonzero(~points)
    free = np.ix_(np.arange(len(variance)), columns, columns)
    precision = (-2.0 * of_cells.covariance + prior.full_precision)[free]
    # With rows and columns reversed P = U U^T, U upper triangular, and U^{-T} is the Cholesky factor of P^{-1}.
    reverse = np.linalg.cholesky(precision[:, ::-1, ::-1])[:, ::-1, ::-1]
    root = np.zeros((len(variance), k, k))
    root[free] = np.linalg.inv(reverse).swapaxes(1, 2)
    # Inverse of the negative Hessian in R^-1 L: 1 below the diagonal, 1/2 on it.
    weights = np.tril(np.ones((k, k))) - 0.5 * np.eye(k)

    def scale(numbers: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        roots, slopes = root[numbers], np.zeros((len(numbers), k, k + 1))
        slopes[:, *lower] = gradients[:, k:]
        slopes[:, :, k] = gradients[:, :k]
        # R R^T g in the mean and R (W * R^T G) in the factor, with gradients g and G, weights W, and an elementwise *.
        along = roots.swapaxes(1, 2) @ slopes
        along[:, :, :k] *= weights
        out = roots @ along
        mean = np.where(points, variance[numbers] * gradients[:, :k], out[:, :, k])
        return np.hstack([mean, out[:, *lower]])

    return scale


def divergence(rows: AnyRows, prior: MatrixPrior, points: np.ndarray) -> Divergence:
    """Return minus the Kullback-Leibler divergence of rows from their prior.

    Columns that are `points` contribute their log prior density instead, and entries with a flat prior zero. The
    entropy of a row with a covariance is the sum of its entries' entropies, each given the entries before.
    """
    if isinstance(rows, Rows) and prior.covariance is None and rows.mean.size > _FEW:
        out = Divergence(np.empty(len(rows.mean)), MatrixPrior(*(np.empty(rows.mean.shape) for _ in range(2))))
        _numba().divergence(*rows, *prior[:2], points, out.value, *out.of_prior[:2])
        return out
    # -KL of an entry: (1 + log(v p) - ((m - m0)^2 + v) p) / 2, p = 1 / s; log N(m; m0, s) of a point, where v = 0.
    away, precision = rows.mean - prior.mean, 1.0 / prior.variance
    flat, conditional_variance = precision == 0.0, np.where(points, 1.0, rows.conditional_sd**2)
    entropy = np.where(points, -np.log(2 * np.pi), 1.0)
    second = (away**2 + rows.variance) * precision
    value = np.where(
        flat, 0.0, 0.5 * (entropy + np.log(np.where(flat, 1.0, conditional_variance * precision)) - second)
    )
    # Derivatives in m0 and s.
    of_mean, of_variance = away * precision, 0.5 * (second - 1.0) * precision
    if prior.covariance is None:
        return Divergence(value.sum(axis=1), MatrixPrior(of_mean, of_variance))
    # Of the d factors, with covariance A: (d + log|A| - log|S| - tr(S^-1 A) - x^T S^-1 x) / 2, x = m - m0.
    d, precision = len(prior.covariance), np.linalg.inv(prior.covariance)
    pulled = away[:, :d] @ precision
    if isinstance(rows, Rows):
        traces = precision.diagonal() * rows.variance[:, :d]
        spread = np.diag(rows.variance[:, :d].sum(axis=0))
    else:
        # (S^-1 A)_kk of each row and sum_i A_i, A = L L^T.
        factor = rows.factor[:, :d, :d]
        traces = np.einsum("de,iek,idk->id", precision, factor, factor, optimize=True)
        spread = np.einsum("idk,iek->de", factor, factor, optimize=True)
    # The prior's log determinant is shared equally by the d factors.
    log_root = np.linalg.slogdet(prior.covariance)[1] / d
    value[:, :d] = 0.5 * (entropy[:d] + np.log(conditional_variance[:, :d]) - log_root - pulled * away[:, :d] - traces)
    of_mean[:, :d], of_variance[:, :d] = pulled, 0.0
    # d/dS = sum_i (S^-1 (A_i + x_i x_i^T) S^-1 - S^-1) / 2.
    of_covariance = 0.5 * (precision @ spread @ precision + pulled.T @ pulled - len(away) * precision)
    return Divergence(value.sum(axis=1), MatrixPrior(of_mean, of_variance, of_covariance))


def packed_derivative(
    of_cells: Array, of_prior_mean: np.ndarray, rows: AnyRows, prior: MatrixPrior, points: np.ndarray, out: np.ndarray
) -> None:
    """Write the derivatives of the bound in packed coordinates to `out`, (I, p).

    `of_cells` are the derivatives of the cells' bounds in the moments of rows. `of_prior_mean`, (I, K), are derivatives
    of minus the divergence in prior means; with the opposite sign they are its derivatives in the rows' means.
    """
    if isinstance(rows, Rows) and prior.covariance is None and rows.mean.size > _FEW:
        _numba().packed_derivative(*of_cells, of_prior_mean, rows.variance, prior.variance, points, out)
        return
    np.subtract(of_cells.mean, of_prior_mean, out=out[:, : len(points)])
    if isinstance(rows, Rows):
        # d/d log v = v (dB_cells/dv - p / 2) + 1/2.
        out[:, len(points) :] = ((of_cells.variance - 0.5 * prior.precision) * rows.variance + 0.5)[:, ~points]
        return
    # d/dL = tril((2 dB_cells/dA - S^-1) L) + diag(1 / L_kk), A = L L^T.
    factor = np.tril((2.0 * of_cells.covariance - prior.full_precision) @ rows.factor)
    np.einsum("idd->id", factor)[:] += np.where(points, 0.0, 1.0 / np.where(points, 1.0, rows.conditional_sd))
    out[:, len(points) :] = factor[:, *_lower_triangle(points)]


def factored(rows: AnyRows) -> FactoredRows:
    """Return the same rows with Cholesky factors of their covariances."""
    if isinstance(rows, FactoredRows):
        return rows
    return FactoredRows(rows.mean, np.sqrt(rows.variance)[:, :, None] * np.eye(rows.mean.shape[1]))


def independent(rows: AnyRows) -> Rows:
    """Return the closest rows with independent entries; an entry's variance is conditional on the row's other entries.

    If E e^f is finite, it remains so when both matrices are replaced: with covariances A and B of a left and a right
    row, A^{-1} - B is positive definite, and so has a positive diagonal.
    """
    if isinstance(rows, Rows):
        return rows
    # 1 / (A^-1)_dd with (A^-1)_dd = sum_k (L^-1)_kd^2; ones on the diagonal of points make L invertible.
    points = rows.conditional_sd == 0.0
    inverse = np.linalg.inv(rows.factor + points[:, :, None] * np.eye(rows.mean.shape[1]))
    return Rows(rows.mean, np.where(points, 0.0, 1.0 / (inverse**2).sum(axis=1)))


def _numba() -> ModuleType:
    return import_module("pymc_ep.models.bilinear.engine.row_parameters_numba")


def _lower_triangle(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column indices of the lower triangle, without columns that are points."""
    row, column = np.tril_indices(len(points))
    free = ~(points[row] | points[column])
    return row[free], column[free]
