"""Expectation propagation on preferences: options, fit, warnings; and the fit by other approximations."""

import warnings
from numbers import Real
from typing import Any

import numpy as np

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.loop import Run
from pymc_ep.engines.options import check_positive, check_whole
from pymc_ep.engines.preferences.approximations import EXPECTATION, Approximation
from pymc_ep.engines.preferences.users import UserFactors
from pymc_ep.engines.preferences.values import ComparedUsers, Sites
from pymc_ep.forms.preferences.compiled import CompiledPreferences
from pymc_ep.forms.preferences.form import Preferences
from pymc_ep.forms.preferences.methods.integration import (
    MOST_DIMENSIONS,
    HyperDensity,
    carried_over,
    dear,
    integrated,
    treatment,
    why_not_integrable,
)
from pymc_ep.forms.preferences.methods.search import Found, Task, searched
from pymc_ep.forms.preferences.methods.solution import Fitted, rebuild, solution
from pymc_ep.forms.preferences.methods.spread import neglected, neglected_remark
from pymc_ep.forms.preferences.posterior_mixture import Design

__all__ = ["OPTIONS", "PREFERENCE_EP", "TREATMENTS", "choose_hyper", "cost", "rebuild", "solve"]

TREATMENTS = ("optimize", "fixed", "integrate")
"""Treatments of hyperparameters."""

OPTIONS = {
    "learn": "evidence",
    "held_out": 0.0,
    "max_pairs": None,
    "partitions": None,
    "client": None,
    "tol": 1e-8,
    "evidence_tol": 1e-5,
    "max_iter": 200,
    "seed": 0,
}
"""Options and their defaults."""
_WAYS = ("evidence", "em")
_MATRICES = 3
"""Number of matrices of all items that are held at a time: K, its Cholesky factor for draws, and a curvature."""
_USER_MATRICES = 6
"""Number of matrices of the items of a user: factors, whitened ones and losses, with copies for users in iteration."""
_PASSES, _UPDATES = 40, 20
"""Evaluations of the evidence in a search, and updates of the factors of a user in each, as they are on average."""
_PAIR_SECONDS, _PER_SECOND = 5e-7, 1e10
"""Time of the update of one factor, s, and multiplications a second, on one core of a server of 2023."""


def solve(call: Call[CompiledPreferences], approximation: Approximation = EXPECTATION) -> Solution:
    """Fit a form of preferences by one of the approximations of each user's posterior.

    Raises
    ------
    InvalidDataError
        For comparisons of unknown users or items, and of an item with itself, and for kernels that are not positive
        definite.
    UnsupportedModelError
        For ``learn="em"`` where the prior of a parameter of the utilities is not flat.
    ValueError
        For options out of range, and for ``hyper="integrate"`` where the hyperparameters are not a few numbers.
    """
    form, settings = call.form, _checked(OPTIONS | call.options)
    integrates = call.hyper == "integrate" and call.theta.size > 0
    if integrates and (reason := why_not_integrable(form, settings)):
        raise ValueError(f"hyper='integrate' {reason}; use hyper='optimize', or pm.sample.")
    every, digest = form.compared(), form.fingerprint()["comparisons"]
    compared = _capped(form, every, settings)
    # At the start, and where a search may have moved it.
    form.prior(call.theta)[1].require_definite()
    where = settings.pop("partitions"), settings.pop("client")
    problem = HyperDensity(form) if integrates else form
    task = Task(call, problem, settings, approximation, compared, where)
    found = Found(_first_factors(call, compared, digest), call.theta)
    if call.hyper != "fixed" and call.theta.size:
        found = searched(task, found.users)
        form.prior(found.theta)[1].require_definite()
    with task.divided(np.ones(len(compared.order))) as (parts, evidence):
        last = evidence.at(problem, found.theta, parts.place(found.users)).bare._replace(loop=found.loop)
        users, status, integral, remark = parts.collect(last.users), found.status, None, ""
        if integrates and not status.interrupted:
            # A density without a mode ends the search on a slope; the lattice finds the side on which it does not fall.
            integral, added = integrated(form, evidence, last, parts, call.report, call.checkpoint)
            sentences, good = f"{status.sentence}; {added.sentence}", status.converged and added.converged
            status = Status(good, sentences, added.interrupted)
        elif (design := _earlier_design(call)) is not None:
            integral = carried_over(form, evidence, design, users, parts)
            status = status._replace(sentence=f"{status.sentence}; hyperparameters as the earlier fit left them")
        elif call.hyper == "optimize" and call.theta.size and status.converged:
            cure = "draw from the posterior by pymc.sample"
            if not why_not_integrable(form, settings):
                cure = "integrate over it by hyper='integrate', under a proper prior such as pm.HalfNormal"
            # Beside b and V: flat priors ask for single values, and of many comparisons the scale is known well.
            learned = any(values.size > 1 for values in form.unpack(call.theta))
            if not (learned and (form.form.flat or dear(form, compared.comparisons, 1))):
                remark = neglected_remark(neglected(form, evidence, last, parts, compared), cure)
    if remark:
        warnings.warn(f"{form.form.utilities!r} is less certain than this fit says: {remark}.", stacklevel=3)
    ended = Run(last, status, np.append(found.objective, last.objective), np.append(found.change, 0.0))
    return solution(form, Fitted(ended, users, integral, every, compared, remark), settings, approximation)


