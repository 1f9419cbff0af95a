"""The items that follow the sequences of users."""

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.engines.options import check_whole
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.context import model_of
from pymc_ep.predict.rebuild import registered
from pymc_ep.results import fit_method
from pymc_ep.results.row_labels import numbered_rows, row_labels

__all__ = ["next_items"]

_NUMBERS = 2**22
"""Largest number of probabilities of a chunk of users, 32 MiB."""


@one_at_a_time
def next_items(idata: Container, model: pm.Model | None = None, *, n: int = 10, **user: Any) -> xr.Dataset:
    """Return the items that are most probable as the next one of given users, after all that was observed of them.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` of a model with a `CollaborativeRNN`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model; by default that of the context.
    n : int
        Number of items; all that there are, or more, give the whole distribution.
    **user
        The dim of the users with a label or position, or a list of these, as in ``user=7``. Where events have
        contexts, their dim too, with the one of the next event, as in ``hour=9``.

    Returns
    -------
    xarray.Dataset
        By user and ``rank``, the most probable first: labels of the items, under the name of their dim, and
        ``probability``.

    Raises
    ------
    UnsupportedModelError
        If the model has no sequences.
    ValueError
        For unknown users.
    """
    check_whole("n", n)
    model = model_of(model)
    predictions = registered(idata, model, lambda entry: entry.sequence_predictions)
    if predictions is None:
        raise UnsupportedModelError(
            f"next_items takes fits of models with a CollaborativeRNN, but this is a fit by {fit_method(idata)!r} of "
            f"another model."
        )
    posterior = predictions.rebuild(idata, model)
    (dim, item), (n_users, n_items) = predictions.dims(model, posterior), predictions.sizes(posterior)
    contexts = predictions.contexts(model, posterior)
    wanted = [dim] if contexts is None else [dim, contexts[0]]
    if sorted(user) != sorted(wanted):
        needed = f"users by {dim}=" + ("" if contexts is None else f" and the next event's {contexts[0]}=")
        raise ValueError(f"next_items takes {needed}, and got {', '.join(user) or 'none'}.")
    context = 0
    if contexts is not None:
        numbers, _ = numbered_rows(model, contexts[0], user[contexts[0]], contexts[1], f"{contexts[0]}=")
        if len(numbers) > 1:
            raise ValueError(f"{contexts[0]}= names {len(numbers)} contexts; ask for one at a time.")
        context = int(numbers[0])
    n = min(n, n_items)
    users, labels = numbered_rows(model, dim, user[dim], n_users, f"{dim}=")
    step, found = max(1, _NUMBERS // n_items), []
    for own in (users[begin : begin + step] for begin in range(0, len(users), step)):
        log_p = predictions.next_log_probabilities(posterior, own, context)
        best = np.argpartition(-log_p, n - 1, axis=1)[:, :n]
        values = np.take_along_axis(log_p, best, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        found.append([np.take_along_axis(part, order, axis=1) for part in (best, values)])
    items, values = (np.concatenate(parts) for parts in zip(*found))
    return xr.Dataset(
        {
            item: ((dim, "rank"), row_labels(model, item, n_items)[items]),
            "probability": ((dim, "rank"), np.exp(values)),
        },
        coords={dim: labels, "rank": 1 + np.arange(n)},
    )
