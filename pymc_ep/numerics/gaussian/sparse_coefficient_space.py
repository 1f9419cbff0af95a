"""Gaussian posteriors in coefficient space where each predictor depends on few coefficients, as in grouped data.

The algebra follows `coefficient_space`, with R^T in compressed rows. Where most coefficients couple with few others
B is factored by blocks; otherwise B and its factor are dense.
"""

from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from pymc_ep.numerics.backend.cholesky import inverse_factor
from pymc_ep.numerics.backend.namespace import Array, jax_device, on_host, to_jax
from pymc_ep.numerics.gaussian.block_elimination import BlockFactor, Blocks, blocks_of, factored
from pymc_ep.numerics.gaussian.coefficient_space import (
    CoefficientPosterior,
    FactorPrior,
    dependent,
    rounding_of_pivots,
    shifted_posterior,
    widened,
)
from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.sparse.row_pairs import count_row_pairs, row_pairs

__all__ = ["LEAST_BLOCKS", "BlockPosterior", "EntryPattern", "SparseFactorPrior"]

_TOGETHER = 512
"""Number of predictors in a part of `SparseFactorPrior.apart`, exceeded by one block at most: larger parts cost more
pairs of predictors, smaller parts more calls."""
LEAST_BLOCKS = 128
"""Least number of coefficients that are divided into blocks: with fewer, calls take longer than dense arithmetic."""
_PAIRS = 2**22
"""Largest number of pairs of entries that are listed, 96 MiB. With more pairs SciPy's product of sparse matrices is as
fast and needs no list; its overhead of 100 microseconds does not matter there."""


class EntryPattern:
    """Where R^T, (n, p), has entries: shared by all priors that differ in their values alone.

    Parameters
    ----------
    matrix : csr_array, (n, p)
        A matrix with these entries, of any values.
    """

    def __init__(self, matrix: scipy.sparse.csr_array):
        self._matrix = matrix
        self.predictors, self.coefficients = matrix.shape
        self.column = matrix.indices
        """The coefficient of each entry, (k,)."""
        self.starts = matrix.indptr
        """Where the entries of each predictor begin, (n + 1,)."""
        self.row = np.repeat(np.arange(self.predictors), np.diff(matrix.indptr))
        """The predictor of each entry, (k,)."""
        self._subset: tuple[np.ndarray, tuple[EntryPattern, np.ndarray]] | None = None
        self.placed: tuple[SparseFactorPrior, str, Any] | None = None
        """The prior that was placed on a device last, this device, and the prior's arrays there."""

    def subset(self, index: np.ndarray) -> "tuple[EntryPattern, np.ndarray]":
        """Return the pattern of the predictors at `index`, (m,), and the indices of its entries in this pattern.

        The result for the last array `index` is cached.
        """
        if self._subset is None or self._subset[0] is not index:
            numbered = self.filled(np.arange(len(self.column), dtype=float))[index]
            self._subset = index, (EntryPattern(numbered), numbered.data.astype(np.intp))
        return self._subset[1]

    def filled(self, values: np.ndarray) -> scipy.sparse.csr_array:
        """Return R^T, (n, p), with the entries `values`, (k,)."""
        # The constructor would check the pattern again, which takes longer than most products with it.
        out = copy(self._matrix)
        out.data = values
        return out

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Pairs of entries of one predictor: indices of both entries, and of the element of B that they add to.

        B, (p, p), is ravelled, and the element is in its upper triangle. None where there are too many pairs to list.
        """
        if count_row_pairs(self.starts) > _PAIRS:
            return None
        first, second = row_pairs(self.starts)
        low = np.minimum(self.column[first], self.column[second]).astype(int)
        high = np.maximum(self.column[first], self.column[second])
        return first, second, low * self.coefficients + high

    @cached_property
    def blocks(self) -> Blocks | None:
        """The division of the coefficients into blocks and a border; None where B is dense."""
        return blocks_of(self._matrix) if self.coefficients >= LEAST_BLOCKS else None

    def gram(self, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return R diag(weights) R^T, (p, p), valid in its upper triangle."""
        if self._pairs is None:
            return (self.filled(values).T @ self.filled(values * weights[self.row])).toarray("C")
        first, second, place = self._pairs
        # [R diag(w) R^T]_jk = sum_i w_i R_ji R_ki over predictors i, j <= k.
        products = values[first] * values[second] * weights[self.row[first]]
        p = self.coefficients
        return np.bincount(place, products, minlength=p * p).reshape(p, p)


