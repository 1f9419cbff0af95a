"""JAX bodies of the row updates of paired symbols: segment sums over cells, batched Cholesky factors over rows.

Cells are processed in chunks of a fixed size, so that no array has as many entries as cells times K x K.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.models.paired_symbols.kernel.body import (
    NOTHING,
    SERIES,
    Background,
    Cells,
    Censored,
    Priors,
    Statistics,
    Symbols,
    with_symbol,
)
from pymc_ep.models.paired_symbols.kernel.op import PairSums, RowStatistics, SolveRows, UpdateInTurn, UpdateRows
from pymc_ep.numerics.backend.namespace_jax import require_float64
from pymc_ep.numerics.memory import chunks

__all__ = ["pair_sums", "row_statistics", "solve_rows", "update_in_turn", "update_rows"]

_CHUNK = 2**20
"""Largest number of entries of all K x K matrices of a chunk of cells, 8 MiB."""
_BLOCK = 2**22
"""Largest number of entries of all K x K matrices of a block of rows, 32 MiB."""


def _curvature(xi: jax.Array) -> jax.Array:
    small = xi < SERIES
    safe = jnp.where(small, 1.0, xi)
    return jnp.where(small, 0.125 - xi**2 / 96.0, jnp.tanh(0.5 * safe) / (4.0 * safe))


def _moments(own: Symbols, other: Symbols, i: jax.Array, j: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return E a and E a^2, (n,) each, of cells (i, j)."""
    m, a, n, b = own.mean[i], own.variance[i], other.mean[j], other.variance[j]
    mean = (m * n).sum(axis=1) + own.bias[i] + other.bias[j]
    # E a^2 = (E a)^2 + sum_k (Var u_k E v_k^2 + Var v_k (E u_k)^2) + Var b_i + Var b_j.
    spread = (a * (n**2 + b) + b * m**2).sum(axis=1)
    return mean, mean**2 + spread + own.bias_variance[i] + other.bias_variance[j]


def _over_chunks(
    add: Callable[..., Any], first: Any, i: jax.Array, others: jax.Array, counts: jax.Array, step: int, n_rows: int
) -> Any:
    """Return the total, from `first`, after ``add(total, i, others, counts)`` for each chunk of `step` cells.

    Cells that fill up the last chunk have the own row `n_rows`, one beyond the rows.
    """
    n = len(others)
    step = max(1, min(step, n))
    fill = -n % step
    columns = (
        jnp.concatenate([column, jnp.full(fill, value, column.dtype)]).reshape(-1, step)
        for column, value in ((i, n_rows), (others, 0), (counts, 0))
    )
    return lax.scan(lambda total, chunk: (add(total, *chunk), None), first, tuple(columns))[0]


def _with_one_more(symbols: Symbols) -> Symbols:
    """Return symbols with a row of zeros appended, the own row of cells that fill up a chunk."""
    return Symbols(*(jnp.concatenate([array, jnp.zeros((1, *array.shape[1:]), array.dtype)]) for array in symbols))


