"""Typed interfaces between subpackages: `Form`, `Posterior` and `Solution`, and the `Method` that connects them."""

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.evidence import EvidenceFit, Fit, FitState, LogEvidence
from pymc_ep.contracts.form import (
    Affine,
    CompiledForm,
    CompiledSiteForm,
    Factor,
    Form,
    HyperForm,
    Likelihood,
    Representation,
    SiteForm,
)
from pymc_ep.contracts.method import Call, EvidenceGraph, Method
from pymc_ep.contracts.posterior import AffinePosterior, JointDraws, Moments, Posterior, SitePosterior
from pymc_ep.contracts.solution import Solution

__all__ = [
    "Affine",
    "AffinePosterior",
    "Call",
    "CompiledForm",
    "CompiledSiteForm",
    "Cost",
    "EvidenceFit",
    "EvidenceGraph",
    "Factor",
    "Fit",
    "FitState",
    "Form",
    "HyperForm",
    "JointDraws",
    "Likelihood",
    "LogEvidence",
    "Method",
    "Moments",
    "Posterior",
    "Representation",
    "SiteForm",
    "SitePosterior",
    "Solution",
]
