"""Solution of a fit of preferences, and the posterior that is rebuilt from its state."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.contracts.solution import Solution
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.approximations import Approximation
from pymc_ep.models.preferences.engine.users import UserFactors
from pymc_ep.models.preferences.engine.values import ComparedUsers, Sites
from pymc_ep.models.preferences.methods.integration import Integral
from pymc_ep.models.preferences.methods.search import Found
from pymc_ep.models.preferences.posterior import PreferencePosterior
from pymc_ep.models.preferences.posterior_mixture import Design, PreferenceMixture
from pymc_ep.results import STORED_NUMBERS

__all__ = ["Fitted", "rebuild", "saved", "solution"]

_AT_VALUES = "at the hyperparameters of the result"
"""End of the description of the log evidence, where hyperparameters have one value."""


class Fitted(NamedTuple):
    """A fit of preferences.

    Attributes
    ----------
    at : Found
        Hyperparameters, with the factors of all users there: held, at a mode, or the draw nearest to the draws' mean.
    log_z : float
        Log evidence at these.
    integral : Integral or None
        Fits at other hyperparameters that represent their posterior; None for a fit at one value.
    every, compared : ComparedUsers
        All comparisons, and the ones that the fit uses: at most ``max_pairs`` of each user.
    remark : str
        Note on hyperparameters whose neglected spread matters; empty where there are none.
    """

    at: Found
    log_z: float
    integral: Integral | None
    every: ComparedUsers
    compared: ComparedUsers
    remark: str


def solution(
    form: CompiledPreferences, fitted: Fitted, settings: dict[str, Any], approximation: Approximation
) -> Solution:
    """Return the solution of a fit."""
    state, factors = _state(form, fitted)
    posterior = rebuild(form, state, shaped=approximation.matched)
    at, integral, numbers = fitted.at, fitted.integral, 2 * int(np.prod(form.shape))
    stored = numbers <= STORED_NUMBERS
    moments = {name: (m.mean, m.sd) for name, m in posterior.moments().items()} if stored else {}
    of_hyper = {name: (m.mean, m.sd) for name, m in posterior.hyper_moments().items()}
    unsettled = at.users.change > settings["tol"]
    scalars = {"log_evidence": fitted.log_z, "n_iter": at.loop}
    traces = {"objective": ("iteration", at.objective), "max_change": ("iteration", at.change)}
    if integral is not None:
        unsettled = unsettled | integral.unsettled
        scalars |= {"log_evidence": integral.log_evidence, "n_evaluations": integral.fits}
        traces |= {
            "hyper_weight": ("hyper_point", integral.design.shares),
            "hyper_log_density": ("hyper_point", integral.log_density),
        }
    return Solution(
        moments=lambda: moments | of_hyper,
        hyper_modes=form.constrained(at.theta),
        scalars=scalars,
        traces=traces,
        sites={form.form.comparisons.name: factors},
        state=state | form.fingerprint(),
        draws=posterior.draws,
        numbers_per_draw=int(np.prod(form.shape)) + at.theta.size,
        most_draws=form.most_draws,
        status="; ".join(_remarks(form, fitted, unsettled, settings, stored)),
        converged=at.status.converged and not unsettled.any(),
        settings=settings,
        design={} if integral is None else form.constrained(integral.design.thetas),
        log_evidence_is=f"{approximation.evidence}, {_AT_VALUES if integral is None else integral.evidence_is}",
        objective_is="log evidence + log prior",
        max_change_is="rise of the objective, a comparison",
    )


def _state(form: CompiledPreferences, fitted: Fitted) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the saved state of a fit, and the part of it that holds the factors."""
    n_pairs = len(fitted.every.order)

    def weights(users: UserFactors) -> np.ndarray:
        return fitted.every.spread(fitted.compared, users.weights, form.n_items)

    factors = saved(fitted.compared, fitted.at.users, n_pairs)
    state = {"theta": fitted.at.theta, "weights": weights(fitted.at.users)} | factors
    if (integral := fitted.integral) is None:
        return state, factors
    at_nodes = [saved(fitted.compared, users, n_pairs) for users in integral.users]
    design = integral.design._replace(
        shifts=np.array([node["shift"] for node in at_nodes]),
        precisions=np.array([node["precision"] for node in at_nodes]),
        weights=np.array([weights(users) for users in integral.users]),
    )
    return state | design.state, factors


def _remarks(
    form: CompiledPreferences, fitted: Fitted, unsettled: np.ndarray, settings: dict[str, Any], stored: bool
) -> list[str]:
    """Return the sentences of the status, given a mask of unsettled users and whether moments are stored."""
    every, compared, remarks = fitted.every, fitted.compared, [fitted.at.status.sentence]
    if unsettled.any():
        first = compared.users[int(np.argmax(unsettled))]
        remarks.append(
            f"the factors of {int(unsettled.sum())} of {len(unsettled)} users have not settled, the first one is "
            f"user {first}: check their comparisons for contradictions"
        )
    if n_dropped := len(every.order) - len(compared.order):
        remarks.append(
            f"{n_dropped} of {len(every.order)} comparisons are left out, as a user has no more than "
            f"max_pairs={settings['max_pairs']}"
        )
    if n_absent := form.n_users - len(compared.users):
        remarks.append(f"{n_absent} of {form.n_users} users have no comparison, and keep their prior")
    if not stored:
        remarks.append(
            f"moments of {form.form.utilities!r} are left out, which are {2 * int(np.prod(form.shape))} numbers; "
            f"rank_items, log_predictive and next_pairs compute what they need"
        )
    if fitted.at.theta.size and fitted.integral is None:
        remarks.append(form.form.mode_remark)
    return [*remarks, *filter(None, [fitted.remark])]


def saved(compared: ComparedUsers, users: UserFactors, n_pairs: int) -> dict[str, np.ndarray]:
    """Return shifts and precisions, (n_pairs,), in the order of the model's comparisons; zeros for unused ones."""
    shift, precision = np.zeros((2, n_pairs))
    shift[compared.order], precision[compared.order] = users.sites
    return {"shift": shift, "precision": precision}


def rebuild(
    form: CompiledPreferences, state: Mapping[str, np.ndarray], *, shaped: bool
) -> PreferencePosterior | PreferenceMixture:
    """Return the posterior that a saved ``fit_state`` describes; `shaped` corrects its width and skewness."""
    compared = form.compared()
    if (design := Design.of_state(state)) is not None:
        return PreferenceMixture(form, state["theta"], compared, design, shaped=shaped)
    sites = Sites(state["shift"][compared.order], state["precision"][compared.order])
    none = np.zeros(len(compared.users))
    users = UserFactors(sites, state["weights"], none, none)
    return PreferencePosterior(form, state["theta"], compared, users, shaped)
