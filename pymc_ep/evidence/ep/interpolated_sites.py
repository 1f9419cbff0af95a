"""Interpolation of the sites between fits at several hyperparameters."""

from collections.abc import Sequence

import numpy as np

from pymc_ep.contracts.evidence import DesignPoint
from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.numerics.interpolation.spline import Spline

__all__ = ["InterpolatedSites", "error_between"]

_SAME = 1e-9
"""Difference between fits of a site's mean b / pi that counts as rounding, relative to the larger of the mean and the
site's standard deviation: a Gaussian site has the same mean in all fits."""


class InterpolatedSites:
    """Spline of the sites in the hyperparameters.

    A site with the same mean in all fits, as of Gaussian noise, is interpolated in its mean and in its log precision,
    which is linear in the log of a scale. Other sites are interpolated in shift and precision. Where the interpolated
    precision leaves its range over the fits, shift and precision are both interpolated at theta clipped to the range
    of the fits, so that they match each other.

    Parameters
    ----------
    thetas : ndarray, (k, p)
        Unconstrained hyperparameters of the fits.
    shifts, precisions : ndarray, (k, n)
        Sites of the fits.
    """

    def __init__(self, thetas: np.ndarray, shifts: np.ndarray, precisions: np.ndarray):
        self._least, self._most = precisions.min(axis=0), precisions.max(axis=0)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            means = np.where(precisions > 0, shifts / precisions, np.nan)
            size = np.maximum(np.abs(means), precisions**-0.5).max(axis=0)
        self._gaussian = np.ptp(means, axis=0) <= _SAME * size
        divisor = np.where(self._gaussian, precisions, 1.0)
        # (b / pi, log pi) for Gaussian sites, (b, pi) for others.
        self._fields = shifts / divisor, np.where(self._gaussian, np.log(divisor), precisions)
        self._lowest, self._highest = thetas.min(axis=0), thetas.max(axis=0)
        # A spline is linear in the values that it interpolates: that of unit vectors gives their weights.
        self._weights = Spline(thetas, np.eye(len(thetas)))
        self.varies = self._weights.varies
        """Whether there are enough fits for an interpolation; otherwise each site is its mean over all fits."""

    @classmethod
    def between(cls, points: Sequence[DesignPoint]) -> "InterpolatedSites":
        """Return the spline between the sites of fits."""
        return cls(*(np.array(field) for field in zip(*((point.theta, *point.state) for point in points))))

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return shifts and precisions, (n,) each, at theta, (p,)."""
        shifts, precisions = self.rows(theta[None])
        return shifts[0], precisions[0]

    def rows(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return shifts and precisions, (s, n) each, at rows of theta, (s, p)."""
        first, second = self._interpolated(thetas)
        beyond = ((second < self._least) | (second > self._most)) & ~self._gaussian
        if beyond.any():
            within = self._interpolated(np.clip(thetas, self._lowest, self._highest))
            first, second = (np.where(beyond, *pair) for pair in zip(within, (first, second), strict=True))
        precision = np.clip(second, self._least, self._most)
        precision[:, self._gaussian] = np.exp(second[:, self._gaussian])
        return np.where(self._gaussian, first * precision, first), precision

    def between_fits(self, values: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        """Return `values`, (k, d) at the fits, interpolated to s rows of theta, (s, d), and clipped to their range."""
        return np.clip(self._weights(thetas) @ values, values.min(axis=0), values.max(axis=0))

    def _interpolated(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = self._weights(thetas)
        return weights @ self._fields[0], weights @ self._fields[1]


_MOST_ERROR = 5.0
"""Limit at which the error of one fit is cut off, in standard deviations, so that one failed interpolation does not
decide the average."""


def error_between(form: CompiledSiteForm, points: Sequence[DesignPoint], new_points: Sequence[DesignPoint]) -> float:
    """Return the mean error, over the fits `new_points`, of predictors from sites interpolated between `points`.

    The error of a fit is the largest of two errors over its predictors: of the posterior mean, in standard deviations,
    and of the log of the standard deviation. It is cut off at `_MOST_ERROR`.
    """
    sites = InterpolatedSites.between(points)
    log_concave = all(site.site.log_concave for site in form.sites)
    errors = []
    for point in new_points:
        posterior = form.prior(point.theta).posterior(*sites(point.theta), log_concave=log_concave)
        # Of a predictor that is known, such as that of a class with which others are compared, nothing is interpolated.
        free = point.kept.variance > 0.0
        sd, shift = np.sqrt(point.kept.variance[free]), posterior.mean[free] - point.kept.mean[free]
        with np.errstate(all="ignore"):
            error = [np.abs(shift) / sd, np.abs(np.log(np.sqrt(posterior.variance[free]) / sd))]
        errors.append(min(float(np.nan_to_num(np.max(error, initial=0.0), nan=np.inf)), _MOST_ERROR))
    return float(np.mean(errors)) if errors else 0.0
