"""Log probabilities of held-out tails of sequences, in NumPy."""

import numpy as np

from pymc_ep.models.sequences.engine.values import Problem
from pymc_ep.models.sequences.kernel import Weights, initial_states, log_probabilities

__all__ = ["held_out_total"]


def held_out_total(weights: Weights, problem: Problem) -> float:
    """Return the sum of the log probabilities of held-out events, given all earlier events of their users."""
    first = initial_states(len(problem.lengths), weights, problem.initial)
    # The caller sees what is not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        return float(log_probabilities(weights, problem.sequences, first, problem.lengths).values.sum(dtype=np.float64))
