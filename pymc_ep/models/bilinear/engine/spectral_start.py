"""Start of the ascent of a bilinear bound: singular vectors of its gradient, for any order of rows and columns alike.

At inner products of zero the bound rises fastest along the leading singular vectors of the matrix of its derivatives in
the predictors, a pair of vectors for each column of the two matrices. The start makes small steps along these vectors,
in units of the likelihood and of the priors, after the biases are at their best; otherwise the first pair would
describe biases.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

from pymc_ep.models.bilinear.engine.block_ascent import improved_rows
from pymc_ep.models.bilinear.engine.bound import BilinearBound, Sides
from pymc_ep.models.bilinear.engine.row_parameters import FIRST_VARIANCE
from pymc_ep.models.bilinear.engine.values import BilinearPrior, MatrixPrior
from pymc_ep.models.bilinear.kernel import Rows
from pymc_ep.numerics.factorisation.sparse_plus_low_rank import LeadingPairs

__all__ = ["first_sides", "sides_without_factors"]

_FIRST_SPREAD = 0.1
"""Root mean square of the first means of the leading column, in square roots of `_scales`. Means of zero would have a
gradient of zero."""
_LARGEST = 3.0
"""Limit of an entry of a singular vector, in root mean squares of its entries. The leading vectors of counts may belong
to single rows: from such vectors the bound of listening counts was 30 nats lower after seventy steps."""
_BIAS_STEPS, _BIAS_TOL = 5, 1e-3
"""Largest number of L-BFGS steps of the biases before the factors, and the predicted rise, nats per row, at which these
steps end. They only have to remove the pattern of the biases from the gradient."""
_DENSE = 2**18
"""Largest number of entries of a matrix whose singular vectors are computed from its dense form, in a tenth of a
second."""
_QUARTERINGS = 40
"""Largest number of trial sizes of a start, each a quarter of the one before, down to 1e-24 of the first: far below any
effect on the bound."""
_TIE = 1e-8
"""Difference of singular values, relative to the largest, below which they are tied: rounding decides on their
vectors."""
_VECTOR_TOL = 1e-2
"""Relative error of squared singular values where a matrix is too large for its dense form. Directions near the leading
ones serve as well."""


def sides_without_factors(bound: BilinearBound, prior: BilinearPrior) -> Sides:
    """Return both matrices at their prior means, 0 under flat priors, with variances at which the bound is finite.

    If rates overflow there, means and variances are quartered until the bound is finite.
    """
    d, scales, widest = bound.n_factors, _scales(bound, prior), _width(bound, prior) ** 2
    sides = tuple(zip((prior.left, prior.right), bound.points, scales))

    def at(share: float) -> Sides:
        def side(matrix_prior: MatrixPrior, points: np.ndarray, scale: float) -> Rows:
            mean = share * np.where(np.isfinite(matrix_prior.variance), matrix_prior.mean, 0.0)
            most = share * FIRST_VARIANCE * np.where(np.arange(len(points)) < d, scale, widest)
            return Rows(mean, np.where(points, 0.0, np.minimum(most, matrix_prior.variance)))

        return side(*sides[0]), side(*sides[1])

    return _first_finite(bound, prior, at)


def first_sides(bound: BilinearBound, prior: BilinearPrior, seed: int = 0) -> Sides:
    """Return both matrices at the start.

    Parameters
    ----------
    bound : BilinearBound
    prior : BilinearPrior
        Prior at the first hyperparameters.
    seed : int
        With 0, the columns are singular vectors. With any other number they are random combinations of twice as many
        vectors, different for each matrix: combinations of as many vectors as columns all led to one lower mode of
        softplus counts.
    """
    d, scales = bound.n_factors, _scales(bound, prior)
    sides = _with_biases(bound, prior, sides_without_factors(bound, prior))
    pairs = _leading(bound, bound.derivatives(prior, sides).of_offset, 2 * d if seed else d)
    if not pairs.values.size:
        return sides
    # Roots on both sides, so that the product of a pair of columns is in proportion to its singular value.
    weights = np.sqrt(pairs.values / pairs.values[0])
    turns = [np.eye(len(weights), d)] * 2
    if seed:
        turns = list(np.random.default_rng(seed).standard_normal((2, len(weights), d)))
    moves = [
        np.minimum(_FIRST_SPREAD * np.sqrt(scale), np.sqrt(matrix_prior.variance[:, :d]))
        * (_bounded(vectors) * weights @ turn)
        for matrix_prior, vectors, turn, scale in zip(
            (prior.left, prior.right), (pairs.left, pairs.right), turns, scales
        )
    ]

    def at(share: float) -> Sides:
        left, right = (
            Rows(np.hstack([rows.mean[:, :d] + share * move, rows.mean[:, d:]]), cast(Rows, rows).variance)
            for rows, move in zip(sides, moves)
        )
        return left, right

    return _first_finite(bound, prior, at)


def _first_finite(bound: BilinearBound, prior: BilinearPrior, at: Callable[[float], Sides]) -> Sides:
    """Return `at` of the largest share, among 1, 1/4, 1/16, ..., at which the matrices have a finite bound."""
    for k in range(_QUARTERINGS):
        sides = at(0.25**k)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if np.isfinite(bound.value(prior, sides)):
                break
    return sides


def _bounded(vectors: np.ndarray) -> np.ndarray:
    """Return singular vectors, (m, k), scaled to a root mean square of 1, with entries smoothly bounded."""
    # x / sqrt(1 + (x / c)^2), at most c; the entries x of a unit vector times sqrt(m) have a root mean square of 1.
    columns = np.sqrt(len(vectors)) * vectors
    return columns / np.hypot(1.0, columns / _LARGEST)


def _with_biases(bound: BilinearBound, prior: BilinearPrior, sides: Sides) -> Sides:
    """Return the matrices with their biases improved, and factors as they are."""
    improved, d = list(sides), bound.n_factors
    for side in bound.order:
        rows = sides[side]
        if rows.mean.shape[1] > d:
            block = bound.block(prior, (improved[0], improved[1]), side)
            ascended = cast(Rows, improved_rows(block, rows, max_iter=_BIAS_STEPS, tol=_BIAS_TOL))
            mean, variance = rows.mean.copy(), cast(Rows, rows).variance.copy()
            mean[:, d:], variance[:, d:] = ascended.mean[:, d:], ascended.variance[:, d:]
            improved[side] = Rows(mean, variance)
    return improved[0], improved[1]


def _leading(bound: BilinearBound, gradient: np.ndarray, wanted: int) -> LeadingPairs:
    """Return the leading `wanted` or fewer pairs of singular vectors of the matrix of bounded derivatives, (n,)."""
    pairs, some = bound.pairs[0], np.abs(gradient[gradient != 0.0])
    shape = len(pairs.ends) - 1, len(bound.pairs[1].ends) - 1
    wanted = min(wanted, *shape) if some.size and np.isfinite(some).all() else 0
    if not wanted:
        return LeadingPairs(np.zeros((shape[0], 0)), np.zeros(0), np.zeros((shape[1], 0)))
    # Bounded by their median size. A few large counts would else be the leading vectors, with bounds that are 400 nats
    # lower on listening counts.
    values = (gradient / np.hypot(np.median(some), gradient))[pairs.order]
    # A copy: operations of SciPy's sort indices and add up repeated cells in place.
    matrix = scipy.sparse.csr_array((values, pairs.others, pairs.ends), shape=shape, copy=True)
    if shape[0] * shape[1] <= _DENSE or min(shape) == 1:
        left, sizes, right = np.linalg.svd(matrix.toarray(), full_matrices=False)
    else:
        # A first vector of sums over rows or columns makes all iterates those of the data, in whatever order.
        at = pairs.own if shape[0] <= shape[1] else pairs.others
        sums = np.bincount(at, values * np.abs(values) + np.abs(values), minlength=min(shape))
        wanted = min(wanted, min(shape) - 1)
        left, sizes, right = scipy.sparse.linalg.svds(matrix, k=wanted, v0=sums, tol=_VECTOR_TOL)
    order = np.argsort(-sizes, kind="stable")
    left, sizes, right = left[:, order], sizes[order], right[order].T
    _settle_ties(left, sizes, right)
    kept = np.flatnonzero(sizes[:wanted] > np.finfo(float).eps * max(shape) * sizes[0])
    left, right = left[:, kept], right[:, kept]
    # The larger entries are positive, so that signs do not depend on the order either.
    signs = np.where((left**3).sum(axis=0) + (right**3).sum(axis=0) < 0.0, -1.0, 1.0)
    return LeadingPairs(left * signs, sizes[kept], right * signs)


def _settle_ties(left: np.ndarray, sizes: np.ndarray, right: np.ndarray) -> None:
    """Choose, in place, vectors, (m, k) and (n, k), of equal singular values so that the order of rows does not matter.

    The first vector is the one nearest to a single row, the second the one nearest to another row, and so on. Rows that
    a symmetry of the matrix exchanges lead to the same bound, whichever comes first. The vectors are then mixed, as
    ascents from vectors of single rows end at saddles.
    """
    ends = np.flatnonzero(sizes[:-1] - sizes[1:] > _TIE * sizes[0]) + 1
    for tied in np.split(np.arange(len(sizes)), ends):
        if (k := len(tied)) > 1:
            nearest = scipy.linalg.qr(np.vstack([left[:, tied], right[:, tied]]).T, pivoting=True, mode="economic")[0]
            turn = nearest @ scipy.linalg.qr(np.random.default_rng(0).standard_normal((k, k)))[0]
            left[:, tied], right[:, tied] = left[:, tied] @ turn, right[:, tied] @ turn


def _scales(bound: BilinearBound, prior: BilinearPrior) -> tuple[float, float]:
    """Return the units of the variances of both matrices' factors, whose product is the unit of predictors' variances.

    Their ratio is the ratio of prior variances. If one prior is flat, the unit of the other matrix is its prior
    variance.
    """
    width, d = _width(bound, prior), bound.n_factors
    first, second = (
        float(np.sqrt(np.mean(matrix_prior.variance[:, :d]))) for matrix_prior in (prior.left, prior.right)
    )
    if np.isinf(first) and np.isinf(second):
        return width, width
    first, second = (width / second if np.isinf(first) else first), (width / first if np.isinf(second) else second)
    # (w s1 / s2) (w s2 / s1) = w^2, with prior standard deviations s1 and s2, and the unit w of predictors.
    return width * first / second, width * second / first


def _width(bound: BilinearBound, prior: BilinearPrior) -> float:
    """Return the unit of predictors: k^(-1/2), with the likelihoods' mean curvature k; 1 for rates e^f."""
    site, zeros = bound.cells.site, np.zeros_like(bound.cells.y)
    if site.spread == "log_mean_exp":
        return 1.0
    # The bound falls by k / 2 Var f, with the mean curvature k of likelihoods; their width is k^-1/2.
    curvature = -2.0 * site.bounded(bound.cells.y, prior.offset, zeros, *prior.parameters).of_spread
    return float(1.0 / np.sqrt(curvature.mean()))
