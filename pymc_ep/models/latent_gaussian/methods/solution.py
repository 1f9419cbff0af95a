"""Solutions from fits of a latent Gaussian form: at a mode, over a design, or at draws of the hyperparameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_ep.contracts.evidence import FitState
from pymc_ep.contracts.posterior import AffinePosterior, JointDraws, Moments
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.prior import Prior
from pymc_ep.evidence.conditional_fits import ManyFits
from pymc_ep.evidence.ep.evidence import Evidence
from pymc_ep.evidence.ep.fit import EvidenceAt, KeptFit, Shape
from pymc_ep.evidence.ep.shape import wide_sites
from pymc_ep.evidence.integration.corrections import Corrected
from pymc_ep.evidence.integration.integral import Integral
from pymc_ep.evidence.mixtures import FEW, LeftOut, left_out_between, left_out_of_all
from pymc_ep.evidence.mode import Hyper
from pymc_ep.models.latent_gaussian.hyper_moments import weighted_moments
from pymc_ep.models.latent_gaussian.methods.site_results import coefficient_results, site_results
from pymc_ep.models.latent_gaussian.posterior import LatentPosterior
from pymc_ep.models.latent_gaussian.posterior_mixture import PosteriorMixture
from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior
from pymc_ep.sites.compiled import CompiledSite

__all__ = [
    "AT_VALUES",
    "at_mode",
    "combined_status",
    "conditional_solution",
    "conditional_state",
    "integral_solution",
    "mode_solution",
    "mode_state",
    "mode_traces",
    "rebuild",
    "site_state",
    "solution_at",
]

_MAX_DENSITIES = 10_000_000
"""Largest number of interpolated predictive densities, n observations times all weighted hyperparameters: 0.15 s.

Beyond it the fewer hyperparameters of the components replace the weighted ones, which cover the tails better."""
AT_VALUES = "log density of the data at the hyperparameters of the result, without their prior"
"""Definition of the log evidence where hyperparameters are maximised over or fixed."""
_MIXTURE_KEYS = (
    "design_thetas",
    "design_shifts",
    "design_precisions",
    "hyper_draws",
    "component_thetas",
    "design_skewness",
)
"""State entries of a `PosteriorMixture`, in the order of its arguments; earlier versions wrote fewer."""
_SHAPE = ("skewness", "marginal_skewness", "added_shift", "added_precision")
"""State entries of a `Shape`; results of earlier versions have the first two, or none."""
_INTEGRATED = "log density of the data, integrated over the prior of the hyperparameters"
"""Definition of the log evidence where hyperparameters are integrated over."""


def rebuild(
    form: SiteFunctions,
    state: Mapping[str, np.ndarray],
    mode: tuple[Prior, GaussianPosterior] | None = None,
) -> LatentPosterior | PosteriorMixture:
    """Return the posterior of a saved ``fit_state``; `mode` has prior and posterior at the mode, if a fit is fresh."""
    centre = LatentPosterior(
        form,
        state["theta"],
        state["shift"],
        state["precision"],
        state["directions"],
        state["d_shift"],
        state["d_precision"],
        mode,
        shape=_shape_of(state),
    )
    if "design_thetas" not in state:
        return centre
    return PosteriorMixture(form, centre, *(state[name] for name in _MIXTURE_KEYS if name in state))


def mode_solution(
    form: SiteFunctions, evidence: Evidence, mode: Hyper[EvidenceAt], settings: dict[str, Any]
) -> Solution:
    """Return the solution with hyperparameters at their mode, or fixed."""
    at = mode.at
    state = mode_state(evidence, mode)
    return solution_at(
        form,
        evidence,
        at,
        state,
        settings,
        left_out={"loo": evidence.leave_one_out(at)},
        scalars={"log_evidence": at.log_z, "n_iter": len(at.run.objective)},
        traces=mode_traces(mode),
        status=combined_status(at, mode),
        log_evidence_is=AT_VALUES,
    )


def mode_state(evidence: Evidence, mode: Hyper[EvidenceAt]) -> dict[str, np.ndarray]:
    """Return the saved state of a fit with hyperparameters at their mode, or fixed."""
    # The covariance F F^T is D^T D with D = F^T.
    directions = np.zeros((0, mode.at.theta.size)) if mode.factor is None else mode.factor.T
    d_shift, d_precision = mode.d_state
    return _state(evidence, mode.at) | {"directions": directions, "d_shift": d_shift, "d_precision": d_precision}


def mode_traces(mode: Hyper[EvidenceAt]) -> dict[str, tuple[str, np.ndarray]]:
    """Return the histories of the last fit and of the maximisation over hyperparameters."""
    return _history(mode.at) | {"hyper_objective": ("hyper_iteration", mode.trace)}


def integral_solution(
    form: SiteFunctions, evidence: Evidence, integral: Integral[EvidenceAt], settings: dict[str, Any]
) -> Solution:
    """Return the solution of a mixture over a design of hyperparameters, the points of an integral's fits."""
    at = integral.mode.at
    points = integral.points
    thetas = np.array([point.theta for point in points])
    centre_state = _state(evidence, at)
    shaped = _shaped(form, at, centre_state, [(point.theta, point.state, point.kept) for point in points])
    shifts, precisions, skewness = shaped
    state = centre_state | _mixture_state(thetas, shifts, precisions, integral.draws, integral.components, skewness)
    values = np.array([point.value for point in points])
    left_out = _left_out_over_draws(integral)
    return solution_at(
        form,
        evidence,
        at,
        state,
        settings,
        left_out=left_out._asdict(),
        hyper_moments=weighted_moments(form.constrained(integral.thetas), integral.theta_weights),
        scalars={
            "log_evidence": integral.log_evidence,
            "n_iter": len(at.run.objective),
            "hyper_ess": integral.effective,
            "hyper_log_weight_sd": integral.spread,
            "n_evaluations": integral.evaluations,
        }
        | _correction_scalars(integral.corrected),
        traces=_history(at)
        | {
            "hyper_objective": ("hyper_iteration", integral.mode.trace),
            "hyper_weight": ("hyper_point", integral.weights),
            "hyper_log_density": ("hyper_point", values),
        },
        status=_with_outliers(combined_status(at, integral), evidence, left_out),
        design=form.constrained(thetas),
        log_evidence_is=_INTEGRATED,
    )


