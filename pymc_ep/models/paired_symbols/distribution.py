"""Distribution of pairs of symbols, such as views of items by users; pairs that are not preferred are censored."""

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
from scipy.special import expit

from pymc_ep.distributions.labels import numbered
from pymc_ep.distributions.pair_data import SIDES, labelled_pairs, packed_links, packed_pairs
from pymc_ep.exceptions import InvalidDataError, NumericalError, UnsupportedModelError
from pymc_ep.kernels import register_bodies

__all__ = ["MOST_PROPOSALS", "PairedSymbols", "PairedSymbolsRV", "SymmetricPairsRV"]

MOST_PROPOSALS = 1_000
"""Largest mean number of proposals for each pair drawn: with one in a thousand accepted, 1e5 pairs take seconds."""


class PairedSymbolsRV(RandomVariable):
    """Op of `PairedSymbols`: draws pairs by popularity and keeps each with the probability of its preference."""

    name = "paired_symbols"
    signature = "(i),(j),(i,k),(j,k),(i),(j),(),()->(d,m)"
    dtype = "int64"
    _print_name = ("PairedSymbols", "\\operatorname{PairedSymbols}")
    alike = False
    """Whether users and items are the same symbols; no symbol is then paired with itself."""

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
            return _drawn_pairs(rng, *parameters[:7], alike=cls.alike)
        each = [np.broadcast_to(p, (*batch, *np.shape(p)[np.ndim(p) - c :])) for p, c in zip(parameters, cores)]
        draws = [_drawn_pairs(rng, *(p[index] for p in each[:7]), alike=cls.alike) for index in np.ndindex(*batch)]
        return np.stack(draws).reshape(*batch, *draws[0].shape)


class SymmetricPairsRV(PairedSymbolsRV):
    """Op of `PairedSymbols` whose parameters are the same for both sides: pairs have no order."""

    name = "symmetric_pairs"
    alike = True


def _drawn_pairs(
    rng: np.random.Generator,
    pi: Any,
    psi: Any,
    U: Any,
    V: Any,
    user_bias: Any,
    item_bias: Any,
    n_pairs: Any,
    *,
    alike: bool,
) -> np.ndarray:
    """Return D pairs, (D, 2): proposals i ~ pi and j ~ psi that were accepted with the probability sig(a_ij)."""
    wanted, tried = int(n_pairs), 0
    accepted = [np.zeros((0, 2), dtype=np.int64)]
    missing, oversampling = wanted, 2.0
    while missing > 0:
        block = int(oversampling * missing) + 16
        i, j = (rng.choice(len(p), size=block, p=p / np.sum(p)) for p in (pi, psi))
        a = np.einsum("nk,nk->n", U[i], V[j]) + user_bias[i] + item_bias[j]
        # Kept with the probability sig(a): p(i, j) is proportional to pi_i psi_j sig(a_ij).
        kept = rng.random(block) < expit(a)
        if alike:
            kept &= i != j
        accepted.append(np.stack([i[kept], j[kept]], axis=1)[:missing])
        tried, missing = tried + block, missing - len(accepted[-1])
        if tried > MOST_PROPOSALS * max(wanted, 16) and missing:
            raise NumericalError(
                f"Of {tried} pairs drawn by popularity {wanted - missing} were accepted, so that {wanted} would take "
                f"too long: preferences are all far below zero. Give the biases a higher mean, or a smaller scale."
            )
        # Proposals for each missing pair: the inverse of the accepted share, and a fifth more.
        oversampling = min(1.2 * tried / max(1, wanted - missing), 100.0)
    return np.concatenate(accepted)


paired_symbols, symmetric_pairs = PairedSymbolsRV(), SymmetricPairsRV()
register_bodies("numba", "pymc_ep.models.paired_symbols.distribution_numba")


