"""What methods need of the sites of a form, and what is said where one lacks it."""

from collections.abc import Sequence
from typing import Any

from pymc_ep.exceptions import UnsupportedModelError

__all__ = ["require_bounds", "require_parallel"]

_BOUNDED = "such as pm.Laplace, pm.StudentT, pm.Normal, a Bernoulli with logit_p or SoftplusPoisson"


def require_bounds(factors: Sequence[Any]) -> None:
    """Raise `UnsupportedModelError` for the first of some groups of sites below which no Gaussians are known."""
    unbounded = next((group for group in factors if not group.site.has_bound), None)
    if unbounded is None:
        return
    raise UnsupportedModelError(
        f"{unbounded.name!r} has a {unbounded.site.name} likelihood, below which no Gaussians are known, so that the "
        f"double loop cannot bound it; use method='ep', or a likelihood that has them, {_BOUNDED}."
    )


def require_parallel(factors: Sequence[Any]) -> None:
    """Raise `UnsupportedModelError` for the first of some groups whose sites cannot be updated one after another."""
    coupled = next((group for group in factors if group.site.coupled), None)
    if coupled is not None:
        raise UnsupportedModelError(
            f"The prior of {coupled.name!r}, a {coupled.site.name}, is one factor of all its coefficients, as their "
            f"states depend on each other; use schedule='parallel', which updates them together."
        )
