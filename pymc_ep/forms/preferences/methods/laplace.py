"""Laplace's approximation on preferences."""

from functools import partial

from pymc_ep.contracts.method import Method
from pymc_ep.engines.preferences.approximations import MODE
from pymc_ep.forms.preferences.form import Preferences
from pymc_ep.forms.preferences.methods.ep import OPTIONS, TREATMENTS, choose_hyper, cost, rebuild, solve

__all__ = ["PREFERENCE_LAPLACE"]

PREFERENCE_LAPLACE = Method(
    "laplace",
    Preferences,
    partial(solve, approximation=MODE),
    rebuild,
    OPTIONS,
    TREATMENTS,
    choose_hyper=choose_hyper,
    cost=cost,
    jax=True,
)
"""Gaussian posterior of each user's utilities, at their mode with the curvature there."""