def _correction_scalars(corrected: Corrected | None) -> dict[str, float]:
    """Return the cumulant corrections of log evidence and hyperparameters; empty where they are unknown."""
    if corrected is None or not corrected.applied:
        return {}
    return {
        "cumulant_correction": corrected.log_factor,
        "cumulant_shift": float(np.max(np.abs(corrected.shift))),
    }


def conditional_solution(
    form: SiteFunctions, evidence: Evidence, many_fits: ManyFits[EvidenceAt], settings: dict[str, Any]
) -> Solution:
    """Return the solution of a mixture over given draws of the hyperparameters, without a log evidence.

    Its mode is the draw nearest to the mean.
    """
    k = len(many_fits.thetas)
    weights = np.full(k, 1.0 / k)
    centre_state = _state(evidence, many_fits.centre)
    fits = list(zip(many_fits.thetas, many_fits.states, many_fits.kept))
    state = centre_state | conditional_state(many_fits.thetas, *_shaped(form, many_fits.centre, centre_state, fits))
    return solution_at(
        form,
        evidence,
        many_fits.centre,
        state,
        settings,
        left_out=left_out_of_all(weights, np.array([kept.log_predictive for kept in many_fits.kept]))._asdict(),
        status=Status(many_fits.converged, many_fits.sentence("sites")),
        round_robin=k,
    )


def _shaped(
    form: SiteFunctions,
    centre: EvidenceAt,
    state: Mapping[str, np.ndarray],
    fits: Sequence[tuple[np.ndarray, FitState, KeptFit]],
) -> tuple[np.ndarray, ...]:
    """Return shifts and precisions of the fits' sites, corrected in width, and their skewness, (k, n) each.

    `state` is the saved state of the fit at the centre.
    """
    shape = _shape_of(state)
    skewness = [shape.skewness if kept.skewness is None else kept.skewness for _, _, kept in fits]
    return *wide_sites(form, centre, shape, fits), np.array(skewness)


def _shape_of(state: Mapping[str, np.ndarray]) -> Shape:
    """Return the saved `Shape` of a posterior, with zeros where an earlier version saved none."""
    return Shape(*(state.get(name, np.zeros_like(state["shift"])) for name in _SHAPE))


