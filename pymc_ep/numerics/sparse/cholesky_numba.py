"""Supernodal multifrontal Cholesky factor of a sparse symmetric matrix, and solutions by it (Duff and Reid 1983).

A supernode is a run of s columns with the same r later rows; its panel of the factor is (s + r, s), in Fortran order.
Children come before parents. A supernode's update matrix of its later rows, (r, r), waits on a stack until the parent
adds it.
"""

import numpy as np

from pymc_ep.jit_numba import jit
from pymc_ep.numerics.sparse.blas_numba import (
    PLAIN,
    RIGHT,
    TRANSPOSED,
    cholesky,
    matrix_product,
    symmetric_update,
    triangular_solve,
)

__all__ = ["factorise", "solve_many", "solve_one"]

_jit = jit(nogil=True)


@_jit
def factorise(
    first: np.ndarray,
    begins: np.ndarray,
    in_parent: np.ndarray,
    parent: np.ndarray,
    panels: np.ndarray,
    places: np.ndarray,
    own_entries: np.ndarray,
    values: np.ndarray,
    factor: np.ndarray,
    stack: np.ndarray,
    update: np.ndarray,
    sizes: np.ndarray,
    factors: np.ndarray,
    letters: np.ndarray,
) -> tuple[float, int]:
    """Write L to `factor`; return log |A| and -1, or NaN and the place of the first unknown without a positive pivot.

    Parameters
    ----------
    first, begins, parent : ndarray
        First column of each supernode, the beginning of its later rows, and its parent; see `symbolic_numba`.
    in_parent : ndarray
        Places of later rows in the fronts of parents.
    panels : ndarray
        Where the panel of each supernode begins in `factor`.
    places, values : ndarray, (e,)
        Places of the matrix's entries in the panels, and their values.
    own_entries : ndarray
        Where the entries of each supernode begin.
    factor : ndarray
        Panels of L, which are overwritten.
    stack, update : ndarray
        Work arrays for all waiting update matrices, and for the largest one.
    sizes, factors, letters : ndarray
        See `blas_numba.arguments`.
    """
    total = len(first) - 1
    waiting, waiting_at = np.empty(total + 1, np.int64), np.empty(total + 1, np.int64)
    at_factor, at_update = factor.ctypes.data, update.ctypes.data
    top, count, log_det = 0, 0, 0.0
    for k in range(total):
        s, r, o = first[k + 1] - first[k], begins[k + 1] - begins[k], panels[k]
        m = s + r
        factor[o : o + m * s] = 0.0
        # Front: own entries of A in the columns s, and all updates of the children.
        for e in range(own_entries[k], own_entries[k + 1]):
            factor[places[e]] += values[e]
        for c in range(r):
            update[c * r + c : (c + 1) * r] = 0.0
        while count > 0 and parent[waiting[count - 1]] == k:
            count -= 1
            child, top = waiting[count], waiting_at[count]
            begin, size = begins[child], begins[child + 1] - begins[child]
            for j in range(size):
                column, source = in_parent[begin + j], top + j * size
                if column < s:
                    target = o + column * m
                    for i in range(j, size):
                        factor[target + in_parent[begin + i]] += stack[source + i]
                else:
                    target = (column - s) * r - s
                    for i in range(j, size):
                        update[target + in_parent[begin + i]] += stack[source + i]
        # F_ss = L_ss L_ss^T.
        failed = cholesky(sizes, letters, s, at_factor + 8 * o, m)
        if failed != 0:
            return np.nan, first[k] + failed - 1
        for j in range(s):
            log_det += 2.0 * np.log(factor[o + j * m + j])
        if r:
            # L_rs = F_rs L_ss^-T; the parent takes F_rr - L_rs L_rs^T, with F_rr from the children's updates alone.
            below = at_factor + 8 * (o + s)
            triangular_solve(sizes, factors, letters, RIGHT, TRANSPOSED, r, s, at_factor + 8 * o, m, below, m)
            symmetric_update(sizes, factors, letters, r, s, below, m, at_update, r)
            for c in range(r):
                for t in range(c * r + c, (c + 1) * r):
                    stack[top + t] = update[t]
            waiting[count], waiting_at[count] = k, top
            count += 1
            top += r * r
    return log_det, -1


