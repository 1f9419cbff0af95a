"""Likelihood sites, one a file; importing this package registers them all."""

from pymc_ep.sites.base import Relation, Response, Site, SuperGaussian, Tilted, get_site, register_site, sites
from pymc_ep.sites.compiled import CompiledSite, check_finite, compile_site
from pymc_ep.sites.likelihoods.asymmetric_laplace import ASYMMETRIC_LAPLACE
from pymc_ep.sites.likelihoods.beta import BETA
from pymc_ep.sites.likelihoods.binomial import BINOMIAL_CLOGLOG, BINOMIAL_LOGIT, BINOMIAL_PROBIT
from pymc_ep.sites.likelihoods.cloglog import CLOGLOG
from pymc_ep.sites.likelihoods.gamma import EXPONENTIAL, GAMMA
from pymc_ep.sites.likelihoods.laplace import LAPLACE
from pymc_ep.sites.likelihoods.logit import LOGIT
from pymc_ep.sites.likelihoods.negative_binomial import NEGATIVE_BINOMIAL
from pymc_ep.sites.likelihoods.normal import NORMAL
from pymc_ep.sites.likelihoods.ordered import ORDERED_LOGIT, ORDERED_PROBIT
from pymc_ep.sites.likelihoods.poisson import POISSON
from pymc_ep.sites.likelihoods.probit import PROBIT
from pymc_ep.sites.likelihoods.rectified_poisson import RECTIFIED_POISSON
from pymc_ep.sites.likelihoods.softplus_poisson import SOFTPLUS_POISSON
from pymc_ep.sites.likelihoods.student_t import STUDENT_T
from pymc_ep.sites.moments import tilted_moments

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
