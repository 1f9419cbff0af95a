"""Interpolation of many functions between scattered points of few dimensions."""

import numpy as np
import scipy

from pymc_ep.numerics.interpolation.scaling import centre_and_scale

__all__ = ["Spline"]

_APART = 1e-3
"""Distance, in standard deviations of the points, below which two of them count as one: a spline through both would
amplify the difference of their values a thousandfold."""


class Spline:
    """Cubic polyharmonic spline with a linear trend (Duchon 1977); the mean of the values where points are too few.

    Parameters
    ----------
    points : ndarray, (k, p)
    values : ndarray, (k, d)
    """

    def __init__(self, points: np.ndarray, values: np.ndarray):
        self._centre, self._scale = centre_and_scale(points)
        self._mean = values.mean(axis=0)
        self._spline = None
        white = (points - self._centre) / self._scale
        # Of nearly equal points, as at the end of a search, the last one is kept.
        kept = np.ones(len(points), dtype=bool)
        kept[[first for first, _ in scipy.spatial.cKDTree(white).query_pairs(_APART)]] = False
        if np.linalg.matrix_rank(white[kept] - white[kept].mean(axis=0)) == points.shape[1]:
            self._spline = scipy.interpolate.RBFInterpolator(white[kept], values[kept], kernel="cubic")

    @property
    def varies(self) -> bool:
        """Whether there are enough points for a spline, so that the function is not constant."""
        return self._spline is not None

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Return values, (m, d), at other points, (m, p)."""
        if self._spline is None:
            return np.tile(self._mean, (len(points), 1))
        return self._spline((points - self._centre) / self._scale)
