"""Search for the hyperparameters of preferences at the maximum of log evidence plus log prior."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.contracts.method import Call
from pymc_ep.engines.base import Status
from pymc_ep.engines.loop import Run, run
from pymc_ep.engines.partitions import Handles
from pymc_ep.exceptions import NumericalError, UnsupportedModelError
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.approximations import Approximation
from pymc_ep.models.preferences.engine.divided import DividedUsers, divided
from pymc_ep.models.preferences.engine.em import PreferenceEM
from pymc_ep.models.preferences.engine.evidence import ComparisonEvidence, State
from pymc_ep.models.preferences.engine.evidence_search import maximise
from pymc_ep.models.preferences.engine.maximisation import Statistics, first_factors
from pymc_ep.models.preferences.engine.users import Effort, UserFactors
from pymc_ep.models.preferences.engine.values import ComparedUsers, Learned, Sites, UtilityPrior

__all__ = ["Found", "Task", "searched"]

_MOST_UPDATES = 200
"""Largest number of updates of the factors of a user at given hyperparameters."""
_LARGER, _FAR_LARGER = 10.0, 1000.0
"""Factors by which parameters with flat priors are multiplied to see whether the evidence falls: after a search that
converged, and after one that did not."""
_FALL = 1e-4
"""Smallest fall of the log evidence at the multiplied parameters, in nats a comparison, that shows a maximum. With a
maximum, the fall is 4e-4 or more for rankings of sushi and 4e-2 where people contradict themselves. Without a maximum,
EP's own error is 2e-5."""


class Task(NamedTuple):
    """Arguments of a fit of preferences.

    Attributes
    ----------
    call : Call
    settings : dict
        Options of the method, checked.
    approximation : Approximation
    compared : ComparedUsers
        Comparisons that the fit uses.
    where : (int or None, Client or None)
        Number of parts of the users, and the cluster that holds them.
    """

    call: Call[CompiledPreferences]
    settings: dict[str, Any]
    approximation: Approximation
    compared: ComparedUsers
    where: tuple[int | None, Any]

    @contextmanager
    def divided(self, observed: np.ndarray) -> Iterator[tuple[DividedUsers, ComparisonEvidence]]:
        """Provide users in parts, and their evidence without comparisons that have a zero in `observed`, (P,)."""
        form = self.call.form
        effort = Effort(self.settings["tol"], _MOST_UPDATES, form.backend)
        with divided(self.compared.comparisons, observed, *self.where) as users:
            sizes = users.comparisons.n_users, int(observed.sum())
            yield (
                users,
                ComparisonEvidence(
                    users.partitions,
                    *sizes,
                    form.form.comparisons.site,
                    effort,
                    self.approximation,
                    holds_out=not observed.all(),
                ),
            )


class Found(NamedTuple):
    """Hyperparameters, with the factors of all users there and the history of the search.

    Attributes
    ----------
    users : UserFactors
    theta : ndarray, (p,)
    loop : int
        Number of evaluations of the evidence.
    status : Status
    objective, change : ndarray, (iterations,)
        Log evidence plus log prior, and its rise per comparison, at each evaluation.
    """

    users: UserFactors
    theta: np.ndarray
    loop: int = 0
    status: Status = Status(True, "the factors of all users have settled")
    objective: np.ndarray = np.zeros(0)
    change: np.ndarray = np.zeros(0)


def searched(task: Task, users: UserFactors) -> Found:
    """Search for the maximum of log evidence plus log prior over the hyperparameters, from given factors of users.

    Raises
    ------
    UnsupportedModelError
        For ``learn="em"`` where there is no update in closed form; see `CompiledPreferences.learned`.
    """
    form = task.call.form
    mask = _held_out(task)
    # Comparisons that are held out have no factors.
    first = users._replace(sites=Sites(*(np.where(mask, 0.0, array) for array in users.sites)))
    with task.divided(1.0 - mask) as (divided_users, evidence):
        search = _learned(task, evidence, first, divided_users)
        best = search.state.chosen
        endless = task.call.hyper == "optimize" and _rises_without_end(form, evidence, search)
        settled = divided_users.collect(best.users)
    status = search.status
    if endless:
        status = Status(False, f"stopped after {best.loop} evaluations of the evidence, {_without_end(form, search)}")
    elif not (status.converged or status.interrupted) and form.form.flat and task.settings["learn"] == "evidence":
        status = status._replace(sentence=f"{status.sentence}, or give proper priors, such as {_proper_priors(form)}")
    return Found(settled, best.theta, best.loop, status, search.objective, search.change)


