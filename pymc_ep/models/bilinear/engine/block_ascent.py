"""Block ascent: maximise the bound of a bilinear model over the rows of one matrix, given the other matrix."""

from typing import NamedTuple

import numpy as np

from pymc_ep.models.bilinear.engine.bound import BilinearBound, Block, Sides
from pymc_ep.models.bilinear.engine.row_parameters import factored, packed, unpacked
from pymc_ep.models.bilinear.engine.values import AnyRows, BilinearPrior
from pymc_ep.models.bilinear.kernel import FactoredRows, Rows
from pymc_ep.numerics.optimise.batched_lbfgs import maximise_many, scaled

__all__ = ["BestRows", "best_rows", "improved_rows"]

_STEPS = 20
"""Number of L-BFGS steps between updates of the cells' quadratic bounds: a compromise between exact maxima of a bound
and frequent updates of the bound."""
_LONGEST_STEP = 5.0
"""Largest change of a log variance in one step. Steps are scaled by the curvature at the best variance. From far above
this variance, where rows with thousands of cells start, an unlimited step would be -100, and later steps would make up
for it by about 1 each."""
_ROUNDS = 200
"""Largest number of updates of the cells' bounds, far more than usual; rows that need more are reported as
unconverged."""
_ROW_TOL = 1e-10
"""Largest predicted increase of a converged row's bound, half the product of gradient and Newton step, in nats per
cell. Means are then within some 1e-5 standard deviations of the maximum."""


class BestRows(NamedTuple):
    """Rows of one matrix that maximise the bound, given the other matrix.

    Attributes
    ----------
    rows : Rows or FactoredRows
    bound : ndarray, (I,)
        Each row's part of the bound: the bounds of its cells, minus its divergence from the prior or, for point
        estimates, plus its log prior density.
    converged : ndarray of bool, (I,)
        Whether each row is at its maximum, to a tolerance.
    """

    rows: AnyRows
    bound: np.ndarray
    converged: np.ndarray


def improved_rows(block: Block, rows: AnyRows, *, max_iter: int, tol: float) -> AnyRows:
    """Return the rows of a block after L-BFGS steps, which never lower the bound; rows without cells follow the prior.

    Parameters
    ----------
    block : Block
    rows : Rows or FactoredRows
        Start: the rows at which the block was made.
    max_iter : int
        Largest number of steps of each row.
    tol : float
        A row is converged once its predicted increase, half the product of gradient and Newton step, is at most this.
    """
    observed, points = np.flatnonzero(np.diff(block.pairs.ends)), block.points
    optimised = maximise_many(
        lambda numbers, at: block.evaluate(observed[numbers], at),
        packed(rows, points)[observed],
        block.scale(observed),
        max_iter=max_iter,
        tol=tol,
        longest=np.repeat([np.inf, _LONGEST_STEP], [len(points), np.sum(~points)]) if isinstance(rows, Rows) else None,
    )
    # Rows without a cell have their prior. Their points have its mode, or stay where they are if it is flat.
    proper = np.isfinite(block.prior.variance)
    mean = np.where(proper, block.prior.mean, rows.mean)
    with np.errstate(divide="ignore"):
        # The best independent entries have the conditional variance given all others.
        prior_rows = Rows(mean, np.where(points | ~proper, 0.0, 1.0 / block.prior.precision))
    out = prior_rows if isinstance(rows, Rows) else factored(prior_rows)
    covariance = block.prior.covariance
    if isinstance(out, FactoredRows) and covariance is not None and not points[0]:
        out.factor[:, : len(covariance), : len(covariance)] = np.linalg.cholesky(covariance)
    for array, improved in zip(out, unpacked(optimised.points, points, type(rows))):
        array[observed] = improved
    return out


def best_rows(bound: BilinearBound, prior: BilinearPrior, sides: Sides, side: int) -> BestRows:
    """Return the rows of one matrix that maximise the bound, given the other matrix.

    Parameters
    ----------
    bound : BilinearBound
    prior : BilinearPrior
    sides : pair of Rows or FactoredRows
        Both matrices at the start of the ascent, where the bound must be finite.
    side : int
        Index of the matrix whose rows are returned, 0 left or 1 right.
    """
    updated = list(sides)
    for rounds_left in reversed(range(_ROUNDS)):
        # Some sites bound cells by parabolas and tangents, which touch at the rows where the block is made.
        block = bound.block(prior, (updated[0], updated[1]), side)
        every = np.arange(len(updated[side].mean))
        value, gradient = block.evaluate(every, packed(updated[side], block.points))
        # Rise of a Newton step, g^T H g / 2 for each row, with H the approximate inverse negative Hessian.
        predicted = 0.5 * np.einsum("ip,ip->i", gradient, scaled(block.scale(every), every, gradient))
        converged = predicted <= _ROW_TOL * (1 + np.diff(block.pairs.ends))
        if converged.all() or not rounds_left:
            break
        updated[side] = improved_rows(block, updated[side], max_iter=_STEPS, tol=_ROW_TOL)
    return BestRows(updated[side], value, converged)
