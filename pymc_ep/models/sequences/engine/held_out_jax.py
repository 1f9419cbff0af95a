"""Log probabilities of held-out tails of sequences, in JAX: see `held_out_total` in the module ``held_out``."""

import jax
import numpy as np

from pymc_ep.models.sequences.engine.values import Problem, converted
from pymc_ep.models.sequences.kernel import Weights, initial_states, longest_first, window_of
from pymc_ep.models.sequences.kernel.jax import grid_of, grid_total
from pymc_ep.numerics.backend.namespace import to_jax

__all__ = ["held_out_total_jax"]

_grid_total = jax.jit(grid_total)


def held_out_total_jax(weights: Weights, problem: Problem, batch: int, users_per_batch: int) -> float:
    """Return the log probability of all held-out events, by windows of `batch` times of `users_per_batch` users."""
    weights = converted(to_jax, weights)
    lengths, ends = problem.sequences.lengths, problem.sequences.ends
    held_out = np.arange(len(problem.sequences.items)) >= np.repeat(ends[:-1] + problem.lengths, lengths)
    order, totals = longest_first(lengths, np.arange(len(lengths))), []
    size = min(users_per_batch, len(order))
    for begin in range(0, len(order), size):
        users = order[begin : begin + size]
        user_weights = weights
        if len(weights.recurrent) > 1:
            user_weights = weights._replace(recurrent=weights.recurrent[np.resize(users, size)])
        h = initial_states(size, weights, problem.initial)
        for at in range(0, int(lengths[users[0]]), batch):
            window, places = window_of(problem.sequences, lengths, users, at, batch)
            grid = grid_of(window, batch, size, len(weights.outputs), None, weights.outputs.dtype, held_out[places])
            total, h = _grid_total(user_weights, grid, h)
            totals.append(total)
    return float(sum(map(float, totals)))
