"""Variational Bayes for symbols that are paired with each other, such as the authors of a paper.

Pairs {i, j} have no order, and no symbol is paired with itself. Let s be the posterior of either symbol of a censored
pair, and Om_ij the expected bound of log sig(-a_ij). Observed pairs have the same terms of the bound as with two sides,
once for each pair. The terms of D' censored pairs are

    D' (2 sum_i s_i E log pi_i + sum_{i != j} s_i s_j Om_ij - 2 sum_i s_i log s_i),

so that a row is updated like the row of a user with 2 D' censored pairs, given all other rows, one row after the other.
"""

from typing import Any

import numpy as np
from scipy.special import digamma, logsumexp, softmax, xlogy

from pymc_ep.models.paired_symbols.engine.bound import log_bound, side_terms, updated_gammas
from pymc_ep.models.paired_symbols.engine.extrapolation import continued, squared_lengths, step_length, with_censored
from pymc_ep.models.paired_symbols.engine.state import PairedProblem, State, Summary
from pymc_ep.models.paired_symbols.engine.sweeps import Sweeps
from pymc_ep.models.paired_symbols.engine.updates import (
    Crossed,
    Diagonal,
    background,
    background_terms,
    best_xi,
    cell_terms,
    constant_popularity,
    crossed,
)
from pymc_ep.models.paired_symbols.engine.values import (
    PairCounts,
    PairedPrior,
    Points,
    Popularity,
    Rows,
    expected_priors,
)
from pymc_ep.models.paired_symbols.kernel import Censored, Symbols, pair_sums, update_in_turn

__all__ = ["SymmetricBayes"]

_HALVINGS = 10
"""Number of step lengths 1, 1/2, 1/4, ... to try for the posterior of a censored symbol; if all fail, it is kept."""
_GAUSSIAN = Points()
"""Neither factors nor biases are points."""


