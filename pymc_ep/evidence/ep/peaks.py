"""Other fixed points of expectation propagation, where a posterior may have several peaks.

A Student-t density lets go of an observation that is far from its predictor. Observations that contradict each other
may then have a fixed point for each of two opinions, which ignores the other one, and the start decides in which of
them EP ends. Here EP starts from the observations that a fixed point ignores: from all of them, from those above their
predictors, and from those below; and again from each fixed point that this finds. The choice of starts is the same
whatever the order of the observations and their units.

EP's evidence Z_k at fixed point k is about the mass of its peak, so that the posterior is about the mixture with
weights w_k proportional to Z_k.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import softmax

from pymc_ep.engines.interrupt import Interrupted
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.exceptions import NumericalError

if TYPE_CHECKING:
    from pymc_ep.evidence.ep.evidence import Evidence

__all__ = ["CURE", "Peaks", "find_peaks"]

CURE = (
    "learn the scale of the observations or let it be larger, or compare with pm.sample, started by "
    "pmep.start_point(idata)"
)
"""What to do where observations contradict each other, for messages."""

_IGNORED = 0.1
"""Precision of a site, over the precision of its density at its maximum, below which its observation counts as
ignored. With 3 degrees of freedom a Student-t density has that precision 1.6 scales from its maximum."""
_MOST_STARTS = 9
"""Most starts. Of 60 regressions with Student-t errors of known scale and up to 45% of gross errors, none needed more
than four to find its highest peak."""
_SAME = 0.01
"""Largest distance of predictors' means, in standard deviations, at which two fits are the same fixed point."""
_WIDER, _MOVED = 1.1, 0.15
"""Ratio of the mixture's standard deviation to the standard deviation at the highest peak, and distance of their means
in standard deviations, from which there is a warning: what counts as an error of EP elsewhere."""


class Peaks(NamedTuple):
    """Fixed points of EP at one value of the hyperparameters.

    Attributes
    ----------
    fits : list of EvidenceAt
        The fit that was given, then the others that converged.
    """

    fits: list[EvidenceAt]

    @property
    def highest(self) -> EvidenceAt:
        """The fixed point with the largest evidence, the first of equal ones."""
        return max(self.fits, key=lambda fit: fit.log_z)

    @property
    def warning(self) -> str:
        """The warning where the mixture of all fixed points differs from the first; empty where it does not."""
        if len(self.fits) == 1:
            return ""
        shares = softmax([fit.log_z for fit in self.fits])
        means, variances = (np.array(moments) for moments in zip(*(fit.predictors for fit in self.fits)))
        mean = shares @ means
        variance = shares @ (variances + (means - mean) ** 2)
        varies = variances[0] > 0.0
        sd = np.sqrt(variances[0][varies])
        wider = np.max(np.sqrt(variance[varies]) / sd, initial=1.0)
        moved = np.max(np.abs(mean - means[0])[varies] / sd, initial=0.0)
        if wider < _WIDER and moved < _MOVED:
            return ""
        return (
            f"observations contradict each other so that the posterior has several peaks, and the result describes the "
            f"one with {shares[0]:.0%} of its mass: {CURE} and elsewhere"
        )


def find_peaks(evidence: "Evidence", at: EvidenceAt) -> Peaks:
    """Return the fixed points at the hyperparameters of a fit, which is the first of them."""
    peaks = Peaks([at])
    if evidence.engine.one_fixed_point or not at.status.converged:
        return peaks
    several = _of_several_peaks(evidence)
    if not several.any():
        return peaks
    shift, precision = evidence.form.typical_sites(at.prior)
    started: list[np.ndarray] = []
    for fit in peaks.fits:
        for believed in _ignored(fit, shift, precision, several):
            if len(started) == _MOST_STARTS or any((believed == other).all() for other in started):
                continue
            started.append(believed)
            try:
                other = evidence.at(at.theta, (np.where(believed, shift, 0.0), np.where(believed, precision, 0.0)))
            except Interrupted:
                return peaks
            except NumericalError:
                continue
            if other.status.converged and not any(_is_same(other, earlier) for earlier in peaks.fits):
                peaks.fits.append(other)  # for which the loop goes on
    return peaks


def _of_several_peaks(evidence: "Evidence") -> np.ndarray:
    """Return whether each observation's density may let go of it, (n,): a location that is not log-concave."""
    sites = (factor.site for factor in evidence.form.form.factors)
    return np.concatenate(
        [np.full(len(y), site.located and not site.log_concave) for site, y in zip(sites, evidence.observed)]
    )


def _ignored(fit: EvidenceAt, shift: np.ndarray, precision: np.ndarray, several: np.ndarray) -> Iterator[np.ndarray]:
    """Yield sets of observations that a fit ignores, as bools, (n,): all, and all above and below their predictors.

    `shift` and `precision`, (n,) each, are of the sites' densities at their maxima.
    """
    ignored = several & (fit.sites[1] < _IGNORED * precision)
    above = shift > precision * fit.predictors[0]
    for chosen in (ignored, ignored & above, ignored & ~above):
        if chosen.any():
            yield chosen


def _is_same(fit: EvidenceAt, other: EvidenceAt) -> bool:
    """Whether two fits are the same fixed point."""
    (mean, variance), (other_mean, _) = fit.predictors, other.predictors
    return bool((np.abs(mean - other_mean) <= _SAME * np.sqrt(variance)).all())
