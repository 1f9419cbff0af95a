"""From fits of a latent Gaussian form to what the results need: at a mode, over a design, or at many draws."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from pymc_ep.contracts.posterior import JointDraws, Moments, SitePosterior, left_out_of_all, weighted_moments
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.ep.sweep import group_slices
from pymc_ep.engines.prior import FactorValues, Prior
from pymc_ep.forms.latent_gaussian.posterior import LatentPosterior
from pymc_ep.forms.latent_gaussian.posterior_mixture import PosteriorMixture
from pymc_ep.forms.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.hyper.evidence.conditional_fits import ManyFits
from pymc_ep.hyper.evidence.evidence import Evidence, EvidenceAt
from pymc_ep.hyper.integration.corrections import Corrected
from pymc_ep.hyper.integration.integrate import Integral
from pymc_ep.hyper.maximise import Hyper
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior
from pymc_ep.numerics.interpolation.spline import Spline
from pymc_ep.sites.compiled import CompiledSite

__all__ = [
    "AT_VALUES",
    "at_mode",
    "coefficient_results",
    "integral_solution",
    "many_solution",
    "mode_solution",
    "mode_state",
    "mode_traces",
    "outcome",
    "rebuild",
    "solution_at",
]

_ROWS = 100
"""Draws of the hyperparameters at which predictive densities are interpolated at a time."""
_MOST_PREDICTIVE = 10_000_000
"""Predictive densities up to which all places count, with their tails, instead of the draws."""
AT_VALUES = "log density of the data at the hyperparameters of the result, without their prior"
_MIXTURE = ("design_thetas", "design_shifts", "design_precisions", "hyper_draws")
"""Names in the state of what a `PosteriorMixture` is made of."""
_INTEGRATED = "log density of the data, integrated over the prior of the hyperparameters"


def rebuild(
    form: SiteFunctions,
    state: Mapping[str, np.ndarray],
    mode: tuple[Prior, GaussianPosterior] | None = None,
) -> LatentPosterior | PosteriorMixture:
    """Return the posterior that a saved ``fit_state`` describes; a fit just made knows what is at the mode."""
    centre = LatentPosterior(
        form,
        state["theta"],
        state["shift"],
        state["precision"],
        state["directions"],
        state["d_shift"],
        state["d_precision"],
        mode,
    )
    if "design_thetas" not in state:
        return centre
    return PosteriorMixture(form, centre, *(state[name] for name in _MIXTURE))


def mode_solution(form: SiteFunctions, evidence: Evidence, found: Hyper, settings: dict[str, Any]) -> Solution:
    """Return the solution with hyperparameters at their mode, or held."""
    at = found.at
    status = outcome(at, found)
    state = mode_state(evidence, found)
    return solution_at(
        form,
        evidence,
        at,
        state,
        rebuild(form, state, at_mode(at)),
        settings,
        log_predictive=evidence.leave_one_out(at),
        scalars={"log_evidence": at.log_z, "n_iter": len(at.run.objective)},
        traces=mode_traces(found),
        status=status.sentence,
        converged=status.converged,
        log_evidence_is=AT_VALUES,
    )


def mode_state(evidence: Evidence, found: Hyper) -> dict[str, np.ndarray]:
    """Return the saved state of a fit at the mode of the hyperparameters, or where they are held."""
    directions = np.zeros((0, found.at.theta.size)) if found.factor is None else found.factor.T
    spread = {"directions": directions, "d_shift": found.d_shift, "d_precision": found.d_precision}
    return _state(evidence, found.at) | spread


def mode_traces(found: Hyper) -> dict[str, tuple[str, np.ndarray]]:
    """Return the histories of the last fit and of the search."""
    return _history(found.at) | {"hyper_objective": ("hyper_iteration", found.trace)}


def integral_solution(form: SiteFunctions, evidence: Evidence, found: Integral, settings: dict[str, Any]) -> Solution:
    """Return the solution that mixes over a design of hyperparameters."""
    at = found.mode.at
    points = found.points
    thetas = np.array([point.theta for point in points])
    state = _state(evidence, at) | _mixture_state(
        thetas,
        np.array([point.sites[0] for point in points]),
        np.array([point.sites[1] for point in points]),
        found.draws,
    )
    values = np.array([point.value for point in points])
    status = outcome(at, found)
    return solution_at(
        form,
        evidence,
        at,
        state,
        rebuild(form, state, at_mode(at)),
        settings,
        log_predictive=_left_out_of_draws(found),
        hyper_moments=weighted_moments(form.constrained(found.thetas), found.theta_weights),
        scalars={
            "log_evidence": found.log_evidence,
            "n_iter": len(at.run.objective),
            "hyper_ess": found.effective,
            "hyper_log_weight_sd": found.spread,
            "n_evaluations": found.evaluations,
        }
        | _own_error(found.corrected),
        traces=_history(at)
        | {
            "hyper_objective": ("hyper_iteration", found.mode.trace),
            "hyper_weight": ("hyper_point", found.weights),
            "hyper_log_density": ("hyper_point", values),
        },
        status=status.sentence,
        converged=status.converged,
        design=form.constrained(thetas),
        log_evidence_is=_INTEGRATED,
    )


def _own_error(corrected: Corrected | None) -> dict[str, float]:
    """Return what EP's own error has done to evidence and hyperparameters, where that is known."""
    if corrected is None or not corrected.known:
        return {}
    return {
        "cumulant_correction": corrected.log_factor,
        "cumulant_shift": float(np.max(np.abs(corrected.shift))),
    }


