"""The methods ``"dsb"``, the double loop, and ``"map"``, the mode of the posterior density."""

from collections.abc import Mapping

import numpy as np

from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.posterior import Posterior
from pymc_ep.contracts.solution import Solution
from pymc_ep.evidence.bound import BoundSampling
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.models.sparse_linear.form import SparseLinear
from pymc_ep.models.sparse_linear.methods.double_loop import (
    MODE_OPTIONS,
    OPTIONS,
    cost_of_bounds,
    cost_of_mode,
    find_mode,
    maximum_at,
    sampling_settings,
    solve_by_bounds,
)
from pymc_ep.models.sparse_linear.methods.solution import (
    bound_solution,
    conditional_solution,
    mode_of_density,
    rebuild_bounds,
)
from pymc_ep.sites.base import Site

__all__ = ["DSB", "MAP"]


def _solve(call: Call[CompiledSparseLinear]) -> Solution:
    return bound_solution(call.form, solve_by_bounds(call))


def _solve_mode(call: Call[CompiledSparseLinear]) -> Solution:
    return mode_of_density(call.form, find_mode(call))


def _no_posterior(form: CompiledSparseLinear, state: Mapping[str, np.ndarray]) -> Posterior:
    raise UnsupportedModelError(
        "The result of method='map' is the mode of a density alone, with no posterior to predict from; fit with "
        "method='dsb' or method='ep'."
    )


def _is_bounded(site: Site | None) -> bool:
    return site is not None and site.has_bound


_CHANGEABLE = ("outer",)
_SAMPLING = BoundSampling(sampling_settings, maximum_at, conditional_solution)
DSB = Method(
    "dsb",
    SparseLinear,
    _solve,
    rebuild_bounds,
    OPTIONS,
    ("optimize", "fixed", "sample"),
    evidence_op=_SAMPLING.evidence_op,
    condition=_SAMPLING.condition,
    takes=_is_bounded,
    cost=cost_of_bounds,
    changeable=_CHANGEABLE,
    jax=True,
)
MAP = Method(
    "map",
    SparseLinear,
    _solve_mode,
    _no_posterior,
    MODE_OPTIONS,
    ("optimize", "fixed"),
    takes=_is_bounded,
    cost=cost_of_mode,
    changeable=_CHANGEABLE,
    jax=True,
)
