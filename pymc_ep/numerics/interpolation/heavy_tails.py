"""Coordinates y of a real variable x in which a prior whose tails are powers of |x| has exponential tails.

    x = c + s sinh(y).

If the density of x is like |x|^-(nu + 1) far out, the density of y is like exp(-nu |y|), as for the logarithm of a
scale.
"""

import numpy as np

__all__ = ["HeavyTails"]


class HeavyTails:
    """The map x = c + s sinh(y), elementwise, from coordinates y to PyMC's values x, rows of length `size` each.

    Parameters
    ----------
    centre, scale : ndarray, () or (size,)
        c and s of the prior; the map is nearly linear for |x - c| far below s.
    """

    def __init__(self, centre: np.ndarray, scale: np.ndarray):
        self.centre, self.scale = centre, scale

    def to_values(self, coordinates: np.ndarray) -> np.ndarray:
        """Return PyMC's values x, (m, size), for rows of coordinates y, (m, size)."""
        with np.errstate(over="ignore"):  # Infinite beyond 1e308, as PyMC's log transforms are.
            return self.centre + self.scale * np.sinh(coordinates)

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """Return coordinates y, (m, size), for rows of PyMC's values x, (m, size)."""
        return np.arcsinh((values - self.centre) / self.scale)

    def pull(self, coordinates: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return gradients in the coordinates y, (m, size), from gradients in PyMC's values x, (m, size)."""
        # dx / dy = s cosh y.
        with np.errstate(over="ignore"):
            return gradient * self.scale * np.cosh(coordinates)

    def log_det(self, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log |d values / d coordinates|, (m,), and its gradient, (m, size), for rows of coordinates."""
        # log cosh y = log(e^y + e^-y) - log 2.
        log_cosh = np.logaddexp(coordinates, -coordinates) - np.log(2.0)
        return (np.log(self.scale) + log_cosh).sum(axis=1), np.tanh(coordinates)