def conditional_state(
    thetas: np.ndarray, shifts: np.ndarray, precisions: np.ndarray, *skewness: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the saved parts of a mixture of fits from hyperparameters, (k, p), and sites and skewness, (k, n) each."""
    none = np.zeros((0, thetas.shape[1]))
    return _mixture_state(thetas, shifts, precisions, none, none, *skewness)


def at_mode(at: EvidenceAt) -> tuple[Prior, GaussianPosterior] | None:
    """Return prior and posterior of a fit, so that its `LatentPosterior` need not recompute them.

    None where observations share predictors: the fit then has each such predictor only once.
    """
    return None if at.repeats.any else (at.prior, at.run.state.sweep.posterior)


def solution_at(
    form: SiteFunctions,
    evidence: Evidence,
    at: EvidenceAt,
    state: dict[str, np.ndarray],
    settings: dict[str, Any],
    *,
    left_out: Mapping[str, np.ndarray],
    status: Status,
    posterior: AffinePosterior | None = None,
    hyper_moments: dict[str, Moments] | None = None,
    round_robin: int = 0,
    **others: Any,
) -> Solution:
    """Return a solution with all fields that follow from the posterior, by default the one that `state` describes.

    `left_out` has log p(y_i | y_-i), (n,), under the name loo; of a mixture it is a `LeftOut` as a dict.

    With k = `round_robin` > 0, draws come from the k components of a mixture in order, equally many from each.
    """
    posterior = posterior or rebuild(form, state, at_mode(at))
    mixture = posterior if isinstance(posterior, PosteriorMixture) else None
    of_hyper = hyper_moments or posterior.hyper_moments()
    at_centre = (mixture.centre if mixture else posterior).moments()

    def moments() -> dict[str, tuple[np.ndarray, np.ndarray]]:
        all_moments = of_hyper | (mixture.moments() if mixture else at_centre)
        return {name: (m.mean, m.sd) for name, m in all_moments.items()}

    def draws(size: int, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        if mixture and round_robin:
            component = np.repeat(np.arange(round_robin), size // round_robin)
            return mixture.draws_of(component, rng, log_likelihood=log_likelihood)
        return posterior.draws(size, rng, log_likelihood=log_likelihood)

    sweep = at.run.state.sweep
    mean, sd = np.asarray(sweep.posterior.mean), np.sqrt(np.asarray(sweep.posterior.variance))
    cavity_mean, cavity_variance = np.asarray(sweep.cavity_mean), np.asarray(sweep.cavity_variance)

    def tilted(site: CompiledSite, y: np.ndarray, rows: slice, parameters: Sequence[np.ndarray]) -> dict[str, Any]:
        return site.tilted_report(y, cavity_mean[rows], cavity_variance[rows], evidence.engine.power, *parameters)

    return Solution(
        moments=moments,
        hyper_modes=form.constrained(at.theta),
        sites=site_results(form, evidence, at, left_out),
        coefficients=coefficient_results(form, at.problem.observed, at.problem, tilted, mean, sd),
        state=state,
        draws=draws,
        numbers_per_draw=sum(m.mean.size for m in (of_hyper | at_centre).values()),
        most_draws=form.most_draws,
        objective_is="log evidence",
        settings=settings,
        status=status.sentence,
        converged=status.converged,
        **others,
    )


def _mixture_state(*arrays: np.ndarray) -> dict[str, np.ndarray]:
    """Return the saved parts of a `PosteriorMixture` from its arrays, in the order of its arguments."""
    return dict(zip(_MIXTURE_KEYS, arrays))


def site_state(evidence: Evidence, at: EvidenceAt) -> dict[str, np.ndarray]:
    """Return the saved sites of one fit and the `Shape` of its posterior, by name, (n,) each."""
    return dict(zip(("shift", "precision", *_SHAPE), (*at.sites, *evidence.shape(at))))


def _state(evidence: Evidence, at: EvidenceAt) -> dict[str, np.ndarray]:
    """Return the saved state of one fit with hyperparameters fixed."""
    sites = site_state(evidence, at)
    shift = sites["shift"]
    return sites | {
        "theta": at.theta,
        "directions": np.zeros((0, at.theta.size)),
        "d_shift": np.zeros((0, len(shift))),
        "d_precision": np.zeros((0, len(shift))),
        # By these three, data that have changed since the fit are detected.
        "observed": np.concatenate([np.ravel(y) for y in evidence.form.observed()]),
        "prior_mean": np.asarray(at.prior.mean),
        "prior_variance": np.asarray(at.prior.gaussian.variances()),
    }


def combined_status(at: EvidenceAt, search: Hyper[EvidenceAt] | Integral[EvidenceAt]) -> Status:
    """Return the joint status of EP and the search over hyperparameters; the part that did not converge comes first."""
    run = at.run.status
    sentences = [run.sentence, search.sentence]
    if run.converged and not search.converged:
        sentences = [search.sentence, f"at the values of the result EP itself {run.sentence}"]
    return Status(run.converged and search.converged, "; ".join(filter(None, sentences)))


def _with_outliers(status: Status, evidence: Evidence, left_out: LeftOut) -> Status:
    """Return the status with a remark on the first observation whose left-out density rests on few draws, if any."""
    few = np.flatnonzero(left_out.loo_ess < FEW)
    if not few.size:
        return status
    remark = (
        f"without {evidence.observation(int(few[0]))}{' and without others' * (few.size > 1)} the hyperparameters are "
        f"elsewhere, so that the leave-one-out density may be off: take it from pymc_ep.loo(idata, model)"
    )
    return status._replace(sentence=f"{status.sentence}; {remark}")


def _history(at: EvidenceAt) -> dict[str, tuple[str, np.ndarray]]:
    objective = at.run.objective + at.prior.log_excess
    return {"objective": ("iteration", objective), "max_change": ("iteration", at.run.change)}


def _left_out_over_draws(integral: Integral[EvidenceAt]) -> LeftOut:
    """Return log p(y_i | y_-i), integrated over the hyperparameters by interpolation between fits."""
    log_predictive = np.array([point.kept.log_predictive for point in integral.points])
    fits = np.array([point.theta for point in integral.points])
    rows, weights = integral.thetas, integral.theta_weights
    if len(rows) * log_predictive.shape[1] > _MAX_DENSITIES:
        rows = integral.components if len(integral.components) else fits
        weights = np.full(len(rows), 1.0 / len(rows))
    return left_out_between(fits, log_predictive, rows, weights)
