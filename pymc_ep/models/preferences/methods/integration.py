"""Integration over scalar hyperparameters, such as scales: by a lattice of fits, or by an emulator."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_ep.contracts.evidence import DesignPoint
from pymc_ep.engines.base import Status
from pymc_ep.engines.interrupt import INTERRUPTS, reached
from pymc_ep.evidence import fit_many, integrate
from pymc_ep.evidence.budget import MOST_DIMENSIONS
from pymc_ep.evidence.integration.explore import Explorer
from pymc_ep.evidence.integration.frame import first_frame
from pymc_ep.evidence.integration.lattice import Lattice, lattice
from pymc_ep.evidence.lbfgs_search import Objective, search
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.users import UserFactors
from pymc_ep.models.preferences.evidence import PreferenceEvidence, PreferenceFit
from pymc_ep.models.preferences.kernel import Comparisons
from pymc_ep.models.preferences.methods.search import Found
from pymc_ep.models.preferences.posterior_mixture import Design
from pymc_ep.numerics.interpolation.stratified_draws import stratified
from pymc_ep.results import STORED_NUMBERS

__all__ = [
    "MOST_DIMENSIONS",
    "TOL",
    "Integral",
    "at_draws",
    "carried_over",
    "dear",
    "integrated",
    "treatment",
    "usual_fits",
    "why_no_density",
    "why_not_integrable",
]

_STEPS = {1: 0.75, 2: 1.25, 3: 1.25}
"""Distance of a lattice's nodes, in standard deviations at the mode, by the number of hyperparameters. For one, two and
three of these a lattice takes 11 to 17, 35 to 53 and 146 to 263 fits. An emulator takes more: 25 to 35, 57 to 66 and 77
to 154 fits, 200 more at `_REPRESENTATIVES`, and ten seconds of its own. For four hyperparameters a lattice would take a
thousand fits."""
_FALL = 6.0
"""Fall of the log density at which the lattice ends, in nats: 3.5 standard deviations of a Gaussian. Finer and wider
lattices change log evidence and standard deviations by less than 0.012 for data of 3 to 10 people, and the standard
deviation of a third scale, which these data hardly determine, by 0.04."""
TOL = 1e-5
"""Tolerance of the fits of an integration, in posterior standard deviations: with 1e-8 the evidence is the same to 1e-4
nats, after twice as many updates."""
_GAIN = 1e-3
"""Least gain of an iteration of the search for the centre of a lattice, in nats."""
_REACH, _FARTHEST = 40.0, 20.0
"""Largest distance of a node from the mode, in standard deviations at the mode, and of the logarithm or logit of a
hyperparameter from its start, a factor of 5e8. A density that has not fallen by then counts as improper."""
_MOST_FITS = 2000
"""Largest number of fits of a lattice."""
_NEGLIGIBLE = 2e-3
"""Total share of the nodes that are dropped, the ones with the smallest shares."""
_REPRESENTATIVES = 200
"""Number of draws of the emulator at which fits are made; these fits make up the posterior. Compared with fits at 1000
draws, utilities of 3 people under 4 scales have means within 0.03 standard deviations and standard deviations within
4%. Two alternatives are worse. Without further fits, the fits that the emulator has learnt from are weighted by the
share of draws nearest to each, and standard deviations are off by 13%. With 100 fits and ten draws of the scales for
each, scale and size of utilities have a correlation of 0.71, not 0.85."""
_FITS, _FITS_EACH = {1: 20, 2: 50, 3: 240}, 30
"""Expected number of fits of a lattice, by the number of hyperparameters, and of an emulator, for each hyperparameter.
Emulators took 112 to 163 fits for four hyperparameters and 168 for six."""
_OPERATIONS = 2e10
"""Largest number of floating-point operations, over all fits, of an integration by default: half a minute on one core.
Where there are so many comparisons that it would take more, the uncertainty of a few scales seldom matters."""


class Integral(NamedTuple):
    """Fits that represent the posterior of the hyperparameters.

    Attributes
    ----------
    design : Design
        Nodes and their shares; the fields for factors are empty.
    users : list of UserFactors
        Factors of all users at each node.
    log_density : ndarray, (k,)
        Log evidence plus log prior at each node, on the unconstrained scale.
    log_evidence : float
        Log evidence of the model; NaN where it is not known.
    evidence_is : str
        How `log_evidence` treats the hyperparameters, in words.
    unsettled : ndarray of bool, (U,)
        Users whose factors have not settled at some node.
    fits : int
        Number of fits that were made, nodes or not.
    """

    design: Design
    users: list[UserFactors]
    log_density: np.ndarray
    log_evidence: float
    evidence_is: str
    unsettled: np.ndarray
    fits: int

    @classmethod
    def of(
        cls,
        evidence: PreferenceEvidence,
        design: Design,
        fits: Sequence[PreferenceFit],
        log_evidence: float = np.nan,
        evidence_is: str = "integrated over the prior of the hyperparameters",
        *,
        count: int | None = None,
    ) -> "Integral":
        """Return the integral for nodes with a fit at each; `count` fits were made, by default one a node."""
        users = [fit.users for fit in fits]
        unsettled = np.max([factors.change for factors in users], axis=0) > evidence.engine.effort.tol
        density = np.array([fit.value for fit in fits])
        return cls(design, users, density, log_evidence, evidence_is, unsettled, count or len(fits))


def integrated(evidence: PreferenceEvidence, begun: Found) -> tuple[Found, Integral | None]:
    """Integrate over the hyperparameters by their density on the unconstrained scale.

    Returns
    -------
    Found
        Mode of the density, with the status of the integration.
    Integral or None
        None where the density does not fall, or fits fail near the mode, or after an interruption.
    """
    if begun.theta.size > max(_STEPS):
        return _by_emulator(evidence, begun)
    return _by_lattice(evidence, begun)


def _by_lattice(evidence: PreferenceEvidence, begun: Found) -> tuple[Found, Integral | None]:
    form, explorer = evidence.form, Explorer(evidence)
    objective = Objective(evidence, begun.users.sites, gain=_GAIN)

    def fit(theta: np.ndarray, near: DesignPoint) -> tuple[float, DesignPoint] | None:
        far = np.any(form.transformed & (np.abs(theta - form.start) > _FARTHEST))
        return None if far else explorer.node(theta, near)

    try:
        # A density without a mode ends the search on a slope; the lattice finds the side on which it does not fall.
        search(objective, begun.theta)
        at = objective.at
        first = explorer.record(at, at.gradient)
        evidence.report.phase("integrating over the hyperparameters")
        frame, _ = first_frame(explorer.density, at.theta, at.value, form.transformed)
        step = _STEPS[at.theta.size]
        grid = lattice(fit, frame, (at.value, first), step=step, fall=_FALL, reach=_REACH, most=_MOST_FITS)
    except INTERRUPTS as stop:
        at = reached(stop, objective.best or objective.latest)
        fits = explorer.evaluations - 1 if explorer.points else objective.evaluations
        return _mode(evidence, at, objective.trace, _interrupted(fits)), None
    fits = explorer.evaluations - 1
    if len(grid.open_ends):
        return _mode(evidence, at, objective.trace, Status(False, _open_end(form, at.theta, grid))), None
    status = Status(True, f"hyperparameters integrated over by {fits} fits")
    return _mode(evidence, at, objective.trace, status), _relevant(evidence, grid, fits)


def _interrupted(fits: int) -> Status:
    sentence = f"interrupted after {fits} fits: the hyperparameters are at their mode, and not integrated over"
    return Status(False, sentence, interrupted=True)


def _mode(
    evidence: PreferenceEvidence, at: PreferenceFit, trace: Sequence[float] | np.ndarray, status: Status
) -> Found:
    """Return a fit at the mode of the density as the result of a search; `trace` has the objective's history."""
    history = np.array(trace)
    change = np.diff(history, prepend=-np.inf) / evidence.engine.n_pairs
    return Found(at.users, at.theta, len(history), status, history, change)