def _learned(task: Task, evidence: ComparisonEvidence, first: UserFactors, divided_users: DividedUsers) -> Run[State]:
    """Search for hyperparameters by L-BFGS or EM, from given factors of users; return last state and history."""
    call, settings = task.call, task.settings
    form, limit, users = call.form, settings["max_iter"], divided_users.place(first)
    theta = _started(task, evidence, users)
    record = call.checkpoint.record("search")
    # Workers decide on the number of parts where the user does not, and states are those of each part.
    call.checkpoint.identify("number of parts of the users", str(divided_users.partitions.n))
    if settings["learn"] == "evidence":
        tol = settings["evidence_tol"]
        return maximise(evidence, form, theta, users, tol=tol, max_iter=limit, report=call.report, record=record)
    if (learned := form.learned) is None:
        raise UnsupportedModelError(
            f"learn='em' updates b, V and sigma of {form.form.utilities!r} in closed form, which needs each of them to "
            f"be pm.Flat (pm.HalfFlat) or a constant, V not to be constant beside a learned sigma and to have fewer "
            f"columns than items, and a kernel without hyperparameters; leave out learn=."
        )
    engine, start = PreferenceEM(evidence, learned, tol=settings["evidence_tol"]), evidence.at(form, theta, users)
    return run(engine, form, start, max_iter=limit + 1, report=call.report, record=record)


def _rises_without_end(form: CompiledPreferences, evidence: ComparisonEvidence, search: Run[State]) -> bool:
    """Return whether a search has no maximum: the objective is as high where parameters with flat priors are larger.

    Comparisons that do not contradict each other are the more probable, the further the utilities are apart. Searches
    that were interrupted, or ended by their score on held-out comparisons, are not examined: False.
    """
    flat, best = form.form.flat, search.state.chosen
    if not flat or search.status.interrupted or evidence.may_stop(search.state) is not None:
        return False
    mean, factors, scale = form.prior(best.theta)[0]
    factor = _growth(search)
    # s2 = sigma^2 grows by the square of the factor of b, V and sigma.
    larger = UtilityPrior(
        mean * (factor if "mean" in flat else 1.0),
        factors * (factor if "factors" in flat else 1.0),
        scale * (factor**2 if "sigma" in flat else 1.0),
    )
    try:
        grown = evidence.at(form, form.theta_of(best.theta, larger), best.users)
    except NumericalError:
        return False
    return grown.objective > best.objective - _FALL * evidence.n_pairs


def _growth(search: Run[State]) -> float:
    """Return the factor for `_rises_without_end`: larger without convergence, as a maximum may then be farther away."""
    return _LARGER if search.status.converged else _FAR_LARGER


def _without_end(form: CompiledPreferences, search: Run[State]) -> str:
    """Return the part of a status that says that the evidence has no maximum."""
    names = [name for key, name in form.form.variables.items() if key in form.form.flat]
    return (
        f"which has no maximum: it is as high at {_growth(search):.0f} times {', '.join(names)}, as the comparisons "
        f"contradict each other too little. Give proper priors, such as {_proper_priors(form)}"
    )


def _proper_priors(form: CompiledPreferences) -> str:
    """Return proper priors for the parameters that have flat ones."""
    priors = {"mean": "pm.Normal({!r}, 0, 2)", "factors": "pm.Normal({!r}, 0, 0.5)", "sigma": "pm.HalfNormal({!r}, 2)"}
    return ", ".join(priors[key].format(name) for key, name in form.form.variables.items() if key in form.form.flat)


def _held_out(task: Task) -> np.ndarray:
    """Return a mask of the comparisons, (P,), held out while hyperparameters are learned: never all of a user."""
    compared = task.compared
    draws = np.random.default_rng(task.settings["seed"]).random(len(compared.order))
    ends = compared.comparisons.pair_ends
    # The comparison of a user with the largest number is never held out.
    most = np.repeat(np.maximum.reduceat(draws, ends[:-1]), np.diff(ends))
    return (draws < task.settings["held_out"]) & (draws < most)


def _started(task: Task, evidence: ComparisonEvidence, users: Handles) -> np.ndarray:
    """Return the hyperparameters to start from: the given ones, moved if V = 0, where the gradient in V is zero."""
    form, theta = task.call.form, task.call.theta
    prior, kernel = form.prior(theta)
    if "factors" not in form.free or prior.factors.any():
        return theta
    totals, n_users = evidence.at(form, theta, users).totals, evidence.n_users
    statistics = Statistics(totals.slope / n_users, totals.curvature / n_users)
    learned = Learned(mean="mean" in form.free, factors=True, scale=False)
    return form.with_factors(theta, first_factors(prior, kernel, statistics, learned))