def sums_of_rows(
    i: jax.Array, others: jax.Array, counts: jax.Array, own: Symbols, other: Symbols, weights: jax.Array
) -> jax.Array:
    """Return the sums of `pair_sums`, (I, 4), given the own row `i` of each cell."""
    n_own, width = own.mean.shape
    padded = _with_one_more(own)

    def add(total: jax.Array, i: jax.Array, j: jax.Array, count: jax.Array) -> jax.Array:
        mean, square = _moments(padded, other, i, j)
        xi = jnp.sqrt(square)
        height, t = jax.nn.log_sigmoid(xi) - 0.5 * xi, weights[j]
        terms = jnp.stack([count * (height + 0.5 * mean), t * height, t * square, t], axis=1)
        return total + jax.ops.segment_sum(terms, i, num_segments=n_own + 1)

    first = jnp.zeros((n_own + 1, 4))
    return _over_chunks(add, first, i, others, counts, _CHUNK // width, n_own)[:n_own]


def statistics_of_rows(
    i: jax.Array, others: jax.Array, counts: jax.Array, own: Symbols, other: Symbols, censored: Censored
) -> Statistics:
    """Return the sums over the cells of each own symbol, given the own row of each cell; see the NumPy body."""
    n_own, width = own.mean.shape
    lam, number = _curvature(censored.xi), censored.number * censored.own
    padded, padded_number = _with_one_more(own), jnp.concatenate([number, jnp.zeros(1)])
    rows, columns = np.tril_indices(width)
    diagonal = np.flatnonzero(rows == columns)

    def add(totals: Any, i: jax.Array, j: jax.Array, count: jax.Array) -> Any:
        mean, square = _moments(padded, other, i, j)
        lam_ij = _curvature(jnp.sqrt(square))
        w = 2.0 * (count * lam_ij + padded_number[i] * censored.other[j] * (lam_ij - lam))
        v = other.mean[j]
        # w E v v^T = w ((E v) (E v)^T + diag(Var v)), its lower triangle.
        outer = (w[:, None] * v[:, rows] * v[:, columns]).at[:, diagonal].add(w[:, None] * other.variance[j])
        shift = (0.5 * count - w * other.bias[j])[:, None] * v
        of_bias = jnp.stack([w, 0.5 * count - w * (mean - padded.bias[i])], axis=1)
        terms = (outer, shift, w[:, None] * v, of_bias)
        return tuple(total + jax.ops.segment_sum(term, i, num_segments=n_own + 1) for total, term in zip(totals, terms))

    first = tuple(jnp.zeros((n_own + 1, n)) for n in Statistics.widths(width))
    totals = _over_chunks(add, first, i, others, counts, _CHUNK // width**2, n_own)
    return Statistics(*(total[:n_own] for total in totals))


def solved_rows(
    statistics: Statistics, own_mean: jax.Array, priors: Priors, censored: Censored, sequential: bool
) -> Symbols:
    """Return the own symbols after an update, given the sums over their cells; see the NumPy body."""
    width = own_mean.shape[1]
    background, lam = censored.background, _curvature(censored.xi)
    number = censored.number * censored.own
    rows, columns = np.tril_indices(width)
    # P = 2 D' s lam* outer + sum_j w_j E v_j v_j^T, its lower triangle.
    packed = statistics.precision + 2.0 * lam * number[:, None] * background.outer[rows, columns]
    square = jnp.zeros((len(own_mean), width, width)).at[:, rows, columns].set(packed)
    precision = square.at[:, columns, rows].set(packed)
    shift = statistics.shift - number[:, None] * (0.5 * background.mean + 2.0 * lam * background.mean_bias)
    slope = statistics.slope + 2.0 * lam * number[:, None] * background.mean
    # rho E b = pull and P E u = shift - slope E b, with priors added below.
    rho = statistics.of_bias[:, 0] + 2.0 * lam * number * background.weight
    along = background.bias + own_mean @ background.mean
    pull = statistics.of_bias[:, 1] - number * (0.5 * background.weight + 2.0 * lam * along)
    held = jnp.isinf(priors.bias_precision)
    bias_precision = jnp.where(held, 1.0, priors.bias_precision)
    rho = rho + bias_precision
    bias = jnp.where(held, priors.bias, (pull + bias_precision * priors.bias) / rho)
    diagonal = np.arange(width)
    precision = precision.at[:, diagonal, diagonal].add(priors.precision)
    shift = shift + priors.precision * priors.mean - slope * bias[:, None]
    mean = _relaxed(precision, shift, own_mean) if sequential else _solved(precision, shift)
    variance = 1.0 / precision[:, diagonal, diagonal]
    return Symbols(mean, variance, bias, jnp.where(held, 0.0, 1.0 / rho))


def updated_rows(
    i: jax.Array,
    others: jax.Array,
    counts: jax.Array,
    own: Symbols,
    other: Symbols,
    priors: Priors,
    censored: Censored,
    sequential: bool,
) -> Symbols:
    """Return the own symbols after an update, given the own row of each cell; see the NumPy body."""
    statistics = statistics_of_rows(i, others, counts, own, other, censored)
    return solved_rows(statistics, own.mean, priors, censored, sequential)


def updated_in_turn(
    cells: Cells, own: Symbols, priors: Priors, censored: Censored, sequential: bool, points: tuple[bool, bool]
) -> Symbols:
    """Return symbols, paired with each other, after an update of each in turn; see the NumPy body."""
    ends, others, counts = map(jnp.asarray, cells)
    none = Statistics(*(jnp.zeros((1, n)) for n in Statistics.widths(own.mean.shape[1])))

    def update(i: jax.Array, carry: tuple[Symbols, Background]) -> tuple[Symbols, Background]:
        symbols, weight = carry[0], censored.own[i]
        row, row_priors = Symbols(*(array[i][None] for array in symbols)), Priors(*(array[i][None] for array in priors))
        background = with_symbol(carry[1], row, -weight)
        row_censored = censored._replace(own=weight[None], background=background)

        def add(c: jax.Array, total: Statistics) -> Statistics:
            cell = jnp.zeros(1, jnp.int32), others[c][None], counts[c][None]
            return Statistics(*map(jnp.add, total, statistics_of_rows(*cell, row, symbols, row_censored)))

        statistics = lax.fori_loop(ends[i], ends[i + 1], add, none)
        after = solved_rows(statistics, row.mean, row_priors, row_censored, sequential)
        flags = (False, points[0], False, points[1])
        after = Symbols(*(jnp.zeros_like(array) if is_point else array for array, is_point in zip(after, flags)))
        moved = Symbols(*(jnp.asarray(array).at[i].set(value[0]) for array, value in zip(symbols, after)))
        return moved, with_symbol(background, after, weight)

    start = Symbols(*map(jnp.asarray, own)), Background(*(jnp.asarray(array, float) for array in censored.background))
    return lax.fori_loop(0, len(ends) - 1, update, start)[0]


def _solved(precision: jax.Array, shift: jax.Array) -> jax.Array:
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(precision), True), shift[:, :, None])[:, :, 0]


