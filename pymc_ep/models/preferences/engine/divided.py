"""Division of the users into parts, which are in this process or on the workers of a Dask cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.engines.partitions import Handles, LocalPartitions, Partitions
from pymc_ep.models.preferences.engine.users import ObservedComparisons, UserFactors
from pymc_ep.models.preferences.kernel import Comparisons

__all__ = ["DividedUsers", "divided"]


class DividedUsers(NamedTuple):
    """All users, divided into parts of successive users.

    Attributes
    ----------
    partitions : Partitions
        The parts, with `ObservedComparisons` as data.
    comparisons : Comparisons
        Comparisons of all users.
    ends : ndarray of int64, (parts + 1,)
        Part k has the users from ``ends[k]`` up to ``ends[k + 1]``.
    """

    partitions: Partitions
    comparisons: Comparisons
    ends: np.ndarray

    def place(self, users: UserFactors) -> Handles:
        """Send the factors of all users to their parts, and return handles of the factors of each part."""
        return self.partitions.place([users.of_users(self.comparisons, slice(*ends)) for ends in pairwise(self.ends)])

    def collect(self, handles: Handles) -> UserFactors:
        """Return the factors of all users."""
        return UserFactors.joined(self.partitions.collect(handles))


@contextmanager
def divided(
    comparisons: Comparisons, observed: np.ndarray, n_parts: int | None = None, client: Any = None
) -> Iterator[DividedUsers]:
    """Provide users in parts of about equal size, by the total number of entries of covariances of compared items.

    Parameters
    ----------
    comparisons : Comparisons
    observed : ndarray, (P,)
        Zero for comparisons that are held out, and one for all others.
    n_parts : int, optional
        Largest number of parts; by default one, or one for each worker.
    client : distributed.Client, optional
        Cluster whose workers hold the parts; by default they are in this process.
    """
    if n_parts is None:
        n_parts = 1 if client is None else max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    entries = comparisons.square_ends
    ends = np.unique(np.searchsorted(entries, np.linspace(0, entries[-1], n_parts + 1)))
    data = []
    for begin, end in pairwise(ends):
        some, _, pairs, _ = comparisons.some(np.arange(begin, end))
        data.append(ObservedComparisons(some, observed[pairs]))
    if client is None:
        yield DividedUsers(LocalPartitions(data), comparisons, ends)
        return
    from pymc_ep.engines.partitions.dask import DaskPartitions

    with DaskPartitions(client, _itself, data) as partitions:
        yield DividedUsers(partitions, comparisons, ends)


def _itself(source: ObservedComparisons) -> ObservedComparisons:
    """Return `source` itself: the data of a part need no loading."""
    return source
