"""Typed interfaces between subpackages: `Form`, `Posterior` and `Solution`, and the `Method` that connects them."""

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