def _relaxed(precision: jax.Array, shift: jax.Array, mean: jax.Array) -> jax.Array:
    def update(k: int, mean: jax.Array) -> jax.Array:
        diagonal = precision[:, k, k]
        # mu_k = (shift_k - sum_{l != k} P_kl mu_l) / P_kk.
        rest = jnp.einsum("il,il->i", precision[:, k], mean) - diagonal * mean[:, k]
        return mean.at[:, k].set((shift[:, k] - rest) / diagonal)

    return lax.fori_loop(0, precision.shape[1], update, mean)


_jit_sums = jax.jit(sums_of_rows)
_jit_statistics = jax.jit(statistics_of_rows)
_jit_solve = jax.jit(solved_rows, static_argnames="sequential")
_jit_update = jax.jit(updated_rows, static_argnames="sequential")
_jit_in_turn = jax.jit(updated_in_turn, static_argnames=("sequential", "points"))


def pair_sums(cells: Cells, own: Symbols, other: Symbols, weights: np.ndarray) -> np.ndarray:
    """Return sums over the cells of each own symbol, (I, 4), in blocks of rows; see the NumPy body."""
    require_float64()
    out = np.empty((len(own.bias), 4))
    for rows, block_cells, i in _blocks(cells, own.mean.shape[1]):
        block = _padded_block(own, rows)
        sums = _jit_sums(i, *block_cells, block, _doubles(other), weights)
        out[rows] = np.asarray(sums)[: rows.stop - rows.start]
    return out


