"""One update of the weights by the events of a window, in NumPy."""

from typing import NamedTuple

import numpy as np

from pymc_ep.models.sequences.engine.rules import RULES, stepped
from pymc_ep.models.sequences.engine.values import Learned, Priors, Rows
from pymc_ep.models.sequences.kernel import Weights, Window, window_gradient
from pymc_ep.numerics.backend.namespace import Array

__all__ = ["Settings", "Shares", "Updated", "updated"]


class Settings(NamedTuple):
    """Settings of an update: name of the rule, factor of a step, and norm to which larger gradients are shortened."""

    optimizer: str
    learning_rate: float
    clip: float


class Shares(NamedTuple):
    """Shares of events that lie in a window; the window's gradient includes the same shares of the log priors.

    Attributes
    ----------
    users : ndarray, (P or 1,)
        Share of each user's events, or share of all events where the matrices are shared.
    items : ndarray, (I,)
        Share of each item's events.
    outputs : ndarray, (1 or I,)
        Share of all events. With candidates, this share times the factor of each candidate, and zero for other items.
    memory, known, bias : ndarray, (1,)
        Share of all events.
    """

    users: np.ndarray
    items: np.ndarray
    outputs: np.ndarray
    memory: np.ndarray
    known: np.ndarray
    bias: np.ndarray


class Updated(NamedTuple):
    """Log probability of a window's events, states after it, (P, D), weights after the update, and a flag.

    The flag is True if the log probability and its gradient are finite, False if not: the weights are then unchanged.
    """

    total: Array
    last: Array
    learned: Learned
    finite: Array


def updated(
    learned: Learned,
    window: Window,
    first: np.ndarray,
    kept: np.ndarray | None,
    priors: Priors,
    shares: Shares,
    most: int,
    settings: Settings,
) -> Updated:
    """Return weights after a step up the gradient of the log probability of a window's events plus the log prior.

    The log prior of each row is multiplied by its entry in `shares`. The gradient is divided by `most`, not by the
    number of events of this window. All events of an epoch then have equal weight, although the last windows of a group
    have few events, as only the users with most events are in them.

    Arrays of `learned` belong to this group of users alone, and are overwritten. Rows of recurrent matrices and inputs
    without an event in the window, rows of outputs that are no candidates, and their moments are unchanged.

    Parameters
    ----------
    learned : Learned
        Weights with the recurrent matrices of the P users of the group, or with one set.
    window : Window
        Events of the first users of the group.
    first : ndarray, (P, D)
        States before the window.
    kept : ndarray, (n, D), optional
        Dropout, see `window_gradient`.
    priors : tuple of Prior
        Priors of the tables; the first is of the P users' matrices, or of one set.
    shares : Shares
    most : int
        Number of events of the largest window that a group can have.
    settings : Settings
    """
    tables = list(learned.weights)
    n_users = int(window.counts[0])
    user_slice = slice(None) if len(tables[0]) == 1 else slice(n_users)
    # What is not finite is seen below.
    with np.errstate(over="ignore", invalid="ignore"):
        windowed = window_gradient(Weights(tables[0][user_slice], *tables[1:]), window, first[:n_users], kept)
    last = first.copy()
    last[:n_users] = windowed.last
    gradient, total = windowed.gradient, float(windowed.values.sum())
    candidates = slice(None) if window.candidates is None else window.candidates.items
    places: tuple[Rows, ...] = user_slice, gradient.items, candidates, slice(None), slice(None), slice(None)
    # (sum over events of d log p(y) + share d log p(weights)) / most.
    gradients, scaled = [getattr(gradient, name) for name in Weights._fields], []
    for g, table, prior, rows, share in zip(gradients, tables, priors, places, shares):
        of_prior = prior.rows(rows).pull(table[rows], share if len(share) == 1 else share[rows])
        scaled.append((g + of_prior) / most)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.sqrt(sum(np.vdot(g, g) for g in scaled)))
    if not np.isfinite(total) or not np.isfinite(norm):
        return Updated(total, last, learned, False)
    # g min(1, clip / |g|), with |g| over all tables.
    shrink = min(1.0, settings.clip / norm) if norm > 0 else 1.0
    rule, rate = RULES[settings.optimizer], settings.learning_rate
    for g, table, moments, rows in zip(scaled, tables, learned.moments, places):
        after, changed = stepped(rule, rate, table[rows], shrink * g, moments.rows(rows))
        table[rows] = after
        for old, new in zip(moments, changed):
            if len(old):
                old[rows] = new
    return Updated(total, last, learned, True)
