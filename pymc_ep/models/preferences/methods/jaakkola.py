"""The bound of Jaakkola and Jordan (2000) for preferences, which must have a logit link."""

from pymc_ep.contracts.method import Call
from pymc_ep.contracts.solution import Solution
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.approximations import BOUND, Approximation
from pymc_ep.models.preferences.methods.ep import preference_method, solve
from pymc_ep.sites.base import Site

__all__ = ["PREFERENCE_JAAKKOLA", "solve_bound"]


def solve_bound(call: Call[CompiledPreferences], approximation: Approximation = BOUND) -> Solution:
    """Fit a form of preferences by the bound; for exceptions see `solve`.

    Raises
    ------
    UnsupportedModelError
        For comparisons by a probit.
    """
    comparisons = call.form.form.comparisons
    if not _bounded(comparisons.site):
        raise UnsupportedModelError(
            f"{comparisons.name!r} has a {comparisons.site.name} likelihood, and method='jaakkola' is a bound on the "
            f"logistic; compare by PairwiseLogit, or use method='ep' or 'laplace'."
        )
    return solve(call, approximation)


def _bounded(site: Site | None) -> bool:
    return site is not None and site.super_gaussian is not None


PREFERENCE_JAAKKOLA = preference_method("jaakkola", BOUND, _bounded, solve_bound)
"""Gaussian posterior of each user's utilities, by the best Gaussians below the logistic."""
