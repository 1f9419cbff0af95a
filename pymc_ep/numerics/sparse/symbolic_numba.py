"""Where the Cholesky factor of a sparse symmetric matrix has entries: elimination tree, supernodes and their rows.

A supernode is a run of columns of the factor L with the same rows below the run, its later rows. The unknowns of its
own columns and of its later rows are its front. Patterns, `starts`, (n + 1,), and `rows`, are compressed columns of the
whole symmetric matrix.
"""

import numpy as np

from pymc_ep.jit_numba import jit

__all__ = [
    "column_counts",
    "elimination_tree",
    "entries_in_panels",
    "permuted_columns",
    "places_in_parents",
    "postorder",
    "stack_sizes",
    "supernode_rows",
    "supernodes",
]

_SMALL, _MEDIUM, _LARGE = 8, 24, 64
_MEDIUM_ZEROS, _LARGE_ZEROS, _FEW_ZEROS = 0.3, 0.15, 0.05
"""Limits for a supernode and its parent, which are joined if both together have at most `_SMALL` columns, or at most
`_MEDIUM` or `_LARGE` columns and a share of stored zeros below `_MEDIUM_ZEROS` or `_LARGE_ZEROS`, or a share below
`_FEW_ZEROS`. On walks 8 columns were better than more, 0.005 s against 0.009 at 10^5; elsewhere little depends on these
limits."""

_jit = jit(nogil=True)


@_jit
def permuted_columns(starts: np.ndarray, rows: np.ndarray, order: np.ndarray, new_starts: np.ndarray) -> np.ndarray:
    """Return the row indices of a pattern with its columns in another `order`, in which they begin at `new_starts`."""
    out = np.empty(new_starts[-1], np.int64)
    for k in range(len(order)):
        begin = starts[order[k]]
        for t in range(new_starts[k + 1] - new_starts[k]):
            out[new_starts[k] + t] = rows[begin + t]
    return out


