"""EP on latent Gaussian models from end to end: options, hyperparameters, solution."""

from dataclasses import replace
from typing import Any

import numpy as np

from pymc_ep.engines.base import EngineEntry, Status, check_whole, register_engine
from pymc_ep.engines.bounded_sites import FactorSites
from pymc_ep.engines.budget import choose
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.evidence import Evidence, evidence_of
from pymc_ep.engines.evidence_op import EvidenceOp
from pymc_ep.engines.hyper import maximise, stay
from pymc_ep.engines.integrate import integrate
from pymc_ep.engines.many import fit_many
from pymc_ep.engines.report import Report
from pymc_ep.engines.solution import Solution
from pymc_ep.engines.solutions import integral_solution, many_solution, mode_solution, rebuild
from pymc_ep.engines.tree_start import first_hyperparameters
from pymc_ep.engines.tree_states import has_trees, require_two_states, told_of_states
from pymc_ep.forms.average import translations_of
from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.forms.compiled_sparse import CompiledSparseLinear
from pymc_ep.forms.latent_gaussian import LatentGaussian
from pymc_ep.forms.sparse_linear import SparseLinear

__all__ = ["OPTIONS", "SPARSE_OPTIONS", "condition", "evidence_op", "solve"]

OPTIONS = {
    "power": 1.0,
    "damping": "auto",
    "tol": 1e-8,
    "max_iter": 200,
    "schedule": "parallel",
    "solver": "auto",
}
"""Options of EP and their defaults."""
SPARSE_OPTIONS = OPTIONS | {"translations": 1}
"""The same on sparse linear models."""


def solve(
    form: CompiledLatentGaussian,
    *,
    hyper: str,
    theta: np.ndarray,
    start: dict[str, np.ndarray] | None,
    options: dict[str, Any],
    report: Report | None = None,
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
    report : Report, optional
        Called in each iteration with log evidence and change.
    checkpoint : Checkpoint, optional
        Receives the state at intervals.
    """
    settings = _checked(_options(form) | options)
    checkpoint = checkpoint or Checkpoint(None)
    density = "unconstrained" if hyper == "integrate" and theta.size else "natural"
    evidence = evidence_of(form, settings, report=report, checkpoint=checkpoint, density=density)
    sites = None if start is None else _sites_from(start, evidence)
    grids = settings.get("translations", 1)
    moved = translations_of(form, grids) if isinstance(form, CompiledSparseLinear) and grids > 1 else []
    if grids > 1 and hyper == "integrate" and theta.size:
        raise ValueError(f"translations={grids} holds hyperparameters at their mode: use hyper='optimize' or 'fixed'.")
    factors = FactorSites(form) if has_trees(form) else None
    if factors is not None:
        require_two_states(factors, theta, learn=hyper != "fixed")
        if hyper != "fixed" and sites is None:
            theta = first_hyperparameters(factors, theta)
    integral = None
    if hyper == "fixed" or not theta.size:
        found = stay(evidence, theta, sites)
    elif hyper == "integrate":
        integral = integrate(evidence, theta, sites)
        found = integral.mode
    else:
        found = maximise(evidence, theta, sites, spread=grids == 1)
    if hyper != "fixed":
        evidence.require_covariance(found.at.theta, found.at.prior)
    checkpoint.save(last=True, theta=found.at.theta, shift=found.at.sites[0], precision=found.at.sites[1])
    if integral is not None and integral.points:
        return integral_solution(form, evidence, integral, settings)
    translated = []
    for grid in moved:
        other = evidence_of(grid, settings, report=report, density=density)
        translated.append((other, other.at(found.at.theta)))
    solution = mode_solution(form, evidence, found, settings, translated)
    if hyper == "fixed" or factors is None:
        return solution
    return replace(solution, status=solution.status + told_of_states(factors, found.at.theta))


def choose_hyper(form: CompiledLatentGaussian, options: dict[str, Any], *, chains: bool) -> tuple[str, Status]:
    """Integrate over hyperparameters where that can be; trees and averages over grids are learned at a mode."""
    if options.get("translations", 1) > 1 or has_trees(form) or not form.start.size:
        return "optimize", Status(True, "")
    return choose(form, chains=chains)


def _options(form: CompiledLatentGaussian) -> dict[str, Any]:
    return SPARSE_OPTIONS if isinstance(form, CompiledSparseLinear) else OPTIONS


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Raise for options outside their range."""
    power, damping, tol = options["power"], options["damping"], options["tol"]
    if not (isinstance(power, int | float) and 0 < power <= 1):
        raise ValueError(f"power={power!r} must lie in (0, 1]; 1 is plain EP.")
    if damping != "auto" and not (isinstance(damping, int | float) and 0 < damping <= 1):
        raise ValueError(f"damping={damping!r} must be 'auto' or lie in (0, 1], the fraction of an update taken.")
    if not (isinstance(tol, int | float) and tol > 0):
        raise ValueError(f"tol={tol!r} must be positive.")
    check_whole("max_iter", options["max_iter"])
    if options["schedule"] not in ("parallel", "sequential"):
        raise ValueError(f"schedule={options['schedule']!r} must be 'parallel' or 'sequential'.")
    check_whole("translations", options.get("translations", 1))
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
    return EvidenceOp(form, _one_grid(form, options))


def _one_grid(form: CompiledLatentGaussian, options: dict[str, Any]) -> dict[str, Any]:
    settings = _checked(_options(form) | options)
    if settings.get("translations", 1) > 1:
        raise ValueError(
            f"translations={settings['translations']} needs hyperparameters at one value: use hyper='optimize' or "
            f"'fixed' instead of sampling them."
        )
    return settings


def condition(
    form: CompiledLatentGaussian,
    *,
    thetas: np.ndarray,
    options: dict[str, Any],
    report: Report | None = None,
) -> Solution:
    """Fit at each of many draws of the hyperparameters, (k, p); the solution draws from each fit in turn."""
    settings = _one_grid(form, options)
    evidence = evidence_of(form, settings, report=report, density="none")
    return many_solution(form, evidence, fit_many(evidence, thetas), settings)


for form, defaults in ((LatentGaussian, OPTIONS), (SparseLinear, SPARSE_OPTIONS)):
    register_engine(
        EngineEntry(
            "ep",
            form,
            solve,
            rebuild,
            defaults,
            ("optimize", "fixed", "integrate", "sample"),
            evidence_op=evidence_op,
            condition=condition,
            # Where data are missing the cavities of mixtures are wide, and EP stalls; the double loop does not.
            suits=lambda site: site is None or not site.coupled,
            choose_hyper=choose_hyper,
        )
    )
