"""Predictions from a fit: Gaussian conditionals, log predictive densities, new rows of a matrix, recommendations."""

from pymc_ep.predict.fold_in import fold_in
from pymc_ep.predict.gaussian import predict
from pymc_ep.predict.log_predictive import log_predictive
from pymc_ep.predict.recommend import recommend
from pymc_ep.predict.start import start_point

__all__ = ["fold_in", "log_predictive", "predict", "recommend", "start_point"]
