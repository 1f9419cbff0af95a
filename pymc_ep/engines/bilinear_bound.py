"""The bound of a bilinear model as a function of the moments of both matrices, and its derivatives.

With independent rows v_i and u_j under the posterior Q it is

    B = sum_cells E_Q log p(y | v_i^T u_j + b_i + c_j + offset) - KL(Q(V, b) || P) - KL(Q(U, c) || P),

with the expectations, or their bounds, of `pymc_ep.sites.cells`. A bias is a column whose partner is one without a
variance. Columns that are estimated as points have no variance either, and their log prior density takes the place of
the divergence.
"""

from typing import Any, NamedTuple

import numpy as np

from pymc_ep.forms.bilinear_values import BilinearPrior, Cells, MatrixPrior
from pymc_ep.kernels import inner_products
from pymc_ep.kernels.inner_products import Pairs, Rows
from pymc_ep.sites.cells import CellBound

__all__ = ["BilinearBound", "Block", "Derivatives", "unpacked"]

_STATISTICS = {
    "log_mean_exp": (inner_products.log_mean_exp, inner_products.log_mean_exp_pullback),
    "variance": (inner_products.variance, inner_products.variance_pullback),
}
Sides = tuple[Rows, Rows]
"""Moments of the left and of the right matrix, or derivatives in them."""


class Derivatives(NamedTuple):
    """The bound and its derivatives in what hyperparameters decide.

    Attributes
    ----------
    value : float
    of_prior : tuple of ndarray
        In the means and variances of the left and of the right prior.
    of_offset : ndarray, (n,)
    of_parameters : tuple of ndarray, (n,)
    cells : CellBound
        What `BilinearBound.of_sides` goes on from.
    """

    value: float
    of_prior: tuple[np.ndarray, ...]
    of_offset: np.ndarray
    of_parameters: tuple[np.ndarray, ...]
    cells: CellBound


