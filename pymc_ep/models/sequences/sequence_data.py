"""Observed sequences of items as they are stored: rows of user and item, (N, 2), in the order of each user."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc import Model
from pytensor.graph.basic import Variable

from pymc_ep.datasets.events import SequenceTable
from pymc_ep.distributions.counts import MOST
from pymc_ep.exceptions import InvalidDataError

__all__ = [
    "packed_contexts",
    "packed_sequences",
    "relabelled",
    "require_contexts",
    "require_items",
    "stored_contexts",
    "stored_rows",
]


def stored_rows(name: str, observed: Any, lengths: Any, n_items: int) -> tuple[Any, Any, int | None]:
    """Return the rows of user and item to store, (N, 2), the user of each row, (N,), and the number of users.

    Without observations, rows are None, and users are of the rows to draw, `lengths` of each user. Without `lengths`
    all three are None. For symbolic rows the number of users is None.
    """
    if isinstance(observed, Variable):
        if observed.ndim != 2:
            raise InvalidDataError(f"{name!r} has data of {observed.ndim} dimensions; give rows of user and item.")
        return observed, observed[:, 0].astype("int64"), None
    if observed is not None:
        rows = packed_sequences(name, observed, n_items)
        # Doubles, since PyMC stores integers in 32 bits.
        return rows.astype(np.float64), rows[:, 0], int(rows[-1, 0]) + 1
    if lengths is not None:
        return None, np.repeat(np.arange(len(lengths)), lengths), len(lengths)
    return None, None, None


def stored_contexts(model: Model, name: str, observed: Any, context: Any, users: Any, n_users: int) -> tuple[Any, str]:
    """Return the contexts of all events, (N,), or (0,) without any, and their dim, whose coordinates are in the model.

    A dim without coordinates gets numbers from zero as coordinates. Symbolic contexts need a dim with coordinates.
    """
    dim = getattr(observed, "context", None) or f"{name}_context"
    given = getattr(observed, "contexts", None) if context is None else context
    if isinstance(given, Variable):
        if dim not in model.coords:
            raise InvalidDataError(f"The contexts of {name!r} have no labels; give the model coordinates of {dim!r}.")
        return given, dim
    n = len(model.coords[dim]) if dim in model.coords else None
    contexts = np.zeros(0, dtype=np.int64)
    if given is not None and isinstance(users, Variable):
        raise InvalidDataError(
            f"{name!r} observes rows that are data; give context= as data of as many rows, pm.Data, too."
        )
    if given is not None:
        contexts = packed_contexts(name, given, np.bincount(users, minlength=n_users).tolist(), n)
    if n is None:
        model.add_coords({dim: range(int(contexts.max(initial=0)) + 1)})
    return contexts, dim


def packed_sequences(
    name: str, observed: Any, n_items: int | None, *, empty: bool = False, users: Sequence[Any] | None = None
) -> np.ndarray:
    """Return rows of user and item, (N, 2), from the sequence of items of each user.

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    observed : iterable of array_like of int, or SequenceTable
        One array for each user, or a table of `pymc_ep.from_events`.
    n_items : int, optional
        Number of items, where it is known.
    empty : bool
        Whether a user may have no events.
    users : sequence, optional
        Labels of the users, for messages; by default their positions.

    Raises
    ------
    InvalidDataError
        For users without events, numbers that are not whole, and items out of range.
    """
    labelled = _parts(name, "item", getattr(observed, "sequences", observed), users)
    if not labelled:
        raise InvalidDataError(f"{name!r} has no sequences; observe those of at least one user.")
    for user, items in labelled:
        if not len(items) and not empty:
            raise InvalidDataError(f"{name!r} has no events of user {user!r}; leave that user out.")
        require_items(name, items, n_items, f" of user {user!r}")
    lengths = [len(items) for _, items in labelled]
    return np.stack(
        [np.repeat(np.arange(len(labelled)), lengths), np.concatenate([items for _, items in labelled])], axis=1
    )


def relabelled(name: str, table: SequenceTable, dims: Sequence[str], coords: Mapping[str, Any]) -> SequenceTable:
    """Return a table in which items, contexts and users have the positions of their labels in `coords`.

    It has all users of the coordinates; users that are not in `table` have no events. Dims without coordinates are
    unchanged.

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    table : SequenceTable
    dims : sequence of str
        Dims of users and items, and of contexts if they have one.
    coords : mapping of str to array_like

    Raises
    ------
    InvalidDataError
        For a label that the coordinates do not have, and columns of other names than the dims.
    """
    user, item, *_ = table.coords
    if any(entry != dim for entry, dim in zip(table.coords, dims)):
        raise InvalidDataError(
            f"{name!r} has the dims {', '.join(map(repr, dims))}, and the table the columns "
            f"{', '.join(map(repr, table.coords))}; give both the same names, as by user= and item= of "
            f"CollaborativeRNN."
        )
    places = {dim: _places(name, dim, table.coords[dim], coords[dim]) for dim in table.coords if dim in coords}
    sequences, contexts = table.sequences, table.contexts
    if item in places:
        sequences = [places[item][entry] for entry in sequences]
    if contexts is not None and table.context in places:
        contexts = [places[table.context][entry] for entry in contexts]
    if user in places:
        row_of, nothing = {place: k for k, place in enumerate(places[user].tolist())}, np.zeros(0, dtype=np.int64)
        order = [row_of.get(place) for place in range(len(coords[user]))]
        sequences = [nothing if k is None else sequences[k] for k in order]
        contexts = None if contexts is None else [nothing if k is None else contexts[k] for k in order]
    labels = {dim: np.asarray(coords.get(dim, entry)) for dim, entry in table.coords.items()}
    return SequenceTable(sequences, labels, contexts, table.context)


def _places(name: str, dim: str, table_labels: np.ndarray, labels: Any) -> np.ndarray:
    """Return the position of each of a table's labels among `labels`; raise for a label that is not among them."""
    position = {label: k for k, label in enumerate(np.asarray(labels).tolist())}
    if unknown := [label for label in table_labels.tolist() if label not in position]:
        raise InvalidDataError(
            f"{name!r} has events of {unknown[0]!r}, which is no label of {dim!r} in the model; leave them out, or "
            f"give the model coordinates with it."
        )
    return np.array([position[label] for label in table_labels.tolist()], dtype=np.int64)


