"""The double loop and the posterior mode on sparse linear models from end to end: options, hyperparameters, result."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.contracts.method import Call
from pymc_ep.engines.base import Report, Status
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.double_loop.bounded_sites import BoundedSites
from pymc_ep.engines.double_loop.inner_loop import INNER
from pymc_ep.engines.double_loop.outer_loop import DoubleLoop, Start, State
from pymc_ep.engines.double_loop.precision_solvers import Exact, Iterative, PrecisionSolver
from pymc_ep.engines.double_loop.tree_start import fitted_start
from pymc_ep.engines.double_loop.tree_states import has_trees, require_two_states, state_warnings
from pymc_ep.engines.ep.sweep import group_slices
from pymc_ep.engines.loop import run
from pymc_ep.engines.options import check_whole
from pymc_ep.engines.recorded import RecordedEngine
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.forms.sparse_linear.posterior_average import averaged_evidence, averaged_status, translations_of

__all__ = ["MODE_OPTIONS", "OPTIONS", "BoundFit", "find_mode", "solve_by_bounds"]

OPTIONS = {
    "variance": "auto",
    "n_samples": 30,
    "lanczos_steps": 100,
    "outer": 50,
    "tol": None,
    "inner": "irls",
    "inner_max_iter": 50,
    "cg_tol": 1e-4,
    "cg_max_iter": 1000,
    "seed": 0,
    "translations": 1,
}
"""Options of the double loop and their defaults; ``tol=None`` is 1e-4 with exact variances and 1e-3 with others."""
MODE_OPTIONS = {
    "smoothing": 1e-8,
    "outer": 50,
    "tol": 1e-4,
    "inner": "irls",
    "inner_max_iter": 1000,
    "cg_tol": 1e-4,
    "cg_max_iter": 1000,
}
"""Options of the posterior mode and their defaults."""

_VARIANCES = ("auto", "exact", "perturb-and-map", "lanczos")
_TOL_EXACT, _TOL_ESTIMATED = 1e-4, 1e-3
"""Change at which the outer loop stops. The error of estimated variances is a hundred times as large."""
_MODE_TOL = 1e-8
"""Decrease of the objective at which an inner loop towards a mode ends: flat pieces are then flat to the smoothing."""
_AFFORDABLE = 2e10
"""Operations of one factor, some seconds, up to which variances are exact unless something else is asked for."""
_SAVED = ("theta", "unknowns", "variance", "shift", "precision")
_LEAST = dict.fromkeys(("n_samples", "lanczos_steps", "outer", "inner_max_iter", "cg_max_iter", "translations"), 1)
_LEAST["seed"] = 0
"""Options that are whole numbers, and the least that each may be."""
_POSITIVE = ("tol", "cg_tol", "smoothing")


class BoundFit(NamedTuple):
    """What the double loop found.

    Attributes
    ----------
    state : State
        At its end.
    observed : tuple of ndarray
        What it was fitted to, ravelled, for each group.
    objective, change : ndarray, (iterations,)
    thetas : ndarray, (iterations, p)
        Unconstrained hyperparameters.
    status : Status
    log_evidence : float, optional
        Lower bound on the log density of the data, without the hyperparameters' prior; None where it is not known.
    scalars : dict
        Further numbers for the result.
    settings : dict
        Options in force.
    translated : tuple of BoundFit
        The same on translated grids, at the same hyperparameters.
    """

    state: State
    observed: tuple[np.ndarray, ...]
    objective: np.ndarray
    change: np.ndarray
    thetas: np.ndarray
    status: Status
    log_evidence: float | None
    scalars: dict[str, float]
    settings: dict[str, Any]
    translated: tuple["BoundFit", ...] = ()


def solve_by_bounds(call: Call) -> BoundFit:
    """Fit a sparse linear form by the double loop.

    Raises
    ------
    UnsupportedModelError
        Where no Gaussians below a site are known.
    InvalidDataError
        For observations outside their domain, and where the factors leave unknowns undetermined.
    NumericalError
        Where a bound is not finite, as where a scale ran to zero and leaves no precision that can be factored.
    """
    form, theta = call.form, call.theta
    given = OPTIONS | call.options
    if given["tol"] is None:
        del given["tol"]
    settings = _checked(given)
    learn = call.hyper == "optimize" and theta.size > 0
    if learn and settings["variance"] == "lanczos":
        raise ValueError(
            "variance='lanczos' finds variances that are too small, with which scales run to zero; use "
            "variance='perturb-and-map' or 'exact', or hyper='fixed'."
        )
    solver = _solver(form, settings, truncate=_has_maxima(form))
    settings.setdefault("tol", _TOL_EXACT if solver.exact else _TOL_ESTIMATED)
    settings["variance"] = "exact" if solver.exact else settings["variance"]
    sites = BoundedSites(form)
    require_two_states(sites, theta, learn=learn)
    begin = _start(form, sites, solver, theta, call.start, learn=learn)
    fit = _run(form, sites, solver, begin, settings, call.report, call.checkpoint, learn=learn)
    if settings["translations"] > 1 and not fit.status.interrupted:
        fit = _averaged(form, fit, call.report)
    told = state_warnings(sites, fit.state.theta) if learn else ""
    if not solver.exact:
        told += f"; variances by {settings['variance']}"
        if settings["variance"] == "perturb-and-map":
            told += f", with a relative standard error of {fit.state.error:.2g}; raise n_samples to lower it"
        fit = fit._replace(scalars=fit.scalars | {"variance_error": fit.state.error})
    return fit._replace(status=fit.status._replace(sentence=fit.status.sentence + told))


def find_mode(call: Call) -> BoundFit:
    """Find the mode of the posterior density of a sparse linear form; it has no evidence and no variances.

    To the square of each predictor's distance from a site's centre, where it may have a kink, is added ``smoothing``
    times the variance of the site alone: a Laplace potential of scale b is rounded over 1e-4 b. That begins at this
    variance itself, or that of the start, and becomes less with each outer loop (graduated non-convexity; Blake and
    Zisserman 1987).

    Raises
    ------
    ValueError
        Where there are hyperparameters to optimise: densities of scale and unknowns together have their maximum where
        scales are zero.
    """
    form, theta = call.form, call.theta
    settings = _checked(MODE_OPTIONS | call.options)
    if call.hyper == "optimize" and theta.size:
        raise ValueError(
            "method='map' holds hyperparameters, as the joint density of these and the unknowns is largest at the "
            "edge, such as where scales are zero: pass hyper='fixed', with start={...} for other values than the "
            "model's initial point, or the fit of a method that learns them, such as start=pymc_ep.fit('dsb')."
        )
    solver = _solver(form, settings | {"variance": "auto"}, truncate=True)
    sites = BoundedSites(form)
    require_two_states(sites, theta, learn=False)
    begin = _start(form, sites, solver, theta, call.start, learn=False)
    choices = {"smoothing": settings["smoothing"], "inner_tol": _MODE_TOL}
    fit = _run(form, sites, solver, begin, settings, call.report, call.checkpoint, **choices)
    return fit._replace(log_evidence=None)


def _averaged(form: Any, fit: BoundFit, report: Report | None) -> BoundFit:
    """Return a fit together with the same on translated grids, all at its hyperparameters."""
    count, others = fit.settings["translations"], []
    begin = Start(fit.state.theta, fit.state.unknowns, _by_level(form, fit))
    for moved in translations_of(form, count):
        solver, sites = _solver(moved, dict(fit.settings), truncate=_has_maxima(moved)), BoundedSites(moved)
        others.append(_run(moved, sites, solver, begin, fit.settings, report, None))
        if others[-1].status.interrupted:
            return fit._replace(status=Status(False, f"{fit.status.sentence}; interrupted on the translated grids"))
    evidence = fit.log_evidence
    if evidence is not None:
        known = [one.log_evidence for one in (fit, *others) if one.log_evidence is not None]
        evidence = averaged_evidence(known)
    status = averaged_status(fit.status, [other.status for other in others])
    return fit._replace(status=status, log_evidence=evidence, translated=tuple(others))


def _by_level(form: Any, fit: BoundFit) -> np.ndarray:
    """Return the variances of a fit, with their median in place of those of each level that is translated."""
    out = fit.state.variance.copy()
    for known, here in zip(form.form.maps, group_slices(fit.observed)[len(form.form.groups) :]):
        if known is not None and known[1].period is not None:
            part = out[here]
            # Without groups all coefficients are one level.
            groups = np.zeros(len(part)) if known[1].groups is None else known[1].groups
            for level in np.unique(groups):
                part[groups == level] = np.median(part[groups == level])
    return out


def _run(
    form: Any,
    sites: BoundedSites,
    solver: PrecisionSolver,
    begin: Start,
    settings: dict[str, Any],
    report: Report | None,
    checkpoint: Checkpoint | None,
    **choices: Any,
) -> BoundFit:
    loop = DoubleLoop(
        form.linear,
        solver,
        inner=settings["inner"],
        inner_max_iter=settings["inner_max_iter"],
        tol=settings["tol"],
        outer=settings["outer"],
        **choices,
    )
    engine = RecordedEngine(loop, checkpoint, lambda state: {name: getattr(state, name) for name in _SAVED})
    found = run(engine, sites, begin, max_iter=settings["outer"] + 1, report=report)
    engine.save(found.state, last=True)
    return BoundFit(
        found.state,
        sites.observed,
        found.objective,
        found.change,
        np.array(engine.thetas[: len(found.change)]),
        found.status,
        found.state.log_bound if solver.exact else None,
        {"n_iter": found.state.loop},
        settings,
    )


def _start(
    form: Any,
    sites: BoundedSites,
    solver: PrecisionSolver,
    theta: np.ndarray,
    start: Mapping[str, np.ndarray] | None,
    *,
    learn: bool,
) -> Start:
    """Return where an earlier fit ended; else, where coefficients are mixtures, a fit of these to the data."""
    if start is None or "unknowns" not in start:
        return fitted_start(sites, form.linear, solver, theta, learn=learn) if has_trees(form) else Start(theta)
    n, unknowns = sum(y.size for y in form.observed()), form.linear.size
    if len(start["unknowns"]) != unknowns or len(start["variance"]) != n:
        raise ValueError(
            f"start= holds {len(start['unknowns'])} unknowns and {len(start['variance'])} factors, but the model now "
            f"has {unknowns} and {n}; fit without start=, or pass the hyperparameters alone as a dict."
        )
    return Start(theta, start["unknowns"], start["variance"])


def _has_maxima(form: Any) -> bool:
    """Whether values may have several maxima: a site is not log-concave."""
    return not all(site.site.log_concave for site in form.sites)


def _solver(form: Any, settings: dict[str, Any], *, truncate: bool) -> PrecisionSolver:
    """Return the exact solver where it is asked for or can be afforded; see `Iterative` for `truncate`."""
    wanted = settings["variance"]
    if wanted == "exact" or (wanted == "auto" and _affordable(form)):
        return Exact(form.linear)
    if wanted == "auto":
        settings["variance"] = "perturb-and-map"
    names = ("variance", "n_samples", "lanczos_steps", "seed", "cg_tol", "cg_max_iter")
    return Iterative(form.linear, truncate=truncate, **{name: settings[name] for name in names if name in settings})


def _affordable(form: Any) -> bool:
    try:
        return form.linear.algebra.flops <= _AFFORDABLE
    except (InvalidDataError, UnsupportedModelError):
        # It would not fit the memory, or a map has no entries.
        return False


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Raise for options outside their range."""
    for name, kinds in (("variance", _VARIANCES), ("inner", tuple(INNER))):
        if name in options and options[name] not in kinds:
            raise ValueError(f"{name}={options[name]!r} must be one of {', '.join(map(repr, kinds))}.")
    for name, least in _LEAST.items():
        if name in options:
            check_whole(name, options[name], least=least)
    for name in _POSITIVE:
        if name in options and not (isinstance(options[name], int | float) and options[name] > 0):
            raise ValueError(f"{name}={options[name]!r} must be positive.")
    if options["cg_tol"] >= 1:
        raise ValueError(f"cg_tol={options['cg_tol']!r} must be below 1, at which nothing is solved.")
    return options
