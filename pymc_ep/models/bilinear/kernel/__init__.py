"""Moments of inner products of Gaussian rows of two matrices, and their derivatives in the moments of the rows."""

from pymc_ep.kernels import ArrayKernel, register_kernel
from pymc_ep.models.bilinear.kernel.body import Rows
from pymc_ep.models.bilinear.kernel.dispatch import log_mean_exp, log_mean_exp_pullback, variance, variance_pullback
from pymc_ep.models.bilinear.kernel.full_body import FactoredRows, FullRows

__all__ = [
    "FactoredRows",
    "FullRows",
    "Rows",
    "log_mean_exp",
    "log_mean_exp_pullback",
    "variance",
    "variance_pullback",
]

register_kernel(ArrayKernel("inner_products", __name__, ("c", "jax", "numba")))
