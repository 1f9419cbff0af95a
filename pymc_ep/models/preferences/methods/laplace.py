"""Laplace's approximation on preferences."""

from pymc_ep.models.preferences.engine.approximations import MODE
from pymc_ep.models.preferences.methods.ep import preference_method

__all__ = ["PREFERENCE_LAPLACE"]

PREFERENCE_LAPLACE = preference_method("laplace", MODE)
"""Gaussian posterior of each user's utilities, at their mode with the curvature there."""
