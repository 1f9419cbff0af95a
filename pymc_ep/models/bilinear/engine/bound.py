"""The bound of a bilinear model as a function of the moments of both matrices, and its derivatives.

The predictor of a cell is f = v_i^T u_j + b_i + c_j + offset, with rows of the matrices V and U, and biases b and c.
With independent rows under the posterior Q, and the prior P, the bound is

    B = sum_cells E_Q log p(y | f) - KL(Q(V, b) || P) - KL(Q(U, c) || P),

where bounds from `pymc_ep.sites.cells` can replace expectations. A bias is a column of one matrix that is multiplied by
a column of ones, of variance zero, in the other. Columns that are point estimates have variance zero too, and their log
prior density replaces the term -KL. Rows have independent entries (`Rows`) or covariances (`FactoredRows`).
"""

from typing import NamedTuple

import numpy as np

from pymc_ep.models.bilinear import kernel as inner_products
from pymc_ep.models.bilinear.engine.row_parameters import (
    divergence,
    packed_derivative,
    packed_scale,
    unpacked,
)
from pymc_ep.models.bilinear.engine.values import AnyRows, BilinearPrior, Cells, MatrixPrior, places_of_ones, with_ones
from pymc_ep.models.bilinear.kernel import FactoredRows, FullRows, Rows
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.optimise.batched_lbfgs import Scale
from pymc_ep.numerics.pairs import Pairs
from pymc_ep.sites.cells.base import CellBound

__all__ = ["BilinearBound", "Block", "Derivatives", "Sides"]

_STATISTICS = {
    "log_mean_exp": (inner_products.log_mean_exp, inner_products.log_mean_exp_pullback),
    "variance": (inner_products.variance, inner_products.variance_pullback),
}
"""For each second statistic of a predictor, named as in `CellSite.spread`: the function from the rows of both matrices
to (mean, statistic), (n,) each, and its pullback."""
Sides = tuple[AnyRows, AnyRows]
"""Left and right matrix."""


class Derivatives(NamedTuple):
    """The bound and its derivatives in prior, offset and likelihood parameters.

    Attributes
    ----------
    value : float
        The bound B.
    of_prior : pair of MatrixPrior
        Derivatives in the left and in the right prior.
    of_offset : ndarray, (n,)
        Derivatives in the offsets.
    of_parameters : tuple of ndarray, (n,)
        Derivatives in each likelihood parameter.
    cells : CellBound
        Bounds of the cells, which `BilinearBound.of_sides` needs.
    """

    value: float
    of_prior: tuple[MatrixPrior, MatrixPrior]
    of_offset: np.ndarray
    of_parameters: tuple[np.ndarray, ...]
    cells: CellBound


