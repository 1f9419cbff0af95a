"""Numba body of the draws of `PairedSymbols`: one pair after the other, by inversion of cumulative popularities."""

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify

from pymc_ep.models.paired_symbols.distribution import MOST_PROPOSALS, PairedSymbolsRV

_LEAST = 16
"""Least number of pairs that the limit on proposals is computed for; draws of fewer pairs have the same limit."""


@numba_core_rv_funcify.register(PairedSymbolsRV)
def paired_symbols(op: PairedSymbolsRV, node: Apply) -> Callable[..., Any]:
    """Return the function ``random(rng, *parameters)``, which draws one stream of pairs, (D, 2)."""
    alike = op.alike

    @numba_njit
    def random(
        rng: Any, pi: Any, psi: Any, U: Any, V: Any, user_bias: Any, item_bias: Any, n_pairs: Any, censored_ratio: Any
    ) -> Any:
        users, items = np.cumsum(pi), np.cumsum(psi)
        n = int(n_pairs)
        out, left = np.empty((n, 2), dtype=np.int64), MOST_PROPOSALS * max(n, _LEAST)
        done = 0
        while done < n:
            if left == 0:
                raise ValueError("preferences are all far below zero, so that drawing pairs would take too long")
            left -= 1
            i = min(np.searchsorted(users, rng.random() * users[-1], side="right"), len(users) - 1)
            j = min(np.searchsorted(items, rng.random() * items[-1], side="right"), len(items) - 1)
            a = user_bias[i] + item_bias[j]
            for k in range(U.shape[1]):
                a += U[i, k] * V[j, k]
            if (i != j or not alike) and rng.random() < 1.0 / (1.0 + np.exp(-a)):
                out[done, 0], out[done, 1] = i, j
                done += 1
        return out

    return random
