"""Predictive probabilities of events that follow the observed sequences."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.datasets.events import SequenceTable
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.models.sequences.form import SequencesForm
from pymc_ep.models.sequences.posterior import SequencesPosterior
from pymc_ep.models.sequences.predict.next_items import contexts_of, user_and_item
from pymc_ep.models.sequences.predict.rebuild import sequences_posterior
from pymc_ep.models.sequences.sequence_data import packed_contexts, packed_sequences, relabelled
from pymc_ep.results.row_labels import numbered_rows, row_labels

__all__ = ["SequencePredictions"]


class SequencePredictions:
    """Predictions of a trained network; see `pymc_ep.forms.registry.Predictions`."""

    @staticmethod
    def rebuild(idata: Container, model: pm.Model) -> SequencesPosterior:
        """Return the point estimates of a fit; raise a ValueError unless the fit is of the present model."""
        return sequences_posterior(idata, model)

    @staticmethod
    def log_predictive(model: pm.Model, posterior: SequencesPosterior, data: Mapping[str, Any]) -> xr.Dataset:
        """Return the log probability of each event, (n,), after the observed events of its user.

        Parameters
        ----------
        model : pymc.Model
        posterior : SequencesPosterior
        data : mapping of str to sequences
            Under the name of the observed variable: a list with an array of items for each user; a mapping from some
            users, by label or position, to their arrays of items; or a table of `pymc_ep.from_events`, whose labels are
            looked up in the coordinates of the model. Where events have contexts, a table with contexts, or a mapping
            from users to pairs of items and contexts.

        Raises
        ------
        InvalidDataError
            For items out of range and another number of users.

        Warns
        -----
        UserWarning
            If some events have items that were never observed, whose weights still have their first values.
        """
        name = posterior.form.form.sequences.name
        if list(data) != [name]:
            raise UnsupportedModelError(f"The model's sequences are {name!r}; continue these, not {', '.join(data)}.")
        form, given, (user, item) = posterior.form, data[name], user_and_item(model, posterior)
        n_users, n_items, of_contexts = posterior.n_users, form.n_items, contexts_of(model, posterior)
        sizes = {user: n_users, item: n_items} | dict([] if of_contexts is None else [of_contexts])
        if isinstance(given, SequenceTable):
            given = relabelled(name, given, tuple(sizes), {dim: row_labels(model, dim, n) for dim, n in sizes.items()})
        users, items, contexts = _continuations(model, name, given, user, list(sizes.values()))
        observed, order = form.sequences()
        if of_contexts is not None:
            contexts = np.append(form.contexts[order], contexts)
        joined, order = form.arranged(
            np.append(np.repeat(np.arange(n_users), observed.lengths), users),
            np.append(observed.items, items),
            contexts,
            n_users,
        )
        values = np.empty(len(items))
        # Events that follow come last, so that they are in the order of their rows.
        values[order[order >= len(observed.items)] - len(observed.items)] = posterior.scores(
            joined, observed.lengths
        ).values
        seen = np.isin(items, observed.items)
        if not seen.all():
            warnings.warn(
                f"{int((~seen).sum())} of {len(seen)} events of {name!r} have items that were never observed, whose "
                f"weights are those that they started from; {name + '_item_seen'!r} tells which.",
                UserWarning,
                stacklevel=4,
            )
        dim = f"{name}_event"
        labels = {user: row_labels(model, user, n_users)[users], item: row_labels(model, item, n_items)[items]}
        coords = {
            f"{name}_{what}": (dim, event_labels) for what, event_labels in zip(("user", "item"), labels.values())
        }
        coords[f"{name}_item_seen"] = (dim, seen)
        return xr.Dataset(
            {name: ((dim,), values)},
            coords=coords,
            attrs={"log_predictive_is": "log p(item | the user's items before)"},
        )

    @staticmethod
    def transforms(model: pm.Model, posterior: SequencesPosterior, data: Mapping[str, Any]) -> xr.Dataset:
        """Raise UnsupportedModelError: items have no order, so that events have no probability integral transform."""
        raise UnsupportedModelError(
            f"Items such as those of {posterior.form.form.sequences.name!r} have no order, and so no probability "
            f"integral transform; compare log_predictive of later events."
        )

    @staticmethod
    def no_cumulants(form: SequencesForm) -> str:
        """Return the reason why tilted distributions have no cumulants here."""
        return f"the sequences of {form.sequences.name!r} have no univariate sites"

    @staticmethod
    def remark(form: SequencesForm) -> str:
        """Return the reason why there are no Gaussian predictions, and the alternatives."""
        return (
            f"{form.sequences.name!r} are sequences of items, which have no Gaussian predictions and no sites; use "
            f"next_items, log_predictive of later events, or the weights in the group 'posterior_mode'."
        )


def _continuations(
    model: pm.Model, name: str, given: Any, user: str, sizes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return users, items and contexts of the n new events, (n,) each; contexts are (0,) where events have none.

    `sizes` are the numbers of users and items, and of contexts where there are some.
    """
    n_users, n_items, *n_contexts = sizes
    contexts: list[Any] = []
    if n_contexts:
        given, contexts = _unpaired(name, given)
    labels = list(given) if isinstance(given, Mapping) else None
    numbers = np.arange(n_users)
    if labels is not None:
        numbers, _ = numbered_rows(model, user, labels, n_users, f"{name!r} by {user}")
        given = list(given.values())
    rows = packed_sequences(name, given, n_items, empty=True, users=labels)
    if labels is None and (count := len(getattr(given, "sequences", given))) != n_users:
        raise InvalidDataError(
            f"{name!r} is continued by {count} sequences, and there are {n_users} users; give each user one, which "
            f"may be empty, or a mapping of some users to theirs."
        )
    users, items = rows.T
    packed = np.zeros(0, dtype=np.int64)
    if n_contexts:
        lengths = np.bincount(users, minlength=len(numbers)).tolist()
        packed = packed_contexts(name, contexts, lengths, n_contexts[0], users=labels)
    return numbers[users], items, packed


def _unpaired(name: str, given: Any) -> tuple[Any, list[Any]]:
    """Return the sequences of a table or a mapping, and their contexts."""
    if isinstance(given, SequenceTable) and given.contexts is not None:
        return given.sequences, given.contexts
    if isinstance(given, Mapping) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in given.values()):
        return {user: items for user, (items, _) in given.items()}, [contexts for _, contexts in given.values()]
    raise InvalidDataError(
        f"Events of {name!r} have contexts; continue them by from_events(..., context=), or by a mapping of users to "
        f"pairs of items and contexts."
    )
