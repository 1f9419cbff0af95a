"""Sequences split as Ko, Maystre and Grossglauser (2016) split them, and how predictions of later events are scored.

A method predicts events by a function of their places k among all that it predicts: the log probabilities of all
items, (k, I). Nats and Recall@20 come of these alone, alike for all methods.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logsumexp

from pymc_ep.datasets import load_checkins, load_movielens
from pymc_ep.models.sequences.kernel.past import known_items

__all__ = [
    "TOP",
    "Predictor",
    "Scores",
    "Split",
    "Task",
    "entropies",
    "in_context",
    "of_new_items",
    "scored",
    "split",
    "terciles",
    "user_mean",
]

CORE = 10
"""Fewest events of a user and of an item."""
HOMOGENEOUS = 0.95
"""Users with a larger share of their events at one item are left out."""
TEST_SHARE, TEST_LENGTHS = 0.025, (3, 500)
"""Share of a user's events to predict, rounded up, and its bounds."""
VALIDATION_SHARE = 0.05
"""Share of a user's training events that choices are made by: the default of ``fit(held_out=)``."""
TOP = 20
"""Items that count as recommended."""
BLOCK = 2**21
"""Log probabilities that are held at a time."""

Predictor = Callable[[slice], np.ndarray]


class Task(NamedTuple):
    """Events to predict, of each user those that follow its events before.

    Attributes
    ----------
    before, after : list of ndarray of int
        Items of each user.
    n_items : int
    contexts : list of ndarray of int, optional
        Contexts of the events of each user, before and after.
    """

    before: list[np.ndarray]
    after: list[np.ndarray]
    n_items: int
    contexts: list[np.ndarray] | None = None

    @property
    def given(self) -> Any:
        """What follows, as `pymc_ep.log_predictive` takes it."""
        if self.contexts is None:
            return self.after
        return {user: (a, c[len(b) :]) for user, (b, a, c) in enumerate(zip(self.before, self.after, self.contexts))}

    @property
    def users(self) -> np.ndarray:
        """Users of the events to predict, (n,)."""
        return np.repeat(np.arange(len(self.after)), list(map(len, self.after)))

    @property
    def items(self) -> np.ndarray:
        """Events to predict, (n,), user by user."""
        return np.concatenate(self.after)

    @property
    def previous(self) -> np.ndarray:
        """Item before each of the events to predict, (n,)."""
        return np.concatenate([np.append(b[-1:], a[:-1])[: len(a)] for b, a in zip(self.before, self.after)])

    @property
    def past(self) -> list[np.ndarray]:
        """Items of the user before each of the events to predict, n arrays."""
        both = [np.append(b, a) for b, a in zip(self.before, self.after)]
        return [items[:k] for items, b in zip(both, self.before) for k in range(len(b), len(items))]


class Split(NamedTuple):
    """Both tasks of a data set.

    Attributes
    ----------
    validation, test : Task
        Events of the first follow its training events alone; what precedes the test are both.
    counts : dict of str to int
        Users, items and events, and those that were left out.
    frame : pandas.DataFrame
        The events of both, with their times.
    """

    validation: Task
    test: Task
    counts: dict[str, int]
    frame: pd.DataFrame


class Scores(NamedTuple):
    """Of each event to predict, its log probability, and the probability that it is among the `TOP` items.

    The latter is one or zero but where items tie.
    """

    log_p: np.ndarray
    recall: np.ndarray


def events(name: str) -> pd.DataFrame:
    """Return the events of a data set: ``user``, ``item`` and ``time``, those of a user in their order."""
    if name == "ml-100k":
        return load_movielens("100k").sort_values(["user", "time"], kind="stable")
    return load_checkins(name).rename(columns={"place": "item"})


