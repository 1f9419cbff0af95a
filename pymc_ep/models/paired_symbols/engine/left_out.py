"""Calibration of predictions by pairs that are left out one at a time.

Independent factors shrink the preferences a, and sig(a) saturates, so that popularity times sig(a) is too flat a
prediction of the next item. Here p(j | i) is proportional to

    (beta_j + k)^c exp(d E a_ij),

over the items j that user i has not been seen with; beta_j is the item's Dirichlet concentration. The exponents c and d
and the smoothing k maximise the probability of left-out pairs. Each pair is left out in turn: the row of its user and
the row of its item are updated without the pair, in closed form, given all other rows. Nothing is fitted again.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_ep.engines.partitions import Handles, Partitions
from pymc_ep.models.paired_symbols.engine.user_steps import Shared, cells_of, item_statistics
from pymc_ep.models.paired_symbols.engine.values import PairCounts, Points, Rows, Side, expected_priors, rows_of
from pymc_ep.models.paired_symbols.kernel import (
    NOTHING,
    Background,
    Cells,
    Censored,
    Priors,
    Statistics,
    Symbols,
    row_statistics,
    solve_rows,
)

__all__ = ["Calibration", "calibrated"]

_PAIRS = 1000
"""Largest number of left-out pairs, with which the exponents have standard errors of some hundredths."""
_LEAST = 30
"""Least number of pairs for a calibration."""
_CANDIDATES = 4096
"""Largest number of items from which a sum over all items is estimated, drawn half uniformly, half by popularity. The
error is a few hundredths of a nat, the same for all users."""
_SMOOTHING = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Trial values of k, a number of pairs added to each item's concentration; it matters for items with few pairs."""
_MEAN_SMOOTHING = 2.0
"""Mean of an exponential prior of k, needed as a few dozen pairs do not tell large k and c from small ones."""
_ROUNDS, _TOL = 50, 1e-3
"""Largest number of Newton steps for the two exponents, and the size of a step up to which the step is the last: the
remaining error is about its square."""


class Calibration(NamedTuple):
    """Parameters of a calibrated prediction.

    Attributes
    ----------
    smoothing : float
        Smoothing k.
    popularity, preference : float
        Exponents c and d; the mean of their prior is 1.
    log_probability : float
        Mean log probability of the left-out pairs.
    n : int
        Number of left-out pairs.
    """

    smoothing: float
    popularity: float
    preference: float
    log_probability: float
    n: int

    def scalars(self) -> dict[str, float]:
        """Return the fields except `n`, by their names in results."""
        return {
            "popularity_smoothing": self.smoothing,
            "popularity_exponent": self.popularity,
            "preference_exponent": self.preference,
            "left_out_log_probability": self.log_probability,
        }


class _LeftOut(NamedTuple):
    """n pairs that are left out one at a time, each of another user.

    Attributes
    ----------
    users, before : Symbols
        Rows of the n users, updated without the pair, and as fitted with the pair.
    s : ndarray, (n,)
        Posterior probability that the user of a censored pair is each of these users.
    items, counts : ndarray, (n,)
        The item of each pair, and how often it was observed.
    n_seen : ndarray, (n,)
        Number of distinct items of each user.
    seen : ndarray, (sum of n_seen,)
        These items, user after user.
    """

    users: Symbols
    before: Symbols
    s: np.ndarray
    items: np.ndarray
    counts: np.ndarray
    n_seen: np.ndarray
    seen: np.ndarray