class SymmetricBayes(Sweeps):
    """Coordinate ascent of the bound. `users` and `items` of a state are the same rows.

    Parameters
    ----------
    pairs : PairCounts
        Observed pairs, each in both orders.
    sequential, constant_messages, extrapolate, learn, tol, backend
        As in `VariationalBayes`.
    points : Points
        Whether the symbols' factors and biases are points.
    """

    def __init__(
        self,
        pairs: PairCounts,
        *,
        sequential: bool = False,
        constant_messages: bool = False,
        points: Points = _GAUSSIAN,
        extrapolate: bool = True,
        learn: bool = False,
        tol: float = 1e-6,
        backend: str = "auto",
    ):
        super().__init__(0.5 * pairs.total, extrapolate=extrapolate, learn=learn, tol=tol)
        self.pairs, self.sequential, self.constant = pairs, sequential, constant_messages
        self.points, self.backend = points, backend

    def init(self, problem: PairedProblem, start: Any = None) -> State:
        """Return the first state with its bound."""
        if self.constant:
            prior = problem.prior(start.theta)
            arguments = prior.users.concentration, self.pairs.users, 2.0 * self._number(prior)
            start = _of_rows(start, start.users._replace(popularity=constant_popularity(*arguments)))
        return self._evaluated(problem, start)

    def whole(self, state: State) -> State:
        """Return the state unchanged: it has values of all users and no handles."""
        return state

    def packed(self, state: State) -> State:
        """Return the state and its trail without `users`, which equal `items`."""
        once = state._replace(users=None)
        return once._replace(trail=tuple(previous._replace(users=None) for previous in state.trail))

    def unpacked(self, problem: PairedProblem, packed: State) -> State:
        """Return the state and its trail with `users` restored from `items`."""
        trail = tuple(_of_rows(previous, previous.items) for previous in packed.trail)
        return _of_rows(packed, packed.items)._replace(trail=trail)

    def summarised(self, problem: PairedProblem, state: State, *, calibrate: bool = False) -> Summary:
        """Return the log normalisers of a censored symbol, for predictions; there is no calibration."""
        (symbols, (concentration, s)), xi = state.users, state.xi
        _, logits = self._tied(symbols, concentration, s, state.sums, xi)
        total = float(logsumexp(logits))
        return Summary((total, total), None)

    def _number(self, prior: PairedPrior) -> float:
        """Return the number D' of censored pairs."""
        return prior.censored_ratio * self.total

    def _extrapolated(self, trail: tuple[State, ...]) -> State:
        rows = [state.users for state in trail]
        further, logits = continued(rows, step_length(squared_lengths(rows)))
        return _of_rows(trail[-1], with_censored(further, logits, float(logsumexp(logits))))

    def _sweep(self, problem: PairedProblem, state: State) -> State:
        """Return the state after updates of popularities, censored symbols, and rows in turn; each raises the bound."""
        prior = problem.prior(state.theta)
        number = 2.0 * self._number(prior)
        symbols, popularity = state.users
        if not self.constant:
            arguments = prior.users.concentration, self.pairs.users, number
            concentration = Popularity.of(*arguments, popularity.censored).concentration
            popularity = Popularity.of(*arguments, self._censored(state, concentration))
        s = popularity.censored
        symbols = update_in_turn(
            self.pairs.by_user,
            symbols,
            expected_priors(prior.users, state.gammas),
            Censored(number, s, s, background(symbols, s), state.xi),
            sequential=self.sequential,
            points=(self.points.factors, self.points.bias),
            backend=self.backend,
        )
        return _of_rows(state, Rows(symbols, popularity))

    def _censored(self, state: State, concentration: np.ndarray) -> np.ndarray:
        """Return the posterior of a censored symbol after a step towards its fixed point.

        The step is halved until it does not lower the bound; after ten failures the posterior is unchanged.
        """
        symbols, s, xi = state.users.symbols, state.users.popularity.censored, state.xi
        before, logits = self._tied(symbols, concentration, s, state.sums, xi)
        log_s, step = np.log(np.maximum(s, np.finfo(float).tiny)), 1.0
        for _ in range(_HALVINGS):
            # s^(1 - h) exp(h logits), normalised, with h = 1, 1/2, 1/4, ...
            after = softmax(log_s + step * (logits - log_s))
            sums = self._sums(symbols, after)
            if self._tied(symbols, concentration, after, sums, xi)[0] >= before:
                return after
            step /= 2.0
        return s

    def _tied(
        self, symbols: Symbols, concentration: np.ndarray, s: np.ndarray, sums: np.ndarray, xi: float
    ) -> tuple[float, np.ndarray]:
        """Return the bound's terms that depend on s, for one censored pair, and the logits of s at its update, (I,)."""
        expected_log = digamma(concentration) - digamma(concentration.sum())
        # sum_{j != i} s_j Om*_ij, then sum_{j != i} s_j Om_ij in `preference`.
        others = background_terms(symbols, background(symbols, s), xi) - s * Diagonal.of(symbols).terms(xi)
        preference = cell_terms(sums, xi) + others
        # Stationary: 2 E log pi_i + 2 sum_{j != i} s_j Om_ij - 2 log s_i is the same for all i.
        logits = expected_log if self.constant else expected_log + preference
        return float(s @ (2.0 * expected_log + preference) - 2.0 * xlogy(s, s).sum()), logits

    def _sums(self, symbols: Symbols, s: np.ndarray) -> np.ndarray:
        return pair_sums(self.pairs.by_user, symbols, symbols, s, backend=self.backend)

    def _evaluated(self, problem: PairedProblem, state: State, *, update: bool = False) -> State:
        """Return the state with the sums of its cells, the best xi* and the bound; optionally update the precisions."""
        prior, (symbols, popularity) = problem.prior(state.theta), state.users
        s, number = popularity.censored, self._number(prior)
        sums, diagonal = self._sums(symbols, s), Diagonal.of(symbols)
        moments = background(symbols, s)
        mean, square = crossed(moments, moments)
        # A pair of a symbol with itself is censored whatever its a: its share has a weight and no terms.
        pair = Crossed(mean - float(s**2 @ diagonal.mean), square - float(s**2 @ diagonal.square))
        # Each pair lies in two cells, hence the half; the weight sum_i s_i^2 leaves out pairs of a symbol with itself.
        cells = np.array([0.5 * sums[:, 0].sum(), *(s @ sums[:, 1:])]) + np.array([0.0, 0.0, 0.0, s @ s])
        xi = best_xi(pair, cells[2], cells[3], state.xi)
        total = float(popularity.concentration.sum())
        terms = (side_terms(prior.users, state.users, self.pairs.users, 2.0 * number, total),)
        gammas = updated_gammas(prior, terms) if update else state.gammas
        # log 2 for each of D pairs, which have no order.
        bound = log_bound(prior, gammas, terms, (total,), number, cells, pair, xi) + self.total * np.log(2.0)
        return state._replace(sums=sums, xi=xi, gammas=gammas, log_bound=bound, objective=bound + prior.log_prior)


def _of_rows(state: State, rows: Rows) -> State:
    return state._replace(users=rows, items=rows)
