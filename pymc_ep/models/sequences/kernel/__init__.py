"""The collaborative recurrent network: log probabilities of sequences and their gradient, in NumPy and JAX."""

from pymc_ep.kernels import ArrayKernel, register_kernel
from pymc_ep.models.sequences.kernel.body import (
    CELLS,
    Weights,
    Window,
    window_gradient,
)
from pymc_ep.models.sequences.kernel.candidates import Candidates, sampled_candidates
from pymc_ep.models.sequences.kernel.op import initial_states, sequence_logp
from pymc_ep.models.sequences.kernel.sequences import (
    Scores,
    Sequences,
    log_probabilities,
    longest_first,
    next_log_probabilities,
    window_of,
)

__all__ = [
    "CELLS",
    "Candidates",
    "Scores",
    "Sequences",
    "Weights",
    "Window",
    "initial_states",
    "log_probabilities",
    "longest_first",
    "next_log_probabilities",
    "sampled_candidates",
    "sequence_logp",
    "window_gradient",
    "window_of",
]

register_kernel(ArrayKernel("recurrent", __name__, ("jax", "numba")))
