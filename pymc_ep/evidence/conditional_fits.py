"""Fits at many draws of the hyperparameters, each started from the state of a near one."""

from typing import Any, Generic, NamedTuple

import numpy as np
import scipy

from pymc_ep.contracts.evidence import FitState, LogEvidence, OwnFit
from pymc_ep.engines.interrupt import INTERRUPTS, is_interrupt
from pymc_ep.numerics.interpolation.scaling import centre_and_scale

__all__ = ["ManyFits", "fit_many"]


class ManyFits(NamedTuple, Generic[OwnFit]):
    """Fits at k draws of the hyperparameters.

    Attributes
    ----------
    thetas : ndarray, (k, p)
        The draws.
    states : list of tuple of ndarray
        State of the fit at each draw.
    kept : list
        Result of `LogEvidence.kept` for each fit.
    centre : EvidenceFit
        The fit nearest to the mean of the draws.
    stalled : int
        Number of fits that did not converge.
    unfitted : int
        Number of draws without a fit after an interruption; they have the state and kept parts of the nearest fit.
    """

    thetas: np.ndarray
    states: list[FitState]
    kept: list[Any]
    centre: OwnFit
    stalled: int
    unfitted: int

    @property
    def converged(self) -> bool:
        """Whether there is a converged fit at each draw."""
        return not (self.stalled or self.unfitted)

    def sentence(self, noun: str) -> str:
        """Return a description of the fits for the status of the result; `noun` names the states, such as "sites"."""
        fits = f"fits at {len(self.thetas)} draws of the hyperparameters"
        lost = f"{self.stalled} of them did not converge" if self.stalled else ""
        left = f"interrupted: {self.unfitted} of them have the {noun} of a near one" if self.unfitted else ""
        return "; ".join(filter(None, [fits, lost, left]))


def fit_many(evidence: LogEvidence[OwnFit], thetas: np.ndarray) -> ManyFits[OwnFit]:
    """Return fits at all rows of `thetas`, (k, p).

    The first draw is the one nearest to the mean of all. Each further one is the draw nearest to any fit so far, and
    starts from the state of that fit: a minimum spanning tree (Prim 1957). Distances are in standard deviations of the
    draws. After an interruption the remaining draws take the state of the nearest fit.
    """
    k = len(thetas)
    mean, scale = centre_and_scale(thetas)
    scaled = (thetas - mean) / scale
    first = int(np.argmin((scaled**2).sum(axis=1)))
    states: list[Any] = [None] * k
    kept: list[Any] = [None] * k
    parent = np.full(k, -1)
    distance = np.full(k, np.inf)
    distance[first] = 0.0
    waiting = np.ones(k, dtype=bool)
    stalled = 0
    evidence.report.phase("fits at draws of hyperparameters", total=k)
    centre: OwnFit | None = None
    while waiting.any():
        i = int(np.argmin(np.where(waiting, distance, np.inf)))
        start = None if parent[i] < 0 else states[parent[i]]
        try:
            at = evidence.settled(thetas[i], start)
        except INTERRUPTS as stop:
            if centre is None or not is_interrupt(stop):
                raise
            break
        if i == first:
            centre = at
        stalled += not at.status.converged
        states[i], kept[i] = at.state, evidence.kept(at)
        waiting[i] = False
        evidence.report.advance()
        from_fit = scipy.spatial.distance.cdist(scaled[i : i + 1], scaled)[0]
        nearer = waiting & (from_fit < distance)
        distance[nearer], parent[nearer] = from_fit[nearer], i
    left = np.flatnonzero(waiting).tolist()
    for i in left:
        states[i], kept[i] = states[parent[i]], kept[parent[i]]
    assert centre is not None, "the first fit is that of the centre"
    return ManyFits(thetas, states, kept, centre, stalled, len(left))
