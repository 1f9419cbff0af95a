"""Comparisons of two items: a Bernoulli variable of the difference of their utilities."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_ep.distributions.labels import positions
from pymc_ep.exceptions import InvalidDataError

__all__ = ["PairwiseLogit", "PairwiseProbit", "compared_positions"]


def PairwiseProbit(name: str, f: Any, *, users: Any = None, winners: Any, losers: Any) -> Any:
    r"""Comparisons of pairs of items by a probit of the difference of their utilities (Thurstone 1927, case V).

    .. math:: P(\text{i beats j} \mid u) = \Phi(f_{ui} - f_{uj})

    This is short for ``pm.Bernoulli(name, pm.math.invprobit(f[users, winners] - f[users, losers]), observed=1)``, and
    takes labels instead of positions. Draws are one where the winner wins again, and zero elsewhere.

    Parameters
    ----------
    name : str
    f : tensor_like, (users, items) or (items,)
        Utilities, such as a `PreferenceUtility` or a Gaussian process.
    users : array_like, (P,), optional
        User of each comparison; leave it out for utilities of one user.
    winners, losers : array_like, (P,)
        Preferred and other item of each comparison. Users and items are labels where the dims of `f` have coordinates.
        They are positions where there are no coordinates; integers are positions too where coordinates are no numbers.

    Returns
    -------
    TensorVariable
        The observed variable, (P,).

    Raises
    ------
    InvalidDataError
        For unknown labels, an item compared with itself, and arrays of different lengths.
    """
    return _compared(name, f, users, winners, losers, lambda d: {"p": pm.math.invprobit(d)})


def PairwiseLogit(name: str, f: Any, *, users: Any = None, winners: Any, losers: Any) -> Any:
    r"""Comparisons of pairs of items by a logit of the difference of their utilities (Bradley and Terry 1952).

    .. math:: P(\text{i beats j} \mid u) = \frac{1}{1 + e^{-(f_{ui} - f_{uj})}}

    Parameters, results and exceptions are as in `PairwiseProbit`.
    """
    return _compared(name, f, users, winners, losers, lambda d: {"logit_p": d})


def _compared(name: str, f: Any, users: Any, winners: Any, losers: Any, link: Callable[[Any], dict[str, Any]]) -> Any:
    """Add the observed variable of `PairwiseProbit` or `PairwiseLogit` to the model, and return it."""
    f = pt.as_tensor_variable(f)
    if f.ndim != (1 if users is None else 2):
        raise InvalidDataError(
            f"{name!r} compares by {f.name or 'utilities'!r} of {f.ndim} dimensions: utilities (users, items) need "
            f"users=, and those of one user, (items,), have none."
        )
    given = {"winners": winners, "losers": losers} | ({} if users is None else {"users": users})
    indices = compared_positions(pm.modelcontext(None), f.name, name, f.type.shape, given)
    who = () if users is None else (indices["users"],)
    difference = f[(*who, indices["winners"])] - f[(*who, indices["losers"])]
    return pm.Bernoulli(name, **link(difference), observed=np.ones(len(indices["winners"]), dtype=np.int8))


def compared_positions(
    model: pm.Model, utilities: str | None, name: str, shape: Sequence[int | None], given: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the positions of users, winners and losers, (P,) each, given as labels or positions.

    Parameters
    ----------
    model : pymc.Model
        Model whose coordinates are the labels.
    utilities : str, optional
        Name of the utilities, whose dims are of users and items, or of items alone.
    name : str
        Name of the comparisons, for messages.
    shape : sequence of int or None
        Shape of the utilities.
    given : mapping
        Labels or positions, (P,) each, under ``winners``, ``losers`` and, for several users, ``users``.

    Raises
    ------
    InvalidDataError
        For unknown rows, an item compared with itself, and arrays of different lengths.
    """
    dims = model.named_vars_to_dims.get(utilities) or (None,) * len(shape)
    indices = {}
    for what, values in given.items():
        axis = 0 if what == "users" else -1
        indices[what] = positions(f"{name!r}: {what}=", values, model.coords.get(dims[axis]), shape[axis])
    lengths = {what: len(values) for what, values in indices.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidDataError(f"{name!r} has {', '.join(f'{n} {what}' for what, n in lengths.items())}; give as many.")
    if (same := indices["winners"] == indices["losers"]).any():
        k = int(np.argmax(same))
        item = np.asarray(given["winners"]).tolist()[k]
        raise InvalidDataError(f"{name!r} compares the item {item!r} with itself at index {k}; leave that pair out.")
    return indices
