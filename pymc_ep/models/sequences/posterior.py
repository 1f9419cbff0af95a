"""Point estimates of a recurrent network's weights, which serve as its posterior, and predictions from them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.models.sequences.compiled import CompiledSequences
from pymc_ep.models.sequences.kernel import (
    Scores,
    Sequences,
    Weights,
    initial_states,
    log_probabilities,
    next_log_probabilities,
)
from pymc_ep.models.sequences.kernel.memory import last_log_shares
from pymc_ep.models.sequences.kernel.past import known_items

__all__ = ["SequencesPosterior"]


@dataclass(frozen=True, eq=False)
class SequencesPosterior:
    """Point estimates of the weights of a `SequencesForm`.

    Attributes
    ----------
    form : CompiledSequences
    weights : Weights
        Recurrent matrices are one set where users share them.
    shared : ndarray, (G, D, D)
        Prior mean of users' matrices for G gates and D units; empty if no variable is such a mean.
    """

    form: CompiledSequences
    weights: Weights
    shared: np.ndarray

    @property
    def theta(self) -> np.ndarray:
        """Hyperparameters: none."""
        return np.zeros(0)

    @property
    def unknowns(self) -> int:
        """Number of weights."""
        return sum(table.size for table in self.weights) + self.shared.size

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the moments of the hyperparameters: none."""
        return {}

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of the model's variables, by name and in doubles."""
        form = self.form.form
        recurrent, *others = self.weights
        tables = [recurrent[0] if self.form.pooled else recurrent, *others]
        out = {
            prior.name: table.astype(float, copy=False)
            for prior, table in zip(form.tables, tables)
            if prior is not None
        }
        return out if form.shared is None else out | {form.shared.name: self.shared.astype(float, copy=False)}

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return draws that are all the same, without copies, optionally with the log probabilities of all events."""
        values = {name: _repeated(value, size) for name, value in self.values().items()}
        some = {name: value[:1] for name, value in values.items()}
        deterministics = self.form.evaluate(np.zeros((1, 0)), some)
        values |= {name: _repeated(value[0], size) for name, value in deterministics.items()}
        if not log_likelihood:
            return JointDraws(values, {})
        sequences, order = self.form.sequences()
        log_p = np.empty(len(order))
        log_p[order] = self.scores(sequences).values
        return JointDraws(values, {self.form.form.sequences.name: _repeated(log_p, size)})

    def scores(self, sequences: Sequences, begins: np.ndarray | None = None) -> Scores:
        """Return log probabilities of each user's events from index ``begins[user]`` on, and the users' last states."""
        first = initial_states(len(sequences.lengths), self.weights, self.form.initial)
        return log_probabilities(self.weights, sequences, first, begins)

    @cached_property
    def _observed(self) -> tuple[Sequences, np.ndarray]:
        return self.form.sequences()

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self._observed[0].lengths)

    def next_log_probabilities(self, users: np.ndarray, context: int = 0) -> np.ndarray:
        """Return the log probability of each item as the next one of k users, (k, I), if its context is `context`."""
        (observed, order), form = self._observed, self.form
        places = [np.arange(observed.ends[user], observed.ends[user + 1]) for user in users]
        histories = [observed.items[user_places] for user_places in places]
        sequences = Sequences.of_parts(histories, form.n_items)
        if len(form.contexts):
            contexts = form.contexts[order][np.concatenate(places)].astype(np.int64)
            sequences = sequences.in_context(contexts, context)
        weights = self.weights
        if not form.pooled:
            weights = weights._replace(recurrent=weights.recurrent[users])
        states = log_probabilities(
            weights._replace(memory=weights.memory[:0]),
            sequences,
            initial_states(len(users), weights, form.initial),
            sequences.lengths,
        ).last
        log_shares = last_log_shares(histories, form.n_items, form.half_lives)
        return next_log_probabilities(weights, states, log_shares, known_items(histories, form.n_items))


def _repeated(value: np.ndarray, size: int) -> np.ndarray:
    return np.broadcast_to(value, (size, *value.shape))
