"""Integration over hyperparameters that are a few numbers, such as scales, by a lattice of fits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.special import logsumexp

from pymc_ep.engines.base import Report, Status
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.interrupt import INTERRUPTS, reached
from pymc_ep.engines.preferences.divided import DividedUsers
from pymc_ep.engines.preferences.evidence import ComparisonEvidence, State
from pymc_ep.engines.preferences.kernels import Curvature, Kernel
from pymc_ep.engines.preferences.users import UserFactors
from pymc_ep.engines.preferences.values import UtilityPrior
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.forms.preferences.compiled import CompiledPreferences
from pymc_ep.forms.preferences.posterior_mixture import Design
from pymc_ep.hyper.integration.frame import first_frame
from pymc_ep.hyper.integration.lattice import Lattice, lattice
from pymc_ep.kernels.comparisons import Comparisons
from pymc_ep.results import STORED_NUMBERS

__all__ = [
    "MOST_DIMENSIONS",
    "HyperDensity",
    "Integral",
    "carried_over",
    "dear",
    "integrated",
    "treatment",
    "why_not_integrable",
]

_STEPS = {1: 0.75, 2: 1.25, 3: 1.25}
"""Distance of nodes by the number of hyperparameters, in standard deviations at the mode."""
MOST_DIMENSIONS = max(_STEPS)
"""Most hyperparameters that are integrated over."""
_FALL = 6.0
"""Fall of the log density at which the lattice ends, in nats: 3.5 standard deviations of a Gaussian. Finer and wider
lattices change log evidence and standard deviations of 3 to 10 people by less than 0.012, and that of a third scale,
of which they hardly tell anything, by 0.04."""
_TOL = 1e-5
"""Tolerance of fits at nodes, in posterior standard deviations: the evidence of fits to 1e-8 is the same to 1e-4 nats,
after twice as many updates."""
_REACH, _FARTHEST = 40.0, 20.0
"""Largest distances from the mode, in standard deviations there, and of a logarithm or logit from its start, a factor
of 5e8: a density that has not fallen is taken for improper."""
_MOST_FITS = 2000
"""Most fits of a lattice."""
_NEGLIGIBLE = 2e-3
"""Share of all nodes that are dropped together."""
_FITS = {1: 20, 2: 50, 3: 240}
"""Fits that a lattice takes by the number of hyperparameters."""
_OPERATIONS, _UPDATES = 2e10, 20.0
"""Floating-point operations of all fits that are made by default, half a minute on one core; and updates of a user in a
fit. Where there are more comparisons than that, the spread of a few scales seldom matters."""


_Made = TypeVar("_Made")
"""What is kept of a fit."""


class Integral(NamedTuple):
    """Fits at the nodes of a lattice of hyperparameters.

    Attributes
    ----------
    thetas : ndarray, (k, p)
    shares : ndarray, (k,)
        Weights of the nodes, which add up to one.
    steps : ndarray, (p, p)
        Edges of a cell.
    users : list of UserFactors
    log_density : ndarray, (k,)
        Log evidence plus log prior on the unconstrained scale.
    log_evidence : float
    evidence_is : str
        Treatment of the hyperparameters in it.
    unsettled : ndarray of bool, (U,)
        Users whose factors have not settled at some node.
    fits : int
    """

    thetas: np.ndarray
    shares: np.ndarray
    steps: np.ndarray
    users: list[UserFactors]
    log_density: np.ndarray
    log_evidence: float
    evidence_is: str
    unsettled: np.ndarray
    fits: int


class HyperDensity:
    """The form with the density of the unconstrained hyperparameters as their prior; see `PreferenceProblem`."""

    def __init__(self, form: CompiledPreferences):
        self.form = form

    def prior(self, theta: np.ndarray) -> tuple[UtilityPrior, Kernel]:
        """Return the prior of utilities; raise a NumericalError beyond the largest distance from the start."""
        if np.any(self.form.transformed & (np.abs(theta - self.form.start) > _FARTHEST)):
            raise NumericalError("Hyperparameters are too far from their start to be searched there.")
        return self.form.prior(theta)

    def log_prior(self, theta: np.ndarray) -> float:
        """Return the log density of theta."""
        return self.form.log_prior(theta, jacobian=True)

    def gradient(self, theta: np.ndarray, slope: np.ndarray, curvature: Curvature) -> np.ndarray:
        """Return the gradient in theta, (p,)."""
        return self.form.gradient(theta, slope, curvature, jacobian=True)

    def theta_of(self, theta: np.ndarray, prior: UtilityPrior) -> np.ndarray:
        """Return theta with the parameters of the prior set to given ones."""
        return self.form.theta_of(theta, prior)


def integrated(
    form: CompiledPreferences,
    evidence: ComparisonEvidence,
    mode: State,
    users: DividedUsers,
    report: Report,
    checkpoint: Checkpoint,
) -> tuple[Integral | None, Status]:
    """Integrate over the hyperparameters, from their mode on the unconstrained scale.

    Returns
    -------
    Integral or None
        None where the density does not fall, or fits fail near the mode, or after an interruption.
    Status
    """
    problem, first, fits = HyperDensity(form), users.collect(mode.users), 0
    evidence = evidence.to_tolerance(max(evidence.effort.tol, _TOL))
    report.phase("integrating over the hyperparameters")

    def made(
        what: str, theta: np.ndarray, start: UserFactors, like: _Made, make: Callable[[State], _Made]
    ) -> _Made | None:
        """Return what is made of the fit at theta from given factors, or was before; None without a fit."""
        nonlocal fits
        fits += 1
        report.advance()
        record = checkpoint.record(what, theta, *start.sites, start.log_z)
        if (known := record.state(like)) is not None:
            return known
        try:
            found = evidence.at(problem, theta, users.place(start))
        except (NumericalError, InvalidDataError):
            return None
        if not np.isfinite(found.objective):
            return None
        out = make(found)
        record.keep(lambda: out)
        record.close()
        return out

    def fit(theta: np.ndarray, start: UserFactors) -> tuple[float, UserFactors] | None:
        like = 0.0, start
        return made("node", theta, start, like, lambda found: (found.objective, users.collect(found.users)))

    def density(theta: np.ndarray) -> tuple[float, np.ndarray] | None:
        like = 0.0, theta
        return made("frame", theta, first, like, lambda found: (found.objective, evidence.gradient(problem, found)))

    try:
        frame, _ = first_frame(density, mode.theta, mode.objective, form.transformed)
        p = mode.theta.size
        found = lattice(
            fit,
            frame,
            (mode.objective, first),
            step=_STEPS[p],
            fall=_FALL,
            reach=_REACH,
            most=_MOST_FITS,
        )
    except INTERRUPTS as stop:
        reached(stop, mode)
        sentence = f"interrupted after {fits} fits: the hyperparameters are at their mode, and not integrated over"
        return None, Status(False, sentence, interrupted=True)
    if len(found.open_ends):
        return None, Status(False, _open_end(form, mode.theta, found))
    return _relevant(found, evidence, fits), Status(True, f"hyperparameters integrated over by {fits} fits")


def carried_over(
    form: CompiledPreferences, evidence: ComparisonEvidence, design: Design, first: UserFactors, users: DividedUsers
) -> Integral:
    """Return fits at the nodes of an earlier integral, whose shares stay those of the comparisons of that fit."""
    found, start = [], first
    for theta in design.thetas:
        state = evidence.at(form, theta, users.place(start))
        start = users.collect(state.users)
        found.append((state.totals.log_z, start))
    log_z = np.array([density for density, _ in found])
    return Integral(
        design.thetas,
        design.shares,
        design.steps,
        [own for _, own in found],
        log_z,
        float(logsumexp(np.log(design.shares) + log_z)),
        "averaged over the hyperparameters of an earlier fit",
        _unsettled([own for _, own in found], evidence),
        len(found),
    )


def _unsettled(users: Sequence[UserFactors], evidence: ComparisonEvidence) -> np.ndarray:
    """Return which users, (U,) bool, have factors that have not settled in one of several fits."""
    return np.max([own.change for own in users], axis=0) > evidence.effort.tol


def _relevant(found: Lattice[UserFactors], evidence: ComparisonEvidence, fits: int) -> Integral:
    """Return a lattice without the nodes of negligible shares."""
    order = np.argsort(found.shares)
    kept = np.sort(order[np.cumsum(found.shares[order]) > _NEGLIGIBLE])
    shares = found.shares[kept]
    return Integral(
        found.thetas[kept],
        shares / shares.sum(),
        found.steps,
        [found.states[k] for k in kept],
        found.log_density[kept],
        found.log_integral,
        "integrated over the prior of the hyperparameters",
        _unsettled([found.states[k] for k in kept], evidence),
        fits,
    )


def _open_end(form: CompiledPreferences, mode: np.ndarray, found: Lattice[UserFactors]) -> str:
    """Return the note of a status on a density that does not fall, or takes too many fits."""
    if len(found.thetas) >= _MOST_FITS:
        return f"the hyperparameters are at their mode, as integrating over them takes more than {_MOST_FITS} fits"
    end = found.open_ends[0]
    far = np.abs(end - mode) / np.sqrt((found.steps**2).sum(axis=0))
    name = form.form.hyper_names[int(np.argmax(far))]
    return (
        f"the density of the hyperparameters has not fallen on the way to {name} = "
        f"{float(form.constrained(end)[name]):.3g}, so that their posterior is improper or as good as that, and they "
        f"are at their mode, not integrated over; give {name!r} a proper prior that is not much wider than needed, "
        f"such as pm.HalfNormal, or hold it by hyper='fixed'"
    )


def why_not_integrable(form: CompiledPreferences, settings: Mapping[str, Any]) -> str:
    """Return the reason why hyperparameters cannot be integrated over; empty where they can."""
    for name, values in zip(form.form.hyper_names, form.unpack(form.start)):
        if values.size > 1:
            return f"is for hyperparameters that are single numbers, and {name!r} has {values.size}"
    if form.start.size > MOST_DIMENSIONS:
        return f"takes up to {MOST_DIMENSIONS} hyperparameters, and the model has {form.start.size}"
    if settings["learn"] != "evidence":
        return f"needs learn='evidence', as learn={settings['learn']!r} has no density of the hyperparameters"
    if settings["held_out"]:
        return f"learns from all comparisons, and held_out={settings['held_out']} leaves some out"
    return ""


def treatment(form: CompiledPreferences, comparisons: Comparisons) -> tuple[str, Status]:
    """Return the treatment for ``hyper="auto"`` where integration is possible: a mode for flat priors and dear fits."""
    p = form.start.size
    if not p or _improper(form):
        return "optimize", Status(True, "")
    numbers = 2 * len(comparisons.firsts) + len(comparisons.items)
    if dear(form, comparisons, p) or _FITS[p] * numbers > STORED_NUMBERS:
        return "optimize", Status(
            True, f"hyperparameters at their mode, as fits of this size are dear: hyper='integrate' makes {_FITS[p]}"
        )
    return "integrate", Status(True, "")


def dear(form: CompiledPreferences, comparisons: Comparisons, p: int) -> bool:
    """Return whether the fits of a lattice over p hyperparameters take more than `_OPERATIONS`."""
    work = _UPDATES * (np.diff(comparisons.item_ends).astype(float) ** 3).sum() + float(form.n_items) ** 2
    return bool(_FITS[p] * work > _OPERATIONS)


def _improper(form: CompiledPreferences) -> bool:
    """Return whether the prior of a hyperparameter does not fall far out: it is flat, and meant for a single value."""
    for axis in np.eye(form.start.size):
        for way in (-1.0, 1.0):
            near, far = (
                form.log_prior(form.start + way * distance * axis, jacobian=True) for distance in (10.0, _FARTHEST)
            )
            if far > near - 1e-3:
                return True
    return False
