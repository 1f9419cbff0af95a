"""Solutions: what a method hands to the results."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_ep.contracts.posterior import JointDraws

__all__ = ["Draws", "Solution"]

Draws = Callable[..., JointDraws]
"""``draws(size, rng, log_likelihood=...)``."""


@dataclass(frozen=True)
class Solution:
    """A fitted model, as arrays.

    Attributes
    ----------
    moments : dict
        Name of a variable to its posterior mean and standard deviation, at the variable's own shape.
    modes : dict
        Name of a variable to its posterior mode, where that is all that is known.
    hyper_modes : dict
        Hyperparameters at the mode, on their own scale.
    scalars : dict
        0-d results: log evidence and the like.
    traces : dict
        Name to (dim, values): histories.
    hyper_traces : dict
        Hyperparameters in each iteration, on their own scale, with the iterations as first axis.
    sites : dict
        Name of an observed variable to a dict of arrays of its shape: precision, shift, loo.
    coefficients : dict
        Name of a variable with a prior on its coefficients to a dict of arrays, (coefficients,), and numbers.
    state : dict
        Arrays from which the posterior can be rebuilt.
    draws : callable, optional
        None where there are none.
    most_draws : int
        Draws of a chain where no number is asked for.
    numbers_per_draw : int
        Size of one draw, for the default number of draws.
    status : str
    converged : bool
    settings : dict
    design : dict
        Hyperparameters at the points of a design, on their own scale, with the points as first axis.
    log_evidence_is : str
        What the log evidence is, for the result's attributes; empty where there is none.
    objective_is, max_change_is : str
        What the traces of these names are, for the result's attributes.
    """

    moments: dict[str, tuple[np.ndarray, np.ndarray]]
    hyper_modes: dict[str, np.ndarray]
    scalars: dict[str, Any]
    traces: dict[str, tuple[str, np.ndarray]]
    sites: dict[str, dict[str, np.ndarray]]
    state: dict[str, np.ndarray]
    draws: Draws | None
    numbers_per_draw: int
    status: str
    converged: bool
    settings: dict[str, Any] = field(default_factory=dict)
    design: dict[str, np.ndarray] = field(default_factory=dict)
    log_evidence_is: str = ""
    objective_is: str = "log evidence"
    max_change_is: str = "largest change of a site"
    modes: dict[str, np.ndarray] = field(default_factory=dict)
    most_draws: int = 1000
    hyper_traces: dict[str, np.ndarray] = field(default_factory=dict)
    coefficients: dict[str, dict[str, Any]] = field(default_factory=dict)
