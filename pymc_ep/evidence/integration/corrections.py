"""Correction of the evidence at many hyperparameters, and the shift of their posterior that follows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_ep.contracts.evidence import DesignPoint
from pymc_ep.numerics.interpolation.spline import Spline

__all__ = ["Corrected", "corrected_weights", "error_of_corrections"]

_DIVERGED = 0.1
"""Largest share of fits with a diverging series at which corrections are applied; a spline fills in missing ones."""


class Corrected(NamedTuple):
    """Weights of hyperparameters under the corrected evidence.

    Attributes
    ----------
    weights : ndarray, (m,)
        Adding up to one.
    log_factor : float
        Log of the factor by which the correction changes the integrated evidence; zero where nothing is corrected.
    shift : ndarray, (p,)
        Shift of the means of the hyperparameters, in standard deviations.
    diverged : float
        Share of the fits at which the series diverges; where it is too large nothing is corrected.
    """

    weights: np.ndarray
    log_factor: float
    shift: np.ndarray
    diverged: float

    @property
    def applied(self) -> bool:
        """Whether the correction is applied."""
        return self.diverged <= _DIVERGED


def corrected_weights(
    points: Sequence[DesignPoint], new_points: Sequence[DesignPoint], thetas: np.ndarray, weights: np.ndarray
) -> Corrected:
    """Return the weights of hyperparameters times exp(correction), normalised.

    The correction at each of them is a spline between the corrections of fits, clipped to the range of these.

    Parameters
    ----------
    points, new_points : sequence of DesignPoint
        All fits, and the ones among them that represent the posterior. The share of `new_points` without a correction
        decides whether it is applied.
    thetas : ndarray, (m, p)
    weights : ndarray, (m,)
        Weights of `thetas` under the evidence without correction, adding up to one.
    """
    diverged = 1.0 - float(np.mean(np.isfinite([point.correction for point in new_points] or [np.nan])))
    if diverged > _DIVERGED:
        return Corrected(weights, 0.0, np.zeros(thetas.shape[1]), diverged)
    corrections = _interpolated(points, thetas)
    largest = corrections.max()
    # w_i exp(c_i) / sum_j w_j exp(c_j); the evidence has the factor sum_j w_j exp(c_j).
    corrected = weights * np.exp(corrections - largest)
    factor = corrected.sum()
    corrected /= factor
    mean = weights @ thetas
    sd = np.sqrt(weights @ (thetas - mean) ** 2)
    shift = np.divide(corrected @ thetas - mean, sd, out=np.zeros_like(mean), where=sd > 0)
    return Corrected(corrected, float(largest + np.log(factor)), shift, diverged)


def error_of_corrections(points: Sequence[DesignPoint], new_points: Sequence[DesignPoint]) -> float:
    """Return the standard deviation, in nats, of errors at `new_points` of corrections interpolated between `points`.

    Infinite where there are no corrections to interpolate, NaN where one of `new_points` has none.
    """
    if not new_points or not any(np.isfinite(point.correction) for point in points):
        return np.inf
    interpolated = _interpolated(points, np.array([point.theta for point in new_points]))
    return float(np.std(interpolated - [point.correction for point in new_points]))


def _interpolated(points: Sequence[DesignPoint], thetas: np.ndarray) -> np.ndarray:
    """Return corrections, (m,), at rows of theta by a spline between corrections of fits, clipped to their range."""
    finite = [point for point in points if np.isfinite(point.correction)]
    values = np.array([point.correction for point in finite])
    spline = Spline(np.array([point.theta for point in finite]), values[:, None])
    return np.clip(spline(thetas)[:, 0], values.min(), values.max())
