"""The fit of preferences by expectation propagation, or another approximation: treatments, cost and warnings."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.approximations import EXPECTATION, Approximation
from pymc_ep.models.preferences.engine.users import UserFactors
from pymc_ep.models.preferences.engine.values import ComparedUsers, Sites
from pymc_ep.models.preferences.evidence import PreferenceEvidence
from pymc_ep.models.preferences.form import Preferences
from pymc_ep.models.preferences.methods.integration import (
    MOST_DIMENSIONS,
    TOL,
    carried_over,
    dear,
    integrated,
    treatment,
    usual_fits,
    why_not_integrable,
)
from pymc_ep.models.preferences.methods.options import OPTIONS, capped, checked
from pymc_ep.models.preferences.methods.sampling import condition, evidence_op
from pymc_ep.models.preferences.methods.search import Found, Task, searched
from pymc_ep.models.preferences.methods.solution import Fitted, rebuild, solution
from pymc_ep.models.preferences.methods.spread import neglected, neglected_remark
from pymc_ep.models.preferences.posterior_mixture import Design
from pymc_ep.sites.base import Site

__all__ = ["PREFERENCE_EP", "preference_method", "solve"]

TREATMENTS = ("optimize", "fixed", "integrate", "sample")
"""Treatments of hyperparameters, the values of ``hyper=``."""

_MATRICES = 3
"""Number of matrices of all items in memory at a time: K, its Cholesky factor for draws, and a curvature."""
_USER_MATRICES = 6
"""Number of n x n matrices of a user of n items: prior factors, `whitened` and losses, and a working copy of each."""
_PASSES, _UPDATES = 40, 20
"""Average numbers of evaluations of the evidence in a search, and of updates of a user's factors in an evaluation."""
_PAIR_SECONDS, _PER_SECOND = 5e-7, 1e10
"""Seconds for the update of one factor, and multiplications per second, on one core of a server of 2023."""


def solve(call: Call[CompiledPreferences], approximation: Approximation = EXPECTATION) -> Solution:
    """Fit a form of preferences by one of the approximations of each user's posterior.

    Raises
    ------
    InvalidDataError
        For comparisons of unknown users or items, and of an item with itself, and for kernels that are not positive
        definite.
    UnsupportedModelError
        For ``learn="em"`` where there is no update in closed form; see `CompiledPreferences.learned`.
    ValueError
        For options out of range, and for ``hyper="integrate"`` where hyperparameters are arrays or too many scalars.
    """
    form, settings = call.form, checked(call.options)
    integrates = call.hyper == "integrate" and call.theta.size > 0
    if integrates and (reason := why_not_integrable(form, settings)):
        raise ValueError(f"hyper='integrate' {reason}; use hyper='optimize', or pm.sample.")
    every, digest = form.compared(), form.fingerprint()["comparisons"]
    compared = capped(form, every, settings)
    # At the start, and where a search may have moved it.
    form.prior(call.theta)[1].require_definite()
    where = settings.pop("partitions"), settings.pop("client")
    task = Task(call, settings, approximation, compared, where)
    estimate = Found(_first_factors(call, compared, digest), call.theta)
    if call.hyper == "optimize" and call.theta.size:
        estimate = searched(task, estimate.users)
        form.prior(estimate.theta)[1].require_definite()
    with task.divided(np.ones(len(compared.order))) as (divided_users, engine):
        density, integral, remark = "unconstrained" if integrates else "none", None, ""
        evidence = PreferenceEvidence(
            form, engine, divided_users, estimate.users, call.report, call.checkpoint, density=density
        )
        if integrates:
            estimate, integral = integrated(evidence.varied(tol=max(settings["tol"], TOL)), estimate)
            form.prior(estimate.theta)[1].require_definite()
        last, status = evidence.at(estimate.theta, estimate.users.sites), estimate.status
        if (design := _earlier_design(call)) is not None:
            integral = carried_over(evidence, design, last.users)
            status = status._replace(sentence=f"{status.sentence}; hyperparameters as the earlier fit left them")
        elif call.hyper == "optimize" and call.theta.size and status.converged:
            cure = "draw from the posterior by pymc.sample"
            if not why_not_integrable(form, settings):
                cure = "integrate over it by hyper='integrate', under a proper prior such as pm.HalfNormal"
            # Beside b and V: flat priors ask for single values, and of many comparisons the scale is known well.
            learned = any(values.size > 1 for values in form.unpack(call.theta))
            if not (learned and (form.form.flat or dear(form, compared.comparisons, 1))):
                remark = neglected_remark(neglected(evidence, last, compared), cure)
    if remark:
        warnings.warn(f"{form.form.utilities!r} is less certain than this fit says: {remark}.", stacklevel=3)
    value = last.value if integrates else last.log_z + form.log_prior(last.theta)
    objective, change = np.append(estimate.objective, value), np.append(estimate.change, 0.0)
    estimate = estimate._replace(users=last.users, status=status, objective=objective, change=change)
    return solution(form, Fitted(estimate, last.log_z, integral, every, compared, remark), settings, approximation)