class BlockPosterior(CoefficientPosterior):
    """`CoefficientPosterior` with a `BlockFactor` as its whitener."""

    whitener: BlockFactor

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return B^{-1} b, (p,)."""
        return self.whitener.transposed_times(self.whitener.times(b))

    def remaining_variance(self, cross: Any, prior_variance: np.ndarray) -> np.ndarray:
        """Return the posterior variances, (d,), of x = C v, for C = `cross`, (d, p), dense or sparse."""
        sparse = scipy.sparse.issparse(cross)
        if sparse and (rows := self.whitener.blocks.rows(cross)).single:
            # c^T B^-1 c = |W c|^2 for each row c of C.
            return self.whitener.squares(rows, cross.data)
        out = np.empty(cross.shape[0])
        for chunk in chunks(*cross.shape):
            half = self.whitener.times((cross[chunk].toarray() if sparse else cross[chunk]).T)
            out[chunk] = np.einsum("ij,ij->j", half, half)
        return out

    def draw_coordinates(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return posterior draws of v, (size, p)."""
        # v = E v + W^T z has the covariance W^T W = B^-1.
        normal = rng.standard_normal((size, len(self.coordinates)))
        return self.coordinates + self.whitener.transposed_times(normal.T).T

    def log_ratio(self, draws: np.ndarray, prior_precision: np.ndarray) -> np.ndarray:
        """Return the log ratio, (s,), of posterior to prior density at draws of v, (s, p).

        The density of a flat prior counts as (2 pi)^{-1/2}.
        """
        # (v - E v)^T B (v - E v) = |L^T (v - E v)|^2.
        normal = self.whitener.root_times((draws - self.coordinates).T)
        squares = prior_precision @ draws.T**2 - np.einsum("ij,ij->j", normal, normal)
        return 0.5 * squares + 0.5 * float(self.log_det)


