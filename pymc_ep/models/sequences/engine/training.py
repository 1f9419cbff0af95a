"""Training of a recurrent network: stochastic steps on windows of sequences, until held-out events get no likelier.

An iteration of the loop trains on one group of users. Their sequences are cut into windows, states are carried from
window to window, and the weights take a step after each window. An epoch trains on all users, each in one iteration.
After that iteration, the state has the user's recurrent matrices in `State.visited`. They are put into the table of all
users at the end of the epoch, so that no step writes into the arrays of an earlier state.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from pymc_ep.engines.base import Status
from pymc_ep.models.sequences.engine.held_out import held_out_total
from pymc_ep.models.sequences.engine.update import Settings, Shares, Updated, updated
from pymc_ep.models.sequences.engine.values import Learned, Moments, Prior, Priors, Problem, Visited, converted
from pymc_ep.models.sequences.kernel import (
    Weights,
    Window,
    initial_states,
    longest_first,
    sampled_candidates,
    window_of,
)
from pymc_ep.numerics.backend.namespace import replaced, to_jax

__all__ = ["State", "Training"]


class State(NamedTuple):
    """State of a training.

    Attributes
    ----------
    learned : Learned
        Recurrent matrices as at the start of the epoch, unless they are shared; all other weights as they are now.
    shared : ndarray, (G, D, D)
        Shared matrices, the mean of users' matrices; empty if users' matrices have no such mean.
    visited : tuple of Visited
        Recurrent matrices of the users trained so far in this epoch, one entry for each group.
    best, best_shared : Weights, ndarray
        Weights and shared matrices after the best epoch.
    first_nats, best_nats : float
        Loss before the first epoch and after the best one, in nats a held-out event. If no event is held out, the first
        is log I for I items, and the second the loss of the last epoch in nats a training event.
    best_epoch : int
        Number of the best epoch, 0 for the start; the last epoch if no event is held out.
    epoch, group : int
        Number of finished epochs, and number of groups trained so far in this epoch.
    order : ndarray of int, (P,)
        Users with events, in the order of their training in this epoch.
    most : int
        Number of events of the largest window that a group can have.
    total : float
        Sum of the log probabilities of the training events of this epoch so far.
    trace : ndarray, (epochs, 2)
        For each epoch, loss in nats a held-out event after it, and in nats a training event during it. If no event is
        held out, both are the loss in nats a training event.
    failed_user, failed_event : int
        A user of the first window whose gradient is not finite, and the window's first event; -1 without such a window.
    """

    learned: Learned
    shared: np.ndarray
    visited: tuple[Visited, ...]
    best: Weights
    best_shared: np.ndarray
    first_nats: float
    best_nats: float
    best_epoch: int
    epoch: int
    group: int
    order: np.ndarray
    most: int
    total: float
    trace: np.ndarray
    failed_user: int = -1
    failed_event: int = -1


class Training:
    """Stochastic ascent of the mean log probability of events.

    Parameters
    ----------
    settings : Settings
    batch : int
        Length, in events, of the windows within which gradients are propagated back.
    users_per_batch : int
        Number of users of a group.
    ridge : float
        Precision of a Gaussian of mean zero that multiplies the priors of all weights, not of the shared matrices.
    sampled : int, optional
        Number of items that the softmax of a window sums over in addition to the window's items; by default all items.
    dropout : float
        Share of the entries of states that are set to zero in predictions during training.
    epochs : int
        Largest number of epochs.
    patience : int
        Training ends after this number of epochs without a lower loss on held-out events.
    held_out : bool
        Whether there are held-out events. Otherwise training ends after all epochs.
    seed : int
    jax : bool
        Whether updates run in JAX.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        batch: int = 128,
        users_per_batch: int = 32,
        ridge: float = 0.0,
        sampled: int | None = None,
        dropout: float = 0.0,
        epochs: int = 25,
        patience: int = 3,
        held_out: bool = True,
        seed: int = 0,
        jax: bool = False,
    ):
        self.settings, self.batch, self.users_per_batch = settings, batch, users_per_batch
        self.ridge, self.sampled, self.dropout = ridge, sampled, dropout
        self.epochs, self.patience = epochs, patience
        self.held_out, self.seed, self.jax = held_out, seed, jax
        self._update: Callable[..., Updated] = updated
        self._held_out_total: Callable[..., float] = held_out_total
        if jax:
            from pymc_ep.models.sequences.engine.held_out_jax import held_out_total_jax
            from pymc_ep.models.sequences.engine.update_jax import updated_jax

            self._update = partial(updated_jax, batch=batch)
            self._held_out_total = partial(held_out_total_jax, batch=batch, users_per_batch=users_per_batch)

    def groups(self, problem: Problem) -> int:
        """Return the number of groups of users, and so of iterations of an epoch."""
        return -(-int((problem.lengths > 0).sum()) // self.users_per_batch)

    def init(self, problem: Problem, start: tuple[Learned, np.ndarray] | None = None) -> State:
        """Return the first state; `start` is a pair of weights with their moments, and shared matrices, (G, D, D)."""
        assert start is not None, "training starts from weights"
        learned, shared = start
        nats = self._held_out(problem, learned.weights)
        if nats is None:
            # -log(1 / I), of equal probabilities.
            nats = float(np.log(len(learned.weights.outputs)))
        most = int(np.sort(np.minimum(problem.lengths, self.batch))[-self.users_per_batch :].sum())
        state = State(
            learned=learned,
            shared=shared,
            visited=(),
            best=learned.weights,
            best_shared=shared,
            first_nats=nats,
            best_nats=nats,
            best_epoch=0,
            epoch=0,
            group=0,
            order=self._order(problem, 0),
            most=most,
            total=0.0,
            trace=np.zeros((0, 2)),
        )
        return self.unpacked(problem, state) if self.jax else state

    def step(self, problem: Problem, state: State) -> State:
        """Return the state after training on one group of users; at the end of an epoch, with the loss after it."""
        begin = state.group * self.users_per_batch
        end = begin + self.users_per_batch
        users = longest_first(problem.lengths, state.order[begin:end])
        shared = len(state.learned.weights.recurrent) == 1
        # Under JAX as many in all groups: it compiles for one number of them.
        rows = np.resize(users, min(self.users_per_batch, len(state.order))) if self.jax else users
        local = state.learned.rows(slice(None) if shared else rows)
        h = initial_states(len(rows), state.learned.weights, problem.initial)
        priors = self._priors(problem, state, rows)
        rng, begins = self._rng(state.epoch, state.group), range(0, int(problem.lengths[users[0]]), self.batch)
        totals, finite = [], []
        for at in begins:
            window, _ = window_of(problem.sequences, problem.lengths, users, at, self.batch)
            if self.sampled is not None:
                n_items = len(problem.item_counts)
                window = window._replace(candidates=sampled_candidates(window.items, n_items, self.sampled, rng))
            kept = None
            if self.dropout:
                # Zero with probability q, else 1 / (1 - q): the mean is one.
                kept = (rng.random((len(window.items), h.shape[1])) >= self.dropout) / (1.0 - self.dropout)
                kept = kept.astype(h.dtype)
            shares = self._shares(problem, window, rows, shared=shared)
            update = self._update(local, window, h, kept, priors, shares, state.most, self.settings)
            h, local = update.last, update.learned
            totals.append(update.total)
            finite.append(update.finite)
        # Numbers of JAX are waited for once all windows are under way.
        if not all(finite):
            return state._replace(failed_user=int(users[0]), failed_event=begins[finite.index(False)])
        total = state.total + sum(map(float, totals))
        state = _passed(state, users, local)._replace(group=state.group + 1, total=total)
        return self._epoch_over(problem, state) if end >= len(state.order) else state

    def objective(self, state: State) -> float:
        """Return the loss of the last epoch, in nats a held-out event, or a training event if none is held out."""
        return float(state.trace[-1, 0]) if len(state.trace) else state.first_nats

    def change(self, state: State) -> float:
        """Return the absolute change of the objective in the last epoch."""
        if not len(state.trace):
            return np.inf
        return float(abs(np.diff(state.trace[-2:, 0], prepend=state.first_nats)[-1]))

    def finished(self, state: State) -> Status | None:
        """Return how training ended, or None while it goes on."""
        if state.failed_user >= 0:
            return Status(
                False,
                f"the loss or its gradient was not finite in epoch {state.epoch + 1}, at the events of the user at "
                f"position {state.failed_user} and others of its group from event {state.failed_event} on; the weights "
                f"are the last good ones. Lower learning_rate or clip",
            )
        if state.group or not self.held_out:
            over = state.epoch == self.epochs
            return Status(True, self._sentence(state, "without held-out events to judge by")) if over else None
        if state.epoch - state.best_epoch < self.patience:
            return None
        if not state.best_epoch:
            return Status(False, self._sentence(state, "no epoch has a lower loss than the start: lower learning_rate"))
        return Status(True, self._sentence(state, f"none of the {self.patience} after it has a lower loss"))

    def exhausted(self, state: State, iterations: int) -> str:
        """Return the status sentence for a training that ended with its largest number of epochs."""
        return self._sentence(state, "more may lower it further: raise epochs")

    def result(self, problem: Problem, state: State) -> tuple[Weights, np.ndarray]:
        """Return weights and shared matrices after the best epoch.

        In the first epoch, and without held-out events, return the present ones.
        """
        if state.epoch and self.held_out:
            return state.best, state.best_shared
        return converted(np.asarray, _merged(state).weights), state.shared

    def packed(self, state: State) -> State:
        """Return the state with NumPy arrays."""
        return converted(np.asarray, state) if self.jax else state

    def unpacked(self, problem: Problem, packed: State) -> State:
        """Return the state with the arrays that updates take: weights and moments of JAX where updates run in JAX."""
        if not self.jax:
            return packed
        learned, visited = converted(to_jax, (packed.learned, packed.visited))
        return packed._replace(learned=learned, visited=visited)

    def _rng(self, *place: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, *place))

    def _order(self, problem: Problem, epoch: int) -> np.ndarray:
        """Return the users with events to train on, in the random order of an epoch, (P,)."""
        return self._rng(epoch).permutation(np.flatnonzero(problem.lengths))

    def _priors(self, problem: Problem, state: State, users: np.ndarray) -> Priors:
        """Return the priors of all tables times the Gaussian of `ridge`; the first prior is of the rows `users` alone.

        Where users' matrices have a shared mean, it is the mean of the first prior.
        """
        recurrent, *others = problem.priors
        if problem.of_shared is not None:
            recurrent = recurrent._replace(mean=state.shared[None])
        return tuple(prior.with_ridge(self.ridge) for prior in (recurrent.rows(users), *others))

    def _shares(self, problem: Problem, window: Window, users: np.ndarray, *, shared: bool) -> Shares:
        """Return, for each user, for each item and for all events together, the share of events that lie in `window`.

        Where the softmax samples items, the share of outputs is multiplied by the number of items that each represents.
        """
        every = np.array([len(window.items) / problem.n_trained])
        of_users = np.bincount(window.users, minlength=len(users)) / problem.lengths[users]
        of_items = np.bincount(window.items, minlength=len(problem.item_counts)) / problem.item_counts
        of_outputs = every
        if window.candidates is not None:
            of_outputs = np.zeros(len(problem.item_counts))
            of_outputs[window.candidates.items] = every * np.exp(window.candidates.offsets)
        shares = Shares(every if shared else of_users, of_items, of_outputs, every, every, every)
        return Shares(*(share.astype(problem.priors[0].mean.dtype) for share in shares))

    def _epoch_over(self, problem: Problem, state: State) -> State:
        """Return the state at the start of the next epoch, with shared matrices and losses updated."""
        learned = _merged(state)
        shared = state.shared
        if problem.of_shared is not None:
            precision = problem.priors[0].precision
            learned, shared = _about_shared(learned, shared, problem.lengths > 1, precision, problem.of_shared)
        trained = -state.total / problem.n_trained
        held_out = self._held_out(problem, learned.weights)
        nats, epoch = trained if held_out is None else held_out, state.epoch + 1
        after = state._replace(
            learned=learned,
            shared=shared,
            visited=(),
            epoch=epoch,
            group=0,
            order=self._order(problem, epoch),
            total=0.0,
            trace=np.append(state.trace, [[nats, trained]], axis=0),
        )
        if held_out is not None and nats >= state.best_nats:
            return after
        weights = converted(np.asarray, learned.weights)
        return after._replace(best=weights, best_shared=shared, best_nats=nats, best_epoch=epoch)

    def _held_out(self, problem: Problem, weights: Weights) -> float | None:
        """Return the loss in nats a held-out event, infinity if it is not finite; None if no event is held out."""
        n = int(problem.held_out.sum())
        if not n:
            return None
        # A loss that is not finite is worse than all others, and training goes on or says where it ends.
        nats = -self._held_out_total(weights, problem) / n
        return nats if np.isfinite(nats) else np.inf

    def _sentence(self, state: State, why: str) -> str:
        best = f"the best is epoch {state.best_epoch} at {state.best_nats:.4g} nats an event"
        return f"{state.epoch} epochs; {best}; {why}"


