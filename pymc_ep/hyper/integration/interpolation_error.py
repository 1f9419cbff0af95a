"""How good sites are that are interpolated between fits."""

from collections.abc import Sequence

import numpy as np

from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.hyper.integration.explore import DesignPoint
from pymc_ep.hyper.integration.interpolated_sites import InterpolatedSites

__all__ = ["error_between"]

_MOST_OFF = 5.0
"""Most standard deviations that a fit counts for in the average."""


def error_between(form: CompiledSiteForm, points: Sequence[DesignPoint], made: Sequence[DesignPoint]) -> float:
    """Return how far predictors by sites between `points` are from those of the fits `made`, on average over these.

    Of each fit it counts the worst predictor, by mean in standard deviations and by the log of the standard deviation.
    """
    sites = InterpolatedSites(
        np.array([point.theta for point in points]),
        np.array([point.sites[0] for point in points]),
        np.array([point.sites[1] for point in points]),
    )
    log_concave = all(site.site.log_concave for site in form.sites)
    errors = []
    for point in made:
        found = form.prior(point.theta).posterior(*sites(point.theta), log_concave=log_concave)
        sd = np.sqrt(point.variance)
        with np.errstate(all="ignore"):
            off = [np.abs(found.mean - point.mean) / sd, np.abs(np.log(np.sqrt(found.variance) / sd))]
        errors.append(min(float(np.nan_to_num(np.max(off), nan=np.inf)), _MOST_OFF))
    return float(np.mean(errors)) if errors else 0.0
