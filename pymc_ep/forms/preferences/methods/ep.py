"""Expectation propagation on preferences: options, fit, warnings; and the fit by other approximations."""

import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.loop import Run, run
from pymc_ep.engines.options import check_positive, check_whole
from pymc_ep.engines.preferences.approximations import EXPECTATION, Approximation
from pymc_ep.engines.preferences.divided import DividedUsers, divided
from pymc_ep.engines.preferences.em import PreferenceEM
from pymc_ep.engines.preferences.evidence import ComparisonEvidence, State, maximise
from pymc_ep.engines.preferences.users import Effort, UserFactors
from pymc_ep.engines.preferences.values import ComparedUsers, Sites, UtilityPrior
from pymc_ep.engines.recorded import RecordedEngine
from pymc_ep.exceptions import NumericalError, UnsupportedModelError
from pymc_ep.forms.preferences.compiled import CompiledPreferences
from pymc_ep.forms.preferences.form import Preferences
from pymc_ep.forms.preferences.methods.spread import neglected_remark
from pymc_ep.forms.preferences.posterior import PreferencePosterior
from pymc_ep.numerics.memory import require_memory
from pymc_ep.results import STORED_NUMBERS

__all__ = ["OPTIONS", "PREFERENCE_EP", "rebuild", "solve"]

