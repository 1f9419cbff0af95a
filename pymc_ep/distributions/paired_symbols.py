"""Pairs of symbols, such as views of items by users, with censored pairs for what is not preferred."""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable
from scipy import sparse
from scipy.special import expit

from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.kernels import register_bodies

__all__ = ["MOST_PROPOSALS", "PairedSymbols", "PairedSymbolsRV", "as_counts", "packed_pairs"]

MOST_PROPOSALS = 1_000
"""Largest number of proposals for a drawn pair: with one pair in a thousand accepted, draws take seconds for 1e5
pairs."""
_SIDES = ("user", "item")


class PairedSymbolsRV(RandomVariable):
    """Op of `PairedSymbols`: draws pairs by popularity and keeps each with the probability of its preference."""

    name = "paired_symbols"
    signature = "(i),(j),(i,k),(j,k),(i),(j),(),()->(d,m)"
    dtype = "int64"
    _print_name = ("PairedSymbols", "\\operatorname{PairedSymbols}")

    def _supp_shape_from_params(self, dist_params: Sequence[Any], param_shapes: Any = None) -> tuple[Any, ...]:
        return dist_params[6], pt.constant(2, dtype="int64")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, *args: Any) -> np.ndarray:
        """Draw pairs, (*size, D, 2), in the order in which they were accepted."""
        *parameters, size = args
        cores = (1, 1, 2, 2, 1, 1, 0, 0)
        batches = [np.shape(p)[: np.ndim(p) - core] for p, core in zip(parameters, cores)]
        batch = np.broadcast_shapes(*batches) if size is None else tuple(size)
        if not batch:
            return _drawn_pairs(rng, *parameters[:7])
        each = [np.broadcast_to(p, (*batch, *np.shape(p)[np.ndim(p) - c :])) for p, c in zip(parameters, cores)]
        draws = [_drawn_pairs(rng, *(p[index] for p in each[:7])) for index in np.ndindex(*batch)]
        return np.stack(draws).reshape(*batch, *draws[0].shape)


def _drawn_pairs(
    rng: np.random.Generator, pi: Any, psi: Any, U: Any, V: Any, user_bias: Any, item_bias: Any, n_pairs: Any
) -> np.ndarray:
    """Return accepted pairs, (D, 2)."""
    wanted, tried = int(n_pairs), 0
    found = [np.zeros((0, 2), dtype=np.int64)]
    left, ahead = wanted, 2.0
    while left > 0:
        block = int(ahead * left) + 16
        i, j = (rng.choice(len(p), size=block, p=p / np.sum(p)) for p in (pi, psi))
        a = np.einsum("nk,nk->n", U[i], V[j]) + user_bias[i] + item_bias[j]
        kept = rng.random(block) < expit(a)
        found.append(np.stack([i[kept], j[kept]], axis=1)[:left])
        tried, left = tried + block, left - len(found[-1])
        if tried > MOST_PROPOSALS * max(wanted, 16) and left:
            raise NumericalError(
                f"Of {tried} pairs drawn by popularity {wanted - left} were accepted, so that {wanted} would take too "
                f"long: preferences are all far below zero. Give the biases a higher mean, or a smaller scale."
            )
        ahead = min(1.2 * tried / max(1, wanted - left), 100.0)
    return np.concatenate(found)


paired_symbols = PairedSymbolsRV()
register_bodies("numba", "pymc_ep.distributions.paired_symbols_numba")


