"""Methods: what ``method=`` names, and the one call that every method gets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_ep.contracts.posterior import Posterior
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Report, Status
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.sites.base import Site

__all__ = ["Call", "Method"]

_FINE = Status(True, "")


@dataclass(frozen=True)
class Call:
    """What a method is asked to do.

    Attributes
    ----------
    form : CompiledForm
    theta : ndarray, (p,)
        Unconstrained hyperparameters to start from, or to stay at.
    hyper : {"optimize", "fixed", "integrate"}
        What becomes of them.
    start : mapping of str to ndarray, optional
        ``fit_state`` of an earlier fit.
    options : dict
        Overrides of the method's own `Method.options`.
    report : Report
        Told of phases, and of objective and change in each iteration.
    checkpoint : Checkpoint
        Receives the state at intervals.
    """

    form: Any
    theta: np.ndarray
    hyper: str = "optimize"
    start: Mapping[str, np.ndarray] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


@dataclass(frozen=True)
class Method:
    """A method in the registry.

    Attributes
    ----------
    name : str
        What `pymc_ep.fit` calls ``method``.
    form : type
        The form it solves.
    solve : callable
        ``solve(call) -> Solution``.
    rebuild : callable
        ``rebuild(compiled form, state) -> Posterior``: from the arrays of a saved state.
    options : dict
        Options it takes beyond those of `pymc_ep.fit`, with their defaults.
    hyper : tuple of str
        Treatments of hyperparameters it offers; ``"sample"`` needs the two below.
    evidence_op : callable, optional
        ``evidence_op(compiled form, options) -> Op`` with outputs log evidence and gradient, and a method
        ``endless_directions(theta)`` that names where the posterior of the hyperparameters is improper.
    condition : callable, optional
        ``condition(call, thetas) -> Solution``: given draws of the hyperparameters, (k, p).
    takes : callable
        Whether it can work with a site, None standing for the quadrature of a density; by default it can with any.
    suits : callable
        Whether it is to be taken for such a site where no method is asked for and another would do.
    takes_form : callable
        Whether it can work with a form, its sites aside; by default it can with any.
    choose_hyper : callable
        ``choose_hyper(compiled form, options, chains=) -> (str, Status)``: the treatment that ``hyper="auto"`` stands
        for, and why that is not the best one. It may be ``"sample"`` only if `chains` is true.
    """

    name: str
    form: type
    solve: Callable[[Call], Solution]
    rebuild: Callable[[Any, Mapping[str, np.ndarray]], Posterior]
    options: dict[str, Any]
    hyper: tuple[str, ...]
    evidence_op: Callable[..., Any] | None = None
    condition: Callable[[Call, np.ndarray], Solution] | None = None
    takes: Callable[[Site | None], bool] = lambda site: True
    suits: Callable[[Site | None], bool] = lambda site: True
    takes_form: Callable[[Any], bool] = lambda form: True
    choose_hyper: Callable[..., tuple[str, Status]] = lambda form, options, *, chains: ("optimize", _FINE)
