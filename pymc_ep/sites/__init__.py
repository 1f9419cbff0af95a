"""Likelihood sites, one a file; importing this package registers them all."""

from pymc_ep.sites import (
    laplace,
    logit,
    normal,
    poisson,
    probit,
    rectified_poisson,
    softplus_poisson,
    student_t,
)
from pymc_ep.sites.base import Site, Tilted, get_site, register_site, sites
from pymc_ep.sites.compiled import CompiledSite, check_finite, compile_site

__all__ = [
    "CompiledSite",
    "Site",
    "Tilted",
    "check_finite",
    "compile_site",
    "get_site",
    "register_site",
    "sites",
]
