"""What methods need of the sites of a form, and what is said where one lacks it."""

from collections.abc import Sequence
from typing import Any

from pymc_ep.exceptions import UnsupportedModelError

__all__ = ["require_bounds", "require_moments"]

_BOUNDED = "such as pm.Laplace, pm.StudentT, pm.Normal, a Bernoulli with logit_p or SoftplusPoisson"


def require_bounds(factors: Sequence[Any]) -> None:
    """Raise `UnsupportedModelError` for the first of some groups of sites below which no Gaussians are known."""
    unbounded = next((group for group in factors if not group.site.has_bound), None)
    if unbounded is None:
        return
    coupled = next((group for group in factors if not group.site.has_moments), None)
    other, because = "", ""
    if coupled is None:
        other = "method='ep', or "
    else:
        because = f" (method='ep', which needs none, has no moments of the prior of {coupled.name!r})"
    raise UnsupportedModelError(
        f"{unbounded.name!r} has a {unbounded.site.name} likelihood, below which no Gaussians are known, so that the "
        f"double loop cannot bound it; use {other}a likelihood that has them, {_BOUNDED}{because}."
    )


def require_moments(factors: Sequence[Any]) -> None:
    """Raise `UnsupportedModelError` for the first of some groups of sites that has no moments of single predictors."""
    coupled = next((group for group in factors if not group.site.has_moments), None)
    if coupled is None:
        return
    unbounded = next((group for group in factors if not group.site.has_bound), None)
    likelihood = ""
    if unbounded is not None:
        likelihood = (
            f" with a likelihood below which Gaussians are known, {_BOUNDED}, in place of the {unbounded.site.name} "
            f"one of {unbounded.name!r}"
        )
    raise UnsupportedModelError(
        f"The prior of {coupled.name!r}, a {coupled.site.name}, is one factor of all its coefficients, as their states "
        f"depend on each other; EP needs factors of one predictor each. Use method='dsb', the double loop{likelihood}."
    )
