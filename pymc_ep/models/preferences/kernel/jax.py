"""JAX bodies of the posteriors of compared utilities: users of similar size at once, padded to powers of two.

Padding items have zero rows of L, and padding comparisons have a precision of zero, so that neither has an effect.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.kernels.array_op import ArrayOp
from pymc_ep.models.preferences.kernel.body import Comparisons, Differences
from pymc_ep.models.preferences.kernel.op import DifferenceMeans, DifferenceMoments, PrecisionLosses, PriorFactors
from pymc_ep.numerics.backend.namespace_jax import require_float64

__all__ = ["difference_means", "difference_moments", "precision_losses", "prior_factors"]

_NUMBERS = 2**22
"""Largest number of entries of the matrices (n, n) and (p, n) of a group of users, 32 MiB."""

_LEAST = 8
"""Smallest number of items, and of comparisons, to which users are padded: each pair of sizes is compiled, which takes
a second, and smaller matrices are no faster."""


class _Group(NamedTuple):
    """Users whose numbers of items and comparisons are rounded up to the same powers of two, n and p.

    Attributes
    ----------
    users, pairs, entries : ndarray of int64, (k,), (k, p), (k, n, n)
        Places of the group's k users, of their comparisons and of the entries of their n x n matrices, in the arrays of
        all users. Padding has the place after the last one.
    items : ndarray of int32, (k, n)
        Items; -1 for padding.
    firsts, seconds : ndarray of int32, (k, p)
        As in `Comparisons`; zero for padding.
    """

    users: np.ndarray
    pairs: np.ndarray
    entries: np.ndarray
    items: np.ndarray
    firsts: np.ndarray
    seconds: np.ndarray


def _groups(comparisons: Comparisons) -> Iterator[_Group]:
    """Yield all users in groups of similar numbers of items and comparisons."""
    ends = comparisons.item_ends, comparisons.pair_ends, comparisons.square_ends
    n_items, n_pairs = (np.diff(values) for values in ends[:2])
    sizes = np.stack([_power_of_two(np.maximum(values, _LEAST)) for values in (n_items, n_pairs)], axis=1)
    for n, p in np.unique(sizes, axis=0).tolist():
        alike = np.flatnonzero((sizes == (n, p)).all(axis=1))
        step = max(1, _NUMBERS // (n * max(n, p)))
        for users in np.split(alike, range(step, len(alike), step)):
            yield _group(comparisons, users, n, p)


def _group(comparisons: Comparisons, users: np.ndarray, n: int, p: int) -> _Group:
    """Return a group of some users, whose number is rounded up to a power of two as well."""
    filled = np.full(int(_power_of_two(np.array(len(users)))), comparisons.n_users)
    filled[: len(users)] = users

    def begins(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first places and the numbers of places of these users, and of the padding."""
        begin = np.append(ends, ends[-1])
        return begin[filled], np.diff(begin)[filled]

    def places(ends: np.ndarray, width: int) -> np.ndarray:
        begin, count = begins(ends)
        offsets = np.arange(width)
        return np.where(offsets < count[:, None], begin[:, None] + offsets, ends[-1])

    (square, _), (_, count) = begins(comparisons.square_ends), begins(comparisons.item_ends)
    row, column = np.arange(n)[:, None], np.arange(n)
    most = count[:, None, None]
    inside, end = np.maximum(row, column) < most, comparisons.square_ends[-1]
    entries = np.where(inside, square[:, None, None] + row * most + column, end)
    pairs = places(comparisons.pair_ends, p)
    sides = (np.append(side, np.int32(0))[pairs] for side in (comparisons.firsts, comparisons.seconds))
    items = np.append(comparisons.items, np.int32(-1))[places(comparisons.item_ends, n)]
    return _Group(filled, pairs, entries, items, *sides)


def _power_of_two(n: np.ndarray) -> np.ndarray:
    """Return the least powers of two that are no smaller than `n`, elementwise."""
    return 2 ** np.ceil(np.log2(n)).astype(np.int64)


def _taken(xp: Any, values: Any, places: np.ndarray) -> Any:
    """Return the values at `places`; zero for the place after the last value, which stands for padding."""
    return xp.append(values, xp.zeros(1, values.dtype))[places]


