"""The items that follow the sequences of users."""

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.engines.options import check_whole
from pymc_ep.models.sequences.posterior import SequencesPosterior
from pymc_ep.models.sequences.predict.rebuild import sequences_posterior
from pymc_ep.numerics.memory import chunks
from pymc_ep.results.container import model_dims
from pymc_ep.results.row_labels import numbered_rows, row_labels
from pymc_ep.tables import best_first

__all__ = ["contexts_of", "next_items", "user_and_item"]


def user_and_item(model: pm.Model, posterior: SequencesPosterior) -> tuple[str, str]:
    """Return the dims of users and items."""
    user, item = model.coords[f"{posterior.form.form.sequences.name}_column"]
    return user, item


def contexts_of(model: pm.Model, posterior: SequencesPosterior) -> tuple[str, int] | None:
    """Return the dim of contexts and the number of contexts; None where events have no contexts."""
    form, bias = posterior.form, posterior.form.form.bias
    return None if bias is None or not len(form.contexts) else (model_dims(model, bias.name)[0], form.shapes[-1][0])


def next_items(idata: Container, model: pm.Model, *, n: int, **user: Any) -> xr.Dataset:
    """Return the most probable next items of given users; see `pymc_ep.next_items`."""
    check_whole("n", n)
    posterior = sequences_posterior(idata, model)
    (dim, item), contexts, n_items = (
        user_and_item(model, posterior),
        contexts_of(model, posterior),
        posterior.form.n_items,
    )
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
    users, labels = numbered_rows(model, dim, user[dim], posterior.n_users, f"{dim}=")
    rankings = []
    for chunk in chunks(len(users), n_items):
        log_p = posterior.next_log_probabilities(users[chunk], context)
        best = np.argpartition(-log_p, n - 1, axis=1)[:, :n]
        values = np.take_along_axis(log_p, best, axis=1)
        rankings.append(best_first(best, {"probability": np.exp(values)}, values))
    return xr.Dataset(
        {
            item: (
                (dim, "rank"),
                row_labels(model, item, n_items)[np.concatenate([ranking.others for ranking in rankings])],
            ),
            "probability": ((dim, "rank"), np.concatenate([ranking.values["probability"] for ranking in rankings])),
        },
        coords={dim: labels, "rank": 1 + np.arange(n)},
    )
