"""Draws at more places than a mixture has components: each is a draw of the nearest component, moved to its place.

A draw w of the component at z_k becomes, at a place z near z_k,

    m_k + a(z) - a(z_k) + exp(s(z) - s(z_k)) (w - m_k),

where m_k is the mean of the component. The function a is quadratic, a least-squares fit to the means of the components
that are nearest to at least one place. The function s is linear, a fit to half the logarithms of the squared deviations
of draws from their components' means. Only differences of a and s between a place and its nearest component matter.
"""

from itertools import combinations_with_replacement
from math import comb

import numpy as np

from pymc_ep.numerics.interpolation.scaling import centre_and_scale
from pymc_ep.numerics.interpolation.stratified_draws import nearest

__all__ = ["NearestComponents", "calibrated_weights"]

_EACH = 4
"""Least number of components, or draws, for each coefficient of a function fitted to them; with fewer, the function is
of lower degree."""
_LIGHT = 4.0
"""Largest kurtosis of places whose monomials of the fourth degree determine weights; a Gaussian's is 3. Standard
deviations of a Gaussian process with two hyperparameters of kurtosis 3.4 then err by 0.5 per cent, and by 1.2 with the
second degree. For scales of kurtosis 5.5 they err by 0.2 per cent with the second degree, and by 0.7 with the
fourth, as tails dominate its averages."""
_TELLING = 1000
"""Number of draws to which s is fitted: its coefficients are then right to within 4 per cent. More draws take time for
logarithms."""
_COLUMNS = 50
"""Number of columns of the draws that are moved at a time: 50 columns of 4000 rows fit the cache, and take a third of
the time."""


class NearestComponents:
    """The components of a mixture that are nearest to given places, and moves of their draws to these places.

    Parameters
    ----------
    components : ndarray, (k, p)
        Positions z_k of the components.
    places : ndarray, (m, p)
        Positions z of the places.
    """

    def __init__(self, components: np.ndarray, places: np.ndarray):
        centre, scale = centre_and_scale(components)
        white, self._places = (components - centre) / scale, (places - centre) / scale
        near = nearest(self._places, white)
        self.used, self.index = np.unique(near, return_inverse=True)
        """Indices of the components that are nearest to at least one place, (u,), and, for each place, the position of
        its nearest component in this array, (m,)."""
        self._components = white[self.used]

    def move(self, draws: np.ndarray, means: np.ndarray) -> None:
        """Overwrite each row of `draws`, (m, d), a draw of the component nearest to a place, by its move to the place.

        `means`, (u, d), are the means of the components `used`.
        """
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
    """Return weights, (k,), with which `components`, (k, p), have the mean and covariance of `places`, (m, p).

    Of all weights for which averages of monomials up to a degree agree, the result is nearest to equal weights (Deville
    and Sarndal 1992). A smooth function then has about the same average over the components as over the places. The
    degree is 4 where no coordinate has heavy tails, and else 2. It is lower where there are too few components, or a
    weight would not be positive. With the degree 0 weights are equal.
    """
    k = len(components)
    centre, scale = centre_and_scale(places)
    scaled_components, scaled_places = (components - centre) / scale, (places - centre) / scale
    light = ((scaled_places**4).mean(axis=0) < _LIGHT).all()
    for degree in (4, 2, 1) if light else (2, 1):
        monomials = _features(scaled_components, k, degree)
        average = monomials.mean(axis=0)
        missing = _features(scaled_places, k, degree).mean(axis=0) - average
        # Least |w - 1/k|^2 with M^T (w - 1/k) = missing, for M = monomials - average, whose columns sum to zero.
        weights = 1.0 / k + missing @ np.linalg.pinv(monomials - average)
        if np.all(weights > 0.0):
            return weights
    return np.full(k, 1.0 / k)


def _features(z: np.ndarray, observations: int, degree: int = 2) -> np.ndarray:
    """Return all monomials, (m, q), of the rows of `z`, (m, p), up to `degree`.

    The degree is lowered until `observations` are at least four for each monomial.
    """
    p = z.shape[1]
    while degree and _EACH * comb(p + degree, degree) > observations:
        degree -= 1
    columns = [list(c) for d in range(degree + 1) for c in combinations_with_replacement(range(p), d)]
    return np.stack([z[:, chosen].prod(axis=1) for chosen in columns], axis=1)
