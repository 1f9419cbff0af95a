"""Parts of a solution by observed variable: sites, leave-one-out densities, intensities, states of coefficients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pymc_ep.engines.prior import FactorValues, Prior
from pymc_ep.evidence.ep.evidence import Evidence
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.sweep import Problem, group_slices
from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.sites.rows_of_two import ROWS, precision_of, slopes_of

__all__ = ["coefficient_results", "site_results"]


def coefficient_results(
    form: SiteFunctions,
    observed: Sequence[np.ndarray],
    prior: Prior | FactorValues | Problem,
    site_report: Callable[..., dict[str, Any]],
    mean: np.ndarray,
    sd: np.ndarray | None,
) -> dict[str, dict[str, Any]]:
    """Return, by observed variable, the reports of sites that have one, such as states of mixtures.

    Each has the posterior moments of its coefficients, from `mean` and `sd` of all predictors, (n,) each. `site_report`
    takes a compiled site, its observations, its slice of all sites and its parameters; it returns an empty dict for a
    site without a report.
    """
    out = {}
    groups = zip(form.form.factors, form.sites, observed, prior.parameters, group_slices(observed))
    for group, site, y, parameters, rows in groups:
        if report := site_report(site, y, rows, parameters):
            out[group.name] = report | {"coefficient_mean": mean[rows]}
            if sd is not None:
                out[group.name]["coefficient_sd"] = sd[rows]
    return out


def site_results(
    form: SiteFunctions, evidence: Evidence, at: EvidenceAt, left_out: Mapping[str, np.ndarray]
) -> dict[str, dict[str, np.ndarray]]:
    """Return leave-one-out log densities, sites and any intensities of each observed variable, for the fit `at`."""
    out = {}
    mean, variance = at.predictors
    slices = group_slices(evidence.observed)
    for group, y, origin, rows in zip(form.form.groups, form.observed(), form.origins(), slices):
        shift, precision = (array[rows] for array in at.sites)
        # exp(b f - pi f^2 / 2) of f = eta - o, with o the origin, has the shift b + pi o in eta.
        fields = {field: values[rows][: y.size] for field, values in left_out.items()}
        fields |= _sites_of(shift + precision * origin, precision, y.size)
        out[group.name] = {what: values.reshape(y.shape) for what, values in fields.items()}
        if group.site.intensity is not None:
            out[group.name]["intensity"] = group.site.intensity(mean[rows], variance[rows]).reshape(y.shape)
    return out


def _sites_of(shift: np.ndarray, precision: np.ndarray, n: int) -> dict[str, np.ndarray]:
    """Return shifts and precisions of the sites of n observations, by name of the field, from the sites of their rows.

    A site of one predictor has one row, a site of two has three. Sites of more predictors have no such fields: they are
    in the saved state alone.
    """
    if len(shift) == n:
        return {"site_precision": precision, "site_shift": shift}
    if len(shift) > ROWS * n:
        return {}
    first_precision, second_precision, cross_precision = precision_of(precision)
    first_shift, second_shift = slopes_of(shift)
    return {
        "site_precision": first_precision,
        "site_shift": first_shift,
        "second_site_precision": second_precision,
        "second_site_shift": second_shift,
        "site_cross_precision": cross_precision,
    }