def packed_contexts(
    name: str, contexts: Any, lengths: Sequence[int], n_contexts: int | None, *, users: Sequence[Any] | None = None
) -> np.ndarray:
    """Return the contexts of all events, (N,), from an array for each user with the contexts of its events.

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    contexts : iterable of array_like of int
    lengths : sequence of int, (users,)
        Number of events of each user.
    n_contexts : int, optional
        Number of contexts, where it is known.
    users : sequence, optional
        Labels of the users, for messages; by default their positions.

    Raises
    ------
    InvalidDataError
        For arrays of other lengths than `lengths`, and contexts that are not whole numbers or out of range.
    """
    labelled = _parts(name, "context", contexts, users)
    if len(labelled) != len(lengths):
        raise InvalidDataError(
            f"{name!r} has contexts of {len(labelled)} users, and events of {len(lengths)}; give one array for each "
            f"user."
        )
    for (user, numbers), n in zip(labelled, lengths):
        if len(numbers) != n:
            raise InvalidDataError(
                f"{name!r} has other numbers of contexts than of events, of user {user!r} {len(numbers)} and {n}; give "
                f"each event one."
            )
        require_contexts(name, numbers, n_contexts, f" of user {user!r}")
    return np.concatenate([numbers for _, numbers in labelled])


def require_items(name: str, items: np.ndarray, n_items: int | None, where: str = "") -> None:
    """Raise for the first item out of range."""
    end = "" if n_items is None else f" to {n_items - 1}, as n_items={n_items} says"
    _require_range(name, "item", items, n_items, where, f"{end}; correct it, or raise n_items")


def require_contexts(name: str, contexts: np.ndarray, n_contexts: int | None, where: str = "") -> None:
    """Raise for the first context out of range."""
    end = "" if n_contexts is None else f" to {n_contexts - 1}"
    rest = f"{end}; correct it, or give the model coordinates of all contexts"
    _require_range(name, "context", contexts, n_contexts, where, rest)


def _require_range(name: str, what: str, numbers: np.ndarray, n: int | None, where: str, rest: str) -> None:
    bad = (numbers < 0) | (numbers >= (np.inf if n is None else n))
    if bad.any():
        k = int(np.argmax(bad))
        raise InvalidDataError(
            f"{name!r} has the {what} {numbers[k]} at event {k}{where}, but {what}s go from 0{rest}."
        )


def _parts(name: str, what: str, sequences: Any, users: Sequence[Any] | None) -> list[tuple[Any, np.ndarray]]:
    """Return each user's label, and its items or contexts as integers; raise unless these are whole numbers, (n,)."""
    if isinstance(sequences, Mapping | str) or not isinstance(sequences, Iterable):
        raise InvalidDataError(
            f"{name!r} takes sequences, one array of {what}s for each user, and got a {type(sequences).__name__}; give "
            f"a list of arrays, or from_events(frame, user, item, time)."
        )
    arrays = list(sequences)
    labels = range(len(arrays)) if users is None else users
    return [(user, _whole(name, what, user, sequence)) for user, sequence in zip(labels, arrays, strict=True)]


def _whole(name: str, what: str, user: Any, sequence: Any) -> np.ndarray:
    numbers = np.asarray(sequence)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iuf"):
        held = f"the shape {numbers.shape}" if numbers.ndim != 1 else f"the type {numbers.dtype}"
        raise InvalidDataError(
            f"The sequence of user {user!r} in {name!r} has {held}; give one array of whole numbers, the positions of "
            f"the {what}s in their order, for each user. from_events makes these from labels."
        )
    doubles = numbers.astype(np.float64)
    bad = ~(doubles == np.floor(doubles)) | (np.abs(doubles) > MOST)
    if bad.any():
        k = int(np.argmax(bad))
        raise InvalidDataError(
            f"{name!r} has the {what} {numbers[k]} at event {k} of user {user!r}, which is no whole number; correct it."
        )
    return numbers.astype(np.int64)