def row_statistics(cells: Cells, own: Symbols, other: Symbols, censored: Censored) -> Statistics:
    """Return the sums over the cells of each own symbol, in blocks of rows; see the NumPy body."""
    require_float64()
    n_own, width = own.mean.shape
    out = Statistics(*(np.empty((n_own, n)) for n in Statistics.widths(width)))
    for rows, block_cells, i in _blocks(cells, width):
        block_censored = _seen(censored, rows)
        _write(out, rows, _jit_statistics(i, *block_cells, _padded_block(own, rows), _doubles(other), block_censored))
    return out


def solve_rows(
    statistics: Statistics, own: Symbols, priors: Priors, censored: Censored, sequential: bool = False
) -> Symbols:
    """Return the own symbols after an update, in blocks of rows; see the NumPy body."""
    require_float64()
    out = Symbols(*(np.empty_like(array) for array in own))
    for rows in chunks(len(own.bias), own.mean.shape[1] ** 2, _BLOCK):
        block, block_priors = _padded_block(own, rows), _padded_block(priors, rows, 1.0)
        sums, block_censored = _padded_block(statistics, rows), _seen(censored, rows)._replace(other=np.zeros(0))
        _write(out, rows, _jit_solve(sums, block.mean, block_priors, block_censored, sequential=bool(sequential)))
    return out


def update_rows(
    cells: Cells, own: Symbols, other: Symbols, priors: Priors, censored: Censored, sequential: bool = False
) -> Symbols:
    """Return the own symbols after an update, in blocks of rows; see the NumPy body."""
    require_float64()
    out = Symbols(*(np.empty_like(array) for array in own))
    for rows, block_cells, i in _blocks(cells, own.mean.shape[1]):
        block, block_priors = _padded_block(own, rows), _padded_block(priors, rows, 1.0)
        block_censored = _seen(censored, rows)
        updated = _jit_update(
            i, *block_cells, block, _doubles(other), block_priors, block_censored, sequential=bool(sequential)
        )
        _write(out, rows, updated)
    return out


def update_in_turn(
    cells: Cells,
    own: Symbols,
    priors: Priors,
    censored: Censored,
    sequential: bool = False,
    points: tuple[bool, bool] = (False, False),
) -> Symbols:
    """Return symbols, paired with each other, after an update of each in turn; see the NumPy body."""
    require_float64()
    doubles = _doubles(own), Priors(*(np.asarray(array, dtype=float) for array in priors))
    updated = _jit_in_turn(cells, *doubles, censored, sequential=bool(sequential), points=points)
    return Symbols(*(np.asarray(array, dtype=own.mean.dtype) for array in updated))


def _seen(censored: Censored, rows: slice) -> Censored:
    """Return the censored pairs with the posterior s of a block of own rows, padded to a power of two."""
    return censored._replace(own=_padded(np.asarray(censored.own, dtype=float)[rows], 0.0))


def _write(out: Any, rows: slice, block: Any) -> None:
    """Write the fields of `block`, without its padding, to `rows` of the fields of `out`."""
    for total, values in zip(out, block):
        total[rows] = np.asarray(values)[: rows.stop - rows.start]


def _blocks(cells: Cells, width: int) -> Any:
    """Yield blocks of rows: the slice of rows, others and counts of their cells, and each cell's row in the block.

    Arrays of cells are padded to lengths of powers of two, so that few functions are compiled.
    """
    for rows in chunks(len(cells.ends) - 1, width**2, _BLOCK):
        size = 1 << max(rows.stop - rows.start - 1, 0).bit_length()
        cell_slice = slice(int(cells.ends[rows.start]), int(cells.ends[rows.stop]))
        i = np.repeat(np.arange(rows.stop - rows.start), np.diff(cells.ends[rows.start : rows.stop + 1]))
        columns = ((cells.others[cell_slice], 0), (cells.counts[cell_slice].astype(float), 0.0), (i, size))
        *block_cells, index = (_padded(column, value) for column, value in columns)
        yield rows, block_cells, index


