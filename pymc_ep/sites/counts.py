"""What the sites for counts share."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

__all__ = ["log_poisson"]


def log_poisson(y: Any, log_rate: Any, rate: Any) -> Any:
    """log Poisson(y; rate), accurate at large counts.

    For y > 0 it is ``y (u - (e^u - 1)) + log Poisson(y; y)`` with ``u = log rate - log y`` (Loader, 2000, "Fast and
    accurate computation of binomial probabilities"): in ``y log rate - rate - log y!`` terms near 1e7 cancel at a
    million counts.
    """
    u = log_rate - pt.log(pt.maximum(y, 1.0))
    return pt.switch(y > 0, y * (u - pt.expm1(u)) + _log_poisson_at_mean(y), -rate)


def _log_poisson_at_mean(y: Any) -> Any:
    """log of the Poisson probability of y at rate y, for y >= 1.

    ``y log y - y - log y!`` is Stirling's formula but for its remainder, so from 16 on it is computed as
    ``-(log(2 pi y) / 2 + 1 / (12 y) - 1 / (360 y**3) + ...)``. The first term left out is below 1e-16 there.
    """
    large = pt.maximum(y, 16.0)
    x = 1 / large**2
    remainder = (1 / 12 - x * (1 / 360 - x * (1 / 1260 - x * (1 / 1680 - x * (1 / 1188 - x * 691 / 360360))))) / large
    small = pt.clip(y, 1.0, 16.0)
    direct = small * (pt.log(small) - 1) - pt.gammaln(small + 1)
    return pt.switch(y >= 16, -0.5 * pt.log(2 * np.pi * large) - remainder, direct)
