"""Posterior factors after a sweep, and the interface of a model to an engine of paired symbols."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_ep.models.paired_symbols.engine.left_out import Calibration
from pymc_ep.models.paired_symbols.engine.values import (
    GammaFactor,
    PairedPrior,
    Points,
    Popularity,
    Rows,
    first_symbols,
)
from pymc_ep.models.paired_symbols.kernel import Symbols

__all__ = ["PairedProblem", "State", "Summary", "first_state"]


class PairedProblem(Protocol):
    """Interface of a model to an engine: its prior at given hyperparameters, and the expected log prior."""

    def prior(self, theta: np.ndarray) -> PairedPrior:
        """Return the prior at theta, (p,)."""

    def expected_log_prior(self, theta: np.ndarray, users: Symbols, items: Symbols) -> tuple[float, np.ndarray]:
        """Return the log prior of symbols and theta, expected over symbols, and its gradient in theta, (p,)."""


class State(NamedTuple):
    """Posterior factors after a sweep.

    Attributes
    ----------
    users : Rows or Handles
        Posterior factors of all users; within the engine, handles of the users of each part.
    items : Rows
        Posterior factors of the items; the same object as the users where both sides are the same symbols.
    gammas : tuple of GammaFactor
        Posteriors of the learned precisions.
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    xi : float
        Parameter xi* of the cells without observed pairs.
    user_total : float
        Sum of the posterior concentrations of all users.
    sums : Handles or ndarray, (I, 4)
        `pair_sums` of the users of each part, or of the symbols where both sides are the same.
    log_bound : float
        Lower bound on the log density of the pairs.
    objective : float
        Sum of `log_bound` and the log prior of the hyperparameters.
    change : float
        Rise of the objective per pair in the last sweep; after a sweep from extrapolated factors, the mean rise of the
        last three sweeps.
    loop : int
        Number of sweeps.
    trail : tuple of State
        States before the sweeps since the last extrapolation, two at most.
    """

    users: Any
    items: Rows
    gammas: tuple[GammaFactor, ...]
    theta: np.ndarray
    xi: float = 1.0
    user_total: float = 0.0
    sums: Any = None
    log_bound: float = -np.inf
    objective: float = -np.inf
    change: float = np.inf
    loop: int = 0
    trail: tuple["State", ...] = ()

    @property
    def sides(self) -> tuple[Rows, ...]:
        """Users and items, or one entry where both are the same symbols."""
        return (self.users,) if self.users is self.items else (self.users, self.items)


class Summary(NamedTuple):
    """Values that predictions need in addition to the posterior factors.

    Attributes
    ----------
    log_normalisers : pair of float
        Log sums over users and over items, which normalise the posterior of a censored symbol.
    calibration : Calibration, optional
        None without ``calibrate=True``, or if too few users have two items.
    """

    log_normalisers: tuple[float, float]
    calibration: Calibration | None


def first_state(
    prior: PairedPrior,
    theta: np.ndarray,
    seed: int,
    dtype: str = "float64",
    points: tuple[Points, ...] = (Points(), Points()),
) -> State:
    """Return the first state: prior variances, random means near prior means, and equally likely censored symbols.

    Parameters
    ----------
    prior : PairedPrior
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    seed : int
        Seed of the random means.
    dtype : str
        Dtype of factors and biases.
    points : tuple of Points
        Whether factors and biases of users and of items are points; one entry where both are the same symbols.
    """
    rng = np.random.default_rng(seed)
    sides = []
    for side, side_points in zip((prior.users, prior.items), points):
        symbols = side_points.of(Symbols(*(array.astype(dtype) for array in first_symbols(side, prior.gammas, rng))))
        n = len(side.concentration)
        sides.append(Rows(symbols, Popularity(side.concentration.astype(float), np.full(n, 1.0 / n))))
    return State(sides[0], sides[-1], prior.gammas, theta)
