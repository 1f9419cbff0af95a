"""EP on latent Gaussian models from end to end: options, hyperparameters, solution."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_ep.engines.base import EngineEntry, register_engine
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.evidence import Evidence, evidence_of
from pymc_ep.engines.evidence_op import EvidenceOp
from pymc_ep.engines.hyper import maximise, stay
from pymc_ep.engines.integrate import integrate
from pymc_ep.engines.many import fit_many
from pymc_ep.engines.requirements import require_moments
from pymc_ep.engines.solution import Solution
from pymc_ep.engines.solutions import integral_solution, many_solution, mode_solution, rebuild
from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.forms.latent_gaussian import LatentGaussian
from pymc_ep.forms.sparse_linear import SparseLinear

__all__ = ["OPTIONS", "condition", "evidence_op", "solve"]

OPTIONS = {
    "power": 1.0,
    "damping": "auto",
    "tol": 1e-8,
    "max_iter": 200,
    "schedule": "parallel",
    "solver": "auto",
}
"""Options of EP and their defaults."""


def solve(
    form: CompiledLatentGaussian,
    *,
    hyper: str,
    theta: np.ndarray,
    start: dict[str, np.ndarray] | None,
    options: dict[str, Any],
    report: Callable[[float, float], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Fit a latent Gaussian form by expectation propagation.

    Parameters
    ----------
    form : CompiledLatentGaussian
    hyper : {"optimize", "fixed", "integrate"}
    theta : ndarray, (p,)
        Unconstrained hyperparameters to start from, or to stay at.
    start : dict, optional
        ``fit_state`` of an earlier fit: its sites are the first ones.
    options : dict
        Overrides of `OPTIONS`.
    report : callable, optional
        Called in each iteration with log evidence and change.
    checkpoint : Checkpoint, optional
        Receives the state at intervals.
    """
    settings = _checked(OPTIONS | options)
    checkpoint = checkpoint or Checkpoint(None)
    density = "unconstrained" if hyper == "integrate" and theta.size else "natural"
    evidence = evidence_of(form, settings, report=report, checkpoint=checkpoint, density=density)
    sites = None if start is None else _sites_from(start, evidence)
    integral = None
    if hyper == "fixed" or not theta.size:
        found = stay(evidence, theta, sites)
    elif hyper == "integrate":
        integral = integrate(evidence, theta, sites)
        found = integral.mode
    else:
        found = maximise(evidence, theta, sites)
    if hyper != "fixed":
        evidence.require_covariance(found.at.theta, found.at.prior)
    checkpoint.save(last=True, theta=found.at.theta, shift=found.at.sites[0], precision=found.at.sites[1])
    if integral is not None and integral.points:
        return integral_solution(form, evidence, integral, settings)
    return mode_solution(form, evidence, found, settings)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Raise for options outside their range."""
    power, damping, tol = options["power"], options["damping"], options["tol"]
    if not (isinstance(power, int | float) and 0 < power <= 1):
        raise ValueError(f"power={power!r} must lie in (0, 1]; 1 is plain EP.")
    if damping != "auto" and not (isinstance(damping, int | float) and 0 < damping <= 1):
        raise ValueError(f"damping={damping!r} must be 'auto' or lie in (0, 1], the fraction of an update taken.")
    if not (isinstance(tol, int | float) and tol > 0):
        raise ValueError(f"tol={tol!r} must be positive.")
    if not (isinstance(options["max_iter"], int) and options["max_iter"] > 0):
        raise ValueError(f"max_iter={options['max_iter']!r} must be a positive whole number.")
    if options["schedule"] not in ("parallel", "sequential"):
        raise ValueError(f"schedule={options['schedule']!r} must be 'parallel' or 'sequential'.")
    return options


def _sites_from(start: dict[str, np.ndarray], evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    n = sum(len(y) for y in evidence.observed)
    if len(start["shift"]) != n:
        raise ValueError(
            f"start= holds {len(start['shift'])} sites but the model now has {n} observations; fit without start=, or "
            f"pass the hyperparameters alone as a dict."
        )
    return start["shift"], start["precision"]


def evidence_op(form: CompiledLatentGaussian, options: dict[str, Any]) -> EvidenceOp:
    """Return the log evidence as an Op of the unconstrained hyperparameters."""
    require_moments(form.form.factors)
    return EvidenceOp(form, _checked(OPTIONS | options))


def condition(
    form: CompiledLatentGaussian,
    *,
    thetas: np.ndarray,
    options: dict[str, Any],
    report: Callable[[float, float], None] | None = None,
) -> Solution:
    """Fit at each of many draws of the hyperparameters, (k, p); the solution draws from each fit in turn."""
    settings = _checked(OPTIONS | options)
    evidence = evidence_of(form, settings, report=report, density="none")
    return many_solution(form, evidence, fit_many(evidence, thetas), settings)


for form in (LatentGaussian, SparseLinear):
    register_engine(
        EngineEntry(
            "ep",
            form,
            solve,
            rebuild,
            OPTIONS,
            ("optimize", "fixed", "integrate", "sample"),
            evidence_op=evidence_op,
            condition=condition,
            takes=lambda site: site is None or site.has_moments,
        )
    )
