"""Counts and bits whose predictors are inner products of rows of two matrices, such as users' and items'.

Each class adds one of PyMC's distributions at such a predictor, so that draws and log densities are PyMC's own.
"""

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable

from pymc_ep.distributions.counts import as_real, whole_observations
from pymc_ep.distributions.labels import numbered
from pymc_ep.distributions.positive_counts import PositiveCounts
from pymc_ep.exceptions import InvalidDataError

__all__ = ["BilinearBernoulli", "BilinearPoisson", "require_unmasked"]


class BilinearPoisson:
    r"""Counts at some cells of a matrix, with the rates of a low-rank log-linear model.

    .. math:: y_c \sim \operatorname{Poisson}(\lambda_c), \qquad
              \log \lambda_c = v_{i(c)}^\top u_{j(c)} + \text{offset}_c

    With the link ``"softplus"`` the left side of the second equation is :math:`\log(e^{\lambda_c} - 1)`.

    Parameters
    ----------
    name : str
    V, U : tensor_like, (I, D) and (J, D)
        Matrices of rows :math:`v_i` and :math:`u_j`, such as ``pm.Normal("V", 0, s, dims=("item", "factor"))``, or
        ``pm.MvNormal`` with one covariance for all rows.
    rows, cols : array_like, (n,)
        Row of V and row of U of each cell: numbers from zero, or labels of the matrices' first dims, unless the labels
        are numbers. A cell that is listed twice is observed twice; cells that are not listed are missing, not zero.
    offset : tensor_like, (n,)
        Added to the predictors: biases such as ``b[rows] + c[cols]``, an intercept, the log of an exposure.
    link : {"exp", "softplus"}
        Rate e^f, or log(1 + e^f), which is linear for large predictors f.
    alpha : tensor_like, optional
        Makes the counts negative binomial, with variance ``rate + rate**2 / alpha``: each rate is multiplied by an
        independent gamma variable with mean one and shape `alpha`. For the rate e^f only.
    truncated : bool
        True for counts truncated to y > 0, as in data that list only the cells with an event. For the rate e^f only.
    observed : array_like of int, (n,)
        Counts.
    dims : optional
        Dims of the observations.
    **kwargs
        Keywords of PyMC's distribution.

    Raises
    ------
    InvalidDataError
        For indices out of range and for numbers of rows, columns and observations that differ.
    ValueError
        For an unknown link, or one that does not go with the other options.

    References
    ----------
    .. [1] Y. J. Ko and M. E. Khan (2014), Variational Gaussian inference for bilinear models of count data, ACML.

    Examples
    --------
    >>> with pm.Model():
    ...     V = pm.Normal("V", 0, 1, shape=(3, 2))
    ...     U = pm.Normal("U", 0, 1, shape=(4, 2))
    ...     y = BilinearPoisson("y", V, U, rows=[0, 1, 2], cols=[3, 3, 0], observed=[2, 0, 5])
    """

    def __new__(
        cls,
        name: str,
        V: Any,
        U: Any,
        rows: Any,
        cols: Any,
        *,
        offset: Any = 0.0,
        link: str = "exp",
        alpha: Any = None,
        truncated: bool = False,
        observed: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Add the variable to the model."""
        inverse = _inverse_link(name, link, alpha, truncated)
        observed = _cells_observed(name, observed)
        rate = inverse(_predictor(name, V, U, rows, cols, offset, observed))
        alpha = _dispersion(name, alpha, rate)
        if truncated:
            return PositiveCounts(name, _counts(rate, alpha), observed=observed, **kwargs)
        if alpha is None:
            return pm.Poisson(name, rate, observed=observed, **kwargs)
        return pm.NegativeBinomial(name, mu=rate, alpha=alpha, observed=observed, **kwargs)

    @classmethod
    def dist(
        cls,
        V: Any,
        U: Any,
        rows: Any,
        cols: Any,
        *,
        offset: Any = 0.0,
        link: str = "exp",
        alpha: Any = None,
        truncated: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return a variable of this distribution outside of any model."""
        rate = _inverse_link(cls.__name__, link, alpha, truncated)(_predictor(cls.__name__, V, U, rows, cols, offset))
        alpha = _dispersion(cls.__name__, alpha, rate)
        if truncated:
            return PositiveCounts.dist(_counts(rate, alpha), **kwargs)
        return _counts(rate, alpha, **kwargs)


class BilinearBernoulli:
    r"""Bits at some cells of a matrix, with the log odds of a low-rank model.

    .. math:: y_c \sim \operatorname{Bernoulli}(p_c), \qquad
              \operatorname{logit} p_c = v_{i(c)}^\top u_{j(c)} + \text{offset}_c

    Parameters
    ----------
    name : str
    V, U : tensor_like, (I, D) and (J, D)
    rows, cols : array_like, (n,)
        As for `BilinearPoisson`.
    offset : tensor_like, (n,)
        Added to the predictors.
    observed : array_like of int, (n,)
        Zeros and ones.
    dims : optional
        Dims of the observations.
    **kwargs
        Keywords of `pymc.Bernoulli`.

    Raises
    ------
    InvalidDataError
        For indices out of range and for numbers of rows, columns and observations that differ.

    Examples
    --------
    >>> with pm.Model():
    ...     V = pm.Normal("V", 0, 1, shape=(3, 2))
    ...     U = pm.Normal("U", 0, 1, shape=(4, 2))
    ...     y = BilinearBernoulli("y", V, U, rows=[0, 1, 2], cols=[3, 3, 0], observed=[1, 0, 1])
    """

    def __new__(
        cls, name: str, V: Any, U: Any, rows: Any, cols: Any, *, offset: Any = 0.0, observed: Any = None, **kwargs: Any
    ) -> Any:
        """Add the variable to the model."""
        observed = _cells_observed(name, observed)
        eta = _predictor(name, V, U, rows, cols, offset, observed)
        return pm.Bernoulli(name, logit_p=eta, observed=observed, **kwargs)

    @classmethod
    def dist(cls, V: Any, U: Any, rows: Any, cols: Any, *, offset: Any = 0.0, **kwargs: Any) -> Any:
        """Return a variable of this distribution outside of any model."""
        return pm.Bernoulli.dist(logit_p=_predictor(cls.__name__, V, U, rows, cols, offset), **kwargs)


def _inverse_link(name: str, link: str, alpha: Any, truncated: bool) -> Callable[[Any], Any]:
    """Return the function from predictors to rates; raise for a link that is unknown or does not fit the options."""
    links: dict[str, Callable[[Any], Any]] = {"exp": pt.exp, "softplus": pt.softplus}
    if link not in links:
        raise ValueError(f"{name!r} has link={link!r}, which is none of 'exp' and 'softplus'.")
    if not isinstance(truncated, bool | np.bool_):
        raise ValueError(f"{name!r} has truncated={truncated!r}, which must be True or False.")
    if link == "softplus" and (alpha is not None or truncated):
        what = "truncated=True" if truncated else "alpha="
        raise ValueError(f"{name!r} has link='softplus', which does not go with {what}; leave that out, or link='exp'.")
    return links[link]


def _counts(rate: Any, alpha: Any, **kwargs: Any) -> Any:
    return pm.Poisson.dist(rate, **kwargs) if alpha is None else pm.NegativeBinomial.dist(rate, alpha, **kwargs)


def _predictor(name: str, V: Any, U: Any, rows: Any, cols: Any, offset: Any, observed: Any = None) -> Any:
    """Return the predictors, (n,)."""
    matrices = [pt.as_tensor_variable(matrix) for matrix in (V, U)]
    for what, index in zip(("rows", "cols"), (rows, cols)):
        require_unmasked(f"{name!r} has {what}", index)
    indices = []
    for what, matrix, index in zip(("row", "column"), matrices, (rows, cols)):
        if matrix.ndim != 2:
            raise InvalidDataError(
                f"{name!r} takes matrices of shape (rows, factors), but {matrix.name or what!r} has {matrix.ndim} "
                f"dimensions."
            )
        indices.append(index if isinstance(index, Variable) else numbered(f"{name!r}: {what}", index, matrix))
        _require_index(name, what, indices[-1], matrix.type.shape[0])
    widths = [matrix.type.shape[1] for matrix in matrices]
    if None not in widths and widths[0] != widths[1]:
        left, right = (matrix.name or what for what, matrix in zip(("V", "U"), matrices))
        raise InvalidDataError(
            f"{name!r} takes matrices of as many factors, but {left!r} and {right!r} have {widths[0]} and {widths[1]} "
            f"columns."
        )
    lengths = [_length(vector) for vector in (*indices, observed)]
    known_lengths = {length for length in lengths if length is not None}
    if len(known_lengths) > 1:
        raise InvalidDataError(
            f"{name!r} has {lengths[0]} rows, {lengths[1]} columns and {lengths[2]} observations; give one of each for "
            f"every cell."
        )
    (v, u), (i, j) = matrices, (pt.as_tensor_variable(index) for index in indices)
    # v_{i(c)}^T u_{j(c)} at the n cells alone, without the I x J matrix V U^T.
    products = (v[i] * u[j]).sum(axis=-1)
    if isinstance(offset, int | float) and offset == 0:
        return products
    return products + _for_each(name, "offset", offset, known_lengths)


def require_unmasked(subject: str, values: Any) -> None:
    """Raise if an entry is masked: arithmetic would use the value below the mask."""
    if np.ma.is_masked(values):
        k = int(np.argmax(np.ma.getmaskarray(values)))
        raise InvalidDataError(f"{subject} that are masked at index {k}; leave that cell out.")


def _length(vector: Any) -> int | None:
    if vector is None:
        return None
    return vector.type.shape[0] if isinstance(vector, Variable) else len(vector)


def _for_each(name: str, what: str, values: Any, lengths: set[int]) -> Any:
    """Return `values` as real numbers.

    Raise InvalidDataError unless they are one number, or a vector of a length in `lengths`, which is empty if unknown.
    """
    if values is None or (not isinstance(values, Variable) and np.asarray(values).dtype.kind in "USc"):
        raise InvalidDataError(f"{name!r} has {what}={values!r}; give one number, or one for every cell.")
    graph = as_real(values)
    length = graph.type.shape[0] if graph.ndim == 1 else 1
    if graph.ndim > 1 or (lengths and length not in (None, 1, *lengths)):
        raise InvalidDataError(
            f"{name!r} has {what} of shape {graph.type.shape}; give one number, or one for every cell."
        )
    return graph


def _dispersion(name: str, alpha: Any, rate: Any) -> Any:
    """Return alpha as real numbers, checked to be positive and finite if constant; None without overdispersion."""
    if alpha is None:
        return None
    graph = _for_each(name, "alpha", alpha, {rate.type.shape[0]} - {None})
    if isinstance(graph, Constant) and (bad := ~(np.isfinite(graph.data) & (graph.data > 0))).any():
        place = f" at index {int(np.argmax(bad))}" if graph.ndim else ""
        raise InvalidDataError(f"{name!r} has the alpha {graph.data[bad][0]}{place}; it must be positive and finite.")
    return graph


def _cells_observed(name: str, observed: Any) -> Any:
    """Return observations as `whole_observations` does; raise unless constants are a vector of numbers without gaps."""
    if observed is None or isinstance(observed, Variable):
        return observed
    if np.ndim(observed) != 1:
        raise InvalidDataError(f"{name!r} has observations of shape {np.shape(observed)}; give one for every cell.")
    values = np.ma.asarray(observed)
    if values.dtype.kind not in "biuf":
        bad = [k for k, value in enumerate(np.ravel(observed)) if not isinstance(value, Real)]
        where = f" {np.ravel(observed)[bad[0]]} at index {bad[0]}" if bad else f"s of type {values.dtype}"
        raise InvalidDataError(
            f"{name!r} has the observation{where}, which is no number; leave cells without one out of rows, cols and "
            f"observed."
        )
    missing = np.ma.getmaskarray(values) | (values.data != values.data)
    if missing.any():
        raise InvalidDataError(
            f"{name!r} has no observation at index {int(np.argmax(missing))}; cells that are not given are missing, so "
            f"leave it out of rows, cols and observed."
        )
    return whole_observations(name, observed)


def _require_index(name: str, what: str, index: Any, size: int | None) -> None:
    """Raise InvalidDataError unless constant indices are whole numbers of at least 0, and below any known `size`."""
    if isinstance(index, Variable):
        if not isinstance(index, Constant):
            return
        index = index.data
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        raise InvalidDataError(
            f"{name!r} has {what} indices of type {index.dtype} and shape {index.shape}; give whole numbers, one for "
            f"each cell."
        )
    bad = (index < 0) | (index >= (np.inf if size is None else size))
    if bad.any():
        k = int(np.argmax(bad))
        end = "" if size is None else f" and less than {size}, the number of rows of its matrix"
        raise InvalidDataError(
            f"{name!r} has the {what} {index[k]} at index {k}, but indices are at least 0{end}; correct it."
        )
