"""Predictions from a fit: conditionals, responses, log predictive densities, rankings; and a point to sample from."""

from pymc_ep.predict.log_predictive import log_predictive
from pymc_ep.predict.predictions import predict
from pymc_ep.predict.rows import fold_in, rank_items, recommend, similar
from pymc_ep.predict.sequences import next_items
from pymc_ep.predict.start import start_point
from pymc_ep.predict.utilities import next_pairs

__all__ = [
    "fold_in",
    "log_predictive",
    "next_items",
    "next_pairs",
    "predict",
    "rank_items",
    "recommend",
    "similar",
    "start_point",
]
