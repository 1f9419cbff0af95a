"""Numba body of `update_in_turn`: the Numba functions that update one row are called for each row in turn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.jit_numba import jit
from pymc_ep.models.paired_symbols.kernel.numba import FAST, add_cells, curvature, finish_row
from pymc_ep.models.paired_symbols.kernel.op import UpdateInTurn

__all__ = ["update_in_turn"]


@jit(fastmath=FAST, inline="always")
def _add_symbol(
    mean: np.ndarray,
    variance: np.ndarray,
    bias: float,
    weight: float,
    outer: np.ndarray,
    of_mean: np.ndarray,
    of_mean_bias: np.ndarray,
) -> float:
    """Add `weight` times a symbol's moments to `outer`, `of_mean`, `of_mean_bias`; return `weight` times its bias."""
    for k in range(len(mean)):
        weighted = weight * mean[k]
        of_mean[k] += weighted
        of_mean_bias[k] += weighted * bias
        for d in range(k + 1):
            outer[k, d] += weighted * mean[d]
        outer[k, k] += weight * variance[k]
    return weight * bias


@jit(fastmath=FAST)
def update_in_turn(
    ends: np.ndarray,
    others: np.ndarray,
    counts: np.ndarray,
    prior_mean: np.ndarray,
    prior_precision: np.ndarray,
    prior_bias: np.ndarray,
    prior_bias_precision: np.ndarray,
    s: np.ndarray,
    outer: np.ndarray,
    of_mean: np.ndarray,
    of_mean_bias: np.ndarray,
    of_bias: float,
    n_censored: float,
    lam: float,
    sequential: bool,
    point_factors: bool,
    point_bias: bool,
    mean: np.ndarray,
    variance: np.ndarray,
    bias: np.ndarray,
    bias_variance: np.ndarray,
) -> None:
    """Update `mean`, `variance`, `bias` and `bias_variance` in place, symbol after symbol; see the NumPy body."""
    width = mean.shape[1]
    precision, shift, slope = np.empty((width, width)), np.empty(width), np.empty(width)
    rest, rest_mean, rest_mean_bias, rest_bias = outer.copy(), of_mean.copy(), of_mean_bias.copy(), of_bias
    for i in range(len(bias)):
        m, a = mean[i], variance[i]
        # Moments of all other symbols, whose weights sum to 1 - s_i.
        rest_bias += _add_symbol(m, a, bias[i], -s[i], rest, rest_mean, rest_mean_bias)
        censored = n_censored * s[i]
        rho, pull = add_cells(
            ends[i],
            ends[i + 1],
            others,
            counts,
            m,
            a,
            bias[i],
            bias_variance[i],
            mean,
            variance,
            bias,
            bias_variance,
            s,
            censored,
            lam,
            precision,
            shift,
            slope,
        )
        bias[i], bias_variance[i] = finish_row(
            m,
            prior_mean[i],
            prior_precision[i],
            prior_bias[i],
            prior_bias_precision[i],
            rest,
            rest_mean,
            rest_mean_bias,
            rest_bias,
            1.0 - s[i],
            censored,
            lam,
            sequential,
            precision,
            shift,
            slope,
            rho,
            pull,
            m,
            a,
        )
        if point_factors:
            a[:] = 0.0
        if point_bias:
            bias_variance[i] = 0.0
        rest_bias += _add_symbol(m, a, bias[i], s[i], rest, rest_mean, rest_mean_bias)


@register_funcify_and_cache_key(UpdateInTurn)
def numba_update_in_turn(op: UpdateInTurn, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `UpdateInTurn` and the key of its cache."""
    sequential, point_factors, point_bias = op.sequential, op.point_factors, op.point_bias

    @numba_njit
    def run(*inputs: Any) -> Any:
        mean, variance, bias, bias_variance = (
            inputs[3].copy(),
            inputs[4].copy(),
            inputs[5].copy(),
            inputs[6].copy(),
        )
        numbers = inputs[15].item(), inputs[16].item(), curvature(inputs[17].item())
        flags = sequential, point_factors, point_bias
        update_in_turn(*inputs[:3], *inputs[7:15], *numbers, *flags, mean, variance, bias, bias_variance)
        return mean, variance, bias, bias_variance

    return run, op.numba_cache_key(__file__, str(Path(__file__).with_name("numba.py")))
