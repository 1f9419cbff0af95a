"""Hyperparameters over any `pymc_ep.contracts.LogEvidence`: maximised, integrated over, or sampled."""

from pymc_ep.hyper.conditional_fits import ManyFits, fit_many
from pymc_ep.hyper.integration.integral import Integral
from pymc_ep.hyper.integration.integrate import integrate
from pymc_ep.hyper.mode import Hyper, fit_fixed, maximise
from pymc_ep.hyper.op import EvidenceOp

__all__ = ["EvidenceOp", "Hyper", "Integral", "ManyFits", "fit_fixed", "fit_many", "integrate", "maximise"]
