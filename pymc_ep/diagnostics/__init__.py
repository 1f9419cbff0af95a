"""How good an approximation is: importance weights, tilted cumulants, agreement with MCMC, calibration."""

from pymc_ep.diagnostics.agreement import compare_to_mcmc
from pymc_ep.diagnostics.calibration import loo_pit, predictive_pit
from pymc_ep.diagnostics.leave_out import loo
from pymc_ep.diagnostics.ranking import rank_metrics
from pymc_ep.diagnostics.report import diagnose

__all__ = ["compare_to_mcmc", "diagnose", "loo", "loo_pit", "predictive_pit", "rank_metrics"]
