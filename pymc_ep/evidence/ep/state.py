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
        The sites.
    sweep : Sweep
    points, residuals : ndarray, (k, 2 n)
        The last k sites, and the change of each by a plain update, for the extrapolation.
    damping : float
        Length of a step, as a fraction of a plain update.
    best : float
        Least change so far.
    stale : int
        Number of steps since that least change.
    careful : bool
        Whether steps are damped, and sweeps make no updates of the means alone. Where the prior is flat in all
        coefficients, full steps from far away overshoot, as all sites move together.
    inner : int
        Largest number of updates of the means alone in `sweep`, at fixed precisions.
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
    """Values from which a `State` is rebuilt. Its sweep, which has factors of matrices, follows from the sites.

    Attributes
    ----------
    shift, precision : ndarray, (n,)
        The sites.
    points, residuals : ndarray, (k - 1, 2 n)
        As in `State`, without the last row; empty once the iteration has finished.
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