def _passed(state: State, users: np.ndarray, local: Learned) -> State:
    """Return the state after the training of a group of users, given their weights and moments in `local`."""
    weights, moments = state.learned
    if len(weights.recurrent) == 1:
        return state._replace(learned=local)
    rows = slice(len(users))
    visited = Visited(users, local.weights.recurrent[rows], local.moments[0].rows(rows))
    learned = Learned(local.weights._replace(recurrent=weights.recurrent), (moments[0], *local.moments[1:]))
    return state._replace(learned=learned, visited=(*state.visited, visited))


def _merged(state: State) -> Learned:
    """Return the tables, with the recurrent matrices and moments of all users trained so far in this epoch."""
    if not state.visited:
        return state.learned
    users = np.concatenate([visit.users for visit in state.visited])
    weights, moments = state.learned
    recurrent = replaced(weights.recurrent, users, [visit.recurrent for visit in state.visited])
    averages = zip(moments[0], zip(*(visit.moments for visit in state.visited)))
    of_recurrent = Moments(*(replaced(old, users, new) if len(old) else old for old, new in averages))
    return Learned(weights._replace(recurrent=recurrent), (of_recurrent, *moments[1:]))


def _about_shared(
    learned: Learned, shared: np.ndarray, trained: np.ndarray, precision: np.ndarray, prior: Prior
) -> tuple[Learned, np.ndarray]:
    """Return weights, and the mode of the shared matrices, (G, D, D), given the matrices of users that have trained.

    `trained`, (U,), marks the users. No event that is trained on depends on the matrices of other users, which are set
    to the mode. Entries that have no precision, in the priors of users' matrices and of the mean, keep their `shared`
    values.
    """
    recurrent = learned.weights.recurrent
    # (sum_u p R_u + q m) / (sum_u p + q) maximises sum_u log N(R_u; M, 1 / p) + log N(M; m, 1 / q) over M.
    of_users = np.broadcast_to(precision * trained.reshape(-1, 1, 1, 1), recurrent.shape)
    total = of_users.sum(axis=0) + prior.precision
    weighted = np.einsum("u...,u...->...", of_users, np.asarray(recurrent)) + prior.precision * prior.mean
    has_precision = total > 0
    shared = np.where(has_precision, weighted / np.where(has_precision, total, 1.0), shared)
    others = np.flatnonzero(~trained)
    if len(others):
        recurrent = replaced(recurrent, others, [np.broadcast_to(shared, (len(others), *shared.shape))])
    return learned._replace(weights=learned.weights._replace(recurrent=recurrent)), shared
