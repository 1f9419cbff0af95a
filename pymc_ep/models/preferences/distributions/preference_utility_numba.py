"""Numba bodies of the draws of `PreferenceUtility`: each draws the row of one user."""

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify

from pymc_ep.models.preferences.distributions.preference_utility import LowRankUtilityRV, PreferenceUtilityRV


@numba_core_rv_funcify.register(PreferenceUtilityRV)
def preference_utility(op: PreferenceUtilityRV, node: Apply) -> Callable[..., Any]:
    """Return the function of generator and parameters that draws the utilities of one user."""

    @numba_njit
    def random(rng: Any, b: Any, V: Any, K: Any, sigma: Any) -> Any:
        shared, noise = rng.standard_normal(V.shape[1]), rng.standard_normal(K.shape[0])
        root = np.linalg.cholesky(K)
        # b + V z + sigma L e, with K = L L^T.
        out = b.copy()
        for i in range(len(out)):
            for d in range(V.shape[1]):
                out[i] += V[i, d] * shared[d]
            for j in range(i + 1):
                out[i] += sigma * root[i, j] * noise[j]
        return out

    return random


@numba_core_rv_funcify.register(LowRankUtilityRV)
def low_rank_utility(op: LowRankUtilityRV, node: Apply) -> Callable[..., Any]:
    """Return the function of generator and parameters that draws the utilities of one user, with K = R R^T + j I."""

    @numba_njit
    def random(rng: Any, b: Any, V: Any, R: Any, j: Any, sigma: Any) -> Any:
        shared, of_kernel = rng.standard_normal(V.shape[1]), rng.standard_normal(R.shape[1])
        noise = rng.standard_normal(R.shape[0])
        # b + V z + sigma (R y + sqrt(j) e).
        out = b.copy()
        for i in range(len(out)):
            kernel = np.sqrt(j) * noise[i]
            for r in range(R.shape[1]):
                kernel += R[i, r] * of_kernel[r]
            for d in range(V.shape[1]):
                out[i] += V[i, d] * shared[d]
            out[i] += sigma * kernel
        return out

    return random
