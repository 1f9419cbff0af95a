"""Distributions for any model block, one a file, and helpers that systems share: data, labels, shapes."""

from pymc_ep.distributions.rectified_poisson import RectifiedPoisson, RectifiedPoissonRV
from pymc_ep.distributions.softplus_poisson import SoftplusPoisson, SoftplusPoissonRV

__all__ = ["RectifiedPoisson", "RectifiedPoissonRV", "SoftplusPoisson", "SoftplusPoissonRV"]
