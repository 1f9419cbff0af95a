"""Predictions from a fit: Gaussian conditionals and log predictive densities."""

from pymc_ep.predict.gaussian import predict
from pymc_ep.predict.log_predictive import log_predictive
from pymc_ep.predict.start import start_point

__all__ = ["log_predictive", "predict", "start_point"]
