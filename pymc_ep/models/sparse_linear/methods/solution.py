"""Solutions of the double loop and of the posterior mode."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_ep.contracts.posterior import JointDraws
from pymc_ep.contracts.solution import Solution
from pymc_ep.evidence import ManyFits
from pymc_ep.evidence.bound import BoundAt
from pymc_ep.evidence.ep.sweep import group_slices
from pymc_ep.exceptions import at_index, first_index
from pymc_ep.models.latent_gaussian.methods.site_results import coefficient_results
from pymc_ep.models.latent_gaussian.methods.solution import conditional_state, rebuild
from pymc_ep.models.latent_gaussian.posterior import LatentPosterior
from pymc_ep.models.latent_gaussian.posterior_mixture import PosteriorMixture
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.models.sparse_linear.engine.precision_solvers import Iterative
from pymc_ep.models.sparse_linear.methods.double_loop import BoundFit
from pymc_ep.models.sparse_linear.posterior_average import Part, PosteriorAverage, grid_state, rebuild_average
from pymc_ep.models.sparse_linear.posterior_sampled import SampledPosterior
from pymc_ep.sites.compiled import CompiledSite

__all__ = ["bound_solution", "conditional_solution", "mode_of_density", "rebuild_bounds"]

_BOUND = "lower bound on the log density of the data at the hyperparameters of the result, without their prior"
"""Description of the log evidence in the result."""
Posterior = LatentPosterior | PosteriorAverage | PosteriorMixture | SampledPosterior
_BY_GRID = "shift", "precision", "unknowns"
"""Entries of the state that each translated grid has of its own."""
_VANISHED = 1e-10
"""Size of a learned scale, relative to its initial value, below which it counts as zero: no data ask for a scale ten
orders of magnitude below the first guess."""
_CG = ("n_samples", "seed", "cg_tol", "cg_max_iter")
"""Settings for draws without a factor of the precision; they are kept in the state."""


def bound_solution(form: CompiledSparseLinear, fit: BoundFit) -> Solution:
    """Return the solution of the double loop, at one value of the hyperparameters, learned or given."""
    state = _state(form, fit)
    state |= grid_state([{name: getattr(other.state, name) for name in _BY_GRID} for other in fit.translated])
    if fit.log_evidence is None:
        state |= {name: np.asarray(fit.settings[name]) for name in _CG}
    posterior = rebuild_bounds(form, state)
    moments = {name: (m.mean, m.sd) for name, m in (posterior.hyper_moments() | posterior.moments()).items()}
    evidence = {} if fit.log_evidence is None else {"log_evidence": fit.log_evidence}
    return Solution(
        moments=lambda: moments,
        sites=_sites(form, fit),
        scalars=fit.scalars | evidence,
        draws=posterior.draws,
        numbers_per_draw=sum(mean.size for mean, _ in moments.values()),
        most_draws=form.most_draws,
        log_evidence_is=_BOUND if evidence else "",
        objective_is="bound + log prior" if evidence else "inner objective + log prior",
        **_shared(form, fit, state),
    )


def conditional_solution(form: CompiledSparseLinear, fits: ManyFits[BoundAt], settings: dict[str, Any]) -> Solution:
    """Return the solution of a mixture over draws of the hyperparameters, without a log evidence."""
    centre, states = fits.centre.maximum.saved, [fit.state for fit in fits.kept]
    sites = np.array([state.shift for state in states]), np.array([state.precision for state in states])
    state = _state(form, centre) | conditional_state(fits.thetas, *sites)
    posterior = rebuild_bounds(form, state)
    assert isinstance(posterior, PosteriorMixture), "its state has a design"
    moments = {name: (m.mean, m.sd) for name, m in (posterior.hyper_moments() | posterior.moments()).items()}

    def draws(size: int, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        components = np.repeat(np.arange(len(states)), size // len(states))
        return posterior.draws_of(components, rng, log_likelihood=log_likelihood)

    return Solution(
        moments=lambda: moments,
        sites=_sites(form, centre),
        draws=draws,
        numbers_per_draw=sum(mean.size for mean, _ in moments.values()),
        most_draws=form.most_draws,
        **_shared(form, centre, state)
        | {
            "traces": {},
            "hyper_traces": {},
            "status": fits.sentence("sites"),
            "converged": fits.converged,
            "settings": settings,
        },
    )


def mode_of_density(form: CompiledSparseLinear, fit: BoundFit) -> Solution:
    """Return the solution with the mode of the posterior density only."""
    state = _state(form, fit)
    modes = {v.name: form.affine_values(fit.state.theta, v, [fit.state.unknowns])[0] for v in form.form.affine}
    return Solution(
        moments=dict,
        modes=modes,
        scalars=fit.scalars,
        objective_is="log density",
        **_shared(form, fit, state),
    )


def rebuild_bounds(form: CompiledSparseLinear, state: Mapping[str, np.ndarray]) -> Part | PosteriorAverage:
    """Return the posterior that a saved ``fit_state`` of the double loop describes."""
    return rebuild_average(form, state, _rebuild_one)


def _rebuild_one(form: CompiledSparseLinear, state: Mapping[str, np.ndarray]) -> Part:
    if "n_samples" not in state:
        return rebuild(form, state)
    n_samples, seed, tol, max_iter = (state[name].item() for name in _CG)
    solver = Iterative(form.linear, n_samples=n_samples, seed=seed, cg_tol=tol, cg_max_iter=max_iter)

    def draw(size: int, rng: np.random.Generator) -> np.ndarray:
        return solver.draw(state["precision"], size, rng)

    samples = draw(n_samples, np.random.default_rng(seed))
    return SampledPosterior(form, state["theta"], state["unknowns"], draw, samples)


def _shared(form: CompiledSparseLinear, fit: BoundFit, state: dict[str, np.ndarray]) -> dict[str, Any]:
    prior, variance = form.factors_at(fit.state.theta), fit.state.variance
    eta = np.asarray(prior.mean) + form.linear.forward(fit.state.unknowns)
    sd = None if "smoothing" in fit.settings else np.sqrt(variance)

    def bounded(site: CompiledSite, y: np.ndarray, places: slice, parameters: Sequence[np.ndarray]) -> dict[str, Any]:
        return site.report(y, eta[places], variance[places], *parameters)

    return {
        "hyper_modes": form.constrained(fit.state.theta),
        "hyper_traces": form.constrained(fit.thetas),
        "coefficients": coefficient_results(form, fit.observed, prior, bounded, eta, sd),
        "traces": {"objective": ("iteration", fit.objective), "max_change": ("iteration", fit.change)},
        "state": state,
        "status": fit.status.sentence + _scale_warning(form, fit.thetas),
        "converged": fit.status.converged,
        "settings": fit.settings,
        "max_change_is": "largest change",
    }


def _scale_warning(form: CompiledSparseLinear, thetas: np.ndarray) -> str:
    """Return the warning for a learned scale that ran to zero, else an empty string."""
    if not np.ptp(thetas, axis=0).any():
        return ""
    first, last = form.constrained(form.start), form.constrained(thetas[-1])
    for name, transformed in zip(form.form.hyper_names, form.form.hyper_transformed):
        vanished = np.atleast_1d(last[name] < _VANISHED * first[name]) & transformed
        if vanished.any():
            return (
                f"; {name!r} ran to zero{at_index(first_index(vanished))}, as the data ask for "
                f"coefficients that are exactly zero and its prior lets it: give it one without density at zero, such "
                f"as pm.InverseGamma, or a number"
            )
    return ""


def _state(form: CompiledSparseLinear, fit: BoundFit) -> dict[str, np.ndarray]:
    state = fit.state
    n, p = len(state.shift), state.theta.size
    return {
        "theta": state.theta,
        "shift": state.shift,
        "precision": state.precision,
        "unknowns": state.unknowns,
        "variance": state.variance,
        "directions": np.zeros((0, p)),
        "d_shift": np.zeros((0, n)),
        "d_precision": np.zeros((0, n)),
        # Data that the sites belong to: predictions compare them with the model's.
        "observed": np.concatenate([np.ravel(y) for y in form.observed()]),
        "prior_mean": np.asarray(form.factors_at(state.theta).mean),
    }


def _sites(form: CompiledSparseLinear, fit: BoundFit) -> dict[str, dict[str, np.ndarray]]:
    """Return the Gaussian lower bounds of the sites of each observed variable."""
    out = {}
    slices = group_slices(fit.observed)
    for group, y, origin, places in zip(form.form.groups, form.observed(), form.origins(), slices):
        shift, precision = fit.state.shift[places], fit.state.precision[places]
        # exp(b f - pi f^2 / 2) of f = eta - o, with o the origin, has the shift b + pi o in eta.
        natural = {"site_precision": precision, "site_shift": shift + precision * origin}
        out[group.name] = {name: values.reshape(y.shape) for name, values in natural.items()}
    return out
