"""Prior moments of variables and noise of a latent Gaussian form, at one value of its hyperparameters."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse

__all__ = ["AffineMoments", "NoiseDraws", "NoiseMoments"]

NoiseDraws = Sequence[tuple[np.ndarray, ...]]
"""Draws of each block: its noise w, (s, d), and, where it has one, its origin v, (s, k)."""


class AffineMoments(NamedTuple):
    """Prior moments of an affine variable x of size d, with c coordinates of the solver.

    Attributes
    ----------
    mean : ndarray
        At its own shape.
    cross : ndarray, (d, c)
        Covariance with the coordinates.
    variance : ndarray, (d,)
    """

    mean: np.ndarray
    cross: np.ndarray
    variance: np.ndarray

    def divided(self, scale: np.ndarray) -> "AffineMoments":
        """Return the moments with x - E[x] divided by a scale, (1,) or (d,)."""
        # Cov(x / s, c) = Cov(x, c) / s, and Var(x / s) = Var(x) / s^2.
        each = 1.0 / np.broadcast_to(scale, self.variance.shape)
        return AffineMoments(self.mean, scipy.sparse.diags_array(each) @ self.cross, self.variance * each**2)


class NoiseMoments(NamedTuple):
    """Prior moments of a noise block w, (d,), with c coordinates of the solver.

    Attributes
    ----------
    cross : ndarray, (d, c)
        Covariance of w with the coordinates.
    covariance : ndarray, (d, d)
        Cov(w).
    flat : bool
        Whether the prior is flat.
    factor : ndarray, (d, k), optional
        L of an absorbed block w = L v.
    origin_cross : ndarray, (k, c), optional
        Covariance of v with the coordinates, for an absorbed block.
    """

    cross: np.ndarray
    covariance: np.ndarray
    flat: bool = False
    factor: np.ndarray | None = None
    origin_cross: np.ndarray | None = None