def many_solution(form: SiteFunctions, evidence: Evidence, found: ManyFits, settings: dict[str, Any]) -> Solution:
    """Return the solution that has each of many draws of the hyperparameters in turn; it knows no evidence.

    For their mode stands the draw nearest to their mean.
    """
    k = len(found.thetas)
    weights = np.full(k, 1.0 / k)
    state = _state(evidence, found.centre) | _mixture_state(
        found.thetas, found.shifts, found.precisions, np.zeros((0, found.thetas.shape[1]))
    )
    lost = f"{found.stalled} of them did not converge" if found.stalled else ""
    left = f"interrupted: {found.unfitted} of them have the sites of a near one" if found.unfitted else ""
    return solution_at(
        form,
        evidence,
        found.centre,
        state,
        rebuild(form, state, at_mode(found.centre)),
        settings,
        log_predictive=left_out_of_all(weights, found.log_predictives),
        scalars={},
        traces={},
        status="; ".join(filter(None, [f"fits at {k} draws of the hyperparameters", lost, left])),
        converged=not (found.stalled or found.unfitted),
        in_turn=k,
    )


def at_mode(at: EvidenceAt) -> tuple[Prior, GaussianPosterior]:
    """Return prior and posterior of a fit, from which its `LatentPosterior` need not be made again."""
    return at.prior, at.run.state.sweep.posterior


