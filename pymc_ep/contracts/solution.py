"""Solutions: the output of a method, from which the result of a fit is written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_ep.contracts.posterior import JointDraws

__all__ = ["Draws", "RandomSeed", "Solution"]

RandomSeed = int | Sequence[int] | np.random.SeedSequence | np.random.BitGenerator | np.random.Generator | None
"""Type of the argument of `numpy.random.default_rng`."""

Draws = Callable[..., JointDraws]
"""Sampler of the posterior, ``draws(size, rng, log_likelihood=...)``."""


@dataclass(frozen=True)
class Solution:
    """A fitted model, as arrays.

    Attributes
    ----------
    moments : callable
        Returns the posterior mean and standard deviation of each variable, by name and at its own shape. Called after
        `draws`, whose work it may reuse.
    modes : dict
        Name of a variable to its posterior mode, for variables without moments.
    hyper_modes : dict
        Hyperparameters at the mode, on their own scale.
    scalars : dict
        Scalar results, such as the log evidence.
    traces : dict
        Name to (dim, values): histories of the iterations.
    hyper_traces : dict
        Hyperparameters on their own scale, (iterations, *shape).
    sites : dict
        Name of a variable, such as an observed one, to a dict of arrays of its shape: precision, shift, loo.
    coefficients : dict
        Name of a variable with a prior on its coefficients to a dict of numbers and of arrays, one element for each
        coefficient.
    state : dict
        Arrays from which the posterior can be rebuilt.
    draws : callable, optional
        Sampler of the posterior; None where the method has none.
    most_draws : int
        Default number of draws of a chain; 1 where all draws are the same, for which the default is one chain.
    numbers_per_draw : int
        Count of numbers in one joint draw, from which the default number of draws follows.
    status : str
        How the fit ended, for the user.
    converged : bool
    settings : dict
        Options of the fit, stored with the result.
    design : dict
        Hyperparameters on their own scale at the points of a design, (points, *shape).
    log_evidence_is : str
        Definition of the log evidence, stored as an attribute; empty where there is none.
    objective_is, max_change_is : str
        Definitions of the traces of these names, stored as attributes.
    """

    moments: Callable[[], Mapping[str, tuple[np.ndarray, np.ndarray]]]
    state: dict[str, np.ndarray]
    status: str
    converged: bool
    draws: Draws | None = None
    numbers_per_draw: int = 0
    most_draws: int = 1000
    modes: dict[str, np.ndarray] = field(default_factory=dict)
    hyper_modes: dict[str, np.ndarray] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    traces: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    hyper_traces: dict[str, np.ndarray] = field(default_factory=dict)
    sites: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    coefficients: dict[str, dict[str, Any]] = field(default_factory=dict)
    design: dict[str, np.ndarray] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    log_evidence_is: str = ""
    objective_is: str = "objective"
    max_change_is: str = "largest change of a site"
