"""Gaussian posteriors, evidence and predictions for PyMC models, by expectation propagation."""

from pymc_ep import datasets as datasets
from pymc_ep import operators as operators
from pymc_ep import plots as plots
from pymc_ep.comparison import compare_methods
from pymc_ep.contracts.options import MethodOptions
from pymc_ep.datasets import from_events
from pymc_ep.diagnostics import compare_to_mcmc, diagnose, loo, loo_pit, rank_metrics
from pymc_ep.distributions import priors as priors
from pymc_ep.distributions.bym2 import BYM2
from pymc_ep.distributions.gaussian_markov import GaussianMarkov
from pymc_ep.distributions.random_walk2 import RandomWalk2
from pymc_ep.distributions.rectified_poisson import RectifiedPoisson
from pymc_ep.distributions.softplus_poisson import SoftplusPoisson
from pymc_ep.distributions.spde import SPDE
from pymc_ep.exceptions import ClusterError, ConvergenceWarning, InvalidDataError, NumericalError, UnsupportedModelError
from pymc_ep.fit import explain, fit, supported
from pymc_ep.forms import register_form, register_method, register_verb
from pymc_ep.graphs.families import register_family
from pymc_ep.marginal import marginalize, recover
from pymc_ep.models.bilinear.distribution import BilinearBernoulli, BilinearPoisson
from pymc_ep.models.paired_symbols.distribution import PairedSymbols
from pymc_ep.models.preferences.distributions.pairwise import PairwiseLogit, PairwiseProbit
from pymc_ep.models.preferences.distributions.preference_utility import PreferenceUtility
from pymc_ep.models.sequences.distribution import CollaborativeRNN
from pymc_ep.models.sparse_linear.distributions.sparse_field import SparseField
from pymc_ep.models.sparse_linear.distributions.wavelet_tree import WaveletTree
from pymc_ep.numerics import meshes as meshes
from pymc_ep.operators import apply_operator
from pymc_ep.predict import (
    call_verb,
    fold_in,
    log_predictive,
    next_items,
    next_pairs,
    predict,
    rank_items,
    recommend,
    similar,
    start_point,
)
from pymc_ep.sites import register_site, tilted_moments

__all__ = [
    "BYM2",
    "SPDE",
    "BilinearBernoulli",
    "BilinearPoisson",
    "ClusterError",
    "CollaborativeRNN",
    "ConvergenceWarning",
    "GaussianMarkov",
    "InvalidDataError",
    "MethodOptions",
    "NumericalError",
    "PairedSymbols",
    "PairwiseLogit",
    "PairwiseProbit",
    "PreferenceUtility",
    "RandomWalk2",
    "RectifiedPoisson",
    "SoftplusPoisson",
    "SparseField",
    "UnsupportedModelError",
    "WaveletTree",
    "apply_operator",
    "call_verb",
    "compare_methods",
    "compare_to_mcmc",
    "datasets",
    "diagnose",
    "explain",
    "fit",
    "fold_in",
    "from_events",
    "log_predictive",
    "loo",
    "loo_pit",
    "marginalize",
    "meshes",
    "next_items",
    "next_pairs",
    "operators",
    "plots",
    "predict",
    "priors",
    "rank_items",
    "rank_metrics",
    "recommend",
    "recover",
    "register_family",
    "register_form",
    "register_method",
    "register_site",
    "register_verb",
    "similar",
    "start_point",
    "supported",
    "tilted_moments",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    """Return the public names alone, for completion."""
    return [*__all__, "__version__"]