class PairedSymbols(Discrete):
    r"""Stream of pairs (user, item) that are drawn by popularity and censored by preference.

    .. math:: p(i, j) = \pi_i \psi_j, \qquad P(\text{observed} \mid i, j) = \sigma(a_{ij}), \qquad
              a_{ij} = u_i^\top v_j + b_i + c_j

    Only observed pairs are data. Beside D of them, D' = `censored_ratio` D censored ones are known to exist, though not
    which. The log density of the stream, given all else, is [1]_

    .. math:: \sum_d \log \pi_{i_d} \psi_{j_d} \sigma(a_{i_d j_d})
              + D' \log \sum_{ij} \pi_i \psi_j \sigma(-a_{ij}).

    Its second term takes I J operations; ``pymc_ep.fit(method="paired_vb")`` needs none of these.

    Parameters
    ----------
    name : str
    U, V : tensor_like, (I, K) and (J, K)
        Such as ``pm.Normal("U", 0, 1, dims=("user", "factor"))``.
    user_bias, item_bias : tensor_like, (I,) and (J,), or 0
    censored_ratio : float
        Number of censored pairs per observed one, D' / D.
    alpha0, beta0 : float or array_like
        Concentrations of the Dirichlet priors of the popularities of users and of items. In a model these become
        variables, named ``<name>_user_popularity`` and ``<name>_item_popularity``.
    user_popularity, item_popularity : tensor_like, (I,) and (J,), optional
        Popularities in place of these variables; needed outside of a model.
    n_pairs : int, optional
        Number of pairs D to draw, where nothing is observed.
    observed : array_like of int, (D, 2), or SciPy sparse array or matrix, (I, J)
        Pairs of a user and an item, counted from zero, or counts of pairs. Counts are stored in rows of user, item and
        count, (n, 3). Draws are always pairs, (D, 2). An empty list stands for pairs in files, which
        ``fit(partitions="pairs/*.parquet")`` reads.

    Raises
    ------
    InvalidDataError
        For indices out of range, counts that are negative or fractional, and shapes that differ.

    References
    ----------
    .. [1] U. Paquet, N. Koenigstein and O. Winther (2014), Scalable Bayesian modelling of paired symbols,
       arXiv:1409.2824.

    Examples
    --------
    >>> with pm.Model():
    ...     U, V = (pm.Normal(name, 0, 1, shape=(3, 2)) for name in "UV")
    ...     views = PairedSymbols("views", U, V, 0, 0, observed=[[0, 1], [0, 2], [1, 1]])
    """

    rv_op = paired_symbols

    def __new__(
        cls,
        name: str,
        U: Any,
        V: Any,
        user_bias: Any = 0,
        item_bias: Any = 0,
        *,
        censored_ratio: float = 1.0,
        alpha0: Any = 1.0,
        beta0: Any = 1.0,
        user_popularity: Any = None,
        item_popularity: Any = None,
        n_pairs: int | None = None,
        observed: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Add the popularities that are not given, then the pairs, to the model."""
        matrices = [pt.as_tensor_variable(matrix) for matrix in (U, V)]
        popularities = []
        for side, matrix, given, concentration in zip(
            _SIDES, matrices, (user_popularity, item_popularity), (alpha0, beta0)
        ):
            popularities.append(_popularity(name, side, matrix, concentration) if given is None else given)
        if observed is not None:
            if n_pairs is not None:
                raise InvalidDataError(f"{name!r} has observations and n_pairs={n_pairs}; leave the latter out.")
            observed, n_pairs = _observed(name, observed, matrices)
        kwargs |= {"user_popularity": popularities[0], "item_popularity": popularities[1]}
        kwargs |= {"n_pairs": n_pairs, "censored_ratio": censored_ratio}
        try:
            return super().__new__(cls, name, *matrices, user_bias, item_bias, observed=observed, **kwargs)
        except InvalidDataError as error:
            raise InvalidDataError(f"{name!r}: {error}") from None

    @classmethod
    def dist(
        cls,
        U: Any,
        V: Any,
        user_bias: Any = 0,
        item_bias: Any = 0,
        *,
        user_popularity: Any = None,
        item_popularity: Any = None,
        n_pairs: Any = None,
        censored_ratio: Any = 1.0,
        **kwargs: Any,
    ) -> Any:
        """Return a variable of this distribution outside of any model."""
        if n_pairs is None:
            raise InvalidDataError(
                "PairedSymbols without observations needs n_pairs=, the number of pairs to draw, or observed=[] where "
                "the pairs are in files, which fit(partitions=) reads."
            )
        if user_popularity is None or item_popularity is None:
            raise InvalidDataError("PairedSymbols outside of a model needs user_popularity= and item_popularity=.")
        _require_ratio(censored_ratio)
        U, V = (pt.as_tensor_variable(matrix) for matrix in (U, V))
        widths = [matrix.type.shape[1] if matrix.ndim == 2 else None for matrix in (U, V)]
        if U.ndim != 2 or V.ndim != 2 or (None not in widths and widths[0] != widths[1]):
            raise InvalidDataError(
                f"PairedSymbols takes matrices (users, factors) and (items, factors), but {U.name or 'U'!r} and "
                f"{V.name or 'V'!r} have shapes {U.type.shape} and {V.type.shape}; give both as many columns."
            )
        n_pairs = pt.as_tensor_variable(n_pairs).astype("int64")
        biases = [_of_symbols(side, b, m) for side, b, m in zip(_SIDES, (user_bias, item_bias), (U, V))]
        popularities = [pt.as_tensor_variable(p) for p in (user_popularity, item_popularity)]
        ratio = pt.as_tensor_variable(censored_ratio).astype("float64")
        return super().dist([*popularities, U, V, *biases, n_pairs, ratio], **kwargs)

    def support_point(rv: Any, size: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value: the first user with the first item."""
        return pt.zeros(rv.shape, dtype="int64")

    def logp(
        value: Any, pi: Any, psi: Any, U: Any, V: Any, user_bias: Any, item_bias: Any, n_pairs: Any, censored_ratio: Any
    ) -> Any:
        """Return the graph of the log density of pairs, (D, 2), or of counts in rows, (n, 3)."""
        i, j = value[:, 0], value[:, 1]
        times = value[:, 2] if value.type.shape[1] == 3 else 1
        a = (U[i] * V[j]).sum(axis=-1) + user_bias[i] + item_bias[j]
        observed = times * (pt.log(pi[i]) + pt.log(psi[j]) - pt.softplus(-a))
        every = U @ V.T + user_bias[:, None] + item_bias
        censored = pt.logsumexp(pt.log(pi)[:, None] + pt.log(psi) - pt.softplus(every))
        return observed.sum() + censored_ratio * n_pairs * censored


def _popularity(name: str, side: str, matrix: Any, concentration: Any) -> Any:
    """Add the popularities of one side to the model, with the dim of the matrix's rows."""
    values = np.asarray(concentration, dtype=float)
    if not (np.isfinite(values) & (values > 0)).all():
        which = "alpha0" if side == "user" else "beta0"
        raise InvalidDataError(f"{name!r} has {which}={concentration!r}; concentrations are positive and finite.")
    dims = pm.modelcontext(None).named_vars_to_dims.get(matrix.name)
    variable = f"{name}_{side}_popularity"
    return pm.Dirichlet(
        variable, pt.ones(_n_rows(matrix)) * values, dims=None if not dims or dims[0] is None else dims[:1]
    )


def _n_rows(matrix: Any) -> Any:
    """Return the number of rows of a matrix as a graph that does not depend on its values."""
    return infer_shape([matrix], (), ())[0][0]


def _of_symbols(side: str, values: Any, matrix: Any) -> Any:
    """Return the biases of one side, (I,); zero stands for none."""
    bias = pt.as_tensor_variable(values)
    if bias.ndim > 1:
        raise InvalidDataError(f"The {side} bias of PairedSymbols has {bias.ndim} dimensions; give one value a {side}.")
    length, wanted = bias.type.shape[0] if bias.ndim else None, matrix.type.shape[0]
    if None not in (length, wanted) and length != wanted:
        raise InvalidDataError(
            f"The {side} bias of PairedSymbols has {length} values, but {matrix.name!r} has {wanted} rows."
        )
    return bias if bias.ndim else pt.broadcast_to(bias.astype("float64"), (_n_rows(matrix),))


def _require_ratio(ratio: Any) -> None:
    if isinstance(ratio, Variable):
        return
    if isinstance(ratio, bool | np.bool_) or not isinstance(ratio, Real) or not 0 < float(ratio) < np.inf:
        raise InvalidDataError(
            f"censored_ratio={ratio!r} of PairedSymbols must be positive, such as 1.0: one censored pair for each "
            f"observed one."
        )


def _observed(name: str, observed: Any, matrices: Sequence[Any]) -> tuple[Any, Any]:
    """Return the stored observations and the number of pairs."""
    if isinstance(observed, Variable):
        if observed.ndim != 2 or observed.type.shape[1] not in (2, 3):
            raise InvalidDataError(f"{name!r} has data of shape {observed.type.shape}; give pairs, (D, 2).")
        times = observed[:, 2].sum() if observed.type.shape[1] == 3 else observed.shape[0]
        return observed, times
    rows = packed_pairs(name, observed, tuple(matrix.type.shape[0] for matrix in matrices))
    return rows, int(rows[:, 2].sum() if rows.shape[1] == 3 else len(rows))


def packed_pairs(name: str, observed: Any, shape: Sequence[int | None], sides: tuple[str, str] = _SIDES) -> np.ndarray:
    """Return pairs, (D, 2), as they are given, or the counts of a sparse matrix in rows of user, item, count, (n, 3).

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    observed : array_like or SciPy sparse
    shape : (int or None, int or None)
        Numbers of users and items, where known.
    sides : (str, str)
        Words for users and items in messages.

    Raises
    ------
    InvalidDataError
        For indices out of range, counts that are negative or fractional, and shapes that differ.
    """
    if sparse.issparse(observed):
        return _packed_counts(name, observed, shape, sides)
    pairs = np.asarray(observed)
    if pairs.shape == (0,):
        pairs = np.zeros((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InvalidDataError(
            f"{name!r} has observations of shape {pairs.shape}; give pairs of user and item, (D, 2), or a SciPy sparse "
            f"matrix of counts, (users, items)."
        )
    pairs = _whole(f"{name!r} has the index", pairs)
    for column, (side, n) in enumerate(zip(sides, shape)):
        _require_range(name, side, pairs[:, column], n)
    return pairs


def _packed_counts(name: str, observed: Any, shape: Sequence[int | None], sides: tuple[str, str]) -> np.ndarray:
    if any(n not in (None, own) for n, own in zip(shape, observed.shape)):
        raise InvalidDataError(
            f"{name!r} has counts of shape {observed.shape}, but there are {shape[0]} {sides[0]}s and {shape[1]} "
            f"{sides[1]}s; transpose the counts, or correct the matrices."
        )
    table = observed.tocoo(copy=True)
    values = _whole(f"{name!r} has the count", table.data, (table.row, table.col))
    if (values < 0).any():
        k = int(np.argmax(values < 0))
        raise InvalidDataError(
            f"{name!r} has the count {values[k]} at row {table.row[k]} and column {table.col[k]}; counts are at "
            f"least 0."
        )
    table.data = values
    # Cells that are listed twice are added up, as SciPy does.
    table.sum_duplicates()
    some = table.data > 0
    rows = np.stack([part[some].astype(np.int64) for part in (table.row, table.col, table.data)], axis=1)
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def _whole(what: str, values: np.ndarray, places: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """Return values as integers; raise for the first that is no whole number."""
    if values.dtype.kind not in "biuf":
        raise InvalidDataError(f"{what}es of type {values.dtype}; give whole numbers.")
    bad = values != np.floor(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
    if bad.any():
        k = np.unravel_index(int(np.argmax(bad)), values.shape)
        where = f"at row {k[0]}" if places is None else f"at row {places[0][k]} and column {places[1][k]}"
        raise InvalidDataError(f"{what} {values[k]} {where}, which is no whole number; correct it.")
    return values.astype(np.int64)


def _require_range(name: str, side: str, index: np.ndarray, n: int | None) -> None:
    bad = (index < 0) | (index >= (np.inf if n is None else n))
    if bad.any():
        k = int(np.argmax(bad))
        end = "" if n is None else f" and less than {n}, the number of rows of its matrix"
        raise InvalidDataError(
            f"{name!r} has the {side} {index[k]} at row {k}, but indices are at least 0{end}; correct it."
        )


def as_counts(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return users, items and counts, (n,) each, of stored observations."""
    return rows[:, 0], rows[:, 1], rows[:, 2] if rows.shape[1] == 3 else np.ones(len(rows))
