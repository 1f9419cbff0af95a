"""How good sites are that are interpolated between fits."""

from collections.abc import Sequence

import numpy as np

from pymc_ep.engines.explore import DesignPoint
from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.forms.interpolated_sites import InterpolatedSites
from pymc_ep.forms.posterior import LatentPosterior

__all__ = ["error_between"]

_MOST_OFF = 5.0
"""Most standard deviations that a fit counts for in the average."""


def error_between(form: CompiledLatentGaussian, points: Sequence[DesignPoint], made: Sequence[DesignPoint]) -> float:
    """Return how far predictors by sites between `points` are from those of the fits `made`, on average over these.

    Of each fit it counts the worst predictor, by mean in standard deviations and by the log of the standard deviation.
    """
    sites = InterpolatedSites(
        np.array([point.theta for point in points]),
        np.array([point.sites[0] for point in points]),
        np.array([point.sites[1] for point in points]),
    )
    errors = []
    for point in made:
        found = LatentPosterior.held(form, point.theta, *sites(point.theta)).mode[2]
        sd = np.sqrt(point.variance)
        with np.errstate(all="ignore"):
            off = [np.abs(found.mean - point.mean) / sd, np.abs(np.log(np.sqrt(found.variance) / sd))]
        errors.append(min(float(np.nan_to_num(np.max(off), nan=np.inf)), _MOST_OFF))
    return float(np.mean(errors)) if errors else 0.0
