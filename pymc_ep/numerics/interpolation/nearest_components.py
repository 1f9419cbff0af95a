"""Draws at more places than a mixture has components: each from the nearest one, moved to its own place.

A draw w of the component at z_k becomes, at a place z near it,

    m_k + a(z) - a(z_k) + exp(s(z) - s(z_k)) (w - m_k),

where m_k is the mean of the component. The function a is quadratic, fitted by least squares to the means of the
components that are nearest to some place, and s is linear, fitted to half the logarithms of the squared deviations of
draws from their means. Only differences of both count, between a place and the component nearest to it.
"""

import numpy as np

from pymc_ep.numerics.interpolation.scaling import centre_and_scale
from pymc_ep.numerics.interpolation.stratified_draws import nearest

__all__ = ["NearestComponents", "calibrated_weights"]

_EACH = 4
"""Components, or draws, for each coefficient of a function that is fitted to them; with fewer, it is of less degree."""
_TELLING = 1000
"""Draws that tell how widths change, to within 4 per cent for each coefficient; more take the time of logarithms."""
_COLUMNS = 50
"""Columns of the draws that are moved at a time: 4000 rows of so many fit the cache, and take a third of the time."""


class NearestComponents:
    """The components nearest to some places, and functions of the differences between both.

    Parameters
    ----------
    components : ndarray, (k, p)
    places : ndarray, (m, p)
    """

    def __init__(self, components: np.ndarray, places: np.ndarray):
        centre, scale = centre_and_scale(components)
        white, self._places = (components - centre) / scale, (places - centre) / scale
        near = nearest(self._places, white)
        self.used, self.index = np.unique(near, return_inverse=True)
        """Components that are nearest to some place, (u,), and the index among these for each place, (m,)."""
        self._components = white[self.used]

    def move(self, draws: np.ndarray, means: np.ndarray) -> None:
        """Move draws of the nearest components, (m, d), to their places, in place; `means`, (u, d), are those used."""
        if np.array_equal(self._places, self._components[self.index]):
            return
        at, at_places = (_features(z, len(means)) for z in (self._components, self._places))
        # a(z) = phi(z)^T beta, beta = phi^+ m by least squares over the components; s(z) in the same way below.
        shifts, by_means = at_places - at[self.index], np.linalg.pinv(at)
        telling = slice(None, None, -(-len(draws) // _TELLING))
        linear = _features(self._components, len(draws[telling]), degree=1)[self.index]
        widths = _features(self._places, len(draws[telling]), degree=1) - linear
        by_draws = np.linalg.pinv(linear[telling])
        for start in range(0, draws.shape[1], _COLUMNS):
            chunk = draws[:, start : start + _COLUMNS]
            mean = means[:, start : start + _COLUMNS]
            centres = mean[self.index]
            chunk -= centres
            # A value without variance has no logarithm, and no width to change.
            squares = np.where(chunk[telling] == 0.0, 1.0, chunk[telling] ** 2)
            # exp(s(z) - s(z_k)), with s half of the fit to logarithms of squares.
            chunk *= np.exp(widths @ (by_draws @ np.log(squares)) / 2.0)
            chunk += centres
            chunk += shifts @ (by_means @ mean)


def calibrated_weights(components: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return weights of components, (k,), with which they have the means and covariance of the places, (m, p).

    They are the even weights with the least change by which averages of monomials up to the second degree, or as many
    as the components tell, agree (Deville and Sarndal 1992): a smooth function of the place averages over the
    components as it does over the places. Of less degree where a weight would be negative.
    """
    k = len(components)
    centre, scale = centre_and_scale(places)
    scaled_components, scaled_places = (components - centre) / scale, (places - centre) / scale
    for degree in (2, 1):
        monomials = _features(scaled_components, k, degree)
        average = monomials.mean(axis=0)
        missing = _features(scaled_places, k, degree).mean(axis=0) - average
        # Least |w - 1/k|^2 with M^T (w - 1/k) = missing, for M = monomials - average, whose columns sum to zero.
        weights = 1.0 / k + missing @ np.linalg.pinv(monomials - average)
        if np.all(weights > 0.0):
            return weights
    return np.full(k, 1.0 / k)


def _features(z: np.ndarray, observations: int, degree: int = 2) -> np.ndarray:
    """Return monomials of rows, (m, q), of the highest degree that so many observations tell, up to the given one."""
    p = z.shape[1]
    counts = 1, 1 + p, 1 + p + p * (p + 1) // 2
    while degree and _EACH * counts[degree] > observations:
        degree -= 1
    constant, rows = np.ones((len(z), 1)), np.triu_indices(p)
    monomials = [constant, z, z[:, rows[0]] * z[:, rows[1]]]
    return np.concatenate(monomials[: degree + 1], axis=1)
