"""What the rooms owe each other, typed: forms, posteriors, solutions, and methods that lead from one to the next."""

from pymc_ep.contracts.form import CompiledForm, CompiledSiteForm, Factor, Form, Likelihood, SiteForm
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.posterior import JointDraws, Moments, Posterior, SitePosterior
from pymc_ep.contracts.solution import Solution

__all__ = [
    "Call",
    "CompiledForm",
    "CompiledSiteForm",
    "Factor",
    "Form",
    "JointDraws",
    "Likelihood",
    "Method",
    "Moments",
    "Posterior",
    "SiteForm",
    "SitePosterior",
    "Solution",
]
