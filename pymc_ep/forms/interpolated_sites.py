"""Sites between fits at several values of the hyperparameters."""

import numpy as np
from scipy.interpolate import RBFInterpolator

from pymc_ep.forms.compiled import CompiledLatentGaussian

__all__ = ["InterpolatedSites"]

_MOST = 300
"""Fits above which only the nearest ones count: the weights of all follow from a matrix of that size."""
_NEAREST = 60


class InterpolatedSites:
    """Cubic polyharmonic spline (Duchon 1977) of the sites in the hyperparameters.

    Sites of Gaussian noise are interpolated as observation and log precision, in which they are linear in a log scale;
    all others as they are. Precisions stay within the range of those of the fits.

    Parameters
    ----------
    form : CompiledLatentGaussian
    thetas : ndarray, (k, p)
        Unconstrained hyperparameters of the fits.
    shifts, precisions : ndarray, (k, n)
    """

    def __init__(self, form: CompiledLatentGaussian, thetas: np.ndarray, shifts: np.ndarray, precisions: np.ndarray):
        sizes = [y.size for y in form.observed()]
        self._gaussian = np.repeat([group.site.gaussian for group in form.form.factors], sizes)
        self._gaussian &= np.all(precisions > 0, axis=0)
        self._least, self._most = precisions.min(axis=0), precisions.max(axis=0)
        self._spline = None
        self._only = shifts[0], precisions[0]
        if len(thetas) > thetas.shape[1] + 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                first = np.where(self._gaussian, shifts / precisions, shifts)
                second = np.where(self._gaussian, np.log(precisions), precisions)
            spread = thetas.std(axis=0)
            self._centre, self._scale = thetas.mean(axis=0), np.where(spread > 0, spread, 1.0)
            self._spline = RBFInterpolator(
                (thetas - self._centre) / self._scale,
                np.concatenate([first, second], axis=1),
                kernel="cubic",
                neighbors=None if len(thetas) <= _MOST else _NEAREST,
            )

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return shifts and precisions, (n,) each, at theta, (p,)."""
        if self._spline is None:
            return self._only
        first, second = np.split(self._spline((theta - self._centre)[None] / self._scale)[0], 2)
        precision = np.where(self._gaussian, np.exp(np.where(self._gaussian, second, 0.0)), second)
        precision = np.clip(precision, self._least, self._most)
        return np.where(self._gaussian, first * precision, first), precision
