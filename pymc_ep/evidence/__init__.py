"""Hyperparameters over any `pymc_ep.contracts.LogEvidence`: maximised, integrated over, or sampled."""

from pymc_ep.evidence.conditional_fits import ManyFits, fit_many
from pymc_ep.evidence.integration.integral import Integral
from pymc_ep.evidence.integration.integrate import integrate
from pymc_ep.evidence.mode import Hyper, fit_fixed, maximise
from pymc_ep.evidence.op import EvidenceOp

__all__ = ["EvidenceOp", "Hyper", "Integral", "ManyFits", "fit_fixed", "fit_many", "integrate", "maximise"]
