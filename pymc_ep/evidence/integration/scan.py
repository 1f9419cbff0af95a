"""A scan for further peaks of the posterior along hyperparameters that are bounded on both sides.

A change point, a period or a phase may fit the data at several values, and a search finds one of them. The support of
such a hyperparameter is finite, so that fits spread over its prior see every peak that is not much narrower than their
distance. Where the values and slopes of a few fits predict each other, log Z counts as smooth between them.
"""

from bisect import bisect
from collections.abc import Iterator
from typing import Generic, NamedTuple

import numpy as np
import scipy

from pymc_ep.contracts.evidence import DesignPoint, OwnFit
from pymc_ep.evidence.integration.explore import Explorer
from pymc_ep.evidence.lbfgs_search import Objective, search
from pymc_ep.evidence.mode import Hyper, held_fixed
from pymc_ep.exceptions import NumericalError

__all__ = ["Scan", "scanned"]

_POINTS, _FEWEST = 24, 6
"""Fits along one hyperparameter, and the number below which none are made: they would miss most peaks."""
_EVERY, _FEWEST_OF_THESE, _FORETOLD = 3, 6, 0.05
"""Every third of these fits, and both ends, are made first. The rest are left out if all of the first converge, at
least 6, and the two neighbours of each but the ends predict it with an error of at most 0.05 of the range that they
span. With 8 of 24 fits this relative error is 0.02 for autoregressions and maps, which have one peak, and 0.2 to 0.6
for change points and periods."""
_SHARE = 0.5
"""Largest number of these fits together, as a share of the fits of the integration that follows."""
_GRID = np.linspace(-40.0, 40.0, 4001)
"""Logits at which the prior is tabulated for its quantiles: from 4e-18 of the width of an interval."""
_GAIN, _CLIMBS = 0.1, 3
"""Gain of an iteration, in nats, at which a search from a scanned point ends, and the most of these searches."""
_LIKELY = 10.0, 2.0
"""Largest drop (a, b) below the mode, a + b p nats, of a scanned point from which a search starts: the search may gain
p / 2 nats or more in the remaining hyperparameters."""
_HIGH = 7.0
"""Drop of a peak below the highest, in nats, from which it has too little mass to matter, 1e-3."""


class Scan(NamedTuple, Generic[OwnFit]):
    """Peaks of the posterior.

    Attributes
    ----------
    mode : Hyper
        The highest peak.
    peaks : ndarray, (k, p)
        All likely peaks, the mode first.
    coordinate : int
        Index of a coordinate along which another likely peak was found; zero where there is only one peak.
    """

    mode: Hyper[OwnFit]
    peaks: np.ndarray
    coordinate: int = 0