def _relevant(evidence: PreferenceEvidence, grid: Lattice[DesignPoint], fits: int) -> Integral:
    """Return a lattice without the nodes of negligible shares."""
    order = np.argsort(grid.shares)
    # In ascending order: the nodes left out have shares that add up to `_NEGLIGIBLE` at most.
    kept = np.sort(order[np.cumsum(grid.shares[order]) > _NEGLIGIBLE])
    shares = grid.shares[kept]
    design = Design(grid.thetas[kept], shares / shares.sum(), grid.steps)
    return Integral.of(evidence, design, [grid.states[k].kept for k in kept], grid.log_integral, count=fits)


def _by_emulator(evidence: PreferenceEvidence, begun: Found) -> tuple[Found, Integral | None]:
    emulation = integrate(evidence, begun.theta, begun.users.sites)
    status = (
        _interrupted(emulation.evaluations)
        if emulation.mode.interrupted
        else Status(emulation.converged, emulation.sentence)
    )
    mode = _mode(evidence, emulation.mode.at, emulation.mode.trace, status)
    if emulation.mode.interrupted or not len(emulation.draws):
        return mode, None
    even, size = np.ones(len(emulation.draws)), min(_REPRESENTATIVES, len(emulation.draws))
    rows, counts = np.unique(
        stratified(emulation.draws / emulation.draws.std(axis=0), even, size, np.random.default_rng(0)),
        return_counts=True,
    )
    _, integral, added = at_draws(evidence, emulation.draws[rows], counts)
    sentence = f"{emulation.sentence}; {added.sentence}"
    status = Status(emulation.converged and added.converged, sentence, added.interrupted)
    integral = integral._replace(log_evidence=emulation.log_evidence, fits=integral.fits + emulation.evaluations)
    return mode._replace(status=status), integral


