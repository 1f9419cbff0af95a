"""Posteriors of compared utilities of many users."""

from pymc_ep.kernels import ArrayKernel, register_kernel
from pymc_ep.models.preferences.kernel.body import Comparisons, Differences
from pymc_ep.models.preferences.kernel.dispatch import (
    add_losses,
    difference_means,
    difference_moments,
    precision_losses,
    prior_factors,
)

__all__ = [
    "Comparisons",
    "Differences",
    "add_losses",
    "difference_means",
    "difference_moments",
    "precision_losses",
    "prior_factors",
]

register_kernel(ArrayKernel("comparisons", __name__, ("c", "jax", "numba")))