def _put_together(xp: Any, arrays: Sequence[Any], places: Sequence[np.ndarray], size: int) -> Any:
    """Return an array, (size,), with all values put at their places; values at the place `size` are padding."""
    every = np.concatenate([indices.ravel() for indices in places])
    at = np.zeros(size + 1, dtype=np.int64)
    # The inverse map: position of each place in the joined arrays.
    at[every] = np.arange(len(every))
    return xp.concatenate([xp.asarray(array).ravel() for array in arrays])[at[:size]]


def _rows(values: jax.Array, firsts: jax.Array, seconds: jax.Array) -> jax.Array:
    """Return row i minus row j of a user's matrix `values`, (n, n), for each of its comparisons of i and j, (p, n)."""
    return values[firsts] - values[seconds]


def _factored(items: jax.Array, factors: jax.Array, kernel: jax.Array, scale: jax.Array) -> tuple[jax.Array, ...]:
    """Return the Cholesky factor of a user's prior covariance, and True if it does not exist."""
    # Padding has the rows of an identity here, so that the factor exists; its entries are left out afterwards.
    rows, mask = jnp.maximum(items, 0), items >= 0
    between = kernel[rows[:, None], rows] if kernel.size else rows[:, None] == rows
    covariance = factors[rows] @ factors[rows].T + scale * between
    lower = jnp.linalg.cholesky(jnp.where(mask[:, None] & mask, covariance, jnp.eye(len(items))))
    return lower, ~jnp.isfinite(lower).all()


def _means(firsts: Any, seconds: Any, white: Any, mean: Any, shift: Any, precision: Any) -> tuple[jax.Array]:
    # mu + D W^T W D^T (b - p mu).
    rows = _rows(white, firsts, seconds)
    return (mean + rows @ (rows.T @ (shift - precision * mean)),)


def _moments(firsts: Any, seconds: Any, lower: Any, mean: Any, shift: Any, precision: Any) -> tuple[jax.Array, ...]:
    # A = I + (D L)^T diag(p) D L = R R^T, W^T = L R^-T, and variances diag(D W^T W D^T).
    rows = _rows(lower, firsts, seconds)
    root = jnp.linalg.cholesky(jnp.eye(len(lower)) + rows.T @ (precision[:, None] * rows))
    white = jax.scipy.linalg.solve_triangular(root, lower.T, lower=True).T
    variance = (_rows(white, firsts, seconds) ** 2).sum(axis=1)
    log_det = 2.0 * jnp.log(jnp.diagonal(root)).sum()
    return *_means(firsts, seconds, white, mean, shift, precision), variance, log_det, white


def _losses(firsts: Any, seconds: Any, white: Any, precision: Any) -> tuple[jax.Array]:
    # H - (H W^T) (H W^T)^T, with H = D^T diag(p) D.
    design = _rows(jnp.eye(len(white)), firsts, seconds)
    through = design.T @ (precision[:, None] * _rows(white, firsts, seconds))
    return (design.T @ (precision[:, None] * design) - through @ through.T,)


_jit_factors = jax.jit(jax.vmap(_factored, in_axes=(0, None, None, None)))
_jit_means, _jit_moments, _jit_losses = (jax.jit(jax.vmap(function)) for function in (_means, _moments, _losses))


def _over_groups(
    xp: Any,
    function: Callable[..., Any],
    comparisons: Comparisons,
    given: Sequence[tuple[str, Any]],
    output_fields: Sequence[str],
) -> list[Any]:
    """Apply a function to each group of users, and return its results joined for all users.

    Parameters
    ----------
    xp : module
        NumPy, or `jax.numpy` where values are traced.
    function : callable
        Takes `_Group.firsts`, `_Group.seconds` and the group's part of each array in `given`.
    comparisons : Comparisons
    given : sequence of (str, array)
        Arrays of all users, each after the field of `_Group` that holds the places of its values.
    output_fields : sequence of str
        For each result of the function, the field of `_Group` that holds the places of its values.
    """
    groups, results = list(_groups(comparisons)), []
    for group in groups:
        values = [_taken(xp, array, getattr(group, field)) for field, array in given]
        results.append(function(group.firsts, group.seconds, *values))
    places = [[getattr(group, field) for group in groups] for field in output_fields]
    sizes = {"users": comparisons.n_users, "pairs": len(comparisons.firsts), "entries": comparisons.square_ends[-1]}
    return [
        _put_together(xp, array, at, sizes[field]) for array, at, field in zip(zip(*results), places, output_fields)
    ]


