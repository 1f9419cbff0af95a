"""Sequences of users and their coordinates from long tables of events."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from pymc_ep.datasets.pairs import label_codes, require_columns, require_each
from pymc_ep.exceptions import InvalidDataError

__all__ = ["SequenceTable", "from_events"]


class SequenceTable(NamedTuple):
    """Sequences of items with the labels of users and items.

    Attributes
    ----------
    sequences : list of ndarray of int
        Positions of the items of each user, in the order of time.
    coords : dict of str to ndarray
        Labels of the users, (users,), and of the items, (items,), by the names of the table's columns; and of the
        contexts, (contexts,).
    contexts : list of ndarray of int, optional
        Positions of the contexts of each user's events.
    context : str, optional
        Name of the column of contexts.
    """

    sequences: list[np.ndarray]
    coords: dict[str, np.ndarray]
    contexts: list[np.ndarray] | None = None
    context: str | None = None

    def __repr__(self) -> str:
        """Return the numbers of users, items and events, by the names of the columns."""
        sizes = ", ".join(f"{name}: {len(labels)}" for name, labels in self.coords.items())
        return f"<SequenceTable of {sum(map(len, self.sequences))} events ({sizes})>"


def from_events(
    frame: pd.DataFrame, user: str, item: str, time: str | None = None, *, context: str | None = None
) -> SequenceTable:
    """Return the sequences of items and the coordinates of a long table, with one event a row.

    Parameters
    ----------
    frame : pandas.DataFrame
    user, item : str
        Columns of the labels of users and items, which also name the dims. Labels are of any type that can be sorted.
    time : str, optional
        Column of times, of any type that can be sorted. Events of the same time stay in the order of the table; without
        `time` all events do.
    context : str, optional
        Column of labels of something that is known of an event before its item, such as its hour, or an interval of the
        time since the event before.

    Returns
    -------
    SequenceTable
        ``sequences``, which `CollaborativeRNN` observes, ``coords``, and ``contexts``. Labels are sorted.

    Raises
    ------
    InvalidDataError
        For an empty table, unknown columns, missing labels, and times that are missing or cannot be sorted.

    Examples
    --------
    >>> frame = pd.DataFrame({"user": ["Bo", "Al", "Bo"], "item": ["gym", "bar", "bar"], "time": [9, 3, 4]})
    >>> table = from_events(frame, "user", "item", "time")
    >>> [items.tolist() for items in table.sequences]
    [[0], [0, 1]]
    """
    if not isinstance(frame, pd.DataFrame):
        raise InvalidDataError(
            f"from_events takes a pandas DataFrame, not {type(frame).__name__}; convert it, such as with "
            f"pd.DataFrame(...)."
        )
    require_columns(frame, [name for name in (user, item, time, context) if name is not None])
    if not len(frame):
        raise InvalidDataError(f"The table has no rows, so no events of {user!r} and {item!r}; give at least one.")
    (users, user_labels), (items, item_labels) = (label_codes(frame[name], name) for name in (user, item))
    order = np.arange(len(frame)) if time is None else _by_time(frame[time], time)
    order = order[np.argsort(users[order], kind="stable")]
    ends = np.cumsum(np.bincount(users))[:-1]
    table = SequenceTable(np.split(items[order], ends), {user: user_labels, item: item_labels})
    if context is None:
        return table
    contexts, labels = label_codes(frame[context], context)
    return SequenceTable(table.sequences, table.coords | {context: labels}, np.split(contexts[order], ends), context)


def _by_time(column: pd.Series, name: str) -> np.ndarray:
    """Return the positions of the rows in the order of time, (n,); rows of the same time keep their order."""
    cure = f"a time is needed in each row. Drop rows without, with frame.dropna(subset=[{name!r}])."
    require_each(column.notna().to_numpy(), column, name, cure)
    try:
        return column.reset_index(drop=True).sort_values(kind="stable").index.to_numpy()
    except TypeError as error:
        raise InvalidDataError(
            f"The times of the column {name!r} cannot be sorted ({error}); make them of one type, such as with "
            f"pd.to_datetime(frame[{name!r}])."
        ) from error
