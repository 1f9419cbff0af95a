"""Moments of inner products of Gaussian rows of two matrices, and their derivatives in the moments of the rows."""

from pymc_ep.kernels.inner_products.body import Rows
from pymc_ep.kernels.inner_products.full_body import FactoredRows, FullRows
from pymc_ep.kernels.inner_products.op import log_mean_exp, log_mean_exp_pullback, variance, variance_pullback

__all__ = [
    "FactoredRows",
    "FullRows",
    "Rows",
    "log_mean_exp",
    "log_mean_exp_pullback",
    "variance",
    "variance_pullback",
]
