"""Distributions for any model, one in each file, and helpers that models share: data, labels, shapes."""

from pymc_ep.distributions.rectified_poisson import RectifiedPoisson, RectifiedPoissonRV
from pymc_ep.distributions.softplus_poisson import SoftplusPoisson, SoftplusPoissonRV

__all__ = ["RectifiedPoisson", "RectifiedPoissonRV", "SoftplusPoisson", "SoftplusPoissonRV"]
