"""State of expectation propagation, and the arrays from which it is rebuilt."""

from typing import NamedTuple

import numpy as np

from pymc_ep.evidence.ep.sweep import Sweep

__all__ = ["Packed", "State"]


class State(NamedTuple):
    """Sites, the sweep evaluated at them, and the step control.

    Attributes
    ----------
    shift, precision : ndarray, (n,)
    sweep : Sweep
    points, residuals : ndarray, (k, 2 n)
        Last sites and their plain updates minus these, for the extrapolation.
    damping : float
        Fraction of a plain update that is taken.
    best : float
        Least change so far.
    stale : int
        Number of steps since that least change.
    careful : bool
        Whether steps are plain and damped. Where only the sites hold the predictors, full steps from far away overshoot
        together.
    inner : int
        Largest number of updates of the means alone in the sweep.
    """

    shift: np.ndarray
    precision: np.ndarray
    sweep: Sweep
    points: np.ndarray
    residuals: np.ndarray
    damping: float
    best: float
    stale: int
    careful: bool = False
    inner: int = 0


class Packed(NamedTuple):
    """Arrays from which a state is rebuilt: the sweep follows from the sites, and has factors of matrices.

    Attributes
    ----------
    shift, precision : ndarray, (n,)
    points, residuals : ndarray, (k - 1, 2 n)
        Of earlier sites.
    damping, best, stale, careful, inner
        As in `State`.
    """

    shift: np.ndarray
    precision: np.ndarray
    points: np.ndarray
    residuals: np.ndarray
    damping: float
    best: float
    stale: int
    careful: bool
    inner: int
