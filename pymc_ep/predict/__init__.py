"""Predictions from a fit: Gaussian conditionals, responses, log predictive densities, new rows, recommendations."""

from pymc_ep.predict.fold_in import fold_in
from pymc_ep.predict.log_predictive import log_predictive
from pymc_ep.predict.predictions import predict
from pymc_ep.predict.recommend import recommend
from pymc_ep.predict.start import start_point

__all__ = ["fold_in", "log_predictive", "predict", "recommend", "start_point"]
