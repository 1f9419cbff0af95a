"""Likelihood sites, one a file; importing this package registers them all."""

from pymc_ep.sites.asymmetric_laplace import ASYMMETRIC_LAPLACE
from pymc_ep.sites.base import Relation, Response, Site, SuperGaussian, Tilted, get_site, register_site, sites
from pymc_ep.sites.beta import BETA
from pymc_ep.sites.binomial import BINOMIAL_CLOGLOG, BINOMIAL_LOGIT, BINOMIAL_PROBIT
from pymc_ep.sites.cloglog import CLOGLOG
from pymc_ep.sites.compiled import CompiledSite, check_finite, compile_site
from pymc_ep.sites.gamma import EXPONENTIAL, GAMMA
from pymc_ep.sites.laplace import LAPLACE
from pymc_ep.sites.logit import LOGIT
from pymc_ep.sites.moments import tilted_moments
from pymc_ep.sites.negative_binomial import NEGATIVE_BINOMIAL
from pymc_ep.sites.normal import NORMAL
from pymc_ep.sites.ordered import ORDERED_LOGIT, ORDERED_PROBIT
from pymc_ep.sites.poisson import POISSON
from pymc_ep.sites.probit import PROBIT
from pymc_ep.sites.rectified_poisson import RECTIFIED_POISSON
from pymc_ep.sites.softplus_poisson import SOFTPLUS_POISSON
from pymc_ep.sites.student_t import STUDENT_T

__all__ = [
    "ASYMMETRIC_LAPLACE",
    "BETA",
    "BINOMIAL_CLOGLOG",
    "BINOMIAL_LOGIT",
    "BINOMIAL_PROBIT",
    "CLOGLOG",
    "EXPONENTIAL",
    "GAMMA",
    "LAPLACE",
    "LOGIT",
    "NEGATIVE_BINOMIAL",
    "NORMAL",
    "ORDERED_LOGIT",
    "ORDERED_PROBIT",
    "POISSON",
    "PROBIT",
    "RECTIFIED_POISSON",
    "SOFTPLUS_POISSON",
    "STUDENT_T",
    "CompiledSite",
    "Relation",
    "Response",
    "Site",
    "SuperGaussian",
    "Tilted",
    "check_finite",
    "compile_site",
    "get_site",
    "register_site",
    "sites",
    "tilted_moments",
]
