"""Expectation propagation on preferences: options, fit, warnings."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.loop import Run, run
from pymc_ep.engines.options import check_positive, check_whole
from pymc_ep.engines.partitions import LocalPartitions
from pymc_ep.engines.preferences.em import PreferenceEM
from pymc_ep.engines.preferences.evidence import ComparisonEvidence, State, maximise
from pymc_ep.engines.preferences.expectation import Sites
from pymc_ep.engines.preferences.users import Effort, ObservedComparisons, UserFactors
from pymc_ep.engines.preferences.values import ComparedUsers
from pymc_ep.engines.recorded import RecordedEngine
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.preferences.compiled import CompiledPreferences
from pymc_ep.forms.preferences.form import Preferences
from pymc_ep.forms.preferences.posterior import PreferencePosterior
from pymc_ep.results import STORED_NUMBERS

__all__ = ["OPTIONS", "PREFERENCE_EP", "rebuild", "solve"]

OPTIONS = {
    "learn": "evidence",
    "held_out": "auto",
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
_CHECKPOINT = "comparisons of the checkpoint"
"""Entry of checkpoints that identifies the comparisons."""
_EVIDENCE = "log evidence of the comparisons by expectation propagation, at the hyperparameters of the result"
"""Description of the log evidence in the result."""


def solve(call: Call[CompiledPreferences]) -> Solution:
    """Fit a form of preferences.

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
    compared, digest = form.compared(), form.fingerprint()["comparisons"]
    if not np.array_equal((call.start or {}).get(_CHECKPOINT, digest), digest):
        raise ValueError("checkpoint= is of a fit of other comparisons; name another file, or remove it.")
    users, theta = _first_factors(call, compared, digest), call.theta
    status, loop = Status(True, "the factors of all users have settled"), 0
    objective = change = np.zeros(0)
    if call.hyper == "optimize" and theta.size:
        held = _held_out(form, compared, settings)
        # Comparisons that are held out have no factors.
        first = users._replace(sites=Sites(*(np.where(held, 0.0, part) for part in users.sites)))
        evidence = _evidence(form, compared, settings, 1.0 - held)
        start = evidence.at(form, _started(form, theta, settings["seed"]), evidence.parts.place([first]))
        found = _learned(call, evidence, settings, start, compared, digest)
        status, objective, change, theta = found.status, found.objective, found.change, found.state.chosen.theta
        loop = found.state.chosen.loop
        (users,) = evidence.parts.collect(found.state.chosen.users)
    evidence = _evidence(form, compared, settings, np.ones(len(compared.order)))
    last = evidence.at(form, theta, evidence.parts.place([users]))._replace(loop=loop)
    run = Run(last, status, np.append(objective, last.objective), np.append(change, 0.0))
    return _solution(form, run, settings, compared, evidence.parts.collect(last.users)[0])


def _evidence(
    form: CompiledPreferences, compared: ComparedUsers, settings: dict[str, Any], observed: np.ndarray
) -> ComparisonEvidence:
    """Return the evidence of comparisons, of which those with zero in `observed`, (P,), are held out."""
    parts = LocalPartitions([ObservedComparisons(compared.comparisons, observed)])
    effort = Effort(settings["tol"], _MOST_UPDATES)
    site, sizes = form.form.comparisons.site, (len(compared.users), int(observed.sum()))
    return ComparisonEvidence(parts, *sizes, site, effort, holds_out=not observed.all())


def _learned(
    call: Call[CompiledPreferences],
    evidence: ComparisonEvidence,
    settings: dict[str, Any],
    start: State,
    compared: ComparedUsers,
    digest: np.ndarray,
) -> Run[State]:
    """Return the search for hyperparameters, which saves its states at intervals."""
    form, limit = call.form, settings["max_iter"]

    def arrays(state: State) -> dict[str, np.ndarray]:
        (users,) = evidence.parts.collect(state.users)
        return {"theta": state.theta, _CHECKPOINT: digest} | _saved(compared, users)

    def save(state: State) -> None:
        if call.checkpoint.due:
            call.checkpoint.save(last=True, **arrays(state))

    if settings["learn"] == "evidence":
        tol = settings["evidence_tol"]
        found = maximise(evidence, form, start, tol=tol, max_iter=limit, report=call.report, save=save)
        call.checkpoint.save(last=True, **arrays(found.state.chosen))
        return found
    if (learned := form.learned) is None:
        raise UnsupportedModelError(
            f"learn='em' updates b, V and sigma of {form.form.utilities!r} in closed form, which needs each of them to "
            f"be pm.Flat (pm.HalfFlat) or a constant, V not to be constant beside a learned sigma, and a kernel "
            f"without hyperparameters; leave out learn=."
        )
    engine = RecordedEngine(PreferenceEM(evidence, learned, tol=settings["evidence_tol"]), call.checkpoint, arrays)
    found = run(engine, form, start, max_iter=limit + 1, report=call.report)
    engine.save(found.state.chosen, last=True)
    return found


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
    check_whole("max_iter", options["max_iter"])
    check_whole("seed", options["seed"], least=0)
    return options


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
    form: CompiledPreferences, found: Run[State], settings: dict[str, Any], compared: ComparedUsers, users: UserFactors
) -> Solution:
    """Return the solution."""
    own = _saved(compared, users)
    state = {"theta": found.state.theta, "weights": users.weights} | own
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
    if none := form.n_users - len(compared.users):
        remarks.append(f"{none} of {form.n_users} users have no comparison, and keep their prior")
    if not stored:
        remarks.append(
            f"moments of {form.form.utilities!r} are left out, which are {numbers} numbers; rank_items, log_predictive "
            f"and next_pairs compute what they need"
        )
    if found.state.theta.size:
        remarks.append("the hyperparameters are at their mode, without a spread")
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
        log_evidence_is=_EVIDENCE,
        objective_is="log evidence + log prior",
        max_change_is="rise of the objective, a comparison",
    )


def _saved(compared: ComparedUsers, users: UserFactors) -> dict[str, np.ndarray]:
    """Return the factors in the order in which comparisons were given."""
    shift, precision = (np.empty_like(part) for part in users.sites)
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