def solution_at(
    form: SiteFunctions,
    evidence: Evidence,
    at: EvidenceAt,
    state: dict[str, np.ndarray],
    posterior: SitePosterior,
    settings: dict[str, Any],
    *,
    log_predictive: np.ndarray,
    hyper_moments: dict[str, Moments] | None = None,
    in_turn: int = 0,
    **others: Any,
) -> Solution:
    """Fill in what follows from the posterior; `in_turn` components are drawn from one after another, not at random."""
    found = (hyper_moments or posterior.hyper_moments()) | posterior.moments()
    moments = {name: (m.mean, m.sd) for name, m in found.items()}

    def draws(size: int, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        if isinstance(posterior, PosteriorMixture) and in_turn:
            component = np.repeat(np.arange(in_turn), size // in_turn)
            return posterior.draws_of(component, rng, log_likelihood=log_likelihood)
        return posterior.draws(size, rng, log_likelihood=log_likelihood)

    sweep = at.run.state.sweep
    mean, sd = np.asarray(sweep.posterior.mean), np.sqrt(np.asarray(sweep.posterior.variance))
    cavity_mean, cavity_variance = np.asarray(sweep.cavity_mean), np.asarray(sweep.cavity_variance)

    def tilted(site: CompiledSite, y: np.ndarray, here: slice, parameters: Any) -> dict[str, Any]:
        return site.tilted_report(y, cavity_mean[here], cavity_variance[here], evidence.engine.power, *parameters)

    return Solution(
        moments=moments,
        hyper_modes=form.constrained(at.theta),
        sites=_site_results(form, evidence, at, log_predictive),
        coefficients=coefficient_results(form, evidence.observed, at.prior, tilted, mean, sd),
        state=state,
        draws=draws,
        numbers_per_draw=sum(m.size for m, _ in moments.values()),
        most_draws=form.most_draws,
        settings=settings,
        **others,
    )


def _mixture_state(*parts: np.ndarray) -> dict[str, np.ndarray]:
    """Return the saved parts of a `PosteriorMixture`, in its order."""
    return dict(zip(_MIXTURE, parts))


def _state(evidence: Evidence, at: EvidenceAt) -> dict[str, np.ndarray]:
    """Return the saved state of one fit whose hyperparameters are held."""
    n = len(at.sites[0])
    return {
        "theta": at.theta,
        "shift": at.sites[0],
        "precision": at.sites[1],
        "directions": np.zeros((0, at.theta.size)),
        "d_shift": np.zeros((0, n)),
        "d_precision": np.zeros((0, n)),
        # What the sites belong to: a model whose data have changed since is told by these.
        "observed": np.concatenate(evidence.observed),
        "prior_mean": np.asarray(at.prior.mean),
        "prior_variance": np.asarray(at.prior.gaussian.variances()),
    }


def outcome(at: EvidenceAt, found: Hyper | Integral) -> Status:
    """Say how the fits and the search of the hyperparameters ended, first what did not converge."""
    run = at.run.status
    sentences = [run.sentence, found.sentence]
    if run.converged and not found.converged:
        sentences = [found.sentence, f"at the values of the result EP itself {run.sentence}"]
    return Status(run.converged and found.converged, "; ".join(filter(None, sentences)))


def _history(at: EvidenceAt) -> dict[str, tuple[str, np.ndarray]]:
    objective = at.run.objective + at.prior.log_excess
    return {"objective": ("iteration", objective), "max_change": ("iteration", at.run.change)}


def coefficient_results(
    form: SiteFunctions,
    observed: Sequence[np.ndarray],
    prior: Prior | FactorValues,
    told_by: Callable[..., dict[str, Any]],
    mean: np.ndarray,
    sd: np.ndarray | None,
) -> dict[str, dict[str, Any]]:
    """Return what sites of potentials have to tell, such as the states of mixtures, with moments of the coefficients.

    `told_by` takes a compiled site, its observations, its place among all sites and its parameters.
    """
    out = {}
    parts = zip(form.form.factors, form.sites, observed, prior.parameters, group_slices(observed))
    for group, site, y, parameters, here in parts:
        if told := told_by(site, y, here, parameters):
            out[group.name] = told | {"coefficient_mean": mean[here]}
            if sd is not None:
                out[group.name]["coefficient_sd"] = sd[here]
    return out


def _left_out_of_draws(found: Integral) -> np.ndarray:
    """Return log p(y_i | y_-i), (n,), over the draws of the hyperparameters, interpolated between the fits."""
    known = np.array([point.log_predictive for point in found.points])
    # As deviance residuals, which are smoother than log densities far out.
    highest = known.max(axis=0) + 1.0
    residuals = Spline(np.array([point.theta for point in found.points]), np.sqrt(highest - known))
    rows, weights = found.thetas, found.theta_weights
    if len(rows) * len(found.points[0].log_predictive) > _MOST_PREDICTIVE:
        rows = found.draws if len(found.draws) else np.array([point.theta for point in found.points])
        weights = np.full(len(rows), 1.0 / len(rows))
    counting = weights > np.finfo(float).tiny
    rows, log_weights = rows[counting], np.log(weights[counting])
    count = -(-len(rows) // _ROWS)
    parts = zip(np.array_split(rows, count), np.array_split(log_weights, count))
    inverses = (share[:, None] + residuals(part) ** 2 - highest for part, share in parts)
    return -logsumexp([logsumexp(part, axis=0) for part in inverses], axis=0)


def _site_results(
    form: SiteFunctions, evidence: Evidence, at: EvidenceAt, log_predictive: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """Return each observed variable's leave-one-out log predictive densities, sites and maybe intensity, at `at`."""
    out = {}
    posterior = at.run.state.sweep.posterior
    mean, variance = np.asarray(posterior.mean), np.asarray(posterior.variance)
    for group, y, here in zip(form.form.groups, form.observed(), group_slices(evidence.observed)):
        out[group.name] = {
            "loo": log_predictive[here].reshape(y.shape),
            "site_precision": at.sites[1][here].reshape(y.shape),
            "site_shift": at.sites[0][here].reshape(y.shape),
        }
        if group.site.intensity is not None:
            out[group.name]["intensity"] = group.site.intensity(mean[here], variance[here]).reshape(y.shape)
    return out
