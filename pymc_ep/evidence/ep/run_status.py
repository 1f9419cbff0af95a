"""Likely causes of a fit that did not converge, in its status."""

from typing import TYPE_CHECKING

import numpy as np

from pymc_ep.engines.base import Status
from pymc_ep.engines.loop import Run
from pymc_ep.evidence.ep.repeats import Repeats

if TYPE_CHECKING:
    from pymc_ep.evidence.ep.evidence import Evidence

__all__ = ["explained"]

_COARSE = 0.1
"""Distance of neighbouring doubles at an observation, in standard deviations of its site, above which the data count as
rounded away: uniform rounding adds a twelfth of the squared distance to the variance, 0.1 per cent here."""


def explained(evidence: "Evidence", repeats: Repeats, ended: Run) -> Run:
    """Return the run, with the likely cause in its status where it did not converge, or counts as not converged.

    Under flat priors the cause is an improper posterior. A fit to data that rounding has made too coarse counts as
    not converged, since the posterior is of the rounded data.
    """
    # Spacing of doubles over the site's standard deviation pi^-1/2.
    coarse = evidence.spacing * np.sqrt(np.abs(repeats.shared(ended.state.precision)))
    worst = int(np.argmax(coarse))
    if coarse[worst] > _COARSE:
        return ended._replace(
            status=Status(
                False,
                f"lost to rounding: {evidence.observation(worst)} is {evidence.origins[worst]:.3g}, where doubles are "
                f"{evidence.spacing[worst]:.2g} apart, {coarse[worst]:.2g} standard deviations of its noise; subtract "
                f"a constant from the observations before they are stored as doubles",
                interrupted=ended.status.interrupted,
            )
        )
    flat = [b.name for b in evidence.form.form.blocks if b.flat]
    if ended.status.converged or not flat or all(group.site.gaussian for group in evidence.form.form.groups):
        # Under Gaussian noise a posterior is improper only where `require_covariance` has already raised.
        return ended
    remark = (
        f"; the flat prior of {', '.join(map(repr, flat))} may leave the posterior improper, as where a predictor "
        f"separates two classes or all counts are zero: give it a proper prior, such as pm.Normal, or rectified "
        f"counts zero_mass=False"
    )
    return ended._replace(status=ended.status._replace(sentence=ended.status.sentence + remark))
