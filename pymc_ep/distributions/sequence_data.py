"""Observed sequences of items as they are stored: rows of user and item, (N, 2), those of a user in their order."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pymc_ep.datasets.events import SequenceTable
from pymc_ep.distributions.counts import MOST
from pymc_ep.exceptions import InvalidDataError

__all__ = ["packed_contexts", "packed_sequences", "relabelled", "require_items"]


def packed_sequences(name: str, observed: Any, n_items: int | None, *, empty: bool = False) -> np.ndarray:
    """Return rows of user and item, (N, 2), of sequences of items, one for each user.

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    observed : iterable of array_like of int, or SequenceTable
        One array for each user, or what `pymc_ep.from_events` returned.
    n_items : int, optional
        Number of items, where it is known.
    empty : bool
        Whether a user may have no events.

    Raises
    ------
    InvalidDataError
        For users without events, numbers that are not whole, and items out of range.
    """
    sequences = getattr(observed, "sequences", observed)
    if isinstance(sequences, Mapping | str) or not isinstance(sequences, Iterable):
        raise InvalidDataError(
            f"{name!r} takes sequences, one array of items for each user, and got a {type(sequences).__name__}; give a "
            f"list of arrays, or from_events(frame, user, item, time)."
        )
    parts = [_whole(name, user, sequence) for user, sequence in enumerate(sequences)]
    if not parts:
        raise InvalidDataError(f"{name!r} has no sequences; observe those of at least one user.")
    for user, items in enumerate(parts):
        if not len(items) and not empty:
            raise InvalidDataError(f"{name!r} has no events of user {user}; leave that user out.")
        require_items(name, items, n_items, f" of user {user}")
    users = np.repeat(np.arange(len(parts)), [len(items) for items in parts])
    return np.stack([users, np.concatenate(parts)], axis=1)


def relabelled(name: str, table: SequenceTable, coords: Mapping[str, Any]) -> SequenceTable:
    """Return a table of all users of some coordinates, by the positions of its labels in these.

    Dims that the coordinates do not have stay as they are, and users without events have none.

    Raises
    ------
    InvalidDataError
        For a label that the coordinates do not have.
    """
    user, item, *of_context = table.coords
    places = {dim: _places(name, dim, table.coords[dim], coords[dim]) for dim in table.coords if dim in coords}
    sequences, contexts = table.sequences, table.contexts
    if item in places:
        sequences = [places[item][own] for own in sequences]
    if contexts is not None and of_context[0] in places:
        contexts = [places[of_context[0]][own] for own in contexts]
    if user in places:
        known, nothing = {place: k for k, place in enumerate(places[user].tolist())}, np.zeros(0, dtype=np.int64)
        order = [known.get(place) for place in range(len(coords[user]))]
        sequences = [nothing if k is None else sequences[k] for k in order]
        contexts = None if contexts is None else [nothing if k is None else contexts[k] for k in order]
    labels = {dim: np.asarray(coords.get(dim, own)) for dim, own in table.coords.items()}
    return SequenceTable(sequences, labels, contexts, table.context)


def _places(name: str, dim: str, own: np.ndarray, labels: Any) -> np.ndarray:
    """Return the positions of a table's labels among others."""
    known = {label: k for k, label in enumerate(np.asarray(labels).tolist())}
    if unknown := [label for label in own.tolist() if label not in known]:
        raise InvalidDataError(
            f"{name!r} has events of {unknown[0]!r}, which is no label of {dim!r} in the model; leave them out, or "
            f"give the model coordinates with it."
        )
    return np.array([known[label] for label in own.tolist()], dtype=np.int64)


def packed_contexts(name: str, contexts: Any, lengths: Sequence[int], n_contexts: int | None) -> np.ndarray:
    """Return the contexts of all events, (N,), of arrays for each user, as many as it has events.

    Raises
    ------
    InvalidDataError
        For other lengths than those of the sequences, and numbers that are not whole or out of range.
    """
    parts = [_whole(f"{name} context", user, one) for user, one in enumerate(contexts)]
    found = [len(one) for one in parts]
    if found != list(lengths):
        different = [user for user, (n, m) in enumerate(zip(found, lengths)) if n != m]
        where = f"user {different[0]}" if different else f"{len(found)} users for {len(lengths)}"
        raise InvalidDataError(
            f"{name!r} has other numbers of contexts than of events, of {where}; give each event one."
        )
    packed = np.concatenate(parts)
    bad = (packed < 0) | (packed >= (np.inf if n_contexts is None else n_contexts))
    if bad.any():
        k = int(np.argmax(bad))
        raise InvalidDataError(
            f"{name!r} has the context {packed[k]} at event {k} of all, but contexts go from 0"
            f"{'' if n_contexts is None else f' to {n_contexts - 1}, as their coordinates say'}; correct it."
        )
    return packed


def require_items(name: str, items: np.ndarray, n_items: int | None, where: str = "") -> None:
    """Raise for the first item out of range."""
    bad = (items < 0) | (items >= (np.inf if n_items is None else n_items))
    if bad.any():
        k = int(np.argmax(bad))
        end = "" if n_items is None else f" to {n_items - 1}, as n_items={n_items} says"
        raise InvalidDataError(
            f"{name!r} has the item {items[k]} at event {k}{where}, but items go from 0{end}; correct it, or raise "
            f"n_items."
        )


def _whole(name: str, user: int, sequence: Any) -> np.ndarray:
    """Return a user's items as integers; raise unless they are whole numbers in one row."""
    items = np.asarray(sequence)
    if items.ndim != 1 or (items.size and items.dtype.kind not in "iuf"):
        held = f"the shape {items.shape}" if items.ndim != 1 else f"the type {items.dtype}"
        raise InvalidDataError(
            f"The sequence of user {user} in {name!r} has {held}; give one array of whole numbers, the positions of "
            f"the items in their order, for each user. from_events makes these from labels."
        )
    doubles = items.astype(np.float64)
    bad = ~(doubles == np.floor(doubles)) | (np.abs(doubles) > MOST)
    if bad.any():
        k = int(np.argmax(bad))
        raise InvalidDataError(
            f"{name!r} has the item {items[k]} at event {k} of user {user}, which is no whole number; correct it."
        )
    return items.astype(np.int64)
