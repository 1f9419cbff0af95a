"""Rankings by utilities, and the comparisons that tell most of these."""

from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.solution import RandomSeed
from pymc_ep.contracts.utilities import UtilityPredictions
from pymc_ep.engines.options import check_whole
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.context import model_of
from pymc_ep.predict.rebuild import registered
from pymc_ep.results import fit_method
from pymc_ep.results.container import model_dims
from pymc_ep.results.row_labels import numbered_rows, row_labels

__all__ = ["FittedUtilities", "fitted_utilities", "next_pairs", "ranked_users"]


class FittedUtilities(NamedTuple):
    """A fit of utilities.

    Attributes
    ----------
    predictions : UtilityPredictions
    posterior
    dims : tuple of str
        Of users, unless there is one, and of items.
    """

    predictions: UtilityPredictions
    posterior: Any
    dims: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of users, unless there is one, and of items."""
        return self.predictions.sizes(self.posterior)

    def users(self, model: pm.Model, rows: dict[str, Any], caller: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return positions and labels of the users asked for; labels are None where there is one user."""
        if len(self.dims) == 1:
            if rows:
                raise ValueError(f"{caller} takes no {next(iter(rows))}= here, as these are the utilities of one user.")
            return np.zeros(1, dtype=np.int64), None
        if list(rows) != [self.dims[0]]:
            raise ValueError(f"{caller} takes users by {self.dims[0]}=, and got {', '.join(rows) or 'none'}.")
        return numbered_rows(model, self.dims[0], rows[self.dims[0]], self.sizes[0], f"{self.dims[0]}=")


def fitted_utilities(idata: Container, model: pm.Model) -> FittedUtilities | None:
    """Return a fit of utilities; None for a fit of another model."""
    predictions = registered(idata, model, lambda entry: entry.utility_predictions)
    if predictions is None:
        return None
    posterior = predictions.rebuild(idata, model)
    return FittedUtilities(predictions, posterior, model_dims(model, predictions.variable(posterior)))


def ranked_users(
    model: pm.Model, fitted: FittedUtilities, rows: dict[str, Any], random_seed: RandomSeed = 0
) -> xr.Dataset:
    """Return the distribution of ranks of all items for users; see `pymc_ep.rank_items`."""
    users, labels = fitted.users(model, rows, "rank_items")
    found = fitted.predictions.ranks(fitted.posterior, users, np.random.default_rng(random_seed))
    found = found.rename(item=fitted.dims[-1]).assign_coords(
        {fitted.dims[-1]: row_labels(model, fitted.dims[-1], fitted.sizes[-1])}
    )
    if labels is None:
        return found.isel(user=0)
    return found.rename(user=fitted.dims[0]).assign_coords({fitted.dims[0]: labels})


@one_at_a_time
def next_pairs(idata: Container, model: pm.Model | None = None, *, n: int = 5, **user: Any) -> xr.Dataset:
    """Return the comparisons of two items that would tell most of the utilities of a user.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` of a model with a `PreferenceUtility`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model; by default that of the context.
    n : int
        Number of comparisons.
    **user
        The dim of the users with one label or position, as in ``user="ann"``; none for utilities of one user.

    Returns
    -------
    xarray.Dataset
        By ``comparison``, the best first: the labels ``first`` and ``second``, the expected ``information`` of an
        answer in bits [1]_, and the ``probability`` that the first item wins.

    Raises
    ------
    UnsupportedModelError
        If the model has no utilities of items.
    ValueError
        For unknown users, and several of them.

    References
    ----------
    .. [1] N. Houlsby, F. Huszar, Z. Ghahramani and M. Lengyel (2011), Bayesian active learning for classification and
       preference learning, arXiv:1112.5745.
    """
    check_whole("n", n)
    model = model_of(model)
    fitted = fitted_utilities(idata, model)
    if fitted is None:
        raise UnsupportedModelError(
            f"next_pairs takes fits of models with a PreferenceUtility, but this is a fit by "
            f"{fit_method(idata)!r} of another model."
        )
    users, _ = fitted.users(model, user, "next_pairs")
    if len(users) != 1:
        raise ValueError(f"next_pairs takes one user at a time, and got {len(users)}.")
    found = fitted.predictions.informative(fitted.posterior, int(users[0]), n)
    labels = row_labels(model, fitted.dims[-1], fitted.sizes[-1])
    return found.assign({which: ("comparison", labels[found[which].to_numpy()]) for which in ("first", "second")})
