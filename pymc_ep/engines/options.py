"""Checks of options and of required properties of sites, shared by several methods."""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Protocol

import numpy as np

from pymc_ep.exceptions import UnsupportedModelError, did_you_mean
from pymc_ep.sites.base import Site

__all__ = [
    "NamedSite",
    "check_flag",
    "check_least",
    "check_positive",
    "check_whole",
    "require_bounds",
    "require_parallel",
]


class NamedSite(Protocol):
    """Factor of a form, with the properties that checks need."""

    @property
    def name(self) -> str:
        """Name of the factor's variable in the model."""

    @property
    def site(self) -> Site:
        """The site, one for all observations of the variable."""


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raise unless an option is a whole number of at least `least`."""
    if isinstance(value, bool) or not (isinstance(value, int | np.integer) and value >= least):
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")


def check_positive(name: str, value: object) -> None:
    """Raise unless an option is a positive number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise ValueError(f"{name}={value!r} must be positive.")


def check_least(name: str, value: object, least: float = 0.0, below: float = np.inf) -> None:
    """Raise unless an option is a finite number of at least `least` and less than `below`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not least <= float(value) < below:  # type: ignore[arg-type]
        end = "" if np.isinf(below) else f" and less than {below:g}"
        raise ValueError(f"{name}={value!r} must be a finite number of at least {least:g}{end}.")


def check_flag(name: str, value: object) -> None:
    """Raise unless an option is a bool; the truth value of a string such as "no" would be True."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={value!r} must be True or False.")


def estimate_names(estimate: object, available: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the option ``estimate``: matrices and biases that are points without a posterior.

    Raises
    ------
    ValueError
        For anything but names that are available.
    """
    if estimate is not None and not isinstance(estimate, Iterable):
        raise ValueError(f"estimate={estimate!r} must be the name of a matrix or bias, or a list of names.")
    named = (estimate,) if isinstance(estimate, str) else tuple(estimate or ())
    if unknown := [name for name in named if name not in available]:
        raise ValueError(
            f"estimate= names {unknown[0]!r}, which is neither a matrix nor a bias of this model; these are "
            f"{', '.join(available)}.{did_you_mean(unknown[0], available)}"
        )
    return named


_BOUNDED = "such as pm.Laplace, pm.StudentT, pm.Normal, a Bernoulli with logit_p or SoftplusPoisson"
"""Examples of sites with a Gaussian lower bound, for the error message."""


def require_bounds(factors: Sequence[NamedSite]) -> None:
    """Raise `UnsupportedModelError` for the first group whose sites have no Gaussian lower bound."""
    unbounded = next((group for group in factors if not group.site.has_bound), None)
    if unbounded is None:
        return
    raise UnsupportedModelError(
        f"{unbounded.name!r} has a {unbounded.site.name} likelihood, below which no Gaussians are known, so that the "
        f"double loop cannot bound it; use method='ep', or a likelihood that has them, {_BOUNDED}."
    )


def require_parallel(factors: Sequence[NamedSite]) -> None:
    """Raise `UnsupportedModelError` for the first group whose sites cannot be updated one by one."""
    joint = next((group for group in factors if group.site.predictors > 1), None)
    if joint is not None:
        raise UnsupportedModelError(
            f"{joint.name!r} has several predictors, whose sites are updated together; use schedule='parallel'."
        )
    coupled = next((group for group in factors if group.site.coupled), None)
    if coupled is not None:
        raise UnsupportedModelError(
            f"The prior of {coupled.name!r}, a {coupled.site.name}, is one factor of all its coefficients, as their "
            f"states depend on each other; use schedule='parallel', which updates them together."
        )
