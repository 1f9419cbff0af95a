"""Predictions from a fit: conditionals, responses, log predictive densities, rankings; and a point to sample from."""

from pymc_ep.predict.log_predictive import log_predictive
from pymc_ep.predict.predictions import predict
from pymc_ep.predict.start import start_point
from pymc_ep.predict.verbs import call_verb, fold_in, next_items, next_pairs, rank_items, recommend, similar

__all__ = [
    "call_verb",
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