def calibrated(
    partitions: Partitions,
    sides: tuple[Handles, Side],
    rows: tuple[Handles, Rows],
    shared: Shared,
    of_users: Background,
    points: Points,
) -> Calibration | None:
    """Return the best parameters; None where fewer than 30 users have at least two items, but not all items.

    Parameters
    ----------
    partitions : Partitions
    sides, rows : pair
        Priors, and posterior factors: first handles for the users of each part, then values for the items.
    shared : Shared
    of_users : Background
        Background of the users.
    points : Points
        Whether the items' factors and biases are points.
    """
    _, joined = partitions.run(
        _leave_out, sides[0], rows[0], shared=(shared, -(-_PAIRS // partitions.n)), combine=_joined
    )
    left_out: _LeftOut = joined
    if len(left_out.items) < _LEAST:
        return None
    (symbols, popularity), items = rows[1], left_out.items
    item_rows = rows_of(symbols, items)
    censored = Censored(shared.number, popularity.censored[items], left_out.s, of_users, shared.xi)
    arguments = (item_rows, censored._replace(background=NOTHING), items, shared.backend)
    _, statistics = partitions.run(item_statistics, rows[0], shared=arguments)
    priors = rows_of(expected_priors(sides[1], shared.gammas), items)
    reduced_items = points.of(
        _without(statistics, item_rows, left_out.before, left_out.counts, priors, censored, shared)
    )
    return _best(left_out, reduced_items, symbols, popularity.concentration)


def _leave_out(pairs: PairCounts, side: Side, users: Rows, shared: Shared, quota: int) -> tuple[None, _LeftOut]:
    """Return one left-out pair of each of at most `quota` users, and the rows of users, updated without their pair."""
    cells = pairs.by_user
    n_cells = np.diff(cells.ends)
    rng = np.random.default_rng([len(n_cells), len(cells.others)])
    eligible = np.flatnonzero((n_cells >= 2) & (n_cells < len(shared.t)))
    chosen = np.sort(rng.permutation(eligible)[:quota])
    places = cells.ends[chosen] + rng.integers(0, n_cells[chosen])
    items, counts = cells.others[places], cells.counts[places]
    user_rows, s = rows_of(users.symbols, chosen), users.popularity.censored[chosen]
    censored = Censored(shared.number, s, shared.t, shared.of_items, shared.xi)
    block = cells_of(cells, chosen)
    statistics = row_statistics(block, user_rows, shared.items, censored, backend=shared.backend)
    priors = rows_of(expected_priors(side, shared.gammas), chosen)
    pair_censored = censored._replace(other=shared.t[items])
    after = _without(statistics, user_rows, rows_of(shared.items, items), counts, priors, pair_censored, shared)
    return None, _LeftOut(shared.points.of(after), user_rows, s, items, counts, np.diff(block.ends), block.others)


def _without(
    statistics: Statistics,
    rows: Symbols,
    others: Symbols,
    counts: np.ndarray,
    priors: Priors,
    censored: Censored,
    shared: Shared,
) -> Symbols:
    """Return n rows, each updated without one cell; `others` are the other symbols of the n cells."""
    n = len(counts)
    cells = Cells(np.arange(n + 1), np.arange(n, dtype=np.int32), counts)
    single = row_statistics(cells, rows, others, censored, backend=shared.backend)
    # Sums over all cells of a row, minus the terms of the cell left out.
    rest = Statistics(*(total - term for total, term in zip(statistics, single)))
    return solve_rows(rest, rows, priors, censored, backend=shared.backend)


def _best(left_out: _LeftOut, reduced_items: Symbols, items: Symbols, concentration: np.ndarray) -> Calibration:
    """Return the parameters that maximise the probability of the left-out pairs.

    `reduced_items` are the rows of the items of the n pairs, each updated without its pair.
    """
    n = len(left_out.items)
    candidates, log_weights = _candidates(concentration)
    preferences = left_out.users.mean @ items.mean[candidates].T + left_out.users.bias[:, None] + items.bias[candidates]
    preference = (
        np.einsum("nk,nk->n", left_out.users.mean, reduced_items.mean) + left_out.users.bias + reduced_items.bias
    )
    weights = np.tile(log_weights, (n, 1))
    place = np.full(len(concentration), -1)
    place[candidates] = np.arange(len(candidates))
    seen, user = place[left_out.seen], np.repeat(np.arange(n), left_out.n_seen)
    weights[user[seen >= 0], seen[seen >= 0]] = -np.inf
    # beta_j of the candidates, and beta_j - c_ij of the item of the pair left out.
    masses = concentration[candidates], concentration[left_out.items] - left_out.counts
    trials, exponents = [], np.ones(2)
    for smoothing in _SMOOTHING:
        log_mass, own_mass = (np.log(mass + smoothing) for mass in masses)
        objective = _Objective(log_mass, preferences, weights, np.stack([own_mass, preference], axis=1))
        exponents, value = objective.maximised(exponents)
        trials.append(Calibration(smoothing, float(exponents[0]), float(exponents[1]), value / n, n))
    # Log probability of all pairs left out plus log density of k, up to a constant.
    return max(trials, key=lambda trial: n * trial.log_probability - trial.smoothing / _MEAN_SMOOTHING)


class _Objective(NamedTuple):
    """Log probability of n left-out pairs plus log prior of the exponents (c, d), which are normal about 1 with sd 1.

    Attributes
    ----------
    log_mass : ndarray, (m,)
        log(beta_j + k) of m candidate items.
    preferences, weights : ndarray, (n, m)
        Mean preferences for the candidates, and their log weights in a sum over items, -inf for the user's own items.
    of_left_out : ndarray, (n, 2)
        Log mass and mean preference of the item of each left-out pair.
    """

    log_mass: np.ndarray
    preferences: np.ndarray
    weights: np.ndarray
    of_left_out: np.ndarray

    def maximised(self, exponents: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the best exponents, (2,), by Newton's method, and the log probability there, without the log prior."""
        value, gradient, hessian = self.evaluated(exponents)
        for _ in range(_ROUNDS):
            step = -np.linalg.solve(hessian, gradient)
            while (after := self.evaluated(exponents + step))[0] < value and np.abs(step).max() > _TOL:
                step = step / 2.0
            exponents, (value, gradient, hessian) = exponents + step, after
            if np.abs(step).max() <= _TOL:
                break
        return exponents, float(value + 0.5 * np.sum((exponents - 1.0) ** 2))

    def evaluated(self, exponents: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the objective with gradient, (2,), and Hessian, (2, 2)."""
        # z_j = c log(beta_j + k) + d E a_ij + log weight_j; log p = z_own - log(exp z_own + sum_j exp z_j).
        z_own = self.of_left_out @ exponents
        z = exponents[1] * self.preferences
        z += exponents[0] * self.log_mass + self.weights
        total = np.logaddexp(z_own, logsumexp(z, axis=1))
        q, q_own = np.exp(z - total[:, None]), np.exp(z_own - total)
        weighted = q * self.preferences
        # x = (log(beta_j + k), E a_ij): gradient sum_n (x_own - E_q x), Hessian -sum_n Cov_q x, plus the priors' terms.
        mean = np.stack([q @ self.log_mass, weighted.sum(axis=1)], axis=1) + q_own[:, None] * self.of_left_out
        mixed = float((weighted @ self.log_mass).sum())
        square = np.array([[(q @ self.log_mass**2).sum(), mixed], [mixed, np.vdot(weighted, self.preferences)]])
        square += self.of_left_out.T @ (q_own[:, None] * self.of_left_out)
        penalty = exponents - 1.0
        value = float((z_own - total).sum() - 0.5 * penalty @ penalty)
        return value, (self.of_left_out - mean).sum(axis=0) - penalty, mean.T @ mean - square - np.eye(2)


def _candidates(concentration: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return m candidate items, (m,), and the log weights, (m,), with which they estimate a sum over all items."""
    n = len(concentration)
    if n <= _CANDIDATES:
        return np.arange(n), np.zeros(n)
    # sum_j f_j is estimated without bias by sum_j times_j f_j / (N share_j), with N draws of probabilities share_j.
    share = 0.5 / n + 0.5 * concentration / concentration.sum()
    drawn = np.random.default_rng(n).choice(n, size=_CANDIDATES, p=share / share.sum())
    items, times = np.unique(drawn, return_counts=True)
    return items, np.log(times / (_CANDIDATES * share[items]))


def _joined(first: _LeftOut, second: _LeftOut) -> _LeftOut:
    """Return the left-out pairs of both arguments."""
    users, before = (Symbols(*map(np.concatenate, zip(*pair))) for pair in zip(first[:2], second[:2]))
    return _LeftOut(users, before, *map(np.concatenate, zip(first[2:], second[2:])))
