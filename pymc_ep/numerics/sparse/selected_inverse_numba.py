"""Entries of the inverse of a sparse symmetric matrix where the matrix has entries, from its Cholesky factor.

Parents come before children (Takahashi, Fagan and Chin 1973). For a supernode, s are its own columns and r its later
rows, L11 and L21 the factor's entries in the rows s and r of the columns s, and H = L21 L11^{-1}. All later rows are in
the parent's front, so that S_rr of the inverse S is a part of the parent's block, and

    S_rs = -S_rr H,        S_ss = (L11 L11^T)^{-1} - H^T S_rs.

The block of a supernode waits on a stack until all its children are done.
"""

import numpy as np

from pymc_ep.jit_numba import jit
from pymc_ep.numerics.sparse.blas_numba import (
    PLAIN,
    RIGHT,
    TRANSPOSED,
    inverse_of_factored,
    matrix_product,
    symmetric_product,
    triangular_solve,
)

__all__ = ["selected_inverse"]


@jit(nogil=True)
def selected_inverse(
    first: np.ndarray,
    begins: np.ndarray,
    in_parent: np.ndarray,
    parent: np.ndarray,
    panels: np.ndarray,
    places: np.ndarray,
    own_entries: np.ndarray,
    factor: np.ndarray,
    out: np.ndarray,
    stack: np.ndarray,
    of_later: np.ndarray,
    panel: np.ndarray,
    sizes: np.ndarray,
    factors: np.ndarray,
    letters: np.ndarray,
) -> None:
    """Write to `out`, (e,), the inverse's entries where the matrix has entries.

    `of_later` and `panel` are work arrays, for S_rr of any supernode, and for its columns of the inverse and its H. For
    the other arguments see `cholesky_numba.factorise`.
    """
    total = len(first) - 1
    children, at = np.zeros(total, np.int64), np.empty(total, np.int64)
    for k in range(total):
        if parent[k] >= 0:
            children[parent[k]] += 1
    top = 0
    at_factor, at_later, at_panel = factor.ctypes.data, of_later.ctypes.data, panel.ctypes.data
    for k in range(total - 1, -1, -1):
        s, r, o, begin, q = first[k + 1] - first[k], begins[k + 1] - begins[k], panels[k], begins[k], parent[k]
        m = s + r
        if r:
            front, z = first[q + 1] - first[q] + begins[q + 1] - begins[q], at[q]
            # S_rr from the parent's block, lower triangles both.
            for j in range(r):
                column = z + in_parent[begin + j] * front
                for i in range(j, r):
                    of_later[j * r + i] = stack[column + in_parent[begin + i]]
            children[q] -= 1
            if children[q] == 0:
                # The parent's block is on top of the stack.
                top = z
        for j in range(s):
            for i in range(j, s):
                panel[j * m + i] = factor[o + j * m + i]
        # (L11 L11^T)^-1, to which -H^T S_rs is added below.
        inverse_of_factored(sizes, letters, s, at_panel, m)
        if r:
            for j in range(s):
                for i in range(r):
                    panel[m * s + j * r + i] = factor[o + j * m + s + i]
            # H = L21 L11^-1, then S_rs = -S_rr H in the rows below S_ss.
            h = at_panel + 8 * m * s
            triangular_solve(sizes, factors, letters, RIGHT, PLAIN, r, s, at_factor + 8 * o, m, h, r)
            symmetric_product(sizes, factors, letters, r, s, at_later, r, h, r, at_panel + 8 * s, m)
            for j in range(s):
                for i in range(j):
                    panel[j * m + i] = panel[i * m + j]
            # S_ss <- S_ss - H^T S_rs, in full.
            matrix_product(
                sizes,
                factors,
                letters,
                TRANSPOSED,
                PLAIN,
                s,
                s,
                r,
                -1.0,
                h,
                r,
                at_panel + 8 * s,
                m,
                1.0,
                at_panel,
                m,
            )
        for e in range(own_entries[k], own_entries[k + 1]):
            out[e] = panel[places[e] - o]
        # Lower triangle of [[S_ss, S_rs^T], [S_rs, S_rr]], which the children read.
        if children[k] > 0:
            at[k] = top
            for j in range(s):
                for i in range(j, m):
                    stack[top + j * m + i] = panel[j * m + i]
            for j in range(r):
                for i in range(j, r):
                    stack[top + (s + j) * m + s + i] = of_later[j * r + i]
            top += m * m