@_jit
def elimination_tree(starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the parent of each column, (n,): the row of the first entry of L below the diagonal, or -1 (Liu 1990)."""
    n = len(starts) - 1
    parent, ancestor = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for j in range(n):
        for p in range(starts[j], starts[j + 1]):
            i = rows[p]
            # Path compression (Liu 1990): all that was visited has j as its ancestor, and later walks skip it.
            while i != -1 and i < j:
                above = ancestor[i]
                ancestor[i] = j
                if above == -1:
                    parent[i] = j
                i = above
    return parent


@_jit
def postorder(parent: np.ndarray) -> np.ndarray:
    """Return the columns in an order that keeps each subtree together, its root last."""
    n = len(parent)
    first, sibling = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for j in range(n - 1, -1, -1):
        if parent[j] >= 0:
            sibling[j] = first[parent[j]]
            first[parent[j]] = j
    out, stack, k = np.empty(n, np.int64), np.empty(n, np.int64), 0
    for root in range(n):
        if parent[root] >= 0:
            continue
        top = 0
        stack[0] = root
        while top >= 0:
            child = first[stack[top]]
            if child == -1:
                out[k] = stack[top]
                k += 1
                top -= 1
            else:
                first[stack[top]] = sibling[child]
                top += 1
                stack[top] = child
    return out


@_jit
def column_counts(starts: np.ndarray, rows: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Return the number of entries of each column of L, (n,), by walks through the elimination tree, row by row."""
    n = len(starts) - 1
    count, seen = np.ones(n, np.int64), np.full(n, -1, np.int64)
    for i in range(n):
        seen[i] = i
        for p in range(starts[i], starts[i + 1]):
            j = rows[p]
            while j < i and seen[j] != i:
                count[j] += 1
                seen[j] = i
                j = parent[j]
    return count


@_jit
def supernodes(parent: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the first column of each supernode, and n. Supernodes are joined to parents where this stores few zeros.

    `parent` and `count`, (n,), are the parent and the number of entries of each column of L, in postorder.
    """
    n = len(parent)
    first, total = np.empty(n + 1, np.int64), 0
    for j in range(n):
        # Column j belongs to the supernode of j - 1 if it is its parent and has one entry less: the same rows below.
        if j == 0 or parent[j - 1] != j or count[j - 1] != count[j] + 1:
            first[total] = j
            total += 1
    first[total] = n
    # A stack of supernodes: first column, end, rows of the front and zeros stored.
    begin, end = np.empty(total, np.int64), np.empty(total, np.int64)
    front, zeros, top = np.empty(total, np.int64), np.zeros(total), 0
    for s in range(total):
        begin[top], end[top], front[top], zeros[top] = first[s], first[s + 1], count[first[s]], 0.0
        top += 1
        while top >= 2:
            child, last = top - 2, top - 1
            if parent[end[child] - 1] != begin[last]:
                break
            width = end[child] - begin[child]
            columns = width + end[last] - begin[last]
            # In the joint panel each of the child's columns has rows - front_child more zeros.
            rows = width + front[last]
            added = width * float(rows - front[child])
            # The joint panel of c columns has c (c + 1) / 2 + c (rows - c) numbers on and below the diagonal.
            share = (zeros[child] + zeros[last] + added) / (columns * (columns + 1) / 2 + columns * (rows - columns))
            few = (columns <= _MEDIUM and share < _MEDIUM_ZEROS) or (columns <= _LARGE and share < _LARGE_ZEROS)
            if not (columns <= _SMALL or few or share < _FEW_ZEROS):
                break
            zeros[child] += zeros[last] + added
            front[child], end[child] = rows, end[last]
            top -= 1
    return np.append(begin[:top], n)


@_jit
def supernode_rows(
    starts: np.ndarray, rows: np.ndarray, first: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return `begins`, `later`, `parent` and `owner` of the supernodes with first columns `first`.

    The later rows of supernode k, sorted, are ``later[begins[k] : begins[k + 1]]``. Its parent is ``parent[k]``, -1 for
    a root. Column j belongs to the supernode ``owner[j]``.
    """
    n, total = len(starts) - 1, len(first) - 1
    owner = np.empty(n, np.int64)
    for k in range(total):
        owner[first[k] : first[k + 1]] = k
    begins, capacity = np.zeros(total + 1, np.int64), 4 * n + 16
    later = np.empty(capacity, np.int32)
    child, sibling = np.full(total, -1, np.int64), np.full(total, -1, np.int64)
    parent, seen, front_rows = np.full(total, -1, np.int64), np.full(n, -1, np.int64), np.empty(n, np.int32)
    for k in range(total):
        m, end = 0, first[k + 1]
        for p in range(starts[first[k]], starts[end]):
            i = rows[p]
            if i >= end and seen[i] != k:
                seen[i] = k
                front_rows[m] = i
                m += 1
        c = child[k]
        while c != -1:
            for p in range(begins[c], begins[c + 1]):
                i = later[p]
                if i >= end and seen[i] != k:
                    seen[i] = k
                    front_rows[m] = i
                    m += 1
            c = sibling[c]
        while begins[k] + m > capacity:
            longer = np.empty(2 * capacity, np.int32)
            longer[:capacity] = later
            later = longer
            capacity *= 2
        later[begins[k] : begins[k] + m] = np.sort(front_rows[:m])
        begins[k + 1] = begins[k] + m
        if m:
            parent[k] = owner[later[begins[k]]]
            sibling[k] = child[parent[k]]
            child[parent[k]] = k
    return begins, later[: begins[total]].copy(), parent, owner


@_jit
def places_in_parents(first: np.ndarray, begins: np.ndarray, later: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Return the place of each later row of a supernode in the front of its parent."""
    out = np.empty(len(later), np.int32)
    for k in range(len(first) - 1):
        q = parent[k]
        if q < 0:
            continue
        begin, end, t = first[q], first[q + 1], begins[q]
        for p in range(begins[k], begins[k + 1]):
            i = later[p]
            if i < end:
                out[p] = i - begin
            else:
                while later[t] != i:
                    t += 1
                out[p] = end - begin + t - begins[q]
    return out


@_jit
def entries_in_panels(
    first: np.ndarray,
    begins: np.ndarray,
    later: np.ndarray,
    owner: np.ndarray,
    panels: np.ndarray,
    columns: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """Return the places, (e,), in the panels of L, of the matrix's entries in `rows` and `columns`, row >= column.

    The panel of supernode k begins at ``panels[k]``. It has the rows of the front and the supernode's columns, in
    Fortran order.
    """
    out = np.empty(len(columns), np.int64)
    for e in range(len(columns)):
        j, i = columns[e], rows[e]
        k = owner[j]
        width = first[k + 1] - first[k]
        place = i - first[k]
        if i >= first[k + 1]:
            low, high = begins[k], begins[k + 1]
            while low < high:
                middle = (low + high) // 2
                if later[middle] < i:
                    low = middle + 1
                else:
                    high = middle
            place = width + low - begins[k]
        out[e] = panels[k] + (j - first[k]) * (width + begins[k + 1] - begins[k]) + place
    return out


@_jit
def stack_sizes(first: np.ndarray, begins: np.ndarray, parent: np.ndarray) -> tuple[int, int]:
    """Return the sizes, in elements, of the stacks of a factorisation and of a selected inverse."""
    total = len(first) - 1
    children, waiting = np.zeros(total, np.int64), np.empty(total, np.int64)
    top, count, largest = 0, 0, 0
    for k in range(total):
        if parent[k] >= 0:
            children[parent[k]] += 1
        while count > 0 and parent[waiting[count - 1]] == k:
            count -= 1
            top -= (begins[waiting[count] + 1] - begins[waiting[count]]) ** 2
        r = begins[k + 1] - begins[k]
        if r:
            waiting[count] = k
            count += 1
            top += r * r
            largest = max(largest, top)
    top, largest_inverse = 0, 0
    for k in range(total - 1, -1, -1):
        q = parent[k]
        if q >= 0:
            children[q] -= 1
            if children[q] == 0:
                top -= (first[q + 1] - first[q] + begins[q + 1] - begins[q]) ** 2
        if children[k] > 0:
            top += (first[k + 1] - first[k] + begins[k + 1] - begins[k]) ** 2
            largest_inverse = max(largest_inverse, top)
    return largest, largest_inverse