class BilinearBound:
    """The bound B of a bilinear model, for given cells.

    Parameters
    ----------
    cells : Cells
    n_factors : int
        Number D of factors; a further column of a matrix is a bias.
    points : pair of ndarray of bool, (K,) and (K',)
        Columns of the left and of the right matrix that are point estimates.
    backend : {"auto", "numpy", "c", "numba", "jax"}
        Implementation of the inner products.

    Attributes
    ----------
    order : pair of int
        Indices of the sides, 0 left and 1 right, in the order of block ascents.
    """

    def __init__(self, cells: Cells, n_factors: int, points: tuple[np.ndarray, np.ndarray], backend: str = "auto"):
        self.cells, self.n_factors, self.points = cells, n_factors, points
        self.pairs = cells.by_left, cells.by_right
        self._backend = backend
        self._statistics, self._pullback = _STATISTICS[cells.site.spread]
        self.order = _order(cells)
        self._ones = places_of_ones((len(points[0]), len(points[1])), n_factors)

    def products(self, sides: Sides) -> np.ndarray:
        """Return mean and second statistic of cells' inner products, (2, n), without offsets, in the data's order."""
        pairs, out = self.pairs[0], np.empty((2, len(self.cells.y)))
        out[:, pairs.order] = self.moments(0, pairs, sides[0], 0.0, self.partner(sides, 0))
        return out

    def of_cells(self, prior: BilinearPrior, products: np.ndarray) -> CellBound:
        """Return the cells' bounds with derivatives, (n,) each, from the statistics ``products(sides)``, (2, n)."""
        mean, spread = products
        moments = self._with_offset(mean, spread, prior.offset)
        return self.cells.site.bounded(self.cells.y, *moments, *prior.parameters)

    def value(self, prior: BilinearPrior, sides: Sides) -> float:
        """Return the bound B."""
        return float(self.of_cells(prior, self.products(sides)).value.sum()) + sum(
            float(divergence(*arguments).value.sum())
            for arguments in zip(sides, (prior.left, prior.right), self.points)
        )

    def derivatives(self, prior: BilinearPrior, sides: Sides, products: np.ndarray | None = None) -> Derivatives:
        """Return the bound B and its derivatives in priors, offsets and likelihood parameters.

        If ``products(sides)`` is known, pass it as `products` to save its computation.
        """
        cell_bounds = self.of_cells(prior, self.products(sides) if products is None else products)
        left, right = (divergence(*arguments) for arguments in zip(sides, (prior.left, prior.right), self.points))
        value = float(cell_bounds.value.sum()) + float(left.value.sum()) + float(right.value.sum())
        # An offset adds to E f and to log E e^f, and leaves Var f as it is.
        of_offset = cell_bounds.of_mean + (cell_bounds.of_spread if self.cells.site.spread == "log_mean_exp" else 0.0)
        return Derivatives(value, (left.of_prior, right.of_prior), of_offset, cell_bounds.of_parameters, cell_bounds)

    def of_sides(
        self, prior: BilinearPrior, sides: Sides, derivatives: Derivatives, out: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Write the derivatives of B in the packed coordinates of both matrices to `out`, (I, p) and (J, p')."""
        for k, matrix_prior in enumerate((prior.left, prior.right)):
            order = self.pairs[k].order
            weights = derivatives.cells.of_mean[order], derivatives.cells.of_spread[order]
            cells = self.pullback(k, self.pairs[k], sides[k], self.partner(sides, k), *weights)
            packed_derivative(cells, derivatives.of_prior[k].mean, sides[k], matrix_prior, self.points[k], out[k])

    def _with_offset(
        self, mean: np.ndarray, spread: np.ndarray, offset: np.ndarray | float
    ) -> tuple[np.ndarray, np.ndarray]:
        # log E e^(f + o) = log E e^f + o.
        return mean + offset, spread + offset if self.cells.site.spread == "log_mean_exp" else spread

    def block(self, prior: BilinearPrior, sides: Sides, side: int) -> "Block":
        """Return the bound as a function of the rows of matrix `side`, given the other matrix in `sides`."""
        return Block(self, prior, sides, side)

    def partner(self, sides: Sides, side: int) -> Rows | FullRows:
        """Return the rows of the matrix other than `side`, with a column of ones if matrix `side` has a bias."""
        rows = with_ones(sides[1 - side], self._ones[1 - side])
        return rows.full if isinstance(rows, FactoredRows) else rows

    def moments(
        self, side: int, pairs: Pairs, rows: AnyRows, offset: np.ndarray | float, partner: Rows | FullRows
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and second statistic, (n,) each, of the predictors of `pairs`, offsets included."""
        statistics = self._statistics(pairs, with_ones(rows, self._ones[side]), partner, backend=self._backend)
        return self._with_offset(*statistics, offset)

    def pullback(
        self,
        side: int,
        pairs: Pairs,
        rows: AnyRows,
        partner: Rows | FullRows,
        of_mean: np.ndarray,
        of_spread: np.ndarray,
    ) -> Rows | FullRows:
        """Return derivatives in the moments of `rows`, given derivatives in both statistics of the pairs, (n,) each."""
        place = self._ones[side]
        derivatives = self._pullback(pairs, with_ones(rows, place), partner, of_mean, of_spread, backend=self._backend)
        if place is None:
            return derivatives
        mean, spread = np.delete(derivatives.mean, place, axis=1), np.delete(derivatives[1], place, axis=-1)
        return Rows(mean, spread) if isinstance(rows, Rows) else FullRows(mean, np.delete(spread, place, axis=1))


def _order(cells: Cells) -> tuple[int, int]:
    """Return the order of the sides, 0 left and 1 right, in block ascents: the same matrix is first in transposed data.

    First is the side with more rows; of equal ones, the side whose rows differ more in their numbers of cells, then in
    their sums of observations.
    """

    def key(pairs: Pairs) -> tuple[int, int, float]:
        sums = pairs.total(cells.y[pairs.order])
        return len(sums), int((np.diff(pairs.ends) ** 2).sum()), float((sums**2).sum())

    return (0, 1) if key(cells.by_left) >= key(cells.by_right) else (1, 0)


class Block:
    """The bound as a function of the rows of one matrix, given the other matrix."""

    def __init__(self, bound: BilinearBound, prior: BilinearPrior, sides: Sides, side: int):
        self._bound, self._sides, self._own = bound, sides, side
        self.pairs, self.points = bound.pairs[side], bound.points[side]
        self.prior = (prior.left, prior.right)[side]
        order = self.pairs.order
        self._offset, self._parameters = prior.offset[order], [p[order] for p in prior.parameters]
        self._y = bound.cells.y[order]
        self._partner = bound.partner(sides, side)
        self._anchor = self._moments(self.pairs, sides[side], slice(None))

    def scale(self, indices: np.ndarray) -> Scale:
        """Return the approximate inverse negative Hessian for the rows `indices`, (k,), in packed coordinates."""
        rows, (pairs, places) = self._sides[self._own].at(indices), self.pairs.of_rows(indices)
        cell_bounds = self._at(pairs, rows, places)
        # E f does not depend on variances, so that its weights may be zero.
        cells = self._pullback(pairs, rows, np.zeros_like(cell_bounds.of_mean), cell_bounds.of_spread)
        return packed_scale(rows, cells, self.prior.at(indices), self.points)

    def evaluate(self, indices: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds, (k,), and gradients, (k, p), of the rows `indices`, (k,), at packed coordinates, (k, p)."""
        pairs, places = self.pairs.of_rows(indices)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # Trial steps may overflow; the line search then backtracks.
            rows = unpacked(points, self.points, type(self._sides[self._own]))
            cell_bounds = self._at(pairs, rows, places)
            prior = self.prior.at(indices)
            total, of_prior = divergence(rows, prior, self.points)
            cells = self._pullback(pairs, rows, cell_bounds.of_mean, cell_bounds.of_spread)
            gradient = np.empty(points.shape)
            packed_derivative(cells, of_prior.mean, rows, prior, self.points, gradient)
            value = pairs.total(cell_bounds.value) + total
        good = np.isfinite(value) & np.isfinite(gradient).all(axis=1)
        return np.where(good, value, -np.inf), gradient

    def _at(self, pairs: Pairs, rows: AnyRows, places: Array) -> CellBound:
        moments = self._moments(pairs, rows, places)
        parameters = [p[places] for p in self._parameters]
        mean, spread = self._anchor
        anchor = mean[places], spread[places]
        return self._bound.cells.site.bounded(self._y[places], *moments, *parameters, anchor=anchor)

    def _moments(self, pairs: Pairs, rows: AnyRows, places: Array) -> tuple[np.ndarray, np.ndarray]:
        return self._bound.moments(self._own, pairs, rows, self._offset[places], self._partner)

    def _pullback(self, pairs: Pairs, rows: AnyRows, of_mean: np.ndarray, of_spread: np.ndarray) -> Rows | FullRows:
        return self._bound.pullback(self._own, pairs, rows, self._partner, of_mean, of_spread)