def choose_hyper(form: CompiledPreferences, options: dict[str, Any], *, chains: bool) -> tuple[str, Status]:
    """Return the treatment for ``hyper="auto"``, and a status with the reason; see `treatment`."""
    settings = _checked(OPTIONS | options)
    if reason := why_not_integrable(form, settings):
        many = MOST_DIMENSIONS < form.start.size == len(form.form.hyper_names)
        return "optimize", Status(True, f"hyperparameters at their mode, as hyper='integrate' {reason}" if many else "")
    return treatment(form, _capped(form, form.compared(), settings).comparisons)


def _capped(form: CompiledPreferences, compared: ComparedUsers, settings: dict[str, Any]) -> ComparedUsers:
    """Return the comparisons that have factors."""
    if settings["max_pairs"] is None:
        return compared
    return compared.capped(settings["max_pairs"], settings["seed"], form.n_items)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    if options["learn"] not in _WAYS:
        raise ValueError(f"learn={options['learn']!r} must be one of {', '.join(map(repr, _WAYS))}.")
    share = options["held_out"]
    if not (isinstance(share, Real) and 0 <= float(share) < 1):
        raise ValueError(f"held_out={share!r} must be a share of comparisons in [0, 1).")
    for name in ("tol", "evidence_tol"):
        check_positive(name, options[name])
    for name in ("max_pairs", "partitions"):
        if options[name] is not None:
            check_whole(name, options[name])
    check_whole("max_iter", options["max_iter"])
    check_whole("seed", options["seed"], least=0)
    return options


def cost(call: Call[CompiledPreferences]) -> Cost:
    """Return the cost of a fit."""
    form, settings = call.form, _checked(OPTIONS | call.options)
    compared = _capped(form, form.compared(), settings)
    counts, pairs = np.diff(compared.comparisons.item_ends), len(compared.order)
    most = int(np.argmax(counts))
    user, n, n_items = compared.users[most], int(counts[most]), form.n_items
    # Kernels of low rank form none of all items.
    of_all = _MATRICES if len(form.form.prior.kernel) == 1 else 0
    passes = 1 if call.hyper == "fixed" or not call.theta.size else _PASSES
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
    """Return factors of one, or those of an earlier fit of the same comparisons."""
    first, start = UserFactors.first(compared.comparisons), call.start or {}
    if "comparisons" not in start or not np.array_equal(start["comparisons"], digest):
        return first
    return first._replace(sites=Sites(start["shift"][compared.order], start["precision"][compared.order]))


def _earlier_design(call: Call[CompiledPreferences]) -> Design | None:
    """Return the nodes of an earlier fit where hyperparameters are held as it left them."""
    start = call.start or {}
    if call.hyper != "fixed" or not np.array_equal(start.get("theta", np.zeros(0)), call.theta):
        return None
    return Design.of_state(start)


PREFERENCE_EP = Method(
    "ep", Preferences, solve, rebuild, OPTIONS, TREATMENTS, choose_hyper=choose_hyper, cost=cost, jax=True
)
"""Gaussian posterior of each user's utilities, by expectation propagation."""
