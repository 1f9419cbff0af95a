"""Posteriors under JAX of coefficients in blocks, by the algebra of `block_elimination`.

All blocks of one size are in one array.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

from pymc_ep.numerics.backend.cholesky import inverse_factor
from pymc_ep.numerics.gaussian.block_elimination import BlockFactor, Blocks, Rows
from pymc_ep.numerics.gaussian.coefficient_space import CoefficientPosterior, rounding_of_pivots, shifted_posterior

__all__ = ["BlocksOnDevice", "blocks_on_device", "factor_on_host"]


class DeviceFactor(NamedTuple):
    """`BlockFactor` with the coupling Y as one array, (m, k, t), for the m blocks of each size k."""

    inner: tuple[jax.Array, ...]
    coupling: tuple[jax.Array, ...]
    border: jax.Array

    def solve(self, b: jax.Array) -> jax.Array:
        """Return B^{-1} b, (p,), for b in the order of `Blocks.order`."""
        *pieces, below = _split(self, b)
        # u_D = W_D b_D, then (B^-1 b)_S = W_S^T W_S (b_S - Y^T u_D), (B^-1 b)_D = W_D^T (u_D - Y (B^-1 b)_S).
        above = [jnp.einsum("mij,mj->mi", w, x) for w, x in zip(self.inner, pieces)]
        coupled = sum((jnp.einsum("mkt,mk->t", y, x) for y, x in zip(self.coupling, above)), jnp.zeros_like(below))
        below = self.border.T @ (self.border @ (below - coupled))
        above = [x - y @ below for y, x in zip(self.coupling, above)]
        return _joined([jnp.einsum("mji,mj->mi", w, x) for w, x in zip(self.inner, above)], below)


class DevicePosterior(CoefficientPosterior):
    """`CoefficientPosterior` with a `DeviceFactor` as its whitener, and coordinates in the order of `Blocks.order`."""

    whitener: DeviceFactor

    def solve(self, b: jax.Array) -> jax.Array:
        """Return B^{-1} b, (p,)."""
        return self.whitener.solve(b)


class BlocksOnDevice(NamedTuple):
    """The predictors m0 + R^T v, where each predictor depends on coefficients of one block at most, and of the border.

    Attributes
    ----------
    rows, block : tuple of array of int
        For each size k of m blocks, the predictors that depend on such a block, and the block's number, 0, ..., m - 1.
    entries : tuple of array, (predictors, k)
        Rows of R^T for these predictors, in the columns of the block.
    outer : array, (n, t)
        R^T in the columns of the border.
    inner : tuple of array, (m, k)
        Prior precision of the coefficients in blocks.
    border : array, (t,)
        Prior precision of the coefficients in the border.
    """

    rows: tuple[jax.Array, ...]
    block: tuple[jax.Array, ...]
    entries: tuple[jax.Array, ...]
    outer: jax.Array
    inner: tuple[jax.Array, ...]
    border: jax.Array

    @property
    def T(self) -> "_Transposed":
        """R, for products with vectors."""
        return _Transposed(self)

    def __matmul__(self, x: jax.Array) -> jax.Array:
        """Return R^T x, (n,), for x, (p,), in the order of `Blocks.order`."""
        *pieces, below = _split(self, x)
        out = self.outer @ below
        for rows, block, entries, piece in zip(self.rows, self.block, self.entries, pieces):
            out = out.at[rows].add((entries * piece[block]).sum(axis=1))
        return out

    def variances(self) -> jax.Array:
        """Return the prior variances, (n,), with a flat coefficient counted as standard normal."""
        out = (self.outer**2).sum(axis=1)
        for rows, entries in zip(self.rows, self.entries):
            out = out.at[rows].add((entries**2).sum(axis=1))
        return out

    def posterior(
        self, mean: jax.Array, shift: jax.Array, precision: jax.Array, *, log_concave: bool = False
    ) -> DevicePosterior:
        """Return the posterior under Gaussian sites.

        For arguments see `pymc_ep.numerics.gaussian.observation_space.DensePrior.posterior`.
        """
        factor, log_det, proper, diagonal = self._factored(precision)
        whitened = _joined([jnp.diagonal(w, axis1=1, axis2=2) for w in factor.inner], jnp.diagonal(factor.border))
        variance, zero = self._squares(factor), jnp.zeros_like(shift)
        rounding = rounding_of_pivots(diagonal, whitened)
        prior = DevicePosterior(
            mean,
            variance,
            1.0 - precision * variance,
            zero,
            log_det,
            proper,
            jnp.zeros_like(diagonal),
            factor,
            rounding,
        )
        return self.shifted(prior, mean, shift, precision)

    def _factored(self, weights: jax.Array) -> tuple[DeviceFactor, jax.Array, jax.Array, jax.Array]:
        inner, coupling, diagonals, log_det, proper = [], [], [], jnp.zeros(()), jnp.array(True)
        scaled = self.outer * weights[:, None]
        # F = R_S diag(w) R_S^T + prior precision; less Y^T Y, size by size, it is S.
        schur = scaled.T @ self.outer + jnp.diag(self.border)
        of_border = jnp.diagonal(schur)
        for rows, block, entries, added in zip(self.rows, self.block, self.entries, self.inner):
            (m, k), weighted = added.shape, entries * weights[rows, None]
            # A column of a block at a time: products with all would take k times the memory.
            gram = jnp.stack([_summed(weighted * entries[:, i, None], block, m) for i in range(k)], axis=1)
            cross = jnp.stack([_summed(entries[:, i, None] * scaled[rows], block, m) for i in range(k)], axis=1)
            matrices = gram + added[:, :, None] * jnp.eye(k)
            diagonals.append(jnp.diagonal(matrices, axis1=1, axis2=2))
            roots = jnp.linalg.cholesky(matrices)
            proper &= jnp.isfinite(roots).all()
            log_det += 2.0 * jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)).sum()
            # W_D = L_D^-1 and Y = W_D C.
            inner.append(jsl.solve_triangular(roots, jnp.broadcast_to(jnp.eye(k), roots.shape), lower=True))
            coupling.append(inner[-1] @ cross)
            schur -= jnp.einsum("mkt,mku->tu", coupling[-1], coupling[-1])
        border, also, definite = inverse_factor(schur) if len(schur) else (schur, 0.0, True)
        factor = DeviceFactor(tuple(inner), tuple(coupling), border)
        return factor, log_det + also, proper & definite, _joined(diagonals, of_border)

    def _squares(self, factor: DeviceFactor) -> jax.Array:
        """Return |W r|^2 for the rows r of R^T, (n,)."""
        outer, squares = self.outer, jnp.zeros(len(self.outer))
        for rows, block, entries, w, y in zip(self.rows, self.block, self.entries, factor.inner, factor.coupling):
            # W r = (W_D r_D, W_S (r_S - Y_D^T W_D r_D)), with the rows Y_D of the block.
            half = jnp.einsum("nij,nj->ni", w[block], entries)
            squares = squares.at[rows].add((half**2).sum(axis=1))
            for i in range(half.shape[1]):
                outer = outer.at[rows].add(-half[:, i, None] * y[block, i])
        return squares + ((outer @ factor.border.T) ** 2).sum(axis=1)

    def shifted(
        self, posterior: DevicePosterior, mean: jax.Array, shift: jax.Array, precision: jax.Array
    ) -> DevicePosterior:
        """Return the posterior for another `shift` and the same `precision`, without a new factorisation."""
        given = _joined(self.inner, self.border)
        return shifted_posterior(self, given, posterior, mean, shift, precision)  # type: ignore[return-value]

    def energy(self, posterior: DevicePosterior, mean: jax.Array) -> jax.Array:
        """Return the sum of squares of E[v] over all coefficients with proper priors."""
        return (_joined(self.inner, self.border) * posterior.coordinates**2).sum()

    def rounding(self, posterior: DevicePosterior) -> jax.Array:
        """Return the relative rounding error of posterior standard deviations."""
        return posterior.rounding


class _Transposed(NamedTuple):
    design: BlocksOnDevice

    def __matmul__(self, weights: jax.Array) -> jax.Array:
        """Return R w, (p,), for w, (n,)."""
        design = self.design
        sums = [
            _summed(entries * weights[rows, None], block, len(added))
            for rows, block, entries, added in zip(design.rows, design.block, design.entries, design.inner)
        ]
        return _joined(sums, design.outer.T @ weights)


def _summed(values: jax.Array, block: jax.Array, m: int) -> jax.Array:
    return jax.ops.segment_sum(values, block, num_segments=m)


def _joined(pieces: "list[jax.Array] | tuple[jax.Array, ...]", border: jax.Array) -> jax.Array:
    return jnp.concatenate([*(piece.ravel() for piece in pieces), border])


def _split(shapes: BlocksOnDevice | DeviceFactor, x: jax.Array) -> list[jax.Array]:
    """Return x, (p,), in the order of `Blocks.order`, as an array, (m, k), for each size, and the border, (t,)."""
    sizes = [array.shape[:2] for array in shapes.inner]
    *pieces, border = jnp.split(x, np.cumsum([m * k for m, k in sizes]))
    return [*(array.reshape(size) for array, size in zip(pieces, sizes)), border]


def blocks_on_device(rows: Rows, values: np.ndarray, precision: np.ndarray) -> BlocksOnDevice:
    """Return the prior on JAX's device, from the entries `values` of R^T, at `rows`, and prior precisions, (p,)."""
    blocks, inner_entries, outer = rows.blocks, rows.inner(values), rows.outer(values)
    ordered = precision[blocks.order]
    at, block, entries = zip(*inner_entries)
    return jax.tree.map(
        jnp.asarray,
        BlocksOnDevice(
            at,
            block,
            entries,
            outer if rows.dense else outer.toarray(),
            tuple(ordered[places].reshape(m, k) for places, m, k in blocks.sizes),
            ordered[blocks.inner :],
        ),
    )


def factor_on_host(blocks: Blocks, factor: DeviceFactor) -> BlockFactor:
    """Return a factor on the device as a `BlockFactor` of NumPy arrays."""
    t = len(blocks.border)
    coupling = np.concatenate(
        [np.asarray(coupled).reshape(m * k, t) for coupled, (_, m, k) in zip(factor.coupling, blocks.sizes)]
    )
    return BlockFactor(blocks, tuple(map(np.asarray, factor.inner)), coupling, np.asarray(factor.border))