class PairedSymbols(Discrete):
    r"""Stream of pairs (user, item) that are drawn by popularity and censored by preference.

    .. math:: p(i, j) = \pi_i \psi_j, \qquad P(\text{observed} \mid i, j) = \sigma(a_{ij}), \qquad
              a_{ij} = u_i^\top v_j + b_i + c_j

    Here :math:`u_i` and :math:`v_j` are rows of `U` and `V`, b and c biases, :math:`\pi` and :math:`\psi` popularities,
    and :math:`\sigma` is the logistic function. Only observed pairs are data. For D observed pairs there are also D' =
    `censored_ratio` D censored pairs, whose symbols are unknown. The log density of the stream, given all variables,
    is [1]_

    .. math:: \sum_d \log \pi_{i_d} \psi_{j_d} \sigma(a_{i_d j_d})
              + D' \log \sum_{ij} \pi_i \psi_j \sigma(-a_{ij}).

    Its second term takes I J operations, which ``pymc_ep.fit(method="paired_vb")`` avoids.

    Where `U` and `V` are one variable, symbols are paired with each other, like authors of a paper. Pairs then have no
    order, both sides share popularities and biases, and a pair of a symbol with itself is always censored:

    .. math:: \sum_d \log 2 \pi_{i_d} \pi_{j_d} \sigma(a_{i_d j_d})
              + D' \log \Bigl(\sum_i \pi_i^2 + \sum_{i \ne j} \pi_i \pi_j \sigma(-a_{ij})\Bigr).

    Parameters
    ----------
    name : str
    U, V : tensor_like, (I, K) and (J, K)
        Factors of users and of items, such as ``pm.Normal("U", 0, 1, dims=("user", "factor"))``.
    user_bias, item_bias : tensor_like, (I,) and (J,), or 0
        Biases b and c.
    censored_ratio : float
        Number of censored pairs per observed one, D' / D.
    alpha0, beta0 : float or array_like
        Concentrations of the Dirichlet priors of the popularities of users and of items. In a model the popularities
        become variables, ``<name>_user_popularity`` and ``<name>_item_popularity``. Where both sides are the same
        symbols there is one, ``<name>_popularity``, of concentration `alpha0`.
    user_popularity, item_popularity : tensor_like, (I,) and (J,), optional
        Popularities instead of these new variables; needed outside of a model.
    n_pairs : int, optional
        Number of pairs D to draw, where nothing is observed.
    observed : array_like, (D, 2), or SciPy sparse array or matrix, (I, J)
        Pairs of a user and an item, by position or by the labels of the dims of `U` and `V`, or counts of pairs. Counts
        are stored in rows of user, item and count, (n, 3). Draws are always pairs, (D, 2). Where both sides are the
        same symbols each pair is listed once, in either order, or counts are symmetric. An empty list stands for pairs
        in files, which ``fit(partitions="pairs/*.parquet")`` reads.

    Raises
    ------
    InvalidDataError
        For indices out of range, counts that are negative or fractional, and shapes that differ.
    UnsupportedModelError
        If `U` and `V` are one variable, but biases or popularities of the two sides differ.

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
        matrices, given = [pt.as_tensor_variable(U), pt.as_tensor_variable(V)], (user_popularity, item_popularity)
        if U is V:
            matrices[1] = matrices[0]
            if not np.array_equal(beta0, alpha0) and not np.array_equal(beta0, 1.0):
                raise InvalidDataError(f"{name!r} has one popularity, of concentration alpha0; leave beta0 out.")
        if U is V and all(variable is None for variable in given):
            popularities = [_popularity(name, "popularity", matrices[0], "alpha0", alpha0)] * 2
        else:
            popularities = [
                _popularity(name, f"{side}_popularity", matrix, argument, concentration) if values is None else values
                for side, matrix, values, argument, concentration in zip(
                    SIDES, matrices, given, ("alpha0", "beta0"), (alpha0, beta0)
                )
            ]
        if observed is not None:
            if n_pairs is not None:
                raise InvalidDataError(f"{name!r} has observations and n_pairs={n_pairs}; leave the latter out.")
            observed, n_pairs = _observed(name, observed, matrices)
        kwargs |= {"user_popularity": popularities[0], "item_popularity": popularities[1]}
        kwargs |= {"n_pairs": n_pairs, "censored_ratio": censored_ratio}
        try:
            return super().__new__(cls, name, *matrices, user_bias, item_bias, observed=observed, **kwargs)
        except (InvalidDataError, UnsupportedModelError) as error:
            raise type(error)(f"{name!r}: {error}") from None

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
        chosen: type[PairedSymbols] = _SymmetricPairs if U is V else cls
        if U is V:
            _require_one("bias", U, user_bias, item_bias)
            _require_one("popularity", U, user_popularity, item_popularity)
        U, V = (pt.as_tensor_variable(matrix) for matrix in (U, V))
        widths = [matrix.type.shape[1] if matrix.ndim == 2 else None for matrix in (U, V)]
        if U.ndim != 2 or V.ndim != 2 or (None not in widths and widths[0] != widths[1]):
            raise InvalidDataError(
                f"PairedSymbols takes matrices (users, factors) and (items, factors), but {U.name or 'U'!r} and "
                f"{V.name or 'V'!r} have shapes {U.type.shape} and {V.type.shape}; give both as many columns."
            )
        n_pairs = pt.as_tensor_variable(n_pairs).astype("int64")
        biases = [_of_symbols(side, b, m) for side, b, m in zip(SIDES, (user_bias, item_bias), (U, V))]
        popularities = [pt.as_tensor_variable(p) for p in (user_popularity, item_popularity)]
        ratio = pt.as_tensor_variable(censored_ratio).astype("float64")
        return super(PairedSymbols, chosen).dist([*popularities, U, V, *biases, n_pairs, ratio], **kwargs)

    def support_point(rv: Any, size: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value: the first user with the first item."""
        return pt.zeros(rv.shape, dtype="int64")

    def logp(value: Any, *parameters: Any) -> Any:
        """Return the graph of the log density of pairs, (D, 2), or of counts in rows, (n, 3)."""
        return _log_density(value, *parameters, alike=False)


