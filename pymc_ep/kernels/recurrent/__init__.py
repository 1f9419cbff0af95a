"""The collaborative recurrent network: log probabilities of sequences and their gradient, in NumPy and JAX."""

from pymc_ep.kernels.recurrent.body import (
    CELLS,
    Gradient,
    Weights,
    Window,
    Windowed,
    log_softmax,
    window_gradient,
)
from pymc_ep.kernels.recurrent.op import initial_states, sequence_logp
from pymc_ep.kernels.recurrent.sequences import (
    Scores,
    Sequences,
    log_probabilities,
    longest_first,
    next_log_probabilities,
    window_of,
)

__all__ = [
    "CELLS",
    "Gradient",
    "Scores",
    "Sequences",
    "Weights",
    "Window",
    "Windowed",
    "initial_states",
    "log_probabilities",
    "log_softmax",
    "longest_first",
    "next_log_probabilities",
    "sequence_logp",
    "window_gradient",
    "window_of",
]