def scanned(explorer: Explorer[OwnFit], mode: Hyper[OwnFit], most: int) -> Scan[OwnFit]:
    """Return the peaks found by fits along each bounded coordinate through the mode; the explorer stores the fits.

    Parameters
    ----------
    explorer : Explorer
    mode : Hyper
        Result of the search for the mode.
    most : int
        Most fits of the integration that follows.
    """
    places = np.flatnonzero(explorer.evidence.form.bounded)
    count = min(_POINTS, int(_SHARE * most) // max(len(places), 1))
    others: list[tuple[OwnFit, int]] = []
    if len(places) and count >= _FEWEST:
        explorer.evidence.report.phase("scanning bounded hyperparameters", total=count * len(places))
        others = list(_further_peaks(explorer, mode.at, places, count))
    fits = sorted([mode.at, *(fit for fit, _ in others)], key=lambda fit: -fit.value)
    if fits[0] is not mode.at:
        mode = held_fixed(fits[0], mode.trace, True, "")
    likely = [fit for fit in fits if fit.value > fits[0].value - _HIGH]
    coordinate = next((k for fit, k in others if any(fit is peak for peak in likely)), 0)
    return Scan(mode, np.array([fit.theta for fit in likely]), coordinate)


def _further_peaks(
    explorer: Explorer[OwnFit], mode: OwnFit, places: np.ndarray, count: int
) -> Iterator[tuple[OwnFit, int]]:
    """Yield each peak other than the mode, with the index of the coordinate, of `places`, whose scan led to it."""
    starts = []
    for k in places.tolist():
        scan = _scan_of(explorer, mode.theta, k, count)
        at = [float(point.theta[k]) for point in scan]
        middle = bisect(at, float(mode.theta[k]))
        before = np.array([-np.inf, *(point.value for point in scan[:middle]), mode.value])
        after = np.array([mode.value, *(point.value for point in scan[middle:]), -np.inf])
        starts += [(scan[i], k) for i in _inner_maxima(before)] + [(scan[middle + i], k) for i in _inner_maxima(after)]
    least = mode.value - _LIKELY[0] - _LIKELY[1] * mode.theta.size
    starts = sorted((start for start in starts if start[0].value > least), key=lambda start: -start[0].value)
    for start, k in starts[:_CLIMBS]:
        objective = Objective(explorer.evidence, start.state, gain=_GAIN, on_fit=explorer.record)
        try:
            search(objective, start.theta)
        except NumericalError:
            continue
        top = objective.at
        if top.status.converged and abs(top.theta[k] - start.theta[k]) < abs(top.theta[k] - mode.theta[k]):
            yield top, k


def _scan_of(explorer: Explorer[OwnFit], theta: np.ndarray, k: int, count: int) -> list[DesignPoint]:
    """Return fits at quantiles of the prior of coordinate k, in order; only some where these predict the rest."""
    rows = _spread_over_prior(explorer, theta, k, count)
    first = np.arange(count) % _EVERY == _EVERY // 2
    first[[0, -1]] = True
    scan = [point for row in rows[first] if (point := explorer(row))]
    if not (len(scan) == np.count_nonzero(first) >= _FEWEST_OF_THESE and _foretold(scan, k)):
        scan += [point for row in rows[~first] if (point := explorer(row))]
    return sorted(scan, key=lambda point: float(point.theta[k]))


def _foretold(scan: list[DesignPoint], k: int) -> bool:
    """Whether log Z at each inner fit is near the cubic through values and slopes at the fit's two neighbours."""
    at = np.array([point.theta[k] for point in scan])
    if np.any(np.diff(at) <= 0.0):  # A prior so narrow that its quantiles are one.
        return False
    value, slope = np.array([point.log_z for point in scan]), np.array([point.gradient[k] for point in scan])
    for j in range(1, len(scan) - 1):
        ends = [j - 1, j + 1]
        foretold = scipy.interpolate.CubicHermiteSpline(at[ends], value[ends], slope[ends])(at[j])
        span = max(np.ptp(value[ends]), np.abs(slope[ends]).max() * np.ptp(at[ends]))
        if not abs(foretold - value[j]) <= _FORETOLD * span:
            return False
    return True


def _spread_over_prior(explorer: Explorer, theta: np.ndarray, k: int, count: int) -> np.ndarray:
    """Return rows, (count, p), at even quantiles of the prior of coordinate k, with the others as in `theta`, (p,)."""
    rows = np.tile(theta, (len(_GRID), 1))
    rows[:, k] = _GRID
    with np.errstate(all="ignore"):
        log_prior = explorer.evidence.form.rows.log_prior_gradients(rows)[0]
    log_prior = np.where(np.isfinite(log_prior), log_prior, -np.inf)
    mass = np.cumsum(np.exp(log_prior - log_prior.max()))
    levels = (np.arange(count) + 0.5) / count
    return rows[np.searchsorted(mass, levels * mass[-1])]


def _inner_maxima(values: np.ndarray) -> list[int]:
    """Return the indices of values above both neighbours, less one: the second value has index zero."""
    return np.flatnonzero((values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])).tolist()