def at_draws(
    evidence: PreferenceEvidence, draws: np.ndarray, counts: np.ndarray
) -> tuple[PreferenceFit, Integral, Status]:
    """Fit at k draws of the hyperparameters, (k, p), the weights of which are proportional to `counts`, (k,).

    Returns
    -------
    PreferenceFit
        The fit nearest to the mean of the draws.
    Integral
        Integral over the draws; its log evidence is NaN.
    Status
        Not converged where an interruption has left draws without fits of their own.
    """
    fits = fit_many(evidence, draws)
    left = f"interrupted: {fits.unfitted} of them have the factors of a near one" if fits.unfitted else ""
    sentence = "; ".join(filter(None, [f"utilities by fits at {len(draws)} draws of the hyperparameters", left]))
    integral = Integral.of(evidence, Design(draws, counts / counts.sum()), fits.kept)
    return fits.centre, integral, Status(not left, sentence, interrupted=bool(left))


def carried_over(evidence: PreferenceEvidence, design: Design, first: UserFactors) -> Integral:
    """Return an integral over the nodes and shares of an earlier fit, with new fits of the present comparisons."""
    fits: list[PreferenceFit] = []
    for theta in design.thetas:
        fits.append(evidence.at(theta, fits[-1].state if fits else first.sites))
    log_z = np.array([fit.log_z for fit in fits])
    # log sum_k w_k Z(theta_k).
    log_evidence = float(logsumexp(np.log(design.shares) + log_z))
    return Integral.of(evidence, design, fits, log_evidence, "averaged over the hyperparameters of an earlier fit")


def _open_end(form: CompiledPreferences, mode: np.ndarray, grid: Lattice[DesignPoint]) -> str:
    """Return the sentence of a status for a density that does not fall, or a lattice of too many fits."""
    if len(grid.thetas) >= _MOST_FITS:
        return f"the hyperparameters are at their mode, as integrating over them takes more than {_MOST_FITS} fits"
    end = grid.open_ends[0]
    far = np.abs(end - mode) / np.sqrt((grid.steps**2).sum(axis=0))
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
    return why_no_density(settings)


def why_no_density(settings: Mapping[str, Any]) -> str:
    """Return the reason why options leave no density of the hyperparameters; empty where there is one."""
    if settings["learn"] != "evidence":
        return f"needs learn='evidence', as learn={settings['learn']!r} has no density of the hyperparameters"
    if settings["held_out"]:
        return f"learns from all comparisons, and held_out={settings['held_out']} leaves some out"
    return ""


def treatment(form: CompiledPreferences, comparisons: Comparisons) -> tuple[str, Status]:
    """Return the treatment for ``hyper="auto"`` where integration is possible, and a status with the reason.

    The treatment is "optimize" if there are no hyperparameters, a prior is flat, or fits would be too costly or results
    too large; else it is "integrate".
    """
    p = form.start.size
    if not p or _improper(form):
        return "optimize", Status(True, "")
    fits, numbers = usual_fits(p), 2 * len(comparisons.firsts) + len(comparisons.items)
    if dear(form, comparisons, p) or fits * numbers > STORED_NUMBERS:
        return "optimize", Status(
            True, f"hyperparameters at their mode, as fits of this size are dear: hyper='integrate' makes {fits}"
        )
    return "integrate", Status(True, "")


def dear(form: CompiledPreferences, comparisons: Comparisons, p: int) -> bool:
    """Return whether integration over p hyperparameters takes more floating-point operations than `_OPERATIONS`."""
    return bool(usual_fits(p) * form.operations_of(comparisons) > _OPERATIONS)


def usual_fits(p: int) -> int:
    """Return the expected number of fits of an integration over p hyperparameters."""
    return _FITS.get(p, _REPRESENTATIVES + _FITS_EACH * p)


def _improper(form: CompiledPreferences) -> bool:
    """Return whether some hyperparameter's log prior does not fall from a distance of 10 from its start to `_FARTHEST`.

    Distances are on the unconstrained scale. A model with a flat prior is meant for a mode.
    """
    for axis in np.eye(form.start.size):
        for way in (-1.0, 1.0):
            near, far = form.rows.log_prior_gradients(form.start + way * np.outer([10.0, _FARTHEST], axis))[0]
            if far > near - 1e-3:
                return True
    return False