class BilinearBound:
    """The bound for given cells.

    Parameters
    ----------
    cells : Cells
    n_factors : int
        D; a column beyond these is a bias.
    points : pair of ndarray of bool, (K,) and (K',)
        Columns of the left and of the right matrix that are points.
    """

    def __init__(self, cells: Cells, n_factors: int, points: tuple[np.ndarray, np.ndarray]):
        self.cells, self.n_factors, self.points = cells, n_factors, points
        self.pairs = cells.by_left, cells.by_right
        self.statistics, self.pullback = _STATISTICS[cells.site.spread]

    def of_cells(self, prior: BilinearPrior, sides: Sides) -> CellBound:
        """Return what each cell adds, in the order in which cells were given."""
        moments = self.moments(sides, 0, self.pairs[0], sides[0], prior.offset[self.pairs[0].order])
        given = np.empty((2, len(prior.offset)))
        given[:, self.pairs[0].order] = moments
        return self.cells.site.bounded(self.cells.y, *given, *prior.parameters)

    def value(self, prior: BilinearPrior, sides: Sides) -> float:
        """Return B."""
        return float(self.of_cells(prior, sides).value.sum()) + sum(
            float(divergence(*one)[0].sum()) for one in zip(sides, (prior.left, prior.right), self.points)
        )

    def derivatives(self, prior: BilinearPrior, sides: Sides) -> Derivatives:
        """Return B and its derivatives in priors, offsets and parameters."""
        found = self.of_cells(prior, sides)
        value, of_prior = float(found.value.sum()), []
        for one in zip(sides, (prior.left, prior.right), self.points):
            total, *own = divergence(*one)
            value += float(total.sum())
            of_prior += own
        of_offset = found.of_mean + (found.of_spread if self.cells.site.spread == "log_mean_exp" else 0.0)
        return Derivatives(value, tuple(of_prior), of_offset, found.of_parameters, found)

    def of_sides(self, prior: BilinearPrior, sides: Sides, found: Derivatives) -> Sides:
        """Return the derivatives in the moments of either matrix; meaningless in the variances of points."""

        def of_side(k: int, given: MatrixPrior) -> Rows:
            order, rows = self.pairs[k].order, sides[k]
            weights = found.cells.of_mean[order], found.cells.of_spread[order]
            cells = self.pullback(self.pairs[k], rows, self.partner(sides, k), *weights)
            of_variance = cells.variance + own_variance_derivative(rows, given, self.points[k])
            return Rows(cells.mean - found.of_prior[2 * k], of_variance)

        return of_side(0, prior.left), of_side(1, prior.right)

    def block(self, prior: BilinearPrior, sides: Sides, own: int) -> "Block":
        """Return the bound as a function of the rows of one matrix."""
        return Block(self, prior, sides, own)

    def partner(self, sides: Sides, own: int) -> Rows:
        """Return the rows that those of one matrix are multiplied with, (J, K): with ones for a bias."""
        d, biased = self.n_factors, sides[own].mean.shape[1] > self.n_factors
        mean, variance = (part[:, :d] for part in sides[1 - own])
        if not biased:
            return Rows(np.ascontiguousarray(mean), np.ascontiguousarray(variance))
        column = np.ones((len(mean), 1))
        return Rows(np.hstack([mean, column]), np.hstack([variance, 0.0 * column]))

    def moments(
        self, sides: Sides, own: int, pairs: Pairs, rows: Rows, offset: np.ndarray, partner: Rows | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return both statistics of the predictors of pairs of own `rows`, with the other side's bias and offsets."""
        mean, spread = self.statistics(pairs, rows, self.partner(sides, own) if partner is None else partner)
        by, variance, other = offset, 0.0, sides[1 - own]
        if other.mean.shape[1] > self.n_factors:
            by = by + other.mean[pairs.others, self.n_factors]
            variance = other.variance[pairs.others, self.n_factors]
        if self.cells.site.spread == "log_mean_exp":
            return mean + by, spread + by + variance / 2
        return mean + by, spread + variance


class Block:
    """The bound as a function of the rows of one matrix, given those of the other one."""

    def __init__(self, bound: BilinearBound, prior: BilinearPrior, sides: Sides, own: int):
        self._bound, self._sides, self._own = bound, sides, own
        self.pairs, self.points = bound.pairs[own], bound.points[own]
        self.prior = (prior.left, prior.right)[own]
        order = self.pairs.order
        self._offset, self._parameters = prior.offset[order], [p[order] for p in prior.parameters]
        self._y = bound.cells.y[order]
        self._partner = bound.partner(sides, own)
        self._anchor = self._moments(self.pairs, sides[own], slice(None))

    def scale(self, which: np.ndarray) -> np.ndarray:
        """Return about the inverse of minus each second derivative in what `packed` gives, (k, p).

        In a mean it is the precision of its best Gaussian, 1 / V - 2 dB/da with the cells' part of B; in a log variance
        it is a half, as if the variance were its best.
        """
        rows = self._sides[self._own]
        found = self._at(self.pairs, rows, slice(None))
        cells = self._bound.pullback(self.pairs, rows, self._partner, np.zeros_like(found.of_mean), found.of_spread)
        precision = np.maximum(1.0 / self.prior.variance[which] - 2.0 * cells.variance[which], np.finfo(float).tiny)
        return np.hstack([1.0 / precision, np.full((len(which), int((~self.points).sum())), 2.0)])

    def evaluate(self, which: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the part of some rows, (k,), and its gradient, (k, p), at what `packed` would give."""
        pairs, places = self.pairs.of_rows(which)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # Trial steps may overflow, which the line search turns back from.
            rows = unpacked(points, self.points)
            found = self._at(pairs, rows, places)
            own = MatrixPrior(self.prior.mean[which], self.prior.variance[which])
            total, of_mean, _ = divergence(rows, own, self.points)
            cells = self._bound.pullback(pairs, rows, self._partner, found.of_mean, found.of_spread)
            of_variance = cells.variance + own_variance_derivative(rows, own, self.points)
            gradient = packed_gradient(Rows(cells.mean - of_mean, of_variance), rows, self.points)
            value = pairs.total(found.value) + total.sum(axis=1)
        good = np.isfinite(value) & np.isfinite(gradient).all(axis=1)
        return np.where(good, value, -np.inf), gradient

    def _at(self, pairs: Pairs, rows: Rows, places: Any) -> CellBound:
        moments = self._moments(pairs, rows, places)
        parameters = [p[places] for p in self._parameters]
        mean, spread = self._anchor
        anchor = mean[places], spread[places]
        return self._bound.cells.site.bounded(self._y[places], *moments, *parameters, anchor=anchor)

    def _moments(self, pairs: Pairs, rows: Rows, places: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._bound.moments(self._sides, self._own, pairs, rows, self._offset[places], self._partner)


def packed(rows: Rows, points: np.ndarray) -> np.ndarray:
    """Return means, and log variances of columns that are no points, (I, p)."""
    return np.hstack([rows.mean, np.log(rows.variance[:, ~points])])


def unpacked(values: np.ndarray, points: np.ndarray) -> Rows:
    """Return the moments that `packed` came from."""
    variance = np.zeros((len(values), len(points)))
    variance[:, ~points] = np.exp(values[:, len(points) :])
    return Rows(np.ascontiguousarray(values[:, : len(points)]), variance)


def packed_gradient(derivative: Rows, rows: Rows, points: np.ndarray) -> np.ndarray:
    """Return derivatives in what `packed` gives from those in the moments."""
    return np.hstack([derivative.mean, (derivative.variance * rows.variance)[:, ~points]])


def divergence(rows: Rows, prior: MatrixPrior, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return minus each entry's divergence from its prior, (I, K), and its derivatives in the prior's moments.

    Of points it is the log prior density, and zero where that is flat.
    """
    flat = ~np.isfinite(prior.variance)
    v = np.where(flat, 1.0, prior.variance)
    second = (rows.mean - prior.mean) ** 2 + rows.variance
    entropy = np.where(points, -np.log(2 * np.pi), 1.0 + np.log(np.where(points, 1.0, rows.variance)))
    value = np.where(flat, 0.0, 0.5 * (entropy - np.log(v) - second / v))
    of_mean = np.where(flat, 0.0, (rows.mean - prior.mean) / v)
    return value, of_mean, np.where(flat, 0.0, 0.5 * (second / v - 1.0) / v)


def own_variance_derivative(rows: Rows, prior: MatrixPrior, points: np.ndarray) -> np.ndarray:
    """Return the derivative of minus the divergence in the entries' own variances.

    In their means it is minus that in the prior's.
    """
    return np.where(points, 0.0, 0.5 / np.where(points, 1.0, rows.variance) - 0.5 / prior.variance)
