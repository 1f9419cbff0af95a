"""Predictions from a fit: Gaussian conditionals, responses, log predictive densities; and a point to sample from."""

from pymc_ep.predict.log_predictive import log_predictive
from pymc_ep.predict.predictions import predict
from pymc_ep.predict.start import start_point

__all__ = ["log_predictive", "predict", "start_point"]