def _padded(values: np.ndarray, value: float) -> np.ndarray:
    fill = (1 << max(len(values) - 1, 0).bit_length()) - len(values)
    return np.concatenate([values, np.full((fill, *values.shape[1:]), value, dtype=values.dtype)])


def _padded_block(arrays: Any, rows: slice, value: float = 0.0) -> Any:
    return type(arrays)(*(_padded(np.asarray(array[rows], dtype=float), value) for array in arrays))


def _doubles(symbols: Symbols) -> Symbols:
    return Symbols(*(np.asarray(array, dtype=float) for array in symbols))


def _own_rows(ends: jax.Array, n: int) -> jax.Array:
    return jnp.repeat(jnp.arange(len(ends) - 1), jnp.diff(ends), total_repeat_length=n)


@jax_funcify.register(PairSums)
def jax_pair_sums(op: PairSums, **kwargs: object) -> Callable[..., jax.Array]:
    """Return the JAX body of `PairSums`."""
    require_float64()

    def run(ends: Any, others: Any, counts: Any, *rest: Any) -> jax.Array:
        own, other, weights = Symbols(*rest[:4]), Symbols(*rest[4:8]), rest[8]
        return sums_of_rows(_own_rows(ends, len(others)), others, counts, own, other, weights)

    return run


@jax_funcify.register(RowStatistics)
def jax_row_statistics(op: RowStatistics, **kwargs: object) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the JAX body of `RowStatistics`."""
    require_float64()

    def run(ends: Any, others: Any, counts: Any, *rest: Any) -> tuple[jax.Array, ...]:
        own, other, (s, t, number, xi) = Symbols(*rest[:4]), Symbols(*rest[4:8]), rest[8:]
        censored = Censored(number, s, t, NOTHING, xi)
        return tuple(statistics_of_rows(_own_rows(ends, len(others)), others, counts, own, other, censored))

    return run


@jax_funcify.register(SolveRows)
def jax_solve_rows(op: SolveRows, **kwargs: object) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the JAX body of `SolveRows`."""
    require_float64()

    def run(*inputs: Any) -> tuple[jax.Array, ...]:
        s, outer, mean, mean_bias, bias, number, xi = inputs[9:]
        censored = Censored(number, s, s, Background(outer, mean, mean_bias, bias, 0.0), xi)
        return tuple(solved_rows(Statistics(*inputs[:4]), inputs[4], Priors(*inputs[5:9]), censored, op.sequential))

    return run


@jax_funcify.register(UpdateRows)
def jax_update_rows(op: UpdateRows, **kwargs: object) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the JAX body of `UpdateRows`."""
    require_float64()
    update = partial(updated_rows, sequential=op.sequential)

    def run(ends: Any, others: Any, counts: Any, *rest: Any) -> tuple[jax.Array, ...]:
        own, other, priors = Symbols(*rest[:4]), Symbols(*rest[4:8]), Priors(*rest[8:12])
        s, t, outer, mean, mean_bias, bias, number, xi = rest[12:]
        censored = Censored(number, s, t, Background(outer, mean, mean_bias, bias, 0.0), xi)
        return tuple(update(_own_rows(ends, len(others)), others, counts, own, other, priors, censored))

    return run


@jax_funcify.register(UpdateInTurn)
def jax_update_in_turn(op: UpdateInTurn, **kwargs: object) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the JAX body of `UpdateInTurn`."""
    require_float64()
    update = partial(updated_in_turn, sequential=op.sequential, points=(op.point_factors, op.point_bias))

    def run(*inputs: Any) -> tuple[jax.Array, ...]:
        s, outer, mean, mean_bias, bias, number, xi = inputs[11:]
        censored = Censored(number, s, s, Background(outer, mean, mean_bias, bias, 0.0), xi)
        return tuple(update(Cells(*inputs[:3]), Symbols(*inputs[3:7]), Priors(*inputs[7:11]), censored))

    return run
