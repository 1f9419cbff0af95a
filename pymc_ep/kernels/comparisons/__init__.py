"""Posteriors of compared utilities of many users."""

from pymc_ep.kernels.comparisons.body import Comparisons, Differences
from pymc_ep.kernels.comparisons.dispatch import (
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
