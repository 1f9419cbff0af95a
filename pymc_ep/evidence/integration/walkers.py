"""Many short chains of Hamiltonian Monte Carlo at once, one in each row."""

from collections.abc import Callable

import numpy as np

__all__ = ["Walkers"]

Target = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Maps positions (m, p) to log densities (m,) and their gradients (m, p)."""
_FIRST_STEP = 0.5
"""First leapfrog step for p = 1, in coordinates in which the density is about standard normal; it falls as p^(-1/4)
(Beskos et al. 2013)."""
_TARGET_ACCEPTANCE = 0.8
"""Acceptance rate to which the step adapts: the default of NUTS in PyMC."""
_TRAJECTORY = 1.6
"""Mean length of a trajectory: a quarter of the period 2 pi of the motion under a standard normal."""
_MOST_LEAPFROG_STEPS = 12
"""Most leapfrog steps of a trajectory: bounds its cost where the step has become short."""


class Walkers:
    """Positions of m chains, (m, p), that move under one target density after another.

    Parameters
    ----------
    positions : ndarray, (m, p)
    rng : numpy.random.Generator
    """

    def __init__(self, positions: np.ndarray, rng: np.random.Generator):
        self.positions = positions
        self.rng = rng
        self.step = _FIRST_STEP * positions.shape[1] ** -0.25
        self.refused = np.zeros((0, positions.shape[1]))
        """Ends, rows of p, of trajectories in the last call of `move` refused because the density is unknown there."""
        self.refused_share = 0.0
        """Share of the moves in the last call of `move` that were refused for this reason alone."""

    def move(self, target: Target, is_known: Callable[[np.ndarray], np.ndarray], times: int) -> list[np.ndarray]:
        """Move all chains `times` times; return the positions after each.

        Parameters
        ----------
        target : callable
        is_known : callable
            Maps positions (m, p) to whether the density is known there, (m,); moves to elsewhere are refused.
        times : int
        """
        kept, refused, met = [], [], []
        value, gradient = target(self.positions)
        for _ in range(times):
            end, end_value, end_gradient, accepted, rate = self._trajectory(target, value, gradient)
            inside = np.zeros(len(end), dtype=bool)
            inside[accepted] = is_known(end[accepted]) if accepted.any() else False
            beyond = accepted & ~inside
            refused.append(end[beyond])
            met.append(beyond.mean())
            self.positions = np.where(inside[:, None], end, self.positions)
            value, gradient = np.where(inside, end_value, value), np.where(inside[:, None], end_gradient, gradient)
            self.step *= np.exp(0.5 * (rate - _TARGET_ACCEPTANCE))
            kept.append(self.positions)
        self.refused, self.refused_share = np.concatenate(refused), float(np.mean(met))
        return kept

    def _trajectory(
        self, target: Target, value: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
        """Return ends of trajectories, log densities and gradients there, acceptances, and the mean acceptance rate."""
        rng = self.rng
        # Step length and number of steps are random, so that no trajectory is a full period of the motion.
        step = self.step * rng.uniform(0.7, 1.3)
        leapfrog_steps = int(np.clip(np.ceil(_TRAJECTORY * rng.uniform(0.5, 1.5) / step), 1, _MOST_LEAPFROG_STEPS))
        momentum = rng.standard_normal(self.positions.shape)
        # Minus the Hamiltonian: log density - |momentum|^2 / 2.
        energy = value - 0.5 * (momentum**2).sum(axis=1)
        end, end_gradient = self.positions, gradient
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(leapfrog_steps):
                momentum = momentum + 0.5 * step * end_gradient
                end = end + step * momentum
                end_value, end_gradient = target(end)
                momentum = momentum + 0.5 * step * end_gradient
            change = end_value - 0.5 * (momentum**2).sum(axis=1) - energy
        change = np.where(np.isfinite(change), change, -np.inf)
        accepted = np.log(rng.random(len(end))) < change
        return end, end_value, end_gradient, accepted, float(np.exp(np.minimum(change, 0.0)).mean())