class _SymmetricPairs(PairedSymbols):
    """`PairedSymbols` whose sides are the same symbols."""

    rv_op = symmetric_pairs

    def support_point(rv: Any, size: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value: the first symbol with the second."""
        return pt.zeros(rv.shape, dtype="int64") + pt.constant([0, 1])

    def logp(value: Any, *parameters: Any) -> Any:
        """Return the graph of the log density of pairs, (D, 2), or of counts in rows, (n, 3)."""
        return _log_density(value, *parameters, alike=True)


def _log_density(
    value: Any,
    pi: Any,
    psi: Any,
    U: Any,
    V: Any,
    user_bias: Any,
    item_bias: Any,
    n_pairs: Any,
    censored_ratio: Any,
    *,
    alike: bool,
) -> Any:
    i, j = value[:, 0], value[:, 1]
    times = value[:, 2] if value.type.shape[1] == 3 else 1
    a = (U[i] * V[j]).sum(axis=-1) + user_bias[i] + item_bias[j]
    # log sig(a) = -softplus(-a), log sig(-a) = -softplus(a).
    observed = pt.log(pi[i]) + pt.log(psi[j]) - pt.softplus(-a)
    log_not_kept = -pt.softplus(U @ V.T + user_bias[:, None] + item_bias)
    if alike:
        # {i, j} is drawn in either order, hence log 2; {i, i} is censored with probability 1, log 1 = 0.
        observed = pt.switch(pt.eq(i, j), -np.inf, np.log(2.0) + observed)
        log_not_kept = log_not_kept * (1.0 - pt.eye(pi.shape[0]))
    censored = pt.logsumexp(pt.log(pi)[:, None] + pt.log(psi) + log_not_kept)
    return (times * observed).sum() + censored_ratio * n_pairs * censored


def _require_one(what: str, matrix: Any, of_users: Any, of_items: Any) -> None:
    """Raise unless both sides, the rows of one matrix, share their biases or popularities."""
    constant = not isinstance(of_users, Variable) and not isinstance(of_items, Variable)
    if of_users is not of_items and not (constant and np.array_equal(of_users, of_items)):
        names = [getattr(variable, "name", None) or variable for variable in (of_users, of_items)]
        raise UnsupportedModelError(
            f"both sides have the matrix {getattr(matrix, 'name', None) or 'U'}, whose pairs have no order, but the "
            f"{what} of one is {names[0]} and of the other {names[1]}; give one {what} for both, or each side a matrix "
            f"of its own."
        )


def _popularity(name: str, what: str, matrix: Any, argument: str, concentration: Any) -> Any:
    """Add the popularities of one side to the model, ``<name>_<what>``, with the dim of the matrix's rows."""
    values = np.asarray(concentration, dtype=float)
    if not (np.isfinite(values) & (values > 0)).all():
        raise InvalidDataError(f"{name!r} has {argument}={concentration!r}; concentrations are positive and finite.")
    dims = pm.modelcontext(None).named_vars_to_dims.get(matrix.name)
    return pm.Dirichlet(
        f"{name}_{what}", pt.ones(_n_rows(matrix)) * values, dims=None if not dims or dims[0] is None else dims[:1]
    )


def _n_rows(matrix: Any) -> Any:
    """Return the number of rows of a matrix as a graph that does not depend on its values."""
    return infer_shape([matrix], (), ())[0][0]


def _of_symbols(side: str, values: Any, matrix: Any) -> Any:
    """Return the biases of one side, (I,); a scalar, such as 0 for no biases, is repeated."""
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
    """Return the observations as they are stored, (D, 2) or (n, 3), and the number D of pairs."""
    if isinstance(observed, Variable):
        if observed.ndim != 2 or observed.type.shape[1] not in (2, 3):
            raise InvalidDataError(f"{name!r} has data of shape {observed.type.shape}; give pairs, (D, 2).")
        times = observed[:, 2].sum() if observed.type.shape[1] == 3 else observed.shape[0]
        return observed, times
    n_users, n_items = (matrix.type.shape[0] for matrix in matrices)
    observed = _by_position(name, observed, matrices)
    if matrices[0] is matrices[1]:
        rows = packed_links(name, observed, n_users)
    else:
        rows = packed_pairs(name, observed, (n_users, n_items))
    # Doubles, since PyMC stores integers in 32 bits.
    return rows.astype(np.float64), int(rows[:, 2].sum() if rows.shape[1] == 3 else len(rows))


def _by_position(name: str, observed: Any, matrices: Sequence[Any]) -> Any:
    """Return observations with positions in place of labels, if they are pairs of labels."""
    if (pairs := labelled_pairs(observed)) is None:
        return observed
    columns = zip(SIDES, pairs.T, matrices)
    return np.stack([numbered(f"{name!r}: {side}", column, matrix) for side, column, matrix in columns], axis=1)