def _prior_factors(xp: Any, comparisons: Comparisons, factors: Any, kernel: Any, scale: Any) -> tuple[Any, Any]:
    groups = list(_groups(comparisons))
    lower, failed = zip(*(_jit_factors(group.items, factors, kernel, scale) for group in groups))
    lower = _put_together(xp, lower, [group.entries for group in groups], comparisons.square_ends[-1])
    failed = _put_together(xp, failed, [group.users for group in groups], comparisons.n_users)
    return lower, xp.where(failed.any(), xp.argmax(failed), -1)


def _difference_moments(xp: Any, comparisons: Comparisons, lower: Any, *of_pairs: Any) -> Differences:
    given = [("entries", lower), *(("pairs", array) for array in of_pairs)]
    return Differences(*_over_groups(xp, _jit_moments, comparisons, given, ("pairs", "pairs", "users", "entries")))


def _difference_means(xp: Any, comparisons: Comparisons, whitened: Any, *of_pairs: Any) -> Any:
    given = [("entries", whitened), *(("pairs", array) for array in of_pairs)]
    return _over_groups(xp, _jit_means, comparisons, given, ("pairs",))[0]


def _precision_losses(xp: Any, comparisons: Comparisons, whitened: Any, precision: Any) -> Any:
    given = [("entries", whitened), ("pairs", precision)]
    return _over_groups(xp, _jit_losses, comparisons, given, ("entries",))[0]


def prior_factors(
    comparisons: Comparisons, factors: np.ndarray, kernel: np.ndarray, scale: float
) -> tuple[np.ndarray, int]:
    """Return the Cholesky factors of the users' prior covariances; see the NumPy body."""
    require_float64()
    lower, failed = _prior_factors(np, comparisons, factors, kernel, scale)
    return lower, int(failed)


def difference_moments(
    comparisons: Comparisons, lower: np.ndarray, mean: np.ndarray, shift: np.ndarray, precision: np.ndarray
) -> Differences:
    """Return the posterior of the differences; see the NumPy body."""
    require_float64()
    return _difference_moments(np, comparisons, lower, mean, shift, precision)


def difference_means(
    comparisons: Comparisons, whitened: np.ndarray, mean: np.ndarray, shift: np.ndarray, precision: np.ndarray
) -> np.ndarray:
    """Return the posterior means of the differences for any shifts; see the NumPy body."""
    require_float64()
    return _difference_means(np, comparisons, whitened, mean, shift, precision)


def precision_losses(comparisons: Comparisons, whitened: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Return H - H cov(f | factors) H of each user; see the NumPy body."""
    require_float64()
    return _precision_losses(np, comparisons, whitened, precision)


_TRACED: dict[type, Callable[..., Any]] = {
    PriorFactors: _prior_factors,
    DifferenceMoments: _difference_moments,
    DifferenceMeans: _difference_means,
    PrecisionLosses: _precision_losses,
}
"""Functions that compute the outputs of each Op from traced values."""


@jax_funcify.register(PriorFactors)
@jax_funcify.register(DifferenceMoments)
@jax_funcify.register(DifferenceMeans)
@jax_funcify.register(PrecisionLosses)
def jax_of_users(op: ArrayOp, node: Apply, **kwargs: object) -> Callable[..., Any]:
    """Return the JAX body of an Op of comparisons.

    Raises
    ------
    NotImplementedError
        If the comparisons are no constants of the graph: JAX compiles for sizes that depend on their values.
    """
    require_float64()
    given = node.inputs[: len(Comparisons._fields)]
    if not all(isinstance(variable, Constant) for variable in given):
        raise NotImplementedError(
            f"{type(op).__name__} needs comparisons that are constants of the graph, as JAX compiles for fixed sizes; "
            f"give their arrays in place of symbols."
        )
    comparisons = Comparisons(*(variable.data for variable in given))

    def run(*inputs: Any) -> Any:
        return _TRACED[type(op)](jnp, comparisons, *inputs[len(given) :])

    return run
