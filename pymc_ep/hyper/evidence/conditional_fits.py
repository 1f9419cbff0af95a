"""Fits at many draws of the hyperparameters, each started from the sites of a near one."""

from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from pymc_ep.engines.interrupt import INTERRUPTS, is_interrupt
from pymc_ep.hyper.evidence.evidence import Evidence, EvidenceAt

__all__ = ["ManyFits", "fit_many"]


class ManyFits(NamedTuple):
    """Fits at k draws.

    Attributes
    ----------
    thetas : ndarray, (k, p)
    shifts, precisions : ndarray, (k, n)
    log_predictives : ndarray, (k, n)
        Of each observation given the others.
    centre : EvidenceAt
        The fit nearest to the mean of the draws.
    stalled : int
        Fits that did not converge.
    unfitted : int
        Draws without a fit after an interruption; their sites are those of the nearest fit.
    """

    thetas: np.ndarray
    shifts: np.ndarray
    precisions: np.ndarray
    log_predictives: np.ndarray
    centre: EvidenceAt
    stalled: int
    unfitted: int


def fit_many(evidence: Evidence, thetas: np.ndarray) -> ManyFits:
    """Fit at each row of `thetas`, (k, p).

    The order is that of a minimum spanning tree (Prim 1957) from the mean of the draws: the next draw is the one
    nearest to any fit, and starts from its sites. Distances are in standard deviations of the draws. After an
    interruption the remaining draws take the sites of the nearest fit.
    """
    k, n = len(thetas), sum(len(y) for y in evidence.observed)
    spread = thetas.std(axis=0)
    scaled = (thetas - thetas.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    first = int(np.argmin((scaled**2).sum(axis=1)))
    shifts, precisions, predictives = np.empty((k, n)), np.empty((k, n)), np.empty((k, n))
    parent = np.full(k, -1)
    distance = np.full(k, np.inf)
    distance[first] = 0.0
    waiting = np.ones(k, dtype=bool)
    stalled = 0
    evidence.report.phase("fits at draws of hyperparameters", total=k)
    centre: EvidenceAt | None = None
    while waiting.any():
        i = int(np.argmin(np.where(waiting, distance, np.inf)))
        start = None if parent[i] < 0 else (shifts[parent[i]], precisions[parent[i]])
        try:
            at = evidence.settled(thetas[i], start)
        except INTERRUPTS as stop:
            if centre is None or not is_interrupt(stop):
                raise
            break
        if i == first:
            centre = at
        stalled += not at.run.status.converged
        (shifts[i], precisions[i]), predictives[i] = at.sites, evidence.leave_one_out(at)
        waiting[i] = False
        evidence.report.advance()
        here = cdist(scaled[i : i + 1], scaled)[0]
        nearer = waiting & (here < distance)
        distance[nearer], parent[nearer] = here[nearer], i
    left = np.flatnonzero(waiting)
    for values in (shifts, precisions, predictives):
        values[left] = values[parent[left]]
    assert centre is not None, "the first fit is that of the centre"
    return ManyFits(thetas, shifts, precisions, predictives, centre, stalled, len(left))
