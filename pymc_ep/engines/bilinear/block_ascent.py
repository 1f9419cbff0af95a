"""Rows of one matrix of a bilinear model, raised towards the maximum of the bound given the rows of the other one."""

from typing import NamedTuple

import numpy as np

from pymc_ep.engines.bilinear.bound import BilinearBound, Block, Sides
from pymc_ep.engines.bilinear.row_parameters import factored, packed, unpacked
from pymc_ep.engines.bilinear.values import AnyRows, BilinearPrior
from pymc_ep.kernels.inner_products import FactoredRows, Rows
from pymc_ep.numerics.optimise.batched_lbfgs import maximise_many, scaled

__all__ = ["BestRows", "best_rows", "raised_rows"]

_STEPS = 20
"""Steps of L-BFGS between which bounds of cells are renewed."""
_FARTHEST = 5.0
"""Change of a log variance in one step at most. Scales are those at the best variance, from which what is far above it,
as that of a row with thousands of cells at first, goes down by a hundred, and from there comes up by one a step."""
_ROUNDS = 200
_PROMISED = 1e-10
"""Nats that the slope of a row promises at its maximum: means are then off by some 1e-5 standard deviations."""


class BestRows(NamedTuple):
    """Where rows have their maxima.

    Attributes
    ----------
    rows : Rows or FactoredRows
    bound : ndarray, (I,)
        Each row's part of the bound.
    converged : ndarray of bool, (I,)
    """

    rows: AnyRows
    bound: np.ndarray
    converged: np.ndarray


def raised_rows(block: Block, rows: AnyRows, *, max_iter: int, tol: float) -> AnyRows:
    """Return the rows of a block after some steps of L-BFGS each, none of which lowers the bound.

    Parameters
    ----------
    block : Block
    rows : Rows or FactoredRows
        Those that the block was made at.
    max_iter : int
    tol : float
        A row is left alone once its slope promises no greater increase.
    """
    seen, points = np.flatnonzero(np.diff(block.pairs.ends)), block.points
    found = maximise_many(
        lambda numbers, at: block.evaluate(seen[numbers], at),
        packed(rows, points)[seen],
        block.scale(seen),
        max_iter=max_iter,
        tol=tol,
        longest=np.repeat([np.inf, _FARTHEST], [len(points), np.sum(~points)]) if isinstance(rows, Rows) else None,
    )
    # Rows without a cell have their prior, and points among them its mode, or stay where a flat one has none.
    known = np.isfinite(block.prior.variance)
    mean = np.where(known, block.prior.mean, rows.mean)
    with np.errstate(divide="ignore"):
        # Independent entries are those given all others.
        unseen = Rows(mean, np.where(points | ~known, 0.0, 1.0 / block.prior.precision))
    out = unseen if isinstance(rows, Rows) else factored(unseen)
    covariance = block.prior.covariance
    if isinstance(out, FactoredRows) and covariance is not None and not points[0]:
        out.factor[:, : len(covariance), : len(covariance)] = np.linalg.cholesky(covariance)
    for part, raised in zip(out, unpacked(found.points, points, type(rows))):
        part[seen] = raised
    return out


def best_rows(bound: BilinearBound, prior: BilinearPrior, sides: Sides, own: int) -> BestRows:
    """Return the rows of one matrix at their maxima, from where the bound is finite.

    Parameters
    ----------
    bound : BilinearBound
    prior : BilinearPrior
    sides : pair of Rows or FactoredRows
    own : int
        Which side is raised.
    """
    both = list(sides)
    for left in reversed(range(_ROUNDS)):
        # The bounds of some cells are parabolas and tangents that touch them where the block is made.
        block = bound.block(prior, (both[0], both[1]), own)
        every = np.arange(len(both[own].mean))
        value, gradient = block.evaluate(every, packed(both[own], block.points))
        promised = 0.5 * np.einsum("ip,ip->i", gradient, scaled(block.scale(every), every, gradient))
        converged = promised <= _PROMISED * (1 + np.diff(block.pairs.ends))
        if converged.all() or not left:
            break
        both[own] = raised_rows(block, both[own], max_iter=_STEPS, tol=_PROMISED)
    return BestRows(both[own], value, converged)
