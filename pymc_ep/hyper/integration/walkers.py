"""Many short Hamiltonian Monte Carlo chains at once, a row each."""

from collections.abc import Callable

import numpy as np

__all__ = ["Walkers"]

Target = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Maps positions (m, p) to log densities (m,) and their gradients (m, p)."""
_FIRST_STEP = 0.5
"""Leapfrog step, times p^(-1/4), in coordinates in which the density is about standard normal (Beskos et al. 2013)."""
_WANTED = 0.8
"""Acceptance rate at which steps stay as long as they are."""
_TURN = 1.6
"""Length of a trajectory, about a quarter of a turn of a standard normal's."""
_MOST_LEAPS = 12


class Walkers:
    """Positions of chains that move under one density after another.

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
        """Ends of the last move that met the wall."""
        self.met_wall = 0.0
        """Share of the last moves that would have been accepted but for the wall."""

    def move(self, target: Target, known: Callable[[np.ndarray], np.ndarray], times: int) -> list[np.ndarray]:
        """Move all chains `times` times; return the positions after each.

        Parameters
        ----------
        target : callable
        known : callable
            Says of positions (m, p) whether the density is known there; moves to elsewhere are refused.
        times : int
        """
        kept, refused, met = [], [], []
        value, gradient = target(self.positions)
        for _ in range(times):
            end, end_value, end_gradient, accepted, rate = self._trajectory(target, value, gradient)
            inside = np.zeros(len(end), dtype=bool)
            inside[accepted] = known(end[accepted]) if accepted.any() else False
            beyond = accepted & ~inside
            refused.append(end[beyond])
            met.append(beyond.mean())
            self.positions = np.where(inside[:, None], end, self.positions)
            value, gradient = np.where(inside, end_value, value), np.where(inside[:, None], end_gradient, gradient)
            self.step *= np.exp(0.5 * (rate - _WANTED))
            kept.append(self.positions)
        self.refused, self.met_wall = np.concatenate(refused), float(np.mean(met))
        return kept

    def _trajectory(
        self, target: Target, value: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
        """Return ends of trajectories, the density there, which of them Metropolis accepts, and the mean rate."""
        rng = self.rng
        # Each step's length and the number of steps vary, so that no period of the motion is hit.
        step = self.step * rng.uniform(0.7, 1.3)
        leaps = int(np.clip(np.ceil(_TURN * rng.uniform(0.5, 1.5) / step), 1, _MOST_LEAPS))
        momentum = rng.standard_normal(self.positions.shape)
        energy = value - 0.5 * (momentum**2).sum(axis=1)
        end, end_gradient = self.positions, gradient
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(leaps):
                momentum = momentum + 0.5 * step * end_gradient
                end = end + step * momentum
                end_value, end_gradient = target(end)
                momentum = momentum + 0.5 * step * end_gradient
            change = end_value - 0.5 * (momentum**2).sum(axis=1) - energy
        change = np.where(np.isfinite(change), change, -np.inf)
        accepted = np.log(rng.random(len(end))) < change
        return end, end_value, end_gradient, accepted, float(np.exp(np.minimum(change, 0.0)).mean())