def split(name: str) -> Split:
    """Return the tasks of a data set."""
    frame = events(name)
    found = len(frame)
    while True:
        enough = [frame.groupby(side)[side].transform("size") >= CORE for side in ("user", "item")]
        if (enough[0] & enough[1]).all():
            break
        frame = frame[enough[0] & enough[1]]
    outside = found - len(frame)
    counted = frame.groupby(["user", "item"]).size()
    share = counted.groupby("user").max() / counted.groupby("user").sum()
    homogeneous = share.index[share > HOMOGENEOUS]
    frame = frame[~frame["user"].isin(homogeneous)]
    before, after = [], []
    for items in (own.to_numpy() for _, own in frame.groupby("user")["item"]):
        n = int(np.clip(np.ceil(TEST_SHARE * len(items)), *TEST_LENGTHS))
        before.append(items[:-n])
        after.append(items[-n:])
    known, codes = np.unique(np.concatenate(before), return_inverse=True)
    train = np.split(codes, np.cumsum([len(items) for items in before])[:-1])
    kept = [items[np.isin(items, known)] for items in after]
    test = Task(train, [np.searchsorted(known, items) for items in kept], len(known))
    counts = {
        "users": len(train),
        "items": len(known),
        "training events": len(codes),
        "test events": len(test.items),
        "test events of other items": len(frame) - len(codes) - len(test.items),
        "events outside the core": outside,
        "homogeneous users": len(homogeneous),
    }
    return Split(validation_of(train, len(known)), test, counts, frame[frame["item"].isin(known)])


def validation_of(train: list[np.ndarray], n_items: int) -> Task:
    """Return the task of the last events of training sequences, the same that ``fit(held_out=)`` keeps."""
    n = [int(np.ceil(VALIDATION_SHARE * len(items))) for items in train]
    return Task([s[: len(s) - k] for s, k in zip(train, n)], [s[len(s) - k :] for s, k in zip(train, n)], n_items)


def in_context(data: Split, labels: np.ndarray) -> Split:
    """Return the tasks with contexts of their events, by labels of the rows of the frame."""
    _, codes = np.unique(labels, return_inverse=True)
    every = [codes[rows] for rows in data.frame.groupby("user").indices.values()]
    tasks = []
    for task in (data.validation, data.test):
        n = [(len(b), len(b) + len(a)) for b, a in zip(task.before, task.after)]
        tasks.append(task._replace(contexts=[own[:end] for own, (_, end) in zip(every, n)]))
    return data._replace(validation=tasks[0], test=tasks[1])


def scored(task: Task, log_p: Predictor) -> Scores:
    """Return what a method scores for each event to predict."""
    items = task.items
    own, recall, step = np.empty(len(items)), np.empty(len(items)), max(1, BLOCK // task.n_items)
    for begin in range(0, len(items), step):
        here = slice(begin, begin + step)
        every = log_p(here)
        mine = every[np.arange(len(every)), items[here]][:, None]
        own[here] = mine[:, 0]
        # Items of equal probability are in random order.
        recall[here] = np.clip((TOP - (every > mine).sum(axis=1)) / (every == mine).sum(axis=1), 0.0, 1.0)
    return Scores(own, recall)


def user_mean(users: np.ndarray, values: np.ndarray) -> float:
    """Return the mean over users of the means of each."""
    n = np.bincount(users)
    return float((np.bincount(users, values)[n > 0] / n[n > 0]).mean())


def entropies(sequences: list[np.ndarray]) -> np.ndarray:
    """Return the entropy of each user's items, in nats."""
    found = np.empty(len(sequences))
    for user, items in enumerate(sequences):
        p = pd.Series(items).value_counts(normalize=True).to_numpy()
        found[user] = (p * np.log(1.0 / p)).sum()
    return found


def terciles(values: np.ndarray) -> np.ndarray:
    """Return the group of each user: three of as many, of rising values."""
    groups = np.empty(len(values), dtype=np.int64)
    for group, users in enumerate(np.array_split(np.argsort(values, kind="stable"), 3)):
        groups[users] = group
    return groups


def of_new_items(task: Task, predictor: Predictor) -> Predictor:
    """Predict by the items that are new to the user alone, in the proportions of another prediction."""
    past = task.past

    def log_p(here: slice) -> np.ndarray:
        found = np.where(known_items(past[here], task.n_items), -np.inf, predictor(here))
        return found - logsumexp(found, axis=1, keepdims=True)

    return log_p