def choose_hyper(form: CompiledPreferences, options: dict[str, Any], *, chains: bool) -> tuple[str, Status]:
    """Return the treatment for ``hyper="auto"``, and a status with the reason; see `treatment`."""
    settings = checked(options)
    if reason := why_not_integrable(form, settings):
        many = MOST_DIMENSIONS < form.start.size == len(form.form.hyper_names)
        return "optimize", Status(True, f"hyperparameters at their mode, as hyper='integrate' {reason}" if many else "")
    return treatment(form, capped(form, form.compared(), settings).comparisons)


def cost(call: Call[CompiledPreferences]) -> Cost:
    """Return the cost of a fit."""
    form, settings = call.form, checked(call.options)
    compared = capped(form, form.compared(), settings)
    counts, pairs = np.diff(compared.comparisons.item_ends), len(compared.order)
    most = int(np.argmax(counts))
    user, n, n_items = compared.users[most], int(counts[most]), form.n_items
    # Kernels of low rank form none of all items.
    of_all = _MATRICES if len(form.form.prior.kernel) == 1 else 0
    passes = usual_fits(call.theta.size) if call.hyper == "integrate" else _PASSES
    if call.hyper == "fixed" or not call.theta.size:
        passes = 1
    multiplications = _UPDATES * (counts.astype(float) ** 3).sum() + (of_all > 0) * float(n_items) ** 3
    return Cost(
        8 * (of_all * n_items**2 + _USER_MATRICES * n**2),
        passes * (_UPDATES * _PAIR_SECONDS * pairs + multiplications / _PER_SECOND),
        f"The {n_items} items of {form.form.utilities!r} and the {n} that user {user} compared need",
        f"{of_all} matrices of {n_items} x {n_items} and {_USER_MATRICES} of {n} x {n}",
        f"some {passes} passes over {pairs} comparisons",
        "Leave out items that few compare, or give max_pairs=, a largest number of comparisons of a user.",
    )


def _first_factors(call: Call[CompiledPreferences], compared: ComparedUsers, digest: np.ndarray) -> UserFactors:
    """Return the factors to start from: of an earlier fit to the same comparisons, or else zero."""
    first, start = UserFactors.first(compared.comparisons), call.start or {}
    if "comparisons" not in start or not np.array_equal(start["comparisons"], digest):
        return first
    return first._replace(sites=Sites(start["shift"][compared.order], start["precision"][compared.order]))


def _earlier_design(call: Call[CompiledPreferences]) -> Design | None:
    """Return the nodes of the fit that `call` starts from, if hyperparameters are fixed at its values; else None."""
    start = call.start or {}
    if call.hyper != "fixed" or not np.array_equal(start.get("theta", np.zeros(0)), call.theta):
        return None
    return Design.of_state(start)


def preference_method(
    name: str,
    approximation: Approximation,
    takes: Callable[[Site | None], bool] = lambda site: True,
    solve: Callable[..., Solution] = solve,
) -> Method:
    """Return the method that fits preferences by `approximation`; ``takes(site)`` is False for refused sites."""
    return Method(
        name,
        Preferences,
        partial(solve, approximation=approximation),
        partial(rebuild, shaped=approximation.matched),
        OPTIONS,
        TREATMENTS,
        evidence_op=partial(evidence_op, approximation=approximation),
        condition=partial(condition, approximation=approximation),
        takes=takes,
        choose_hyper=choose_hyper,
        cost=cost,
        jax=True,
    )


PREFERENCE_EP = preference_method("ep", EXPECTATION)
"""Gaussian posterior of each user's utilities, by expectation propagation."""
