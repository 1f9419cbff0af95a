"""EP on latent Gaussian models from end to end: options, hyperparameters, solution."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_ep.engines.base import EngineEntry, register_engine
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.ep import EP
from pymc_ep.engines.ep_sweep import group_slices
from pymc_ep.engines.evidence import Evidence, EvidenceAt
from pymc_ep.engines.hyper import Hyper, maximise, stay
from pymc_ep.engines.solution import Solution
from pymc_ep.forms.compiled import CompiledLatentGaussian, Prior
from pymc_ep.forms.latent_gaussian import LatentGaussian
from pymc_ep.forms.posterior import LatentPosterior
from pymc_ep.linalg.gaussian import GaussianPosterior

__all__ = ["OPTIONS", "rebuild", "solve"]

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
    hyper : {"optimize", "fixed"}
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
    engine = EP(form.sites, **{k: settings[k] for k in ("power", "damping", "tol", "schedule")})
    form.solve_in(settings["solver"])
    checkpoint = checkpoint or Checkpoint(None)
    evidence = Evidence(form, engine, settings["max_iter"], report, checkpoint)
    sites = None if start is None else _sites_from(start, evidence)
    if hyper == "optimize":
        found = maximise(evidence, theta, sites)
        evidence.require_covariance(found.at.theta, found.at.prior)
    else:
        found = stay(evidence, theta, sites)
    checkpoint.save(last=True, theta=found.at.theta, shift=found.at.sites[0], precision=found.at.sites[1])
    return _solution(form, evidence, found, settings)


def rebuild(
    form: CompiledLatentGaussian,
    state: dict[str, np.ndarray],
    mode: tuple[Prior, GaussianPosterior] | None = None,
) -> LatentPosterior:
    """Return the posterior that a saved ``fit_state`` describes; a fit just made knows what is at the mode."""
    return LatentPosterior(
        form,
        state["theta"],
        state["shift"],
        state["precision"],
        state["directions"],
        state["d_shift"],
        state["d_precision"],
        mode,
    )


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


def _solution(form: CompiledLatentGaussian, evidence: Evidence, found: Hyper, settings: dict[str, Any]) -> Solution:
    at = found.at
    run = at.run
    p = at.theta.size
    directions = np.zeros((0, p)) if found.factor is None else found.factor.T
    state = {
        "theta": at.theta,
        "shift": at.sites[0],
        "precision": at.sites[1],
        "directions": directions,
        "d_shift": found.d_shift,
        "d_precision": found.d_precision,
        # What the sites belong to: a model whose data have changed since is told by these.
        "observed": np.concatenate(evidence.observed),
        "prior_mean": np.asarray(at.prior.mean),
        "prior_variance": np.asarray(at.prior.gaussian.variances()),
    }
    posterior = rebuild(form, state, (at.prior, run.state.sweep.posterior))
    moments = {name: (m.mean, m.sd) for name, m in (posterior.hyper_moments() | posterior.moments()).items()}
    size = sum(m.size for m, _ in moments.values())
    status = "; ".join(filter(None, [run.status.sentence, found.sentence]))
    return Solution(
        moments=moments,
        hyper_modes=form.constrained(at.theta),
        scalars={"log_evidence": at.log_z, "n_iter": len(run.objective)},
        traces={
            "objective": ("iteration", run.objective),
            "max_change": ("iteration", run.change),
            "hyper_objective": ("hyper_iteration", found.trace),
        },
        sites=_site_results(form, evidence, at),
        state=state,
        draws=posterior.draws,
        numbers_per_draw=size,
        status=status,
        converged=run.status.converged and found.converged,
        settings=settings,
    )


def _site_results(form: CompiledLatentGaussian, evidence: Evidence, at: EvidenceAt) -> dict[str, dict[str, np.ndarray]]:
    """Return each observed variable's sites and leave-one-out log predictive densities.

    EP's cavity is the posterior without the observation, so log Zhat is its predictive density; with a fractional
    power the whole site is removed for this.
    """
    sweep = at.run.state.sweep
    whole = EP(form.sites, power=1.0)
    out = {}
    removed = whole.sweep(at.problem, *at.sites) if evidence.engine.power != 1.0 else sweep
    for group, y, here in zip(form.form.groups, form.observed(), group_slices(evidence.observed)):
        out[group.name] = {
            "loo": np.asarray(removed.tilted.log_z)[here].reshape(y.shape),
            "site_precision": at.sites[1][here].reshape(y.shape),
            "site_shift": at.sites[0][here].reshape(y.shape),
        }
    return out


register_engine(EngineEntry("ep", LatentGaussian, solve, rebuild, OPTIONS, ("optimize", "fixed")))
