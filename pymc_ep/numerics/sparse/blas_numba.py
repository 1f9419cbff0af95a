"""SciPy's BLAS and LAPACK called from Numba, by the addresses that SciPy publishes for Cython.

All arguments are passed by address. Each thread therefore has three small arrays, `sizes`, `factors` and `letters`, for
the integers, floating-point factors and characters that the routines take. Matrices are in Fortran order, given by the
address of their first element and a stride, the number of elements between the beginnings of two columns.
"""

import llvmlite.binding
import numpy as np
from numba import types
from numba.extending import get_cython_function_address

from pymc_ep.jit_numba import jit

__all__ = [
    "LEFT",
    "PLAIN",
    "RIGHT",
    "TRANSPOSED",
    "arguments",
    "cholesky",
    "inverse_of_factored",
    "matrix_product",
    "symmetric_product",
    "symmetric_update",
    "triangular_solve",
]

_LETTERS = b"LNTR"
LEFT, PLAIN, TRANSPOSED, RIGHT = range(len(_LETTERS))
"""Positions in `letters` of L, N, T and R; L also stands for lower triangles, and N for diagonals not all ones."""

_jit = jit(nogil=True)


def _external(library: str, name: str, count: int) -> types.ExternalFunction:
    """Return a routine that takes `count` addresses, under a symbol by which cached compiled functions find it."""
    symbol = f"pymc_ep_{name}"
    llvmlite.binding.add_symbol(symbol, get_cython_function_address(f"scipy.linalg.{library}", name))
    return types.ExternalFunction(symbol, types.void(*[types.intp] * count))


_dgemm, _dsymm = _external("cython_blas", "dgemm", 13), _external("cython_blas", "dsymm", 12)
_dsyrk, _dtrsm = _external("cython_blas", "dsyrk", 10), _external("cython_blas", "dtrsm", 11)
_dpotrf, _dpotri = _external("cython_lapack", "dpotrf", 5), _external("cython_lapack", "dpotri", 5)


def arguments() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return new arrays `sizes`, (8,), `factors`, (2,), and `letters`, (4,), for one thread."""
    return np.zeros(8, dtype=np.int32), np.zeros(2), np.frombuffer(_LETTERS, dtype=np.uint8).copy()


@_jit
def cholesky(sizes: np.ndarray, letters: np.ndarray, n: int, a: int, stride: int) -> int:
    """Replace the lower triangle of A, (n, n), by its Cholesky factor; return 0 if there is one.

    Otherwise return the order of the first leading minor that is not positive.
    """
    sizes[0], sizes[1], sizes[2] = n, stride, 0
    # Sizes have 4 bytes and factors 8: at + 4 i is the address of sizes[i], factor + 8 of the second factor.
    at = sizes.ctypes.data
    _dpotrf(letters.ctypes.data, at, a, at + 4, at + 8)
    return sizes[2]


@_jit
def inverse_of_factored(sizes: np.ndarray, letters: np.ndarray, n: int, a: int, stride: int) -> None:
    """Replace a lower factor L, (n, n), by the lower triangle of (L L^T)^{-1}."""
    sizes[0], sizes[1], sizes[2] = n, stride, 0
    at = sizes.ctypes.data
    _dpotri(letters.ctypes.data, at, a, at + 4, at + 8)


@_jit
def triangular_solve(
    sizes: np.ndarray,
    factors: np.ndarray,
    letters: np.ndarray,
    side: int,
    form: int,
    m: int,
    n: int,
    a: int,
    stride: int,
    b: int,
    stride_b: int,
) -> None:
    """Replace B, (m, n), by A^{-1} B if `side` is LEFT, by B A^{-1} if it is RIGHT, for a lower triangular A.

    If `form` is TRANSPOSED rather than PLAIN, A^T takes the place of A.
    """
    sizes[0], sizes[1], sizes[2], sizes[3], factors[0] = m, n, stride, stride_b, 1.0
    at, letter = sizes.ctypes.data, letters.ctypes.data
    _dtrsm(
        letter + side,
        letter,
        letter + form,
        letter + 1,
        at,
        at + 4,
        factors.ctypes.data,
        a,
        at + 8,
        b,
        at + 12,
    )


@_jit
def symmetric_update(
    sizes: np.ndarray,
    factors: np.ndarray,
    letters: np.ndarray,
    n: int,
    k: int,
    a: int,
    stride: int,
    c: int,
    stride_c: int,
) -> None:
    """Subtract A A^T from the lower triangle of C, (n, n), for A of shape (n, k)."""
    sizes[0], sizes[1], sizes[2], sizes[3] = n, k, stride, stride_c
    # C <- -A A^T + C, the factors of both terms in turn.
    factors[0], factors[1] = -1.0, 1.0
    at, letter, factor = sizes.ctypes.data, letters.ctypes.data, factors.ctypes.data
    _dsyrk(letter, letter + 1, at, at + 4, factor, a, at + 8, factor + 8, c, at + 12)


@_jit
def symmetric_product(
    sizes: np.ndarray,
    factors: np.ndarray,
    letters: np.ndarray,
    m: int,
    n: int,
    a: int,
    stride: int,
    b: int,
    stride_b: int,
    c: int,
    stride_c: int,
) -> None:
    """Write -A B to C, (m, n), for a symmetric A, (m, m); only its lower triangle is read."""
    sizes[0], sizes[1], sizes[2], sizes[3], sizes[4] = m, n, stride, stride_b, stride_c
    factors[0], factors[1] = -1.0, 0.0
    at, letter, factor = sizes.ctypes.data, letters.ctypes.data, factors.ctypes.data
    _dsymm(letter, letter, at, at + 4, factor, a, at + 8, b, at + 12, factor + 8, c, at + 16)


@_jit
def matrix_product(
    sizes: np.ndarray,
    factors: np.ndarray,
    letters: np.ndarray,
    form: int,
    form_b: int,
    m: int,
    n: int,
    k: int,
    by: float,
    a: int,
    stride: int,
    b: int,
    stride_b: int,
    kept: float,
    c: int,
    stride_c: int,
) -> None:
    """Write ``by A B + kept C`` to C, (m, n), for A of shape (m, k) and B of shape (k, n).

    `form` and `form_b` are PLAIN, or TRANSPOSED if the transpose of A, or of B, is stored.
    """
    sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5] = m, n, k, stride, stride_b, stride_c
    factors[0], factors[1] = by, kept
    at, letter, factor = sizes.ctypes.data, letters.ctypes.data, factors.ctypes.data
    _dgemm(
        letter + form,
        letter + form_b,
        at,
        at + 4,
        at + 8,
        factor,
        a,
        at + 12,
        b,
        at + 16,
        factor + 8,
        c,
        at + 20,
    )