class SparseFactorPrior(NamedTuple):
    """`FactorPrior` with R^T in compressed sparse rows.

    Attributes
    ----------
    values : ndarray, (k,)
        Entries of R^T.
    pattern : EntryPattern
        Where R^T has these entries.
    precision : ndarray, (p,)
        1, or 0 where the prior of a coefficient is flat.
    """

    values: np.ndarray
    pattern: EntryPattern
    precision: np.ndarray

    @property
    def design(self) -> scipy.sparse.csr_array:
        """R^T, (n, p)."""
        return self.pattern.filled(self.values)

    def variances(self) -> np.ndarray:
        """Return the prior variances, (n,), with a flat coefficient counted as standard normal."""
        return np.bincount(self.pattern.row, self.values**2, minlength=self.pattern.predictors)

    def covariance_matrix(self) -> np.ndarray:
        """Return K, (n, n), with flat coefficients counted as standard normal."""
        transposed = self.design
        return (transposed @ transposed.T).toarray()

    def is_positive_semidefinite(self) -> bool:
        """Return True: the covariance is a Gram matrix R^T R."""
        return True

    def regular(self) -> "SparseFactorPrior":
        """Return this prior with wide Gaussians in place of flat priors, for a first iterate."""
        if self.precision.all():
            return self
        column = self.pattern.column
        squares = np.bincount(column, self.values**2, minlength=len(self.precision))
        sd = widened(squares, self.pattern.predictors, self.precision)
        return self._replace(values=self.values * sd[column], precision=np.ones_like(sd))

    def signatures(self) -> np.ndarray:
        """Return two numbers for each predictor, (n, 2), equal for identical predictors."""
        row, column, n = self.pattern.row, self.pattern.column, self.pattern.predictors
        weights = np.random.default_rng(0).standard_normal((2, len(self.precision)))
        return np.stack([np.bincount(row, self.values * weight[column], minlength=n) for weight in weights], axis=1)

    def subset(self, index: np.ndarray) -> "SparseFactorPrior":
        """Return the prior of the m predictors at `index`, (m,)."""
        pattern, entries = self.pattern.subset(index)
        return SparseFactorPrior(self.values[entries], pattern, self.precision)

    def cotangent_of_subset(self, index: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Return the derivative in `values`, (k,), from the derivative in the `values` of ``subset(index)``."""
        out = np.zeros_like(self.values)
        out[self.pattern.subset(index)[1]] = cotangent
        return out

    def undetermined(self) -> np.ndarray:
        """Return indices of a smallest set of flat coefficients without which the others' effects are independent."""
        flat = np.flatnonzero(self.precision == 0)
        columns = self.design[:, flat]
        return flat[dependent((columns.T @ columns).toarray())]

    def not_finite(self) -> tuple[float, int, int] | None:
        """Return the first element of R that is not finite, its coefficient and predictor; None if all are finite."""
        bad = np.flatnonzero(~np.isfinite(self.values))
        if not bad.size:
            return None
        return float(self.values[bad[0]]), int(self.pattern.column[bad[0]]), int(self.pattern.row[bad[0]])

    def posterior(
        self, mean: Array, shift: Array, precision: Array, *, log_concave: bool = False, with_variances: bool = True
    ) -> CoefficientPosterior:
        """Return the posterior under Gaussian sites.

        For arguments see `pymc_ep.numerics.gaussian.observation_space.DensePrior.posterior`.
        """
        if (blocks := self.pattern.blocks) is not None:
            rows = blocks.rows(self.design)
            factor, log_det, proper, diagonal = factored(rows, self.values, precision, self.precision)
            rounding = rounding_of_pivots(diagonal, factor.diagonal)
            computed = with_variances and proper
            variance = factor.squares(rows, self.values) if computed else np.full(len(mean), np.nan)
            solved = variance, factor, log_det, proper, rounding
            return self._shifted_from(BlockPosterior, *solved, mean, shift, precision)
        gram = self.pattern.gram(self.values, precision)
        gram[np.diag_indices_from(gram)] += self.precision
        diagonal = gram.diagonal().copy()
        whitener, log_det, proper = inverse_factor(gram)
        variance = np.full(len(mean), np.nan)
        # V_i = |W r_i|^2, r_i^T a row of R^T.
        for predictors, half in self._times(whitener.T) if with_variances else ():
            variance[predictors] = np.einsum("ij,ij->i", half, half)
        solved = variance, whitener, log_det, proper, rounding_of_pivots(diagonal, whitener.diagonal())
        return self._shifted_from(CoefficientPosterior, *solved, mean, shift, precision)

    def _shifted_from(
        self,
        kind: type[CoefficientPosterior],
        variance: np.ndarray,
        whitener: Any,
        log_det: float,
        proper: bool,
        rounding: float,
        mean: Array,
        shift: Array,
        precision: Array,
    ) -> CoefficientPosterior:
        zero, none = np.zeros_like(variance), np.zeros(len(self.precision))
        prior = kind(mean, variance, 1.0 - precision * variance, zero, log_det, proper, none, whitener, rounding)
        return self.shifted(prior, mean, shift, precision)

    def shifted(
        self, posterior: CoefficientPosterior, mean: Array, shift: Array, precision: Array
    ) -> CoefficientPosterior:
        """Return the posterior for another `shift` and the same `precision`, without a new factorisation."""
        return shifted_posterior(self.design, self.precision, posterior, np.asarray(mean), shift, precision)

    def on_device(self) -> Any:
        """Return this prior in JAX arrays, dense where there are no blocks; cached for the last prior and device."""
        placed, device = self.pattern.placed, jax_device()
        if placed is None or placed[0] is not self or placed[1] != device:
            if (blocks := self.pattern.blocks) is None:
                prior = FactorPrior(to_jax(self.design.toarray().T), to_jax(self.precision))
            else:
                place = import_module("pymc_ep.numerics.gaussian.block_elimination_jax").blocks_on_device
                prior = place(blocks.rows(self.design), self.values, self.precision)
            self.pattern.placed = placed = self, device, prior
        return placed[2]

    def posterior_on_host(self, posterior: Any) -> Any:
        """Return a posterior of the prior ``on_device()`` in NumPy arrays, as a posterior of this prior."""
        whitener, host_posterior = posterior.whitener, on_host(posterior)
        if (blocks := self.pattern.blocks) is None:
            return host_posterior
        coordinates = np.empty_like(host_posterior.coordinates)
        coordinates[blocks.order] = host_posterior.coordinates
        convert = import_module("pymc_ep.numerics.gaussian.block_elimination_jax").factor_on_host
        return BlockPosterior(*host_posterior._replace(coordinates=coordinates, whitener=convert(blocks, whitener)))

    def energy(self, posterior: CoefficientPosterior, mean: Array) -> Array:
        """Return the sum of squares of E[v] over coefficients without flat priors.

        It equals a^T (m - m0), in which digits cancel where the prior is wide.
        """
        return (self.precision * posterior.coordinates**2).sum()

    def rounding(self, posterior: CoefficientPosterior) -> float:
        """Return the relative rounding error of posterior standard deviations, which vague priors do not increase."""
        return posterior.rounding

    def posterior_rows(self, posterior: CoefficientPosterior) -> Callable[..., np.ndarray]:
        """Return a function ``block(rows, columns)`` of R^T B^{-1} R; see the protocol."""
        if isinstance(posterior, BlockPosterior):
            return _block_rows(posterior.whitener, self.design)
        half = self.design @ posterior.whitener.T
        return lambda rows, columns=slice(None): half[rows] @ half[columns].T

    def apart(self, posterior: CoefficientPosterior) -> tuple[list[np.ndarray], np.ndarray] | None:
        """Return a division of the predictors into parts that only the border correlates; None without blocks.

        Returns
        -------
        parts : list of ndarray of int
            Indices of the predictors of each part. All predictors of one block are in one part.
        shared : ndarray, (n,)
            Term of each posterior variance that comes from the border. The covariance of two predictors in different
            parts is at most the root of the product of their two terms.
        """
        if not isinstance(posterior, BlockPosterior):
            return None
        rows = posterior.whitener.blocks.rows(self.design)
        halves = posterior.whitener.halves(rows, self.values)
        shared = np.concatenate([np.einsum("nt,nt->n", border, border) for _, _, border in halves])
        order = np.argsort(rows.block, kind="stable")
        begins = np.flatnonzero(np.diff(rows.block[order], prepend=-2))
        ends = np.unique(begins[np.searchsorted(begins, np.arange(_TOGETHER, begins[-1] + 1, _TOGETHER))])
        return np.split(order, ends), shared

    def cotangent(self, posterior: CoefficientPosterior, precision: Array) -> np.ndarray:
        """Return d log Z / d values, (k,): the elements of E[v] a^T - B^{-1} R Pi at the entries of R."""
        row, column, starts = self.pattern.row, self.pattern.column, self.pattern.starts
        out = posterior.coordinates[column] * posterior.weights[row]
        if isinstance(posterior, BlockPosterior):
            solved = posterior.whitener.solved_entries(posterior.whitener.blocks.rows(self.design), self.values)
            return out - solved * precision[row]
        inverse = posterior.whitener.T @ posterior.whitener
        for predictors, product in self._times(inverse):
            entries = slice(starts[predictors.start], starts[predictors.stop])
            out[entries] -= product[row[entries] - predictors.start, column[entries]] * precision[row[entries]]
        return out

    def _times(self, matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of predictors, and the rows of R^T M for each, where M = `matrix`, (p, p), is dense."""
        transposed, n = self.design, self.pattern.predictors
        matrix = np.ascontiguousarray(matrix)
        for predictors in chunks(n, len(self.precision)):
            yield predictors, (transposed if predictors == slice(0, n) else transposed[predictors]) @ matrix


def _block_rows(factor: BlockFactor, transposed: scipy.sparse.csr_array) -> Callable[..., np.ndarray]:
    """Return a function ``block(rows, columns)`` of R^T B^{-1} R, for `transposed` = R^T; see the protocol."""
    rows = factor.blocks.rows(transposed)
    n, widest = transposed.shape[0], max(group.shape[1] for group in factor.blocks.members)
    outer, inner = np.empty((n, len(factor.blocks.border))), np.zeros((n, widest))
    for row_slice, by_size, border in factor.halves(rows, transposed.data):
        outer[row_slice] = border
        for inside, _, half in by_size:
            inner[row_slice][inside, : half.shape[1]] = half

    def of(index: Any, columns: Any = slice(None)) -> np.ndarray:
        # r_i^T B^-1 r_j = (W r_i)^T (W r_j): the border's part, and within one block the block's part.
        same = rows.block[index][:, None] == rows.block[columns]
        return outer[index] @ outer[columns].T + np.where(same, inner[index] @ inner[columns].T, 0.0)

    return of
