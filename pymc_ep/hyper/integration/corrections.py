"""Correction of EP's evidence at many hyperparameters, and the shift of their posterior that follows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_ep.hyper.evidence.evidence import Evidence
from pymc_ep.hyper.integration.explore import DesignPoint
from pymc_ep.hyper.maximise import hyper_names_of
from pymc_ep.numerics.interpolation.spline import Spline

__all__ = ["SHIFTED", "Corrected", "corrected_weights", "correction_warning", "error_of_corrections"]

SHIFTED = 0.7
"""Largest shift of a hyperparameter by the correction, in standard deviations, without a warning. About a sixth of the
error remains after it: 0.16 of 1.04 was measured with seven binary observations for each of 294 patients, whose scale
is 4, and 0.04 of 0.38 and 0.06 of 0.24 for others. At the limit that is a tenth of a standard deviation."""
_DIVERGED = 0.1
"""Largest share of fits at which the series diverges: the spline bridges the corrections missing there."""


class Corrected(NamedTuple):
    """Weights of hyperparameters under the corrected evidence.

    Attributes
    ----------
    weights : ndarray, (m,)
        Adding up to one.
    log_factor : float
        Of the integrated evidence, in nats; zero where nothing is corrected.
    shift : ndarray, (p,)
        Of the means of the hyperparameters, in standard deviations.
    diverged : float
        Share of the fits at which the series diverges; where it is too large nothing is corrected.
    """

    weights: np.ndarray
    log_factor: float
    shift: np.ndarray
    diverged: float

    @property
    def known(self) -> bool:
        """Whether there is a correction."""
        return self.diverged <= _DIVERGED


def corrected_weights(
    points: Sequence[DesignPoint], made: Sequence[DesignPoint], thetas: np.ndarray, weights: np.ndarray
) -> Corrected:
    """Reweight hyperparameters by exp(correction), a spline between the fits that is clipped to their range.

    Parameters
    ----------
    points, made : sequence of DesignPoint
        All fits, and those among them that represent the posterior.
    thetas : ndarray, (m, p)
    weights : ndarray, (m,)
        Under EP's own evidence, adding up to one.
    """
    diverged = 1.0 - float(np.mean(np.isfinite([point.correction for point in made] or [np.nan])))
    if diverged > _DIVERGED:
        return Corrected(weights, 0.0, np.zeros(thetas.shape[1]), diverged)
    corrections = _interpolated(points, thetas)
    largest = corrections.max()
    moved = weights * np.exp(corrections - largest)
    factor = moved.sum()
    moved /= factor
    mean = weights @ thetas
    sd = np.sqrt(weights @ (thetas - mean) ** 2)
    shift = np.divide(moved @ thetas - mean, sd, out=np.zeros_like(mean), where=sd > 0)
    return Corrected(moved, float(largest + np.log(factor)), shift, diverged)


def error_of_corrections(points: Sequence[DesignPoint], made: Sequence[DesignPoint]) -> float:
    """Return the standard deviation, in nats, of corrections at the fits `made` from those interpolated between others.

    Infinite where there are none to interpolate.
    """
    if not made or not any(np.isfinite(point.correction) for point in points):
        return np.inf
    found = _interpolated(points, np.array([point.theta for point in made]))
    return float(np.std(found - [point.correction for point in made]))


def _interpolated(points: Sequence[DesignPoint], thetas: np.ndarray) -> np.ndarray:
    """Return corrections, (m,), at rows of theta by a spline between those of fits, clipped to their range."""
    known = [point for point in points if np.isfinite(point.correction)]
    values = np.array([point.correction for point in known])
    spline = Spline(np.array([point.theta for point in known]), values[:, None])
    return np.clip(spline(thetas)[:, 0], values.min(), values.max())


def correction_warning(corrected: Corrected | None, evidence: Evidence) -> str:
    """Return a warning where the correction is large or diverges; empty otherwise, or without a correction."""
    if corrected is None:
        return ""
    if not corrected.known:
        return (
            f"EP's own error is not known, as the series that tells it diverges at {corrected.diverged:.0%} of the "
            f"fits; compare with pm.sample, started by pmep.start_point(idata)"
        )
    most = np.abs(corrected.shift).max()
    if most < SHIFTED:
        return ""
    name = hyper_names_of(evidence, np.abs(corrected.shift) == most)[0]
    return (
        f"skewness and kurtosis of the sites move the mean of {name} by {most:.1f} standard deviations, as binary data "
        f"in small groups do; that is corrected, but about a sixth of it may be left: compare with pm.sample, started "
        f"by pmep.start_point(idata)"
    )