OPTIONS = {
    "learn": "evidence",
    "held_out": "auto",
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
_SHARE = 0.1
"""Share of comparisons that are held out by default where b or V are learned, which have many entries: enough to see
where predictions become worse, at the price of as many comparisons in the search."""
_FIRST_SCALE = 0.1
"""Standard deviation of the first factors where they start at zero, which is a saddle of the evidence."""
_MOST_UPDATES = 200
"""Largest number of updates of the factors of a user at given hyperparameters."""
_LARGER = 10.0
"""Factor by which parameters with flat priors grow, to see whether the evidence falls."""
_FALL = 1e-4
"""Fall of the evidence there, in nats a comparison, below which it counts as none. With a maximum it is 4e-4 or more
for rankings of sushi and 4e-2 where people contradict themselves; without one, EP's own error is 2e-5."""
_MATRICES = 3
"""Number of matrices of all items that are held at a time: K, its Cholesky factor for draws, and a curvature."""
_USER_MATRICES = 6
"""Number of matrices of the items of a user: factors, whitened ones and losses, with copies for users in iteration."""
_CHECKPOINT = "comparisons of the checkpoint"
"""Entry of checkpoints that identifies the comparisons."""


def solve(call: Call[CompiledPreferences], approximation: Approximation = EXPECTATION) -> Solution:
    """Fit a form of preferences by one of the approximations of each user's posterior.

    Raises
    ------
    InvalidDataError
        For comparisons of unknown users or items, and of an item with itself.
    UnsupportedModelError
        For ``learn="em"`` where the prior of a parameter of the utilities is not flat.
    ValueError
        For options out of range.
    """
    form, settings = call.form, _checked(OPTIONS | call.options)
    every, digest = form.compared(), form.fingerprint()["comparisons"]
    if not np.array_equal((call.start or {}).get(_CHECKPOINT, digest), digest):
        raise ValueError("checkpoint= is of a fit of other comparisons; name another file, or remove it.")
    compared = every
    if settings["max_pairs"] is not None:
        compared = every.capped(settings["max_pairs"], settings["seed"], form.n_items)
    _require_memory(form, compared)
    where = settings.pop("partitions"), settings.pop("client")
    users, theta = _first_factors(call, compared, digest), call.theta
    status, loop = Status(True, "the factors of all users have settled"), 0
    objective = change = np.zeros(0)
    if call.hyper == "optimize" and theta.size:
        held = _held_out(form, compared, settings)
        # Comparisons that are held out have no factors.
        first = users._replace(sites=Sites(*(np.where(held, 0.0, part) for part in users.sites)))
        with divided(compared.comparisons, 1.0 - held, *where) as parts:
            evidence = _evidence(form, parts, settings, approximation, 1.0 - held)
            found = _learned(call, evidence, settings, first, compared, digest, parts)
            endless = _rises_without_end(form, evidence, found)
            users = parts.collect(found.state.chosen.users)
        status, objective, change, theta = found.status, found.objective, found.change, found.state.chosen.theta
        loop = found.state.chosen.loop
        if endless:
            status = Status(False, f"stopped after {loop} evaluations of the evidence, {_without_end(form)}")
    observed = np.ones(len(compared.order))
    with divided(compared.comparisons, observed, *where) as parts:
        evidence = _evidence(form, parts, settings, approximation, observed)
        last = evidence.at(form, theta, parts.place(users)).bare._replace(loop=loop)
        known = call.hyper == "fixed" or not status.converged
        spread = "" if known else neglected_remark(form, evidence, last, parts, compared)
        users = parts.collect(last.users)
    ended = Run(last, status, np.append(objective, last.objective), np.append(change, 0.0))
    if spread:
        warnings.warn(f"{form.form.utilities!r} is less certain than this fit says: {spread}.", stacklevel=3)
    return _solution(form, ended, settings, every, compared, users, approximation, spread)


def _evidence(
    form: CompiledPreferences,
    users: DividedUsers,
    settings: dict[str, Any],
    approximation: Approximation,
    observed: np.ndarray,
) -> ComparisonEvidence:
    """Return the evidence of comparisons, of which those with zero in `observed`, (P,), are held out."""
    effort = Effort(settings["tol"], _MOST_UPDATES, form.backend)
    site, sizes = form.form.comparisons.site, (users.comparisons.n_users, int(observed.sum()))
    return ComparisonEvidence(users.parts, *sizes, site, effort, approximation, holds_out=not observed.all())


def _learned(
    call: Call[CompiledPreferences],
    evidence: ComparisonEvidence,
    settings: dict[str, Any],
    first: UserFactors,
    compared: ComparedUsers,
    digest: np.ndarray,
    parts: DividedUsers,
) -> Run[State]:
    """Return the search for hyperparameters from given factors of users, which saves its states at intervals."""
    form, limit, users = call.form, settings["max_iter"], parts.place(first)
    theta = _started(form, call.theta, settings["seed"])

    def arrays(state: State) -> dict[str, np.ndarray]:
        reached = parts.collect(state.users)
        return {"theta": state.theta, _CHECKPOINT: digest} | _saved(compared, reached, len(form.observed()[0]))

    def save(state: State) -> None:
        if call.checkpoint.due:
            call.checkpoint.save(last=True, **arrays(state))

    if settings["learn"] == "evidence":
        tol = settings["evidence_tol"]
        found = maximise(evidence, form, theta, users, tol=tol, max_iter=limit, report=call.report, save=save)
        call.checkpoint.save(last=True, **arrays(found.state.chosen))
        return found
    if (learned := form.learned) is None:
        raise UnsupportedModelError(
            f"learn='em' updates b, V and sigma of {form.form.utilities!r} in closed form, which needs each of them to "
            f"be pm.Flat (pm.HalfFlat) or a constant, V not to be constant beside a learned sigma and to have fewer "
            f"columns than items, and a kernel without hyperparameters; leave out learn=."
        )
    engine = RecordedEngine(PreferenceEM(evidence, learned, tol=settings["evidence_tol"]), call.checkpoint, arrays)
    found = run(engine, form, evidence.at(form, theta, users), max_iter=limit + 1, report=call.report)
    engine.save(found.state.chosen, last=True)
    return found


def _rises_without_end(form: CompiledPreferences, evidence: ComparisonEvidence, found: Run[State]) -> bool:
    """Return whether a converged search has no maximum: the evidence is as high for much larger parameters.

    Users that agree with each other and with themselves are the more probable, the further utilities are apart.
    """
    flat, best = form.form.flat, found.state.chosen
    if not flat or not found.status.converged or evidence.may_stop(found.state) is not None:
        return False
    mean, factors, scale = form.prior(best.theta)[0]
    larger = UtilityPrior(
        mean * (_LARGER if "mean" in flat else 1.0),
        factors * (_LARGER if "factors" in flat else 1.0),
        scale * (_LARGER**2 if "sigma" in flat else 1.0),
    )
    try:
        there = evidence.at(form, form.theta_of(best.theta, larger), best.users)
    except NumericalError:
        return False
    return there.objective > best.objective - _FALL * evidence.n_pairs


def _without_end(form: CompiledPreferences) -> str:
    """Return the note of a status on evidence without a maximum."""
    priors = {"mean": "pm.Normal", "factors": "pm.Normal", "sigma": "pm.HalfNormal"}
    own = {name: priors[key] for key, name in form.form.variables.items() if key in form.form.flat}
    return (
        f"which has no maximum: it is as high at {_LARGER:.0f} times {', '.join(own)}, as the comparisons contradict "
        f"each other too little. Give proper priors, such as "
        f"{', '.join(f'{prior}({name!r}, ...)' for name, prior in own.items())}"
    )


def _held_out(form: CompiledPreferences, compared: ComparedUsers, settings: dict[str, Any]) -> np.ndarray:
    """Return which comparisons, (P,), are held out while hyperparameters are learned: of no user all."""
    share = settings["held_out"]
    if share == "auto":
        share = _SHARE if form.free & {"mean", "factors"} else 0.0
    draws = np.random.default_rng(settings["seed"]).random(len(compared.order))
    ends = compared.comparisons.pair_ends
    most = np.repeat(np.maximum.reduceat(draws, ends[:-1]), np.diff(ends))
    return (draws < share) & (draws < most)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    if options["learn"] not in _WAYS:
        raise ValueError(f"learn={options['learn']!r} must be one of {', '.join(map(repr, _WAYS))}.")
    share = options["held_out"]
    if share != "auto" and not (isinstance(share, Real) and 0 <= float(share) < 1):
        raise ValueError(f"held_out={share!r} must be 'auto', or a share of comparisons in [0, 1).")
    for name in ("tol", "evidence_tol"):
        check_positive(name, options[name])
    for name in ("max_pairs", "partitions"):
        if options[name] is not None:
            check_whole(name, options[name])
    check_whole("max_iter", options["max_iter"])
    check_whole("seed", options["seed"], least=0)
    return options


def _require_memory(form: CompiledPreferences, compared: ComparedUsers) -> None:
    """Raise where the matrices of all items, or of those of one user, exceed the free memory of this machine."""
    counts, name = np.diff(compared.comparisons.item_ends), form.form.utilities
    most = int(np.argmax(counts))
    user, n, n_items = compared.users[most], int(counts[most]), form.n_items
    # Kernels of low rank form none of all items.
    of_all = _MATRICES if len(form.form.prior.kernel) == 1 else 0
    require_memory(
        8 * (of_all * n_items**2 + _USER_MATRICES * n**2),
        f"The {n_items} items of {name!r} and the {n} that user {user} compared need",
        f"{of_all} matrices of {n_items} x {n_items} and {_USER_MATRICES} of {n} x {n}",
        "Leave out items that few compare, or give max_pairs=, a largest number of comparisons of a user.",
    )


def _started(form: CompiledPreferences, theta: np.ndarray, seed: int) -> np.ndarray:
    """Return the first hyperparameters: small random factors in place of zeros, if these are learned."""
    prior, _ = form.prior(theta)
    if "factors" not in form.form.variables or prior.factors.any():
        return theta
    draws = np.random.default_rng(seed).standard_normal(prior.factors.shape)
    return form.theta_of(theta, prior._replace(factors=_FIRST_SCALE * draws))


def _first_factors(call: Call[CompiledPreferences], compared: ComparedUsers, digest: np.ndarray) -> UserFactors:
    """Return factors of one, or those of an earlier fit of the same comparisons."""
    first, start = UserFactors.first(compared.comparisons), call.start or {}
    of = next((start[name] for name in (_CHECKPOINT, "comparisons") if name in start), None)
    if of is None or not np.array_equal(of, digest):
        return first
    return first._replace(sites=Sites(start["shift"][compared.order], start["precision"][compared.order]))


def _solution(
    form: CompiledPreferences,
    found: Run[State],
    settings: dict[str, Any],
    every: ComparedUsers,
    compared: ComparedUsers,
    users: UserFactors,
    approximation: Approximation,
    spread: str,
) -> Solution:
    """Return the solution, given all comparisons, those that have factors, and a note on hyperparameters."""
    own = _saved(compared, users, len(every.order))
    weights = every.spread(compared, users.weights, form.n_items)
    state = {"theta": found.state.theta, "weights": weights} | own
    posterior = rebuild(form, state)
    numbers = 2 * int(np.prod(form.shape))
    stored = numbers <= STORED_NUMBERS
    moments = {name: (m.mean, m.sd) for name, m in posterior.moments().items()} if stored else {}
    of_hyper = {name: (m.mean, m.sd) for name, m in posterior.hyper_moments().items()}
    unsettled = users.change > settings["tol"]
    remarks = [found.status.sentence]
    if unsettled.any():
        first = compared.users[int(np.argmax(unsettled))]
        remarks.append(
            f"the factors of {int(unsettled.sum())} of {len(users.change)} users have not settled, the first one is "
            f"user {first}: check their comparisons for contradictions"
        )
    if left := len(every.order) - len(compared.order):
        remarks.append(
            f"{left} of {len(every.order)} comparisons are left out, as a user has no more than "
            f"max_pairs={settings['max_pairs']}"
        )
    if none := form.n_users - len(compared.users):
        remarks.append(f"{none} of {form.n_users} users have no comparison, and keep their prior")
    if not stored:
        remarks.append(
            f"moments of {form.form.utilities!r} are left out, which are {numbers} numbers; rank_items, log_predictive "
            f"and next_pairs compute what they need"
        )
    if found.state.theta.size:
        remarks.append("the hyperparameters are at their mode, without a spread")
    if spread:
        remarks.append(spread)
    return Solution(
        moments=moments | of_hyper,
        hyper_modes=form.constrained(found.state.theta),
        scalars={"log_evidence": found.state.totals.log_z, "n_iter": found.state.loop},
        traces={"objective": ("iteration", found.objective), "max_change": ("iteration", found.change)},
        sites={form.form.comparisons.name: own},
        state=state | form.fingerprint(),
        draws=posterior.draws,
        numbers_per_draw=int(np.prod(form.shape)) + found.state.theta.size,
        most_draws=form.most_draws,
        status="; ".join(remarks),
        converged=found.status.converged and not unsettled.any(),
        settings=settings,
        log_evidence_is=f"{approximation.evidence}, at the hyperparameters of the result",
        objective_is="log evidence + log prior",
        max_change_is="rise of the objective, a comparison",
    )


def _saved(compared: ComparedUsers, users: UserFactors, n_pairs: int) -> dict[str, np.ndarray]:
    """Return the factors in the order in which comparisons were given; comparisons that are left out have none."""
    shift, precision = np.zeros((2, n_pairs))
    shift[compared.order], precision[compared.order] = users.sites
    return {"shift": shift, "precision": precision}


def rebuild(form: CompiledPreferences, state: Mapping[str, np.ndarray]) -> PreferencePosterior:
    """Return the posterior that a saved ``fit_state`` describes."""
    compared = form.compared()
    sites = Sites(state["shift"][compared.order], state["precision"][compared.order])
    none = np.zeros(len(compared.users))
    return PreferencePosterior(form, state["theta"], compared, UserFactors(sites, state["weights"], none, none))


PREFERENCE_EP = Method("ep", Preferences, solve, rebuild, OPTIONS, ("optimize", "fixed"))
"""Gaussian posterior of each user's utilities, by expectation propagation."""