@_jit
def solve_many(
    first: np.ndarray,
    begins: np.ndarray,
    later: np.ndarray,
    panels: np.ndarray,
    factor: np.ndarray,
    x: np.ndarray,
    room: np.ndarray,
    sizes: np.ndarray,
    factors: np.ndarray,
    letters: np.ndarray,
    forward: bool,
    backward: bool,
) -> None:
    """Replace X = `x`, (n, w), in the order of elimination, by L^{-1} X if `forward`, then by L^{-T} X if `backward`.

    `room` is a work array for w elements in each row of the largest front.
    """
    total, w = len(first) - 1, x.shape[1]
    at_factor, at_x, at_room = factor.ctypes.data, x.ctypes.data, room.ctypes.data
    # X in C order is its transpose, (w, n), in Fortran order.
    if forward:
        # x_s <- L_ss^-1 x_s, x_r <- x_r - L_rs x_s, children first.
        for k in range(total):
            s, r, o = first[k + 1] - first[k], begins[k + 1] - begins[k], panels[k]
            m, at_rows = s + r, at_x + 8 * first[k] * w
            triangular_solve(sizes, factors, letters, RIGHT, TRANSPOSED, w, s, at_factor + 8 * o, m, at_rows, w)
            if r:
                below = at_factor + 8 * (o + s)
                matrix_product(
                    sizes, factors, letters, PLAIN, TRANSPOSED, w, r, s, 1.0, at_rows, w, below, m, 0.0, at_room, w
                )
                for t in range(r):
                    i = later[begins[k] + t]
                    for c in range(w):
                        x[i, c] -= room[t * w + c]
    if backward:
        # x_s <- L_ss^-T (x_s - L_rs^T x_r), parents first.
        for k in range(total - 1, -1, -1):
            s, r, o = first[k + 1] - first[k], begins[k + 1] - begins[k], panels[k]
            m, at_rows = s + r, at_x + 8 * first[k] * w
            if r:
                for t in range(r):
                    i = later[begins[k] + t]
                    for c in range(w):
                        room[t * w + c] = x[i, c]
                below = at_factor + 8 * (o + s)
                matrix_product(
                    sizes, factors, letters, PLAIN, PLAIN, w, s, r, -1.0, at_room, w, below, m, 1.0, at_rows, w
                )
            triangular_solve(sizes, factors, letters, RIGHT, PLAIN, w, s, at_factor + 8 * o, m, at_rows, w)


@_jit
def solve_one(
    first: np.ndarray,
    begins: np.ndarray,
    later: np.ndarray,
    panels: np.ndarray,
    factor: np.ndarray,
    x: np.ndarray,
    room: np.ndarray,
    forward: bool,
    backward: bool,
) -> None:
    """Solve as `solve_many` for one vector x, (n,): by loops, since every entry of L is read only once."""
    total = len(first) - 1
    if forward:
        for k in range(total):
            s, r, o, a = first[k + 1] - first[k], begins[k + 1] - begins[k], panels[k], first[k]
            m = s + r
            room[:r] = 0.0
            for j in range(s):
                column = o + j * m
                x[a + j] /= factor[column + j]
                value = x[a + j]
                for i in range(j + 1, s):
                    x[a + i] -= factor[column + i] * value
                for t in range(r):
                    room[t] += factor[column + s + t] * value
            for t in range(r):
                x[later[begins[k] + t]] -= room[t]
    if backward:
        for k in range(total - 1, -1, -1):
            s, r, o, a = first[k + 1] - first[k], begins[k + 1] - begins[k], panels[k], first[k]
            m = s + r
            for t in range(r):
                room[t] = x[later[begins[k] + t]]
            for j in range(s - 1, -1, -1):
                column, value = o + j * m, x[a + j]
                for i in range(j + 1, s):
                    value -= factor[column + i] * x[a + i]
                for t in range(r):
                    value -= factor[column + s + t] * room[t]
                x[a + j] = value / factor[column + j]
