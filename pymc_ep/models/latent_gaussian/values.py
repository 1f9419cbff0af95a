"""Prior moments of variables and noise of a latent Gaussian form, at one value of its hyperparameters.

A block has noise w, the zero-mean part of a latent variable. For w = L v, with v standard normal, v is its origin.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse

__all__ = ["AffineMoments", "NoiseDraws", "NoiseMoments"]

NoiseDraws = Sequence[tuple[np.ndarray, ...]]
"""Draws for each block: of its noise w, (s, d), and, if it has one, of its origin v, (s, k)."""


class AffineMoments(NamedTuple):
    """Prior moments of an affine variable x of d elements, and its covariance with the solver's c coordinates z.

    Attributes
    ----------
    mean : ndarray
        E[x], in the shape of the variable.
    cross : ndarray, (d, c)
        Cov(x, z), with x flattened.
    variance : ndarray, (d,)
        Var(x_i).
    """

    mean: np.ndarray
    cross: np.ndarray
    variance: np.ndarray

    def divided(self, scale: np.ndarray) -> "AffineMoments":
        """Return the moments with x - E[x] divided by a scale, (1,) or (d,)."""
        # Cov(x / s, c) = Cov(x, c) / s, and Var(x / s) = Var(x) / s^2.
        each = 1.0 / scale
        cross = self.cross * each[0] if len(each) == 1 else scipy.sparse.diags_array(each) @ self.cross
        return AffineMoments(self.mean, cross, self.variance * each**2)


class NoiseMoments(NamedTuple):
    """Prior moments of a noise block w, (d,), and its covariance with the solver's c coordinates z.

    Attributes
    ----------
    cross : ndarray, (d, c)
        Cov(w, z).
    covariance : ndarray, (d, d)
        Cov(w).
    flat : bool
        Whether the prior is flat.
    factor : ndarray, (d, k), optional
        L of a block w = L v with standard normals v, (k,); None for any other block.
    origin_cross : ndarray, (k, c), optional
        Cov(v, z) of such a block.
    """

    cross: np.ndarray
    covariance: np.ndarray
    flat: bool = False
    factor: np.ndarray | None = None
    origin_cross: np.ndarray | None = None
