"""Cholesky factors, their inverses and products with these, by LAPACK or under JAX."""

import numpy as np
import scipy.linalg

from pymc_ep.numerics.backend.namespace import Array, is_jax

__all__ = [
    "cholesky",
    "counts",
    "factor_lower",
    "gram",
    "inverse_factor",
    "mirror_lower",
    "solve",
    "solve_right",
    "times",
]

counts = {"factorizations": 0}
"""Number of cubic factorisations so far, for tests of the cost of a sweep."""


def inverse_factor(matrix: Array) -> tuple[Array, Array, Array]:
    """Return the inverse of the Cholesky factor, the log-determinant and whether `matrix` is positive definite.

    Parameters
    ----------
    matrix : array, (n, n)
        Symmetric. A NumPy array is overwritten.

    Returns
    -------
    inverse : array, (n, n)
        L^{-1}, lower triangular with zeros above, where matrix = L L^T; undefined where there is no such L.
    log_det : scalar
    proper : bool scalar
    """
    counts["factorizations"] += 1
    if is_jax(matrix):
        from pymc_ep.numerics.backend.cholesky_jax import inverse_factor_jax

        return inverse_factor_jax(matrix)
    # A C-ordered symmetric matrix is its own Fortran-ordered transpose: LAPACK works in place.
    factor, info = factor_lower(matrix.T, clean=True)
    if info != 0:
        return factor, np.nan, False
    log_det = 2.0 * np.log(factor.diagonal()).sum()
    inverse, _ = scipy.linalg.lapack.dtrtri(factor, lower=1, overwrite_c=1)
    return inverse, log_det, True


def cholesky(matrix: Array) -> tuple[Array, Array]:
    """Return the lower Cholesky factor, and whether there is one; if not, the identity takes its place."""
    if is_jax(matrix):
        from pymc_ep.numerics.backend.cholesky_jax import cholesky_jax

        return cholesky_jax(matrix)
    factor, info = factor_lower(np.array(matrix, order="F"), clean=True)
    return (factor, True) if info == 0 else (np.eye(len(matrix)), False)


def factor_lower(matrix: np.ndarray, *, clean: bool = False, block: int = 4096) -> tuple[np.ndarray, int]:
    """Factor a symmetric matrix in place; only its lower triangle is read.

    Large matrices are factored by columns of blocks: with two threads or more, OpenBLAS's own factorisation of 16,000
    unknowns crashes. This needs memory for one column of blocks in addition to the matrix.

    Parameters
    ----------
    matrix : ndarray, (n, n)
        In Fortran order; overwritten.
    clean : bool
        Whether zeros are written above the diagonal; otherwise that triangle of `matrix` is unchanged.
    block : int
        Number of columns of a block.

    Returns
    -------
    factor : ndarray, (n, n)
        `matrix`, now L.
    info : int
        0, or the order of the first leading minor that is not positive.
    """
    n = len(matrix)
    if n <= block:
        return scipy.linalg.lapack.dpotrf(matrix, lower=1, overwrite_a=1, clean=clean)
    # Column k of blocks: C_i = A_ik - sum_(j<k) L_ij L_kj^T, L_kk L_kk^T = C_k, L_ik = C_i L_kk^-T.
    for start in range(0, n, block):
        stop = min(start + block, n)
        if start:
            matrix[start:, start:stop] -= (matrix[start:stop, :start] @ matrix[start:, :start].T).T
        if clean:
            matrix[:start, start:stop] = 0.0
        corner, info = scipy.linalg.lapack.dpotrf(matrix[start:stop, start:stop], lower=1, clean=clean)
        if info != 0:
            return matrix, start + info
        matrix[start:stop, start:stop] = corner
        below = matrix[stop:, start:stop]
        below[...] = scipy.linalg.blas.dtrsm(1.0, corner, below, side=1, lower=1, trans_a=1)
    return matrix, 0


def solve_right(matrix: Array, factor: Array) -> Array:
    """Return matrix @ inv(factor).T for a lower triangular factor."""
    if is_jax(matrix):
        from pymc_ep.numerics.backend.cholesky_jax import solve_right_jax

        return solve_right_jax(matrix, factor)
    return scipy.linalg.solve_triangular(factor, matrix.T, lower=True).T


def solve(whitener: Array, vector: Array) -> Array:
    """Return B^{-1} v for v = `vector`, (n,), or for each row v of (s, n), for B = L L^T and `whitener` W = L^{-1}."""
    if is_jax(whitener):
        return whitener.T @ (whitener @ vector)
    if vector.ndim == 2:
        return (vector @ whitener.T) @ whitener
    # B^-1 = L^-T L^-1 = W^T W.
    return scipy.linalg.blas.dtrmv(whitener, scipy.linalg.blas.dtrmv(whitener, vector, lower=1), lower=1, trans=1)


def times(matrix: Array, vector: Array) -> Array:
    """Return matrix @ vector for a vector, (n,), or for each row of (s, n).

    One vector is multiplied by SciPy's BLAS, which the factorisations use too. NumPy's BLAS is another library, and the
    waiting threads of each library occupy the processors (1.6 times slower with 1000 points on two processors).
    """
    if is_jax(matrix):
        return matrix @ vector
    if vector.ndim == 2:
        return vector @ matrix.T
    if matrix.flags.f_contiguous:
        return scipy.linalg.blas.dgemv(1.0, matrix, vector)
    return scipy.linalg.blas.dgemv(1.0, matrix.T, vector, trans=1)


def gram(whitener: Array) -> Array:
    """Return B^{-1} = W^T W, (n, n), with both triangles, for W = `whitener` as in `solve`."""
    if is_jax(whitener):
        return whitener.T @ whitener
    product, _ = scipy.linalg.lapack.dlauum(whitener, lower=1)
    return mirror_lower(product)


def mirror_lower(matrix: np.ndarray, block: int = 256) -> np.ndarray:
    """Copy the lower triangle onto the upper one, by blocks that fit the cache, in place."""
    n = len(matrix)
    for start in range(0, n, block):
        stop = min(start + block, n)
        corner = matrix[start:stop, start:stop]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T
    return matrix
