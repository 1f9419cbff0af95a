"""Coordinates of a real variable in which a prior with tails of a power of |x| has exponential ones.

    x = c + s sinh(y).

With a density like |x|^-(nu + 1) far out, y has one like exp(-nu |y|), as the logarithm of a scale has.
"""

import numpy as np

__all__ = ["HeavyTails"]


class HeavyTails:
    """Maps y to x, PyMC's values; both are rows of the same length.

    Parameters
    ----------
    centre, scale : ndarray, () or (size,)
        Of the prior; the map is linear for |x - c| far below the scale s.
    """

    def __init__(self, centre: np.ndarray, scale: np.ndarray):
        self.centre, self.scale = centre, scale

    def to_values(self, coordinates: np.ndarray) -> np.ndarray:
        """Return PyMC's values for rows of these coordinates, (m, size)."""
        with np.errstate(over="ignore"):  # Infinite beyond 1e308, as PyMC's log transforms are.
            return self.centre + self.scale * np.sinh(coordinates)

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """Return these coordinates for rows of PyMC's values, (m, size)."""
        return np.arcsinh((values - self.centre) / self.scale)

    def pull(self, coordinates: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return gradients in these coordinates, given them in PyMC's values, each (m, size)."""
        # dx / dy = s cosh y.
        with np.errstate(over="ignore"):
            return gradient * self.scale * np.cosh(coordinates)

    def log_det(self, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log |d values / d coordinates|, (m,), and its gradient, (m, size), for rows of coordinates."""
        # log cosh y = log(e^y + e^-y) - log 2.
        log_cosh = np.logaddexp(coordinates, -coordinates) - np.log(2.0)
        return (np.log(self.scale) + log_cosh).sum(axis=1), np.tanh(coordinates)
